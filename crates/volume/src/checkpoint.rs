//! The maintenance job: reservations, checkpoints, anchoring in the background, and the end of a session.
//!
//! Invariants:
//! 1. Only this job merges, reserves and publishes, so none of these has a rival.
//! 2. A superblock covers an anchored generation (a durable one at level `off`), and what it reaches is durable before it is written.
//! 3. Journal segments, bitmap places and old blocks are let go only after the superblock that does without them is durable.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::select;

use crate::commit::{Committed, Want};
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::Tree;
use crate::format::item::Item;
use crate::format::protections::Freshness;
use crate::format::record::items_per_record;
use crate::format::superblock::MAX_UNITS;
use crate::io::Io;
use crate::merge::{Bit, Merge, Salt};
use crate::mutation::{Mutation, mutated};
use crate::pace::Phase;
use crate::reservation::DATA_UNITS;
use crate::space::Pin;

/// How long a session leaves its predecessor's reservations alone, for a guest that was believed dead and wakes up. The host owns the
/// clock; but this guards against accidents only, what a host does on purpose is found by the tags.
const PREDECESSOR_GRACE: Duration = Duration::from_secs(600);

/// A maintenance job that is given up, or ends by a defect, ends the session: everybody waits for what it does.
struct Ending<'a>(&'a Core);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.stop(&Error::new(
            Kind::Io,
            "the volume's maintenance job was given up; detach the volume and attach it again",
        ));
        self.0.commit.close();
        self.0.progress.notify(usize::MAX);
    }
}

impl Core {
    /// Runs until the session is stopped and everything is put away, or something fails for good.
    pub(crate) async fn maintain(self: Arc<Self>, io: Io) -> Result<()> {
        let ending = Ending(&self);
        // When one loop ends the others are given up. The session must know why before they are: one that was amid a commit says only that.
        let told = |result: Result<()>| result.inspect_err(|error| self.stop(error));
        let discards = self.discard_loop(&io).map(|()| Err(Self::stopped()));
        let beside = select(self.anchoring_loop(&io).map(&told).boxed_local(), discards.boxed_local());
        let beside = beside.map(|ended| ended.factor_first().0);
        let loops = select(self.maintenance_loop(&io).map(&told).boxed_local(), beside.boxed_local());
        let result = loops.await.factor_first().0;
        if let Err(error) = &result {
            self.stop(error);
        }
        std::mem::forget(ending);
        self.commit.close();
        self.progress.notify(usize::MAX);
        result
    }

    async fn maintenance_loop(&self, io: &Io) -> Result<()> {
        loop {
            let listener = self.work.listen();
            self.check_alive()?;
            self.space.collect();
            if self.environment.clock.now().saturating_sub(self.attached_at) >= PREDECESSOR_GRACE {
                self.space.take_over();
                self.commit.take_over(&self.geometry);
            }
            if self.keys.current()?.worn() {
                self.begin_epoch()?;
            }
            if self.stopping.load(Ordering::SeqCst) {
                return self.release(io).await;
            }
            if self.needs_units() {
                self.reserve(io, DATA_UNITS).await?;
            }
            self.seek_node_places(io).await?;
            if self.resealing.is_over() {
                self.end_rekeying(io).await?;
            }
            if self.publish_is_wanted() {
                self.publish_transaction(io).await?;
            } else if self.checkpoint_is_due()
                || ((self.anchor_is_due() || self.journal_is_due()) && self.journal_is_tight())
            {
                self.checkpoint(io).await?;
            } else if self.journal_is_due() && !self.anchors_in_background() {
                self.commit_journal(io, false).await?;
            } else if self.discards_are_due() {
                self.reserve_to_discard(io).await?;
            } else if let Some(ended) = self.space.waits_for_writes(DATA_UNITS) {
                select(listener, ended).await;
            } else {
                listener.await;
            }
        }
    }

    /// Moves the anchor in the background, at level `interval`. Beside the loop above, which may be waiting for an anchor that is away: the
    /// journal goes on meanwhile.
    async fn anchoring_loop(&self, io: &Io) -> Result<()> {
        while self.anchors_in_background() {
            let listener = self.work.listen();
            // In this order: the other loop's last commit, by which the session is over, is no failure of this one.
            if self.stopping.load(Ordering::SeqCst) {
                break;
            }
            self.check_alive()?;
            let anchor = self.anchor_is_wanted();
            if (anchor || self.journal_is_due()) && !self.journal_is_tight() {
                self.commit_journal(io, anchor).await?;
            } else {
                listener.await;
            }
        }
        // The other loop ends the job.
        std::future::pending().await
    }

    /// A commit of this job's own never waits for room in the journal: only this job makes room.
    async fn commit_journal(&self, io: &Io, anchor: bool) -> Result<()> {
        self.commit(io, Want { data: true, anchor, urgent: true, ..Want::default() }).await.map(drop)
    }

    fn anchors_in_background(&self) -> bool {
        self.header.freshness == Freshness::Interval
    }

    pub(crate) fn is_transactional(&self) -> bool {
        self.header.freshness == Freshness::Transaction
    }

    fn checkpoint_is_due(&self) -> bool {
        let wanted =
            self.checkpoint_wanted.load(Ordering::SeqCst) > self.checkpoint_done.load(Ordering::SeqCst);
        if self.is_transactional() {
            // Superseded blocks count as well: writers wait for room, and no commit on the way takes these out.
            let full = self.overlay.active() + self.overlay.superseded() >= self.limits.overlay / 2;
            return wanted || full || self.freeing_is_due();
        }
        let full = self.overlay.active() >= self.limits.overlay / 2;
        let pinned = self.space.pinned() + self.overlay.superseded() + self.overlay.active()
            >= self.limits.pinned
            && self.overlay.active() + self.overlay.superseded() > self.limits.pinned / 4;
        // Segments that are left to the predecessor do not come back by checkpoints.
        let journal =
            self.commit.free_segments() < self.geometry.segments as usize / 2 && self.commit.can_retire();
        // A superblock lists the units that may be written; when there is nothing left in some of them, the next one can list others.
        let listed = self.space.list_is_spent(DATA_UNITS, self.limits.reserve_low);
        wanted || full || pinned || journal || listed || self.freeing_is_due()
    }

    pub(crate) fn publish_is_wanted(&self) -> bool {
        self.publish_wanted.load(Ordering::SeqCst) > self.publish_done.load(Ordering::SeqCst)
    }

    /// Whether so many changes wait for the journal that writers will soon wait, too.
    fn journal_is_due(&self) -> bool {
        !self.is_transactional() && self.overlay.pending() >= self.limits.pending / 2
    }

    /// Whether a limit of the window is reached, so that nothing goes on before the anchor has moved.
    pub(crate) fn anchor_is_due(&self) -> bool {
        self.window_is_used(4)
    }

    /// Whether the anchor is to move in the background: three quarters of the window are used, which leaves a slow anchor the rest; or the
    /// journal will soon need a segment that only the anchor can give.
    fn anchor_is_wanted(&self) -> bool {
        self.window_is_used(3) || self.commit.reservation_waits()
    }

    /// Whether so many quarters of one of the window's limits are used.
    fn window_is_used(&self, quarters: u64) -> bool {
        if self.header.freshness != Freshness::Interval || mutated(Mutation::WindowIgnored) {
            return false;
        }
        let (age, bytes, commits) = self.commit.unanchored(self.environment.clock.now());
        let waiting = bytes > 0 || commits > 0 || self.overlay.pending() > 0;
        let part = |limit: u64| (limit / 4).saturating_mul(quarters).max(1);
        let time = self.window.time / 4 * u32::try_from(quarters).unwrap_or(4);
        waiting
            && (self.space.pinned() >= self.limits.pinned / 2
                || age >= time
                || bytes >= part(self.window.bytes)
                || commits >= part(self.window.commits))
    }

    /// One checkpoint. At level `transaction`, a spill: the new roots stay in memory.
    pub(crate) async fn checkpoint(&self, io: &Io) -> Result<()> {
        // What the last checkpoint freed is what this one writes its nodes to.
        self.space.drain().await;
        self.checkpointing.store(true, Ordering::SeqCst);
        self.note_checkpoint();
        self.run_age.fetch_add(1, Ordering::SeqCst);
        if self.is_transactional() {
            let pin = self.spill(io).await?;
            self.unanchored_pins.lock().unwrap_or_else(PoisonError::into_inner).extend(pin);
            self.spilled.store(true, Ordering::SeqCst);
        } else {
            let units = self.begin_reservation_for_nodes(io).await?;
            self.spend_node_places();
            let cut = self.commit_and_freeze(io).await?;
            self.space.activate(&units);
            let pin = self.merge_and_reserve(io).await?;
            self.publish_merged(io, &cut, pin).await?;
        }
        if self.journal_is_tight() {
            // Our own segments came back, and it was not enough. Without a journal nothing goes on; that counts more than caution
            // towards a guest that is most likely dead.
            self.space.take_over();
            self.commit.take_over(&self.geometry);
        }
        let given = if self.is_store_short() { self.given_places() } else { None };
        self.space.give_up_node_units(MAX_UNITS, given.as_deref().map(Vec::as_slice));
        self.ask_node_room();
        if self.room.untold {
            // What this checkpoint replaced is free then, and was given. Nodes get it before it is discarded.
            self.space.drain().await;
            self.refill_node_places(io).await?;
        }
        self.counters.checkpoints.add(1);
        self.pace.end();
        // In this order: whoever asks for a checkpoint in between gets one too many, and not one that began before.
        self.checkpoint_done.fetch_add(1, Ordering::SeqCst);
        self.checkpointing.store(false, Ordering::SeqCst);
        self.progress.notify(usize::MAX);
        Ok(())
    }

    /// Commits all that was written so far, anchored, and freezes it for a merge.
    async fn commit_and_freeze(&self, io: &Io) -> Result<Committed> {
        self.space.before_freeze();
        let anchor = !mutated(Mutation::CheckpointUnanchored);
        self.commit(io, Want { data: true, anchor, freeze: true, urgent: true, ..Want::default() }).await
    }

    /// Makes what was merged what a superblock reaches.
    async fn publish_merged(&self, io: &Io, cut: &Committed, pin: Pin) -> Result<()> {
        if !mutated(Mutation::NodesNotFlushed) {
            io.flush().await?;
        }
        self.finish(io, cut, [pin]).await
    }

    /// Puts all of the journal that was replayed into the trees, so that its segments are free again. For an attach: nothing has been
    /// changed by this session yet, so it is a checkpoint at every level, and needs no record.
    pub(crate) async fn tidy(&self, io: &Io) -> Result<()> {
        self.run_age.fetch_add(1, Ordering::SeqCst);
        let cut = self.commit_and_freeze(io).await?;
        let pin = self.merge(io).await?;
        self.publish_merged(io, &cut, pin).await?;
        self.pace.end();
        self.counters.checkpoints.add(1);
        Ok(())
    }

    /// Freezes the overlay without a commit and merges it. What it freed stays pinned until the transaction is anchored.
    async fn spill(&self, io: &Io) -> Result<Vec<Pin>> {
        self.space.before_freeze();
        let superseded = self.overlay.cut(true).superseded;
        let pin = self.space.pin(superseded);
        Ok(vec![pin, self.merge(io).await?])
    }

    /// Merges the frozen generation into the trees and drops it. Returns the pin on what was freed.
    pub(crate) async fn merge(&self, io: &Io) -> Result<Pin> {
        let frozen = self.overlay.frozen();
        self.pace.begin(Phase::Map, frozen.entries.len() as u64);
        let merge = Merge::new(self, io);
        merge.lift(Tree::Map).await?;
        // Before its leaves are looked for: below a root of fewer levels they are not found.
        merge.lift(Tree::Bitmap).await?;
        merge.run(Tree::Map, &frozen.entries, &frozen.discards).await?;
        self.overlay.thaw();
        self.progress.notify(usize::MAX);
        let mut salts: Vec<_> =
            std::mem::take(&mut *self.new_salts.lock().unwrap_or_else(PoisonError::into_inner))
                .into_iter()
                .map(|(epoch, salt)| (u64::from(epoch), Salt(salt)))
                .collect();
        salts.sort_unstable_by_key(|(epoch, _)| *epoch);
        merge.run(Tree::Salts, &salts, &[]).await?;
        if self.resealing.gives_up_old_salts() {
            self.free_old_salts(io, &merge).await?;
        }
        let freed = merge.freed.take();
        let bit = |block: &u64| self.geometry.bit_of(*block);
        let mut bits: Vec<(u64, Bit)> =
            merge.placed.take().iter().map(|block| (bit(block), Bit::Used)).collect();
        bits.extend(freed.iter().map(|block| (bit(block), Bit::Free)));
        bits.extend(self.old_bitmap_leaves(io).await?.into_iter().map(|bit| (bit, Bit::Same)));
        // In this order: a root that was put on top may have been replaced at once.
        bits.sort_by_key(|(bit, _)| *bit);
        // Pinned before the bitmap says that they are free: a unit may be loaded at any moment from now.
        let freed = freed.into_iter().filter(|_| !mutated(Mutation::FreedBeforeSuperblock));
        let pin = self.space.pin(freed.chain(frozen.void).collect());
        self.pace.begin(Phase::Bitmap, bits.len() as u64);
        merge.run(Tree::Bitmap, &bits, &[]).await?;
        self.pace.begin(Phase::Publish, 1);
        let mut roots = self.roots();
        roots.growths = u8::try_from(self.geometry.growths()).unwrap_or(u8::MAX);
        roots.mapped = roots.mapped.saturating_add_signed(merge.mapped.get());
        drop(roots);
        self.space.after_merge();
        Ok(pin)
    }

    /// Writes the superblock that covers `cut`, and lets go of what it makes superfluous.
    async fn finish(&self, io: &Io, cut: &Committed, pins: impl IntoIterator<Item = Pin>) -> Result<()> {
        let listed = self.publish(io, cut, Vec::new()).await?;
        // Somebody who claimed the volume before this superblock was there reads the old trees.
        self.confirm_claim().await?;
        self.bitmap_places.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.commit.retire(&self.geometry, &cut.leg);
        self.run_age.fetch_add(1, Ordering::SeqCst);
        self.space.published(&listed);
        self.space.let_go(pins);
        self.progress.notify(usize::MAX);
        Ok(())
    }

    /// The end of a transaction: everything completed becomes durable and anchored, at once.
    async fn publish_transaction(&self, io: &Io) -> Result<()> {
        let wanted = self.publish_wanted.load(Ordering::SeqCst);
        // The next transaction must find room for its reservations: until its own end nothing makes any.
        let items = self.overlay.pending() + self.journal_share();
        let needed = items.div_ceil(items_per_record(self.geometry.segment_blocks) as u64);
        let tight = (self.commit.free_segments() as u64) < u64::from(self.geometry.segments) / 2 + needed;
        let spills =
            self.spilled.load(Ordering::SeqCst) || tight || self.overlay.pending() > self.limits.pending;
        if spills || !self.close_for_one_commit() {
            self.run_age.fetch_add(1, Ordering::SeqCst);
            let mut pins = self.spill(io).await?;
            pins.append(&mut self.unanchored_pins.lock().unwrap_or_else(PoisonError::into_inner));
            let roots = *self.roots();
            for (tree, entry) in
                [(Tree::Map, roots.map), (Tree::Salts, roots.salts), (Tree::Bitmap, roots.bitmap)]
            {
                self.commit.add_control(Item::Root { tree, growths: roots.growths, entry });
            }
            self.commit.add_control(Item::Mapped(roots.mapped));
            let cut = self.commit(io, Want { anchor: true, urgent: true, ..Want::default() }).await?;
            self.spilled.store(false, Ordering::SeqCst);
            self.finish(io, &cut, pins).await?;
            self.pace.end();
        } else {
            self.commit(io, Want { data: true, anchor: true, urgent: true, ..Want::default() }).await?;
        }
        self.publish_done.fetch_max(wanted, Ordering::SeqCst);
        self.progress.notify(usize::MAX);
        Ok(())
    }

    /// The clean end: a checkpoint, and a stamp that says that nobody has the volume.
    async fn release(&self, io: &Io) -> Result<()> {
        self.last_landed().await?;
        self.end_writes().await?;
        self.discards_ended().await;
        // What was not committed of a transaction is not the owner's will; it is left to be forgotten.
        let data = !self.is_transactional();
        if data {
            self.checkpoint(io).await?;
        }
        // What completed since the checkpoint began is in this commit, and nothing comes after it.
        let last = Want { data, anchor: true, urgent: true, release: true, ..Want::default() };
        self.commit(io, last).await.map(drop)
    }
}
