//! Growing a volume that is not attached: a header that lists one extent more, and the policy that goes with it.
//!
//! Invariants:
//! 1. No block moves and no number changes its meaning: what stands on the store is a valid volume of either size, and only header and key
//!    slots are written. The trees are brought to their new levels by the next session, in its first merge.
//! 2. The header changes as for a change of the key slots (`key_slots.rs`): one copy is always the one in force, and a session that is alive
//!    is fenced when the anchor moves.
//! 3. The policy follows when the new header is in force. Cut in between, no attach succeeds, since policy and header disagree; growing
//!    again goes on from there, and needs nothing that is not on the store and in the anchor.

use std::sync::Arc;

use futures::FutureExt;
use memory::BLOCK_SIZE;
use seal::slot::Credential;
use store::Store;

use crate::attach::{AttachOptions, Attaching};
use crate::core::Environment;
use crate::create::SavePolicy;
use crate::error::{Error, Kind, Result};
use crate::format::header::Header;
use crate::format::protections::Provision;
use crate::geometry::{Geometry, GrowthError};
use crate::io::{Driven, Io};
use crate::key_slots::Changing;
use crate::mutation::{Mutation, mutated};
use crate::open_header::{COPIES, Opened, open_header, read_pair};
use crate::policy::Policy;
use crate::witness::Looker;

/// Makes the store so many blocks long, if it is one that can be made longer; what then is there counts. Told whether the space must be there.
pub type Enlarge = Box<dyn FnOnce(u64, Provision) -> Result<()>>;

/// What the owner wants.
pub struct Growth {
    /// Logical blocks; `None` for as many as the store fully provisions, on a thin volume for as many as there are.
    pub logical_blocks: Option<u64>,
    /// Called with the blocks that the store should have, when it has fewer.
    pub enlarge: Enlarge,
    /// Stores the new policy durably. Called only if the size changes.
    pub save: SavePolicy,
    /// Go on although the last session did not detach; if it still runs, it is fenced.
    pub force: bool,
}

/// What became of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grown {
    /// The policy from now on.
    pub policy: Policy,
    /// Logical and physical blocks before, also where an earlier growth was only finished.
    pub before: (u64, u64),
    /// Logical and physical blocks now.
    pub now: (u64, u64),
    /// How often it has grown since it was created.
    pub growths: usize,
}

/// Lets a volume that nobody has attached use more of its store. One that was cut short is finished.
///
/// # Errors
/// In the job: as [`attach`](crate::attach) for everything that is checked; [`Kind::Usage`] when the volume would shrink, cannot grow so far
/// or so often, the store is too small, or without `force` when a session may be running; [`Kind::Io`] and [`Kind::Anchor`], and what
/// `save` says: do it again then.
pub fn grow(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    growth: Growth,
    options: AttachOptions,
) -> Result<Driven<Result<Grown>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 64, move |io| {
        let force = growth.force;
        let attaching = Attaching::looking(environment, policy, options, io);
        let growing = Growing { changing: Changing { attaching, force } };
        async move { growing.run(&credential, growth).await }.boxed_local()
    })
}

/// What [`grow`] would make of the volume, once nobody has it attached. The store is made longer for it, and nothing is written. For whoever
/// has the volume attached, and would have to end a session for it.
///
/// # Errors
/// In the job: what `grow` would refuse.
pub fn check_growth(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    logical_blocks: Option<u64>,
    enlarge: Enlarge,
    options: AttachOptions,
) -> Result<Driven<Result<Grown>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 16, move |io| {
        async move {
            let opened = open_header(&io, &environment, &policy, &credential, &options).await?;
            let attaching = Attaching::looking(environment, policy, options, io);
            let growing = Growing { changing: Changing { attaching, force: false } };
            let was = opened.header.geometry;
            let wanted = growing.plan(&opened.header, logical_blocks, enlarge)?;
            Ok(growing.grown(&was, &wanted.unwrap_or(was)))
        }
        .boxed_local()
    })
}

struct Growing {
    changing: Changing,
}

impl Growing {
    async fn run(&self, credential: &Credential, growth: Growth) -> Result<Grown> {
        let opened = self.open(credential).await?;
        self.changing.check_released(opened.stamp.as_ref())?;
        let mut stood = self.changing.attaching.stand(opened, Looker::Growth).await?;
        let was = stood.header.geometry;
        let wanted = self.plan(&stood.header, growth.logical_blocks, growth.enlarge)?;
        let grown = self.grown(&was, &wanted.unwrap_or(was));
        let mut save = (grown.policy != *self.policy()).then_some(growth.save);
        if mutated(Mutation::PolicyBeforeHeader) {
            save.take().map_or(Ok(()), |save| save(&grown.policy))?;
        }
        self.changing.equalize(&mut stood).await?;
        if let Some(geometry) = wanted {
            stood.header.geometry = geometry;
            self.changing.put(&mut stood).await?;
        }
        save.map_or(Ok(()), |save| save(&grown.policy))?;
        Ok(grown)
    }

    fn policy(&self) -> &Policy {
        &self.changing.attaching.policy
    }

    fn store(&self) -> &dyn Store {
        self.changing.attaching.environment.store.as_ref()
    }

    fn grown(&self, was: &Geometry, now: &Geometry) -> Grown {
        Grown {
            policy: Policy { size: now.logical_bytes(), ..self.policy().clone() },
            before: (self.policy().size / BLOCK_SIZE as u64, was.physical_blocks),
            now: (now.logical_blocks, now.physical_blocks),
            growths: now.growths(),
        }
    }

    /// Opens the header by the policy; or, where that has not followed a growth yet, by the policy that would have.
    async fn open(&self, credential: &Credential) -> Result<Opened> {
        let Attaching { environment, io, options, .. } = &self.changing.attaching;
        let refused = match open_header(io, environment, self.policy(), credential, options).await {
            Err(error) if may_be_cut(&error) => error,
            opened => return opened,
        };
        let (sizes, unreadable) = self.larger_sizes(io).await;
        for size in sizes {
            let policy = Policy { size, ..self.policy().clone() };
            // Everything that is checked for an attach is checked here, too.
            match open_header(io, environment, &policy, credential, options).await {
                Err(error) if may_be_cut(&error) => {}
                opened => return opened,
            }
        }
        // The copy that could not be read may be the one of the size that is looked for.
        Err(unreadable.unwrap_or(refused))
    }

    /// The sizes above the policy's that grown headers on the store claim, and why one of the headers could not be read.
    async fn larger_sizes(&self, io: &Io) -> (Vec<u64>, Option<Error>) {
        let (mut sizes, mut unreadable) = (Vec::new(), None);
        for at in COPIES {
            let pair = match read_pair(io, at).await {
                Ok(pair) => pair,
                Err(error) => {
                    unreadable.get_or_insert(error);
                    continue;
                }
            };
            let Ok(header) = Header::decode_as(&pair[..BLOCK_SIZE], self.changing.attaching.options.shape)
            else {
                continue;
            };
            let size = header.geometry.logical_bytes();
            if size > self.policy().size && header.geometry.growths() > 0 {
                sizes.push(size);
            }
        }
        sizes.dedup();
        (sizes, unreadable)
    }

    /// The geometry that is wanted; `None` if it is the one that there is. The store is made longer only for what can be.
    fn plan(&self, header: &Header, asked: Option<u64>, enlarge: Enlarge) -> Result<Option<Geometry>> {
        let (has, store) = (&header.geometry, self.store());
        let whole = || {
            let blocks = store.blocks().min(has.most_physical()).max(has.physical_blocks);
            // A few blocks at the end of a store are left alone.
            let useless = has.grown(has.logical_blocks, blocks) == Err(GrowthError::TooLittle);
            if useless { has.physical_blocks } else { blocks }
        };
        match (asked, header.provision) {
            (Some(logical), Provision::Full) => {
                let physical = has.physical_to_grow(logical).map_err(refused)?;
                self.make_room(change(has, logical, physical)?, enlarge)
            }
            (Some(logical), Provision::Thin) => {
                change(has, logical, has.physical_blocks)?;
                // As much as full provisioning would have, where that can be had for asking. A thin volume does with less.
                let ideal = has.physical_to_grow(logical).unwrap_or(0);
                if store.blocks() < ideal
                    && let Ok(most) = change(has, logical, ideal)
                {
                    // What is refused even so is refused before the store is longer.
                    self.check_promise(most, has)?;
                    enlarge(ideal, Provision::Thin)?;
                }
                self.check_promise(change(has, logical, whole())?, has)
            }
            (None, Provision::Full) => {
                let physical = whole();
                self.make_room(change(has, has.logical_to_grow(physical), physical)?, enlarge)
            }
            (None, Provision::Thin) => change(has, has.logical_blocks, whole()),
        }
    }

    /// A thin volume keeps aside what two checkpoints of its map may need. When the promise grows so far that this is most of the store,
    /// not even what is there could be overwritten any more.
    fn check_promise(&self, geometry: Option<Geometry>, has: &Geometry) -> Result<Option<Geometry>> {
        let Some(wanted) = geometry else { return Ok(None) };
        let (map, data) = (2 * wanted.map_nodes(), wanted.data_blocks());
        if wanted.logical_blocks == has.logical_blocks || 2 * map <= data {
            return Ok(geometry);
        }
        Err(Error::new(
            Kind::Usage,
            format!(
                "the map of so large a volume may need {map} of the {data} blocks that {} has for data; nothing was changed. Make the store larger first, or let the volume grow less",
                self.store().name()
            ),
        ))
    }

    /// Sees to it that the store has the blocks that full provisioning promises.
    fn make_room(&self, geometry: Option<Geometry>, enlarge: Enlarge) -> Result<Option<Geometry>> {
        let Some(wanted) = geometry else { return Ok(None) };
        let (store, needs) = (self.store(), wanted.physical_blocks);
        enlarge(needs, Provision::Full)?;
        let has = store.blocks();
        if has >= needs {
            return Ok(geometry);
        }
        Err(Error::new(
            Kind::Usage,
            format!(
                "{} has {has} blocks, and the volume would need {needs}; nothing was changed. Make the store larger first, or let the volume grow less",
                store.name()
            ),
        ))
    }
}

/// Whether a growth that was cut short may be why the header does not open: its size is not the policy's, it is not the one that the anchor
/// vouches for, or without an anchor the copy of the policy's size is torn, since the other one is in force already.
fn may_be_cut(error: &Error) -> bool {
    matches!(error.kind(), Kind::Policy | Kind::Stale | Kind::Corrupt)
}

/// A growth to these sizes; nothing, where they are those that there are.
fn change(has: &Geometry, logical: u64, physical: u64) -> Result<Option<Geometry>> {
    match has.grown(logical, physical) {
        Ok(geometry) => Ok(Some(geometry)),
        Err(GrowthError::Nothing) => Ok(None),
        Err(error) => Err(refused(error)),
    }
}

fn refused(error: GrowthError) -> Error {
    Error::new(Kind::Usage, error.to_string())
}
