//! An attached volume, as its users see it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use serde::Serialize;

use crate::attach::Left;
use crate::check::{Check, CheckProgress, CheckReport};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::format::protections::Freshness;
use crate::io::Driven;
use crate::queue::Queue;
use crate::reseal::{Reseal, ResealProgress, ResealReport};
use crate::store_room::WaitsForRoom;
use crate::unanchored::Unanchored;

/// An attached volume. Clones share it.
///
/// Somebody must drive its [`maintenance`](Self::maintenance): without it, reservations, checkpoints and background anchoring do not
/// happen, and writers wait.
#[derive(Clone)]
pub struct Volume(pub(crate) Arc<Core>);

/// What a volume says about itself.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// Volume id, hex.
    pub volume: String,
    /// Cipher of data blocks.
    pub suite: String,
    /// Whether the host cannot read data.
    pub confidentiality: bool,
    /// Whether changed data is found out.
    pub integrity: bool,
    /// Freshness level.
    pub freshness: String,
    /// `thin` or `full`.
    pub provision: String,
    /// Whether it is attached for reading only, and shows one state.
    pub read_only: bool,
    /// `private` (sealed in private buffers, handed to the kernel), or `staged` (sealed in private, copied to shared memory).
    pub sealing: String,
    /// Logical size, bytes.
    pub size: u64,
    /// Size of the store that the volume occupies, bytes.
    pub store_size: u64,
    /// What the store takes where it lies, bytes; `None` where nobody can tell, as of a device.
    pub store_taken: Option<u64>,
    /// What is left there, bytes.
    pub store_left: Option<u64>,
    /// Whether free space is given back to the store: `on`, `off`, or `refused` by the store.
    pub discard: String,
    /// Why the store refused.
    pub discard_refused: Option<String>,
    /// Blocks that the store was told to forget.
    pub store_discarded_blocks: u64,
    /// The store's name.
    pub store: String,
    /// The anchor's address.
    pub anchor: Option<String>,
    /// Set while the anchor does not answer.
    pub anchor_away: Option<AnchorAway>,
    /// What its kind has to tell beside that, by name.
    pub anchor_facts: BTreeMap<String, String>,
    /// When the first of the certificates ends that the anchor is reached with: seconds since 1970.
    pub anchor_certificate_until: Option<u64>,
    /// Bytes that it takes where it is kept, if each move takes some and its kind can tell.
    pub anchor_space: Option<u64>,
    /// Number of the last journal record.
    pub generation: u64,
    /// Number of the last anchored journal record.
    pub anchored_generation: Option<u64>,
    /// How often the volume was claimed.
    pub claims: u64,
    /// Logical blocks that hold data, as of the last checkpoint.
    pub mapped_blocks: u64,
    /// Blocks that new data could take.
    pub free_blocks: u64,
    /// Blocks that are freed but not reusable yet.
    pub pinned_blocks: u64,
    /// Units that are left alone because the session before this one may be alive.
    pub foreign_units: u64,
    /// Those that are not left alone any more: it has been long enough, or space ran short.
    pub taken_units: u64,
    /// Changes since the last checkpoint.
    pub overlay_changes: u64,
    /// Blocks of the journal's ring.
    pub journal_blocks: u64,
    /// Blocks for records that it has left before a checkpoint must make room; what is kept for the next session is not among them.
    pub journal_free_blocks: u64,
    /// Bytes of nodes in the cache.
    pub cache_bytes: u64,
    /// Look-ups in the node cache that found the node.
    pub cache_hits: u64,
    /// Those that did not.
    pub cache_misses: u64,
    /// Nodes that left the cache to make room for others.
    pub cache_evictions: u64,
    /// Bytes of data blocks in their cache.
    pub block_cache_bytes: u64,
    /// Blocks that a read found there, and could open.
    pub block_cache_hits: u64,
    /// Those that it did not; none without such a cache.
    pub block_cache_misses: u64,
    /// Bytes of memory for free space.
    pub space_bytes: u64,
    /// Blocks read by users.
    pub read_blocks: u64,
    /// Blocks written by users.
    pub written_blocks: u64,
    /// Blocks discarded by users.
    pub discarded_blocks: u64,
    /// Flushes asked for.
    pub flushes: u64,
    /// Blocks written to the store for journal, nodes and superblocks.
    pub metadata_blocks: u64,
    /// Nodes read from the store.
    pub nodes_read: u64,
    /// Blocks written to the store for each block that users wrote; `None` before the first.
    pub write_amplification: Option<f64>,
    /// Commits.
    pub commits: u64,
    /// Times the anchor was moved.
    pub anchor_moves: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Data blocks that did not verify.
    pub corrupt_blocks: u64,
    /// Nodes of map, bitmap and salt table that did not.
    pub corrupt_nodes: u64,
    /// Times a writer had to wait for space.
    pub waits_for_space: u64,
    /// Times a writer had to wait for a checkpoint to advance.
    pub waits_for_checkpoint: u64,
    /// Times something had to wait because the store had no room.
    pub waits_for_store: u64,
    /// Set while something waits because the store has no room: flushes do, and what was acknowledged and is not stored yet.
    pub waits_for_room: Option<WaitsForRoom>,
    /// For how many seconds the store's host has not answered a request that is in flight, if that is one or more.
    pub store_silent_seconds: Option<u64>,
    /// Whether a change of key is under way: something may be sealed under an old key still.
    pub rekeying: bool,
    /// Data blocks that were sealed anew for it.
    pub resealed_blocks: u64,
    /// Why the session stopped writing, if it did.
    pub failure: Option<String>,
    /// What was acknowledged and never anchored, if the session stopped writing.
    pub unanchored: Option<Unanchored>,
}

/// An anchor that does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AnchorAway {
    /// For how many seconds.
    pub seconds: u64,
    /// Attempts that failed meanwhile.
    pub attempts: u64,
    /// How the last one failed.
    pub error: String,
}

impl AnchorAway {
    fn new(away: anchor::Away) -> Self {
        Self { seconds: away.duration.as_secs(), attempts: away.attempts, error: away.error }
    }
}

/// Store operations of the maintenance job in flight. Its queue's buffers stay resident for the whole session, 128 KiB for each; more
/// makes no checkpoint faster.
const MAINTENANCE_DEPTH: u32 = 32;

/// The same of a part of a check, of which several run side by side.
const CHECK_DEPTH: u32 = 32;

fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Volume {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self(core)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// Opens a queue for the calling thread, with room for `depth` store operations in flight.
    ///
    /// # Errors
    /// When the store refuses another queue.
    pub fn queue(&self, depth: u32) -> Result<Queue> {
        Queue::open(Arc::clone(&self.0), depth)
    }

    /// The job that keeps the volume going; it ends after [`stop`](Self::stop), with everything put away, or when the session failed.
    /// Drive it from a thread of its own, once.
    ///
    /// # Errors
    /// When the store refuses another queue.
    pub fn maintenance(&self) -> Result<Driven<Result<()>>> {
        let core = Arc::clone(&self.0);
        Driven::new(self.0.environment.store.as_ref(), MAINTENANCE_DEPTH, move |io| {
            core.maintain(io).boxed_local()
        })
    }

    /// Ends the session cleanly: no more requests are taken; the maintenance job makes a last checkpoint and releases the anchor.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        self.0.ticked.notify(usize::MAX);
        self.0.work.notify(usize::MAX);
        self.0.progress.notify(usize::MAX);
    }

    /// Since when something waits for the store to have room, if something does.
    #[must_use]
    pub fn waits_for_room(&self) -> Option<WaitsForRoom> {
        self.0.waits_for_room()
    }

    /// For how long the store's host has not answered a request that is in flight, if that is a second or more.
    #[must_use]
    pub fn store_silent_for(&self) -> Option<Duration> {
        self.0.environment.store.silent_for()
    }

    /// Waits for a silent host no longer: all that is asked of the store fails from now on, and so does the session.
    pub fn give_up_store(&self) {
        self.0.environment.store.give_up();
    }

    /// Lets all that waits for room fail. What was flushed is safe; what was acknowledged and is not stored yet is lost, and the session fails.
    pub fn give_up_waiting(&self) {
        self.0.give_up_waiting();
    }

    /// To be called now and then (every 100 ms, say): lets time-bound work begin.
    pub fn tick(&self) {
        if let Some(error) = self.0.store_ended() {
            self.0.commit.poison(&error);
        } else {
            self.0.look_at_store();
        }
        self.0.ticked.notify(usize::MAX);
        self.0.work.notify(usize::MAX);
    }

    /// One part of a check of everything that the volume's map reaches; run all `parts`, each on a thread of its own, and merge the reports.
    ///
    /// # Errors
    /// When the store refuses another queue; in the job, when it fails to read.
    pub fn check(
        &self,
        part: u64,
        parts: u64,
        progress: Arc<CheckProgress>,
    ) -> Result<Driven<Result<CheckReport>>> {
        let check = Check { core: Arc::clone(&self.0), part, parts: parts.max(1), progress };
        Driven::new(self.0.environment.store.as_ref(), CHECK_DEPTH, move |io| check.run(io).boxed_local())
    }

    /// Seals anew what is under the volume's old key, and gives that key up in the end: the rest of a change of key that
    /// [`begin_rekey`](crate::begin_rekey) began. The job ends at once if there is none under way, and early when the volume is stopped;
    /// another session goes on with it. One at a time. Poll it to its end: it may be the one that others wait for.
    ///
    /// # Errors
    /// When the store refuses another queue; in the job, as a write.
    pub fn reseal(&self, progress: Arc<ResealProgress>) -> Result<Driven<Result<ResealReport>>> {
        let job = Reseal { core: Arc::clone(&self.0), progress };
        Driven::new(self.0.environment.store.as_ref(), 128, move |io| job.run(io).boxed_local())
    }

    /// A number that grows with each request that ends: who asks twice knows whether somebody used the volume in between.
    #[must_use]
    pub fn uses(&self) -> u64 {
        let counters = &self.0.counters;
        [&counters.read_blocks, &counters.written_blocks, &counters.discarded_blocks, &counters.flushes]
            .iter()
            .map(|counter| counter.get())
            .sum()
    }

    /// Whether a change of key is under way: something may be sealed under an old key still.
    #[must_use]
    pub fn is_rekeying(&self) -> bool {
        self.0.keys.boundary().is_some()
    }

    /// Asks for a checkpoint soon.
    pub fn checkpoint_soon(&self) {
        self.0.want_checkpoint();
    }

    /// What this session has left, when it has ended: for the one that is to [follow](crate::AttachOptions::follows) it.
    #[must_use]
    pub fn left(&self) -> Left {
        let (generation, head) = self.0.commit.position();
        Left { generation, head }
    }

    /// Size in logical blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.geometry.logical_blocks
    }

    /// Blocks that one request may change: 512 (2 MiB) on a thin volume, at least as many on others. Reads may be of any length.
    #[must_use]
    pub fn largest_change(&self) -> u64 {
        self.0.largest_request()
    }

    /// Why the session stopped writing, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.0.commit.poisoned().or_else(|| self.0.store_ended())
    }

    /// At level `transaction`: what completed since the last commit. `None` at the other levels, and on a volume that is attached for reading.
    #[must_use]
    pub fn uncommitted(&self) -> Option<Unanchored> {
        let transactional = self.0.header.freshness == Freshness::Transaction;
        self.0.unanchored().filter(|_| transactional)
    }

    /// How the anchor is, if it does not answer.
    #[must_use]
    pub fn anchor_away(&self) -> Option<AnchorAway> {
        self.0.environment.anchor.as_ref()?.health().away.map(AnchorAway::new)
    }

    /// When the first of the certificates ends that the anchor is reached with: seconds since 1970.
    #[must_use]
    pub fn anchor_certificate_until(&self) -> Option<u64> {
        self.0.environment.anchor.as_ref()?.health().certificate_until.map(since_1970)
    }

    /// What the volume says about itself, now.
    #[must_use]
    pub fn status(&self) -> Status {
        let core = &self.0;
        let counters = &core.counters;
        let metadata_blocks =
            counters.journal_blocks.get() + counters.node_writes.get() + counters.superblock_writes.get();
        let written = counters.written_blocks.get();
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let amplification = (written > 0).then(|| (written + metadata_blocks) as f64 / written as f64);
        let block = memory::BLOCK_SIZE as u64;
        let anchor = core.environment.anchor.as_ref();
        let health = anchor.map(|anchor| anchor.health()).unwrap_or_default();
        let usage = core.environment.store.usage();
        let (discard, refused) = core.discards.state();
        let failure = self.failure();
        let unanchored = failure.as_ref().and_then(|_| core.unanchored());
        Status {
            volume: hex::encode(core.header.volume),
            suite: core.header.suite.to_string(),
            confidentiality: core.header.confidentiality,
            integrity: core.header.integrity,
            freshness: core.header.freshness.to_string(),
            provision: core.header.provision.to_string(),
            read_only: core.read_only,
            sealing: if core.shared_buffers { "staged" } else { "private" }.into(),
            size: core.geometry.logical_bytes(),
            store_size: core.geometry.physical_blocks * block,
            store_taken: usage.map(|usage| usage.taken),
            store_left: usage.map(|usage| usage.left),
            discard: discard.into(),
            discard_refused: refused.map(|error| error.to_string()),
            store_discarded_blocks: core.discards.blocks.load(Ordering::SeqCst),
            store: core.environment.store.name(),
            anchor: anchor.map(|anchor| anchor.address()),
            anchor_away: health.away.map(AnchorAway::new),
            anchor_space: health.space,
            anchor_facts: health.facts.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            anchor_certificate_until: health.certificate_until.map(since_1970),
            generation: core.commit.position().0,
            anchored_generation: core.commit.stamp().map(|stamp| stamp.generation),
            claims: core.claims,
            mapped_blocks: core.roots().mapped,
            free_blocks: core.space.free(),
            pinned_blocks: core.space.pinned(),
            foreign_units: core.space.foreign(),
            taken_units: core.space.taken(),
            overlay_changes: core.overlay.active(),
            journal_blocks: u64::from(core.geometry.segments) * u64::from(core.geometry.segment_blocks),
            journal_free_blocks: core.commit.records_left(&core.geometry),
            cache_bytes: core.cache.len() as u64 * block,
            cache_hits: core.cache.hits.load(Ordering::Relaxed),
            cache_misses: core.cache.misses.load(Ordering::Relaxed),
            cache_evictions: core.cache.evictions(),
            block_cache_bytes: core.blocks.len() as u64 * block,
            block_cache_hits: core.blocks.hits.load(Ordering::Relaxed),
            block_cache_misses: core.blocks.misses.load(Ordering::Relaxed),
            space_bytes: core.space.memory(),
            read_blocks: counters.read_blocks.get(),
            written_blocks: written,
            discarded_blocks: counters.discarded_blocks.get(),
            flushes: counters.flushes.get(),
            metadata_blocks,
            nodes_read: counters.nodes_read.get(),
            write_amplification: amplification,
            commits: counters.commits.get(),
            anchor_moves: counters.anchor_moves.get(),
            checkpoints: counters.checkpoints.get(),
            corrupt_blocks: counters.corrupt_blocks.get(),
            corrupt_nodes: counters.corrupt_nodes.get(),
            waits_for_space: counters.waits_for_space.get(),
            waits_for_checkpoint: counters.waits_for_checkpoint.get(),
            waits_for_store: counters.waits_for_store.get(),
            waits_for_room: core.waits_for_room(),
            store_silent_seconds: core.environment.store.silent_for().map(|silent| silent.as_secs()),
            rekeying: core.keys.boundary().is_some(),
            resealed_blocks: counters.resealed_blocks.get(),
            failure: failure.map(|error| error.to_string()),
            unanchored,
        }
    }
}
