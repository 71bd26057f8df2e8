//! Giving space back: what is free is discarded on the store, in the background.
//!
//! Invariants:
//! 1. A discard is a write that leaves nothing behind. It goes only to blocks that a write could go to at that moment: free, in a unit that an
//!    anchored commit has reserved, and taken until the store has ended it. So what recovery or a successor may want is never discarded.
//! 2. The session's end waits for discards that are on their way.
//! 3. None that writes waits long for what is being discarded: it is little at a time, and never the last that there is.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use event_listener::Event;
use futures::future::join_all;

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::reservation::DATA_UNITS;

/// Time between two batches, as far as the clock can be believed.
const REST: Duration = Duration::from_millis(250);
/// Most blocks of a batch (256 MiB), and most discards.
const BATCH: (u64, usize) = (65_536, 512);
/// Most units that one commit reserves for discards.
const UNITS_AT_ONCE: usize = 32;
/// So many blocks that were overwritten or discarded since the last checkpoint are worth another one: 16 MiB. Until then they are not free.
const WORTH_A_CHECKPOINT: u64 = 4096;
/// Time between two such checkpoints, and before a store that had no room for a discard is asked again because it has more.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a store may have in free blocks before a session that begins looks for it, beside an eighth of what is in use: 16 MiB.
const SPARE_BLOCKS: u64 = 4096;

/// What a session discards.
#[derive(Default)]
pub(crate) struct Discards {
    /// Whether it does.
    on: bool,
    /// The store cannot, or has failed to; for want of room only until it has more, or the next checkpoint.
    refused: AtomicBool,
    why: Mutex<Option<Error>>,
    /// Bytes that the store had left then.
    left_then: AtomicU64,
    /// When the last batch ended, in milliseconds.
    last: AtomicU64,
    /// When the last checkpoint began, in milliseconds, and how many blocks users had discarded by then.
    tidied: AtomicU64,
    discarded_by_then: AtomicU64,
    /// How many wait for the end of discards, and so for no rest.
    awaited: AtomicUsize,
    /// Blocks that the store was told to forget.
    pub(crate) blocks: AtomicU64,
    /// A unit has been reserved for it, or the last one has been given back.
    changed: Event,
}

impl Discards {
    pub(crate) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// `off`, `on`, or `refused`, and why.
    pub(crate) fn state(&self) -> (&'static str, Option<Error>) {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match (self.on, self.refused.load(Ordering::SeqCst)) {
            (false, _) => ("off", None),
            (true, false) => ("on", None),
            (true, true) => ("refused", why),
        }
    }

    fn goes_on(&self) -> bool {
        self.on && !self.refused.load(Ordering::SeqCst)
    }

    fn refuse(&self, error: Error, left: u64) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.left_then.store(left, Ordering::SeqCst);
        self.refused.store(true, Ordering::SeqCst);
    }

    /// The store has so many bytes left.
    pub(crate) fn note_left(&self, left: u64, now: Duration) {
        let is_patient = millis(now).saturating_sub(self.last.load(Ordering::SeqCst)) < millis(PATIENCE);
        if left > self.left_then.load(Ordering::SeqCst) && !is_patient {
            self.try_again();
        }
    }

    /// A full XFS refuses to make a hole, since it may need a block to note that. Room comes and goes; other reasons stay.
    fn try_again(&self) {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if why.as_ref().is_some_and(|error| error.kind() == Kind::NoSpace) {
            self.refused.store(false, Ordering::SeqCst);
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Core {
    /// For a session that begins: unless the store takes little more than it must, there is something to discard.
    pub(crate) fn look_for_untidy(&self, free: &[u32]) {
        if !self.discards.on {
            return;
        }
        let all = self.geometry.data_blocks();
        let used = all.saturating_sub(free.iter().map(|free| u64::from(*free)).sum());
        let fixed = self.geometry.physical_blocks - all;
        let enough = (used + fixed + used / 8 + SPARE_BLOCKS) * store::BLOCK_SIZE as u64;
        if self.environment.store.usage().is_none_or(|usage| usage.taken > enough) {
            self.space.all_untidy();
        }
    }

    /// A checkpoint begins: what it frees will be looked for.
    pub(crate) fn note_checkpoint(&self) {
        // In this order: what is discarded from now on may be part of it, and counts again, which does no harm.
        self.discards.discarded_by_then.store(self.counters.discarded_blocks.get(), Ordering::SeqCst);
        self.discards.tidied.store(millis(self.environment.clock.now()), Ordering::SeqCst);
        self.discards.try_again();
    }

    /// Whether there is so much that only a checkpoint makes free that one is worth it: the store gets it back, and on one that has little left
    /// users do. Others come when users go on writing; after a large discard (`fstrim`) there may be nothing else for a long time.
    pub(crate) fn freeing_is_due(&self) -> bool {
        if !self.discards.goes_on() && !self.is_store_short() {
            return false;
        }
        let (now, last) = (millis(self.environment.clock.now()), self.discards.tidied.load(Ordering::SeqCst));
        let is_patient = now >= last && now - last < millis(PATIENCE);
        self.freed_by_a_checkpoint() >= WORTH_A_CHECKPOINT && !is_patient
    }

    /// Blocks that users have discarded or overwritten, and that a checkpoint makes free; an estimate.
    pub(crate) fn freed_by_a_checkpoint(&self) -> u64 {
        let discarded = self.counters.discarded_blocks.get();
        let since = discarded.saturating_sub(self.discards.discarded_by_then.load(Ordering::SeqCst));
        since + self.overlay.active() + self.overlay.superseded()
    }

    /// Whether the next units may be reserved for discards.
    pub(crate) fn discards_are_due(&self) -> bool {
        if !self.discards.goes_on() || self.space.is_discarding() {
            return false;
        }
        let (now, last) = (millis(self.environment.clock.now()), self.discards.last.load(Ordering::SeqCst));
        // A clock that was set back counts as one that went on.
        (now < last || now - last >= millis(REST))
            && !self.is_short_of_usable()
            && self.commit.free_segments() >= self.geometry.segments as usize / 2
    }

    /// Reserves units for discards, if there is something to discard. For the maintenance job.
    pub(crate) async fn reserve_to_discard(&self, io: &Io) -> Result<()> {
        self.discards.last.store(millis(self.environment.clock.now()), Ordering::SeqCst);
        // What nodes need is not discarded.
        self.refill_node_places(io).await?;
        self.space.give_up_surplus(2 * self.limits.reserve_target);
        let most = UNITS_AT_ONCE.min(self.space.room(DATA_UNITS) / 4);
        let units = self.space.choose_to_discard(most);
        if units.is_empty() {
            return Ok(());
        }
        if mutated(Mutation::DiscardUnreserved) {
            self.load_units(io, &units).await?;
        } else {
            self.reserve_units(io, &units).await?;
        }
        self.space.begin_discarding(&units);
        self.discards.changed.notify(usize::MAX);
        Ok(())
    }

    /// Discards what is free in the units that are reserved for it, until the session ends.
    pub(crate) async fn discard_loop(&self, io: &Io) {
        // What is left of the batch. The next units are reserved behind a rest, and so begin another one.
        let mut batch = BATCH;
        loop {
            let changed = self.discards.changed.listen();
            match self.space.next_to_discard() {
                Some(unit) => {
                    let untidy = self.discard_unit(io, unit, &mut batch).await;
                    self.space.end_discarding(unit, untidy);
                    self.discards.changed.notify(usize::MAX);
                    self.work.notify(usize::MAX);
                }
                None => {
                    batch = BATCH;
                    changed.await;
                }
            }
        }
    }

    /// Waits between two batches; not while space is short, or somebody waits for the end.
    async fn rest_from_discards(&self) {
        loop {
            let ticked = self.ticked.listen();
            let (now, last) =
                (millis(self.environment.clock.now()), self.discards.last.load(Ordering::SeqCst));
            let is_over = now < last || now - last >= millis(REST);
            let is_wanted = self.discards.awaited.load(Ordering::SeqCst) > 0 || self.is_short_of_usable();
            let ends = self.stopping.load(Ordering::SeqCst) || self.check_alive().is_err();
            if is_over || is_wanted || ends {
                return;
            }
            ticked.await;
        }
    }

    /// Says whether something is left.
    async fn discard_unit(&self, io: &Io, unit: u32, batch: &mut (u64, usize)) -> bool {
        let mut at = 0;
        loop {
            if batch.0 == 0 || batch.1 == 0 {
                self.rest_from_discards().await;
                *batch = BATCH;
            }
            if self.stopping.load(Ordering::SeqCst) || self.check_alive().is_err() || !self.discards.goes_on()
            {
                return true;
            }
            // As many as are kept from writers of new data, and twice that.
            let keep = 2 * self.kept_from_new(0);
            // In this order, as for a write.
            let writing = self.space.begin_write();
            self.placing.fetch_add(1, Ordering::SeqCst);
            let runs = self.space.take_to_discard(unit, at, *batch, keep);
            let failed = self.discard_runs(io, &runs).await.err();
            let blocks: u64 = runs.iter().map(|run| run.end - run.start).sum();
            *batch = (batch.0.saturating_sub(blocks), batch.1.saturating_sub(runs.len()));
            if !runs.is_empty() {
                self.discards.last.store(millis(self.environment.clock.now()), Ordering::SeqCst);
            }
            self.space.discarded(unit, &runs);
            self.placing.fetch_sub(1, Ordering::SeqCst);
            drop(writing);
            self.progress.notify(usize::MAX);
            if let Some(error) = failed {
                // What it did is unknown, and does not matter.
                let left = self.environment.store.usage().map_or(u64::MAX, |usage| usage.left);
                self.discards.refuse(error, left);
                return true;
            }
            match runs.last() {
                Some(run) => at = run.end,
                None => return false,
            }
        }
    }

    async fn discard_runs(&self, io: &Io, runs: &[Range<u64>]) -> Result<()> {
        let discard = |run: &Range<u64>| io.discard(run.start, run.end - run.start);
        // All of them, also when one fails: their blocks may be written to after that.
        let ended = join_all(runs.iter().map(discard)).await;
        ended.into_iter().collect::<Result<Vec<()>>>()?;
        let blocks: u64 = runs.iter().map(|run| run.end - run.start).sum();
        self.discards.blocks.fetch_add(blocks, Ordering::SeqCst);
        self.room.unseen.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Waits until no discard is on its way.
    pub(crate) async fn discards_ended(&self) {
        self.discards.awaited.fetch_add(1, Ordering::SeqCst);
        self.ticked.notify(usize::MAX);
        // Also when the one that waits is given up.
        let _awaited = Awaited(&self.discards.awaited);
        loop {
            let changed = self.discards.changed.listen();
            if !self.space.is_discarding() {
                return;
            }
            changed.await;
        }
    }
}

struct Awaited<'a>(&'a AtomicUsize);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
