//! Attaching: from bytes that the host offers to a session that may write.
//!
//! Invariants:
//! 1. Nothing is written before every field of the header was checked against the policy, the stamp was checked, the journal led to the stamp's
//!    head, and the anchor was claimed.
//! 2. What is accepted beyond the stamp is flushed before the claim vouches for it.
//! 3. A session starts in segments, units, superblock slots and bitmap places that its predecessor never writes.

use std::sync::Arc;
use std::time::Duration;

use anchor::{Stamp, State};
use futures::FutureExt;
use seal::slot::{Credential, SlotLimits};
use seal::{DataMode, MacKey, VolumeKey};

use crate::block_cache::BlockCache;
use crate::core::{Core, Environment};
use crate::error::{Error, Kind, Remedy, Result};
use crate::format::header::Header;
use crate::format::rekeying::Rekeying;
use crate::format::superblock::Superblock;
use crate::geometry::Shape;
use crate::io::{Driven, Io};
use crate::keys::{Keyring, OldKey};
use crate::mutation::{Mutation, mutated};
use crate::open_header::{open_header, suite_of};
use crate::policy::Policy;
use crate::replay::Replayed;
use crate::superblock_io::{candidates, read_superblocks};
use crate::volume::Volume;
use crate::witness::{Anchored, Look, Looker, Stood, Witness};

/// How far the anchor may lag behind at level `interval`: whatever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Time since the anchor moved. The host owns the clock, so this alone bounds nothing.
    pub time: Duration,
    /// Bytes committed since.
    pub bytes: u64,
    /// Commits since.
    pub commits: u64,
}

impl Default for Window {
    /// One second, 64 MiB, 1000 commits.
    fn default() -> Self {
        Self { time: Duration::from_secs(1), bytes: 64 << 20, commits: 1000 }
    }
}

/// What an attach for reading takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// What the next session would start from: the state that the anchor vouches for, and what continues it.
    #[default]
    Latest,
    /// The state that the anchor vouches for and nothing behind it: the same for everybody who attaches before it moves. Refused while a
    /// session may be writing, which would take away what is being read.
    Pinned,
    /// The same beside a session that may be writing. A block that it gives up and uses again is `Corrupt` from then on.
    PinnedBesideWriter,
}

/// What a session has left of a volume: its last state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub(crate) generation: u64,
    pub(crate) head: [u8; 32],
}

/// How to attach.
#[derive(Debug, Clone, Copy)]
pub struct AttachOptions {
    /// Bytes for overlay and node cache together.
    pub memory: u64,
    /// Bytes in addition for data blocks that were read or written, as they were sealed, so that reading them again need not ask the store;
    /// 0: none.
    pub block_cache: u64,
    /// Blocks of writes that may complete before the store has them, as in a disk with a volatile cache; 0: none.
    pub behind: u64,
    /// Whether what is free is discarded on the store, in the background; `None`: of a thin volume.
    pub discard: Option<bool>,
    /// Bounds of level `interval`.
    pub window: Window,
    /// What a key slot may cost to open.
    pub slot_limits: SlotLimits,
    /// For an attach for reading: which state it shows.
    pub reading: Reading,
    /// What the session has left that this one is to follow: if somebody else has the volume, or has changed it since, it is
    /// [`Kind::Fenced`]. `None`: whatever there is.
    pub follows: Option<Left>,
    /// The shape that the volume must have; only the simulator has another than the standard.
    pub shape: Shape,
}

impl Default for AttachOptions {
    /// 256 MiB of memory, no cache of data blocks, and 2 MiB more for writes on their way: much more takes buffers that the store has not
    /// registered.
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            block_cache: 0,
            behind: 512,
            discard: None,
            window: Window::default(),
            slot_limits: SlotLimits::default(),
            reading: Reading::default(),
            follows: None,
            shape: Shape::STANDARD,
        }
    }
}

/// Attaches a volume for reading and writing.
///
/// # Errors
/// In the job: one per [`Kind`]; nothing was written unless the claim had been won.
pub fn attach(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    options: AttachOptions,
) -> Result<Driven<Result<Volume>>> {
    begin(environment, policy, credential, options, false)
}

/// Opens a volume for reading only: nothing is claimed and nothing written, to the store or to the anchor, so it needs no maintenance and
/// any number may have it so at once. [`AttachOptions::reading`] says which state it shows.
///
/// # Errors
/// As [`attach`]; [`Kind::Usage`] when it is to be [`Reading::Pinned`], and a session may be writing.
pub fn attach_read_only(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    options: AttachOptions,
) -> Result<Driven<Result<Volume>>> {
    begin(environment, policy, credential, options, true)
}

fn begin(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    options: AttachOptions,
    read_only: bool,
) -> Result<Driven<Result<Volume>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 64, move |io| {
        async move { Attaching { environment, policy, options, read_only, io }.run(&credential).await }
            .boxed_local()
    })
}

/// How often an attach begins anew because the anchor moved under it.
const CLAIM_ATTEMPTS: u32 = 8;
/// After so many it stops the session that moves it, and then looks again in peace.
const PATIENCE: u32 = 2;

pub(crate) struct Attaching {
    pub(crate) environment: Environment,
    pub(crate) policy: Policy,
    pub(crate) options: AttachOptions,
    pub(crate) read_only: bool,
    pub(crate) io: Io,
}

/// Whether the session that wrote last has ended, as it says itself: nothing of it is on its way to where it had reserved. A stamp that an owner
/// put in its place says nothing of that.
fn has_released(stamp: &Stamp, replayed: &Replayed) -> bool {
    stamp.state == State::Released && stamp.session == replayed.superblock.session
}

impl Attaching {
    /// For a command that looks at the volume as an attach does, and opens no session.
    pub(crate) fn looking(environment: Environment, policy: Policy, options: AttachOptions, io: Io) -> Self {
        let options = AttachOptions { reading: Reading::Latest, ..options };
        Self { environment, policy, options, read_only: true, io }
    }

    async fn run(self, credential: &Credential) -> Result<Volume> {
        let mut attempts = 1;
        loop {
            match self.attempt(credential, attempts).await {
                // The last move of a predecessor, on its way when we read the stamp: what it vouches for is on the store.
                Err(error)
                    if error.kind() == Kind::Fenced
                        && self.options.follows.is_none()
                        && attempts < CLAIM_ATTEMPTS =>
                {
                    attempts += 1;
                }
                ended => return ended,
            }
        }
    }

    async fn attempt(&self, credential: &Credential, attempts: u32) -> Result<Volume> {
        let opened =
            open_header(&self.io, &self.environment, &self.policy, credential, &self.options).await?;
        if self.read_only {
            self.check_unclaimed(opened.stamp.as_ref())?;
        }
        let before = opened.stamp.clone();
        let stood = match self.stand(opened, Looker::Attach).await {
            // A writer went on between our looks at the anchor and at the store. It is not overtaken for that: this may be the wrong store.
            Err(_) if attempts < CLAIM_ATTEMPTS && self.has_moved(before.as_ref()).await? => {
                return Err(anchor::Error::Conflict(None).into());
            }
            found => found?,
        };
        let Stood { header, pair: in_force, keys, stamp, stamp_key, look, .. } = stood;
        let Look { mut replayed, superblocks, witness } = look;
        if self.read_only {
            let core = self.reading_core(header, keys, stamp, stamp_key, replayed)?;
            return Ok(Volume::new(Arc::new(core)));
        }
        // Of what a session needs, this can be refused. It is let go of again: a rival may make this attempt one of several.
        drop(BlockCache::new(self.options.block_cache)?);
        let session = draw_session(&self.environment)?;
        // Everything that was accepted becomes durable before anything vouches for it.
        if !mutated(Mutation::AcceptedNotFlushed) {
            self.io.flush().await?;
        }
        if stamp.as_ref().is_some_and(|stamp| has_released(stamp, &replayed)) {
            replayed.foreign_units.clear();
        }
        let claims = stamp.as_ref().map_or(replayed.superblock.claims, |stamp| stamp.claims) + 1;
        let claimed = claim(&replayed, witness.as_ref(), session, claims, &stamp_key).await;
        if let (Err(error), Some(witness), true) = (&claimed, &witness, attempts > PATIENCE)
            && error.kind() == Kind::Fenced
        {
            witness.stop_writer(&stamp_key).await?;
        }
        let anchored = claimed?;
        // The predecessor may have published after we looked and before the claim; from now on it asks the anchor first, and stops.
        let again = read_superblocks(&self.io, &keys, &header).await?;
        if candidates(&header, &again)?.0 != candidates(&header, &superblocks)?.0 {
            // Who may not try again must not hear of a rival when it was the disk, at either look.
            let unreadable = again.unreadable.or(superblocks.unreadable);
            let unreadable = unreadable.filter(|_| self.options.follows.is_some());
            return Err(unreadable.unwrap_or_else(|| anchor::Error::Conflict(None).into()));
        }
        let pair = if mutated(Mutation::PairShared) {
            replayed.superblock.pair
        } else {
            1 - replayed.superblock.pair
        };
        let core =
            self.core(header, keys, session, claims, pair, anchored, stamp_key, &replayed, Some(in_force))?;
        Ok(Volume::new(self.start(core, replayed).await?))
    }

    /// Whether nobody can be writing beside a reader that asked for that.
    fn check_unclaimed(&self, stamp: Option<&Stamp>) -> Result<()> {
        let alone = stamp.is_none_or(|stamp| stamp.state != State::Claimed);
        if self.options.reading != Reading::Pinned || alone || mutated(Mutation::ClaimedNotSeen) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Usage,
            "a session has claimed the volume and did not detach, so it may be writing, and would take away what is read; detach it, attach and detach it if that session crashed, or read all the same: blocks that it uses again then fail as corrupt",
        )
        .or(Remedy::Force))
    }

    /// Whether what was found is what the session left that this one is to follow, and nobody has it.
    pub(crate) fn check_follows(&self, stamp: Option<&Stamp>, replayed: &Replayed) -> Result<()> {
        let found = Left { generation: replayed.generation, head: replayed.head };
        let is_free = stamp.is_none_or(|stamp| stamp.state == State::Released);
        match self.options.follows {
            Some(left) if (left != found || !is_free) && !mutated(Mutation::OthersFollowed) => {
                Err(Error::new(
                    Kind::Fenced,
                    "another session has had this volume since the one that was to be followed; detach it, and attach it again if the other one is gone",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The [`candidates`] that the store has now.
    pub(crate) async fn superblocks(
        &self,
        header: &Header,
        keys: &Keyring,
    ) -> Result<(Vec<Superblock>, Option<Error>)> {
        candidates(header, &read_superblocks(&self.io, keys, header).await?)
    }

    /// For a volume that nobody writes through.
    pub(crate) fn reading_core(
        &self,
        header: Header,
        keys: Keyring,
        stamp: Option<Stamp>,
        stamp_key: MacKey,
        replayed: Replayed,
    ) -> Result<Core> {
        let claims = stamp.as_ref().map_or(replayed.superblock.claims, |stamp| stamp.claims);
        let pair = replayed.superblock.pair;
        let anchored = Anchored::Shown(stamp);
        let mut core =
            self.core(header, keys, [0; 16], claims, pair, anchored, stamp_key, &replayed, None)?;
        core.overlay = replayed.overlay;
        Ok(core)
    }
}

/// Makes the volume this session's, before it writes anything.
async fn claim(
    replayed: &Replayed,
    witness: Option<&Witness>,
    session: [u8; 16],
    claims: u64,
    key: &MacKey,
) -> Result<Anchored> {
    let Some((witness, old)) = witness.and_then(|witness| witness.held().map(|held| (witness, held))) else {
        return Ok(Anchored::Shown(None));
    };
    if mutated(Mutation::AttachWithoutClaim) {
        return Ok(Anchored::Claimed(witness.clone()));
    }
    let new = Stamp {
        generation: replayed.generation,
        head: replayed.head,
        session,
        claims,
        state: State::Claimed,
        ..old.clone()
    };
    Ok(Anchored::Claimed(witness.advance(key, new).await?))
}

/// A session's id.
pub(crate) fn draw_session(environment: &Environment) -> Result<[u8; 16]> {
    let mut session = [0; 16];
    environment.random.fill(&mut session);
    if session == [0; 16] {
        return Err(Error::new(
            Kind::Io,
            "the source of randomness gives zeros; attach nothing on this machine",
        ));
    }
    Ok(session)
}

/// The keys that a header's volume key gives.
pub(crate) fn keyring(header: &Header, key: VolumeKey) -> Result<Keyring> {
    let suite = suite_of(header);
    let mode = DataMode::new(suite, header.confidentiality, header.integrity)
        .map_err(|error| Error::new(Kind::Policy, error.to_string()))?;
    let old = header.rekeying.as_ref().map(|rekeying| old_key(header, &key, rekeying)).transpose()?;
    Ok(Keyring::new(key, suite, mode, old))
}

fn old_key(header: &Header, key: &VolumeKey, rekeying: &Rekeying) -> Result<OldKey> {
    let ad = rekeying.associated_data(&header.volume);
    let Rekeying { boundary, superblock, salt, sealed, tag } = rekeying;
    let old = key.open_old(suite_of(header), salt, &ad, sealed, tag).map_err(|_| {
        Error::new(
            Kind::Corrupt,
            "the header's old volume key does not open. Restore the header from a backup",
        )
    })?;
    Ok(OldKey { key: old, boundary: *boundary, superblock: *superblock })
}
