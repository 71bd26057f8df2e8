//! A new volume key: how the change begins. How it goes on and ends is in [`reseal`](crate::reseal).
//!
//! Invariants:
//! 1. It begins with the anchor's move, and with nothing else: until then the header in force is the old one, from then on the new one. Cut
//!    anywhere, it has begun or it has not.
//! 2. What is under the old key counts up to the boundary only: one superblock, by its digest; the records that lead from it to the state
//!    that the stamp names, and none behind; entries of earlier epochs. Everything newer is under the new key.
//! 3. The new header's slots open to the new key only, and the old key comes with it, sealed under the new one.

use std::sync::Arc;

use anchor::{Stamp, State};
use futures::FutureExt;
use seal::VolumeKey;
use seal::slot::{Credential, KeySlots, SlotInfo};

use crate::attach::{AttachOptions, Attaching, draw_session};
use crate::core::Environment;
use crate::create::sign_header;
use crate::error::{Error, Kind, Result};
use crate::format::header::Header;
use crate::format::protections::Freshness;
use crate::format::rekeying::Rekeying;
use crate::io::Driven;
use crate::key_slots::{Changing, check_released, next_generation, put_in_force};
use crate::keys::{EPOCHS, Keyring};
use crate::open_header::{Opened, check_anchored, open_header, suite_of};
use crate::policy::Policy;
use crate::replay::Replayed;
use crate::witness::{Look, Looker, Stood, Witness};

/// What the owner wants of a change of key.
#[derive(Debug, Default)]
pub struct RekeyOrder {
    /// What opens the slots that shall stay, beside the one that the volume is opened with.
    pub keep: Vec<Credential>,
    /// Whether the slots may go that none of these opens. What opens them is not known, so they cannot be made to open the new key.
    pub remove_others: bool,
    /// Goes on although the last session did not detach; if it still runs, it is fenced.
    pub force: bool,
}

/// How a change of key began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rekeyed {
    /// Whether one was under way already; then nothing was changed.
    pub under_way: bool,
    /// The slots in force.
    pub slots: Vec<SlotInfo>,
    /// The slots that are gone.
    pub removed: Vec<SlotInfo>,
}

/// Gives a volume that nobody has attached a new key. From the next session on everything is sealed under it; what was there before is
/// sealed anew by [`Volume::reseal`](crate::Volume::reseal), which also gives the old key up in the end.
///
/// # Errors
/// In the job: as [`attach`](crate::attach) for everything that is checked; [`Kind::Usage`] when a slot would have to go and may not, at level
/// `transaction`, and without `force` when a session may be running; [`Kind::Locked`] for a credential that opens no slot; [`Kind::Io`],
/// [`Kind::Anchor`] and [`Kind::Fenced`], after which it has begun or not: do it again.
pub fn begin_rekey(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    order: RekeyOrder,
    options: AttachOptions,
) -> Result<Driven<Result<Rekeyed>>> {
    drive(environment, policy, credential, order, options, async |beginning, opened, credential| {
        beginning.run(opened, &credential).await
    })
}

/// Whether [`begin_rekey`] would begin, once nobody has the volume attached; nothing is written. For whoever has it attached, and would have
/// to end a session for it.
///
/// # Errors
/// In the job: what `begin_rekey` would refuse; [`Kind::Usage`] also when a change of key is under way already.
pub fn check_rekey(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    order: RekeyOrder,
    options: AttachOptions,
) -> Result<Driven<Result<()>>> {
    drive(environment, policy, credential, order, options, async |beginning, opened, credential| {
        match beginning.new_key(&opened, &credential)? {
            Some(_) => Ok(()),
            None => Err(Error::new(Kind::Usage, "a change of key is under way already; wait for its end")),
        }
    })
}

fn drive<T: 'static>(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    order: RekeyOrder,
    options: AttachOptions,
    job: impl AsyncFnOnce(Beginning, Opened, Credential) -> Result<T> + 'static,
) -> Result<Driven<Result<T>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 64, move |io| {
        async move {
            let opened = open_header(&io, &environment, &policy, &credential, &options).await?;
            let attaching = Attaching::looking(environment, policy, options, io);
            job(Beginning { attaching, order }, opened, credential).await
        }
        .boxed_local()
    })
}

/// A key that nothing is under yet, with the slots that open to it and those that are gone.
struct NewKey {
    key: VolumeKey,
    slots: KeySlots,
    removed: Vec<SlotInfo>,
}

struct Beginning {
    attaching: Attaching,
    order: RekeyOrder,
}

impl Beginning {
    async fn run(self, opened: Opened, credential: &Credential) -> Result<Rekeyed> {
        if opened.header.rekeying.is_none() {
            check_released(opened.stamp.as_ref(), self.order.force)?;
        }
        let Some(NewKey { key, slots, removed }) = self.new_key(&opened, credential)? else {
            return Ok(Rekeyed { under_way: true, slots: opened.slots.list(), removed: Vec::new() });
        };
        let changing = Changing { attaching: self.attaching, force: self.order.force };
        let attaching = &changing.attaching;
        let mut stood = attaching.stand(opened, Looker::Rekey).await?;
        changing.equalize(&mut stood).await?;
        let Stood { mut header, keys, stamp, .. } = stood;
        // Again, behind the taking: until then a session that still ran may have gone on.
        let Look { replayed, superblocks, witness } =
            attaching.look(&header, &keys, stamp.as_ref(), Looker::Rekey).await?;
        // What was accepted becomes durable before anything vouches for it.
        attaching.io.flush().await?;
        let leading = superblocks.found.iter().find(|found| found.superblock == replayed.superblock);
        let superblock = leading.expect("a replay begins at one of those that were read").digest;
        let environment = &attaching.environment;
        let boundary = replayed.next_epoch;
        header.rekeying = Some(seal_old(environment, &header, &keys, &key, boundary, superblock)?);
        header.generation = next_generation(&header)?;
        let pair = sign_header(&header, &slots, &key)?;
        let step = move_anchor(environment, witness, &replayed, seal::sha256(&[&pair]), &key);
        put_in_force(&attaching.io, &pair, step).await?;
        Ok(Rekeyed { under_way: false, slots: slots.list(), removed })
    }

    /// What the volume would change to; nothing if it does already. Whatever is refused is refused here.
    fn new_key(&self, opened: &Opened, credential: &Credential) -> Result<Option<NewKey>> {
        let environment = &self.attaching.environment;
        check_anchored(environment, &opened.header)?;
        if opened.header.rekeying.is_some() {
            return Ok(None);
        }
        if opened.header.freshness == Freshness::Transaction {
            return Err(Error::new(
                Kind::Usage,
                "a volume at freshness level transaction cannot be re-keyed: what is sealed anew would count only with its owner's commits. Copy its content to a new volume",
            ));
        }
        let key = VolumeKey::generate(environment.random.as_ref());
        let slots = self.slots(opened, &key, credential)?;
        let removed = removed(&opened.slots, &slots);
        if !removed.is_empty() && !self.order.remove_others {
            return Err(Error::new(Kind::Usage, refusal(&removed)));
        }
        Ok(Some(NewKey { key, slots, removed }))
    }

    /// The slots that open to the new key.
    fn slots(&self, opened: &Opened, key: &VolumeKey, credential: &Credential) -> Result<KeySlots> {
        let credentials: Vec<&Credential> = [credential].into_iter().chain(&self.order.keep).collect();
        let Attaching { environment, options, .. } = &self.attaching;
        let (volume, limits) = (&opened.header.volume, &options.slot_limits);
        opened
            .slots
            .rewrap(volume, &opened.key, key, &credentials, limits, environment.random.as_ref())
            .map_err(|error| Error::new(Kind::Locked, error.to_string()))
    }
}

fn seal_old(
    environment: &Environment,
    header: &Header,
    keys: &Keyring,
    key: &VolumeKey,
    boundary: u32,
    superblock: [u8; 32],
) -> Result<Rekeying> {
    if boundary >= EPOCHS.min(header.geometry.last_epoch()) {
        return Err(Error::new(
            Kind::Usage,
            "all key epochs of this volume are used up; copy its content to a new volume",
        ));
    }
    let mut salt = [0; 32];
    environment.random.fill(&mut salt);
    let mut rekeying = Rekeying { boundary, superblock, salt, sealed: [0; 32], tag: [0; 16] };
    let ad = rekeying.associated_data(&header.volume);
    (rekeying.sealed, rekeying.tag) = key.seal_old(suite_of(header), &salt, &ad, &keys.key);
    Ok(rekeying)
}

/// The step that counts. The stamp names a session that wrote nothing, so no record behind the boundary counts, whoever can write one.
async fn move_anchor(
    environment: &Environment,
    witness: Option<Witness>,
    replayed: &Replayed,
    header_digest: [u8; 32],
    key: &VolumeKey,
) -> Result<()> {
    let Some(witness) = witness else { return Ok(()) };
    let Some(old) = witness.held() else { return Ok(()) };
    let new = Stamp {
        generation: replayed.generation,
        head: replayed.head,
        session: draw_session(environment)?,
        state: State::Released,
        header_digest,
        ..old.clone()
    };
    witness.advance(&key.mac("stamp"), new).await.map(drop)
}

fn removed(before: &KeySlots, after: &KeySlots) -> Vec<SlotInfo> {
    let after = after.list();
    before.list().into_iter().filter(|slot| after.iter().all(|kept| kept.index != slot.index)).collect()
}

fn refusal(removed: &[SlotInfo]) -> String {
    let names: Vec<String> =
        removed.iter().map(|slot| format!("{} (\"{}\")", slot.index, slot.label)).collect();
    format!(
        "these key slots cannot be made to open the new key, since what opens them was not given: {}. Give it, or allow that they are removed; nothing was changed",
        names.join(", ")
    )
}
