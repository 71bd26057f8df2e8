//! Where a write goes: free blocks for it, and who has to wait for them.
//!
//! Invariants:
//! 1. The blocks of a request that takes places are counted as [placing](Placing), until they are in the overlay or given back. The blocks of a
//!    request that waits for its turn are not counted. It has no places, and must not be a reason to refuse the request before it.
//! 2. Requests that find less than they need, with all that is free together, stand in line, first come, first served. The first waits for
//!    space, and nobody who comes later gets any before. None in line holds anything: what it held goes back.
//! 3. None is refused for want of space while something is under way that may free some: a write that has places, a reader of what was
//!    overwritten, a checkpoint that has not seen what came before it.
//! 4. A session that has released the volume has no write on its way, and begins none: its successor need not leave its places alone.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::select;

use crate::admission::Promise;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::protections::{Freshness, Provision};
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::queue::Runs;
use crate::readers::Reading;
use crate::reservation::DATA_UNITS;

impl Core {
    /// Places for new data, for all blocks that were promised from `block` on; waits for reservations, or for a checkpoint to free what is pinned.
    pub(crate) async fn allocate<'a>(
        &'a self,
        io: &Io,
        runs: &RefCell<Runs>,
        block: u64,
        promise: &'a Promise<'a>,
    ) -> Result<(Vec<Range<u64>>, Placing<'a>)> {
        let blocks = promise.items();
        let keep = match self.keep_in_any_case(blocks, blocks) {
            Some(keep) => keep,
            None => self.keep_free(io, block, blocks, blocks).boxed_local().await?,
        };
        let mut placing = Placing::begin(self, promise)?;
        if !self.checkpoint_goes_first()
            && self.short_of_space.available_permits() > 0
            && let Some(places) = placing.take(runs, keep)
        {
            return Ok((places, placing));
        }
        let placed = self.wait_for_places(io, runs, block, placing).boxed_local().await;
        placed.inspect_err(|_| runs.borrow_mut().give_all_back(self))
    }

    async fn wait_for_places<'a>(
        &'a self,
        io: &Io,
        runs: &RefCell<Runs>,
        block: u64,
        placing: Placing<'a>,
    ) -> Result<(Vec<Range<u64>>, Placing<'a>)> {
        let (promise, blocks) = (placing.promise, placing.promise.items());
        let (mut placing, mut turn, mut waited) = (Some(placing), None, None);
        loop {
            let progress = self.progress.listen();
            self.check_alive()?;
            self.check_not_releasing()?;
            if self.checkpoint_goes_first() {
                self.counters.waits_for_checkpoint.add(1);
                progress.await;
                continue;
            }
            let uncounted = if placing.is_some() { 0 } else { blocks };
            let keep = self.keep_free(io, block, blocks, uncounted).boxed_local().await?;
            // Read before `is_draining`: a checkpoint lets its blocks go first, and counts as done after that.
            let done = self.checkpoint_done.load(Ordering::SeqCst);
            // Our own look-up may have been the reader that held the last checkpoint's blocks back.
            self.space.collect();
            let first = turn.is_some() || self.short_of_space.available_permits() > 0;
            if first && !runs.borrow().falls_short(self, blocks, keep) {
                let mut holder = placing.take().map_or_else(|| Placing::begin(self, promise), Ok)?;
                if let Some(places) = holder.take(runs, keep) {
                    return Ok((places, holder));
                }
                placing = Some(holder);
                self.check_list()?;
                self.want_units();
            } else if turn.is_none() || placing.is_some() || runs.borrow().held() > 0 {
                runs.borrow_mut().give_all_back(self);
                placing = None;
                // At once: another request of this queue may take the same again, as often as it is given back.
                if turn.is_none() {
                    // Nobody closes it.
                    turn = self.short_of_space.acquire().await.ok();
                }
                continue;
            } else if self.space.take_over() {
                self.want_units();
                continue;
            } else if self.space.is_draining() {
                // A reader keeps these blocks. No checkpoint helps before it ends.
                waited = None;
                let ended = self.readers.listen();
                self.space.collect();
                if self.space.is_draining() {
                    select(progress, ended).await;
                }
                continue;
            } else {
                let short = || runs.borrow().falls_short(self, blocks, keep);
                self.check_hope(short, done, &mut waited)?;
                self.counters.waits_for_space.add(1);
            }
            progress.await;
        }
    }

    fn check_not_releasing(&self) -> Result<()> {
        if self.releasing.load(Ordering::SeqCst) { Err(Self::stopped()) } else { Ok(()) }
    }

    /// Lets no more writes take places, and waits for those that have some.
    pub(crate) async fn end_writes(&self) -> Result<()> {
        self.releasing.store(true, Ordering::SeqCst);
        self.progress.notify(usize::MAX);
        loop {
            // Not each write that ends tells somebody.
            let (progress, ticked) = (self.progress.listen(), self.ticked.listen());
            self.check_alive()?;
            if self.placing.load(Ordering::SeqCst) == 0 {
                return Ok(());
            }
            select(progress, ticked).await;
        }
    }

    /// Whether a request that falls short of space should wait; sees to it that there is something to wait for. So many checkpoints are `done`, and
    /// nothing of them waits for readers; `waited` is the one that may help.
    fn check_hope(&self, short: impl Fn() -> bool, done: u64, waited: &mut Option<u64>) -> Result<()> {
        // In this order, which is that in which blocks go their way: what has left the one is in the next.
        let placing = self.placing.load(Ordering::SeqCst) > 0;
        let changed = self.overlay.active() > 0 || self.overlay.superseded() > 0;
        let pinned = self.space.pinned() > 0;
        let busy = self.checkpointing.load(Ordering::SeqCst);
        let idle = !changed && !pinned && !busy && !self.publish_is_wanted();
        // A fully provisioned volume has room for all of it in the end.
        let patient =
            self.header.provision == Provision::Full && self.header.freshness != Freshness::Transaction;
        // One checkpoint that was under way, and one that began when no other request had places any more.
        let tried = waited.is_some_and(|number| done > number);
        if !placing && (idle || (tried && !patient)) && short() {
            return Err(Error::new(
                Kind::NoSpace,
                "no space is left on this volume; discard something, or enlarge its backing file",
            ));
        }
        match placing {
            // What others write supersedes something, or comes back. No other write gets places while this request is the first in line.
            true => *waited = None,
            false => _ = waited.get_or_insert(self.checkpoint_done.load(Ordering::SeqCst) + 1),
        }
        // A checkpoint under way gives its pinned blocks back by itself. In a transaction, only the end gives them back.
        let returns = pinned && !busy && !(placing && self.is_transactional());
        if changed || returns {
            self.want_checkpoint();
        }
        Ok(())
    }

    /// Elsewhere a checkpoint makes room in the list of units that are written to; a transaction keeps all of them to its end.
    fn check_list(&self) -> Result<()> {
        let full = self.header.freshness == Freshness::Transaction && self.space.room(DATA_UNITS) == 0;
        match full && self.space.usable() == 0 {
            true => Err(Error::new(
                Kind::NoSpace,
                "what is free on this volume is in more places than one transaction may write to; commit it before you go on",
            )),
            false => Ok(()),
        }
    }

    /// Whether what is free is the checkpoint's, because the journal is down to what was kept for it. Each reservation has a record: if
    /// writers took the blocks that it reserves for its nodes, it would reserve again and again, and find the journal full.
    fn checkpoint_goes_first(&self) -> bool {
        self.checkpointing.load(Ordering::SeqCst) && self.commit.free_segments() < self.kept_segments()
    }

    /// Blocks that the map may need for what is in memory now: two checkpoints in a row, the one under way and the one after it. The
    /// first gives back what it replaces, so only nodes that do not exist yet count twice; a transaction gives back nothing. So many changes
    /// more are the caller's, and not counted yet.
    pub(crate) fn node_reserve(&self, uncounted: u64) -> u64 {
        let all = self.geometry.map_nodes();
        let exist = match self.header.freshness {
            Freshness::Transaction => 0,
            _ => self.geometry.least_map_nodes(self.roots().mapped),
        };
        let twice = (2 * all).saturating_sub(exist);
        // What is under way comes on top of what the overlay holds, whatever its limit. In this order: what moves on meanwhile counts twice.
        let under_way = self.placing.load(Ordering::SeqCst) + uncounted;
        let most = self.limits.overlay.max(self.overlay.active()) + under_way;
        let changed = 2 * most * u64::from(self.geometry.map_levels());
        twice.min(changed) + self.limits.salt_reserve
    }

    /// How many blocks must stay free after a write of so many: those that the map may need; for new data on a thin volume, also what overwrites
    /// need. `None` if it matters whether the write is new data.
    fn keep_in_any_case(&self, blocks: u64, uncounted: u64) -> Option<u64> {
        if self.header.provision == Provision::Full {
            return Some(self.node_reserve(uncounted));
        }
        let keep = self.kept_from_new(uncounted);
        (self.space.free() >= keep + blocks).then_some(keep)
    }

    /// The same, and finds out whether the write is new data where that matters.
    async fn keep_free(&self, io: &Io, block: u64, blocks: u64, uncounted: u64) -> Result<u64> {
        if let Some(keep) = self.keep_in_any_case(blocks, uncounted) {
            return Ok(keep);
        }
        let overwrites = self.is_overwrite(io, block, blocks).await?;
        Ok(if overwrites { self.node_reserve(uncounted) } else { self.kept_from_new(uncounted) })
    }

    /// Blocks that new data leaves free on a thin volume: enough for the largest overwrite and its nodes, and for many small ones before a
    /// checkpoint. The next checkpoint may add nodes to the map; new data leaves blocks for these on top.
    pub(crate) fn kept_from_new(&self, uncounted: u64) -> u64 {
        if mutated(Mutation::OverwritesNotKept) {
            return self.node_reserve(uncounted);
        }
        let largest = self.largest_request();
        let placing = self.placing.load(Ordering::SeqCst) + uncounted;
        let added = self.geometry.most_nodes_of(placing + self.overlay.unmerged());
        self.node_reserve(uncounted + largest) + self.limits.pinned.max(largest) + added
    }

    /// Whether each of these blocks has something already.
    pub(crate) async fn is_overwrite(&self, io: &Io, block: u64, blocks: u64) -> Result<bool> {
        self.blocks_landed(block..block + blocks).await?;
        let _reading = self.readers.enter();
        let count = usize::try_from(blocks).unwrap_or(usize::MAX);
        Ok(self.entries(io, block, count).await?.iter().all(|entry| !entry.is_absent()))
    }
}

/// A write that takes places, or has them, and is not in the overlay yet. So is a discard: it may free some.
pub(crate) struct Placing<'a> {
    core: &'a Core,
    promise: &'a Promise<'a>,
    /// While it has places, and until the store has what goes there.
    writing: Option<Reading>,
}

impl<'a> Placing<'a> {
    /// Counts a change in that has no places: a discard, or a write that is about to take some.
    pub(crate) fn counted(core: &'a Core, promise: &'a Promise<'a>) -> Self {
        core.placing.fetch_add(promise.items(), Ordering::SeqCst);
        Self { core, promise, writing: None }
    }

    fn begin(core: &'a Core, promise: &'a Promise<'a>) -> Result<Self> {
        let placing = Self::counted(core, promise);
        // In this order: who releases the volume says so first, and then waits for those that are counted.
        core.check_not_releasing()?;
        Ok(placing)
    }

    fn take(&mut self, runs: &RefCell<Runs>, keep: u64) -> Option<Vec<Range<u64>>> {
        // In this order: who is not counted among the writes of before a superblock finds that the runs of before count no more.
        let writing = self.core.space.begin_write();
        let places = runs.borrow_mut().take(self.core, self.promise.items(), keep)?;
        self.writing = Some(writing);
        Some(places)
    }

    /// The store has it now. `landing.rs` counts its blocks out when it makes the change visible.
    pub(crate) fn keep(mut self) {
        drop(self.writing.take());
        std::mem::forget(self);
    }
}

impl Drop for Placing<'_> {
    fn drop(&mut self) {
        self.core.placing.fetch_sub(self.promise.items(), Ordering::SeqCst);
        drop(self.writing.take());
        // Costs next to nothing when nobody waits.
        self.core.progress.notify(usize::MAX);
    }
}
