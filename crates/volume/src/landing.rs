//! Write-behind: writes that complete before the store has them, and the order in which changes become visible.
//!
//! A write is *acknowledged* to its submitter when its blocks are sealed and on their way, as a disk with a volatile cache does, and has
//! *landed* when the store has them and the overlay names their places.
//!
//! Invariants:
//! 1. Acknowledged writes land in the order of their acknowledgements. Any other change waits for those that were acknowledged before it
//!    was asked for, and for no others. So whatever was acknowledged before a change was asked for is in every cut that holds that change,
//!    and a crash leaves a state that existed.
//! 2. Whoever looks up a block waits until the last acknowledged write of it has landed.
//! 3. Flush, commit and the session's end wait until what was acknowledged before them has landed.
//! 4. An acknowledged write that cannot be stored never lands, and nothing behind it does: it ends the session, and its blocks cannot be
//!    read any more in this one.
//! 5. No more blocks are acknowledged and on their way than the limit says.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::Event;
use futures::future::{Either, select};
use rustc_hash::FxHashMap;

use crate::admission::Promise;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::entry::Entry;
use crate::format::protections::Freshness;
use crate::mutation::{Mutation, mutated};
use crate::queue::Runs;

/// A place in the line of acknowledged writes.
pub(crate) type Ticket = u64;

/// A change that needs nothing more to become visible.
pub(crate) enum Change {
    /// Blocks from `block` on that the store has.
    Write { block: u64, entries: Vec<Entry>, places: Vec<Range<u64>> },
    /// Blocks that are no longer there.
    Discard(Range<u64>),
}

/// An acknowledged write that the store has, and the items that were promised for it.
struct Arrived {
    change: Change,
    promised: u64,
}

#[derive(Default)]
struct Line {
    /// The ticket of whatever lands next.
    first: Ticket,
    /// From there on; `None` is a write that the store does not have yet.
    waiting: VecDeque<Option<Arrived>>,
    /// Their blocks, and the last write of each.
    behind: FxHashMap<u64, Ticket>,
    /// Who waits for a ticket to land.
    waiters: BTreeMap<Ticket, Arc<Event>>,
}

/// The line of acknowledged writes.
pub(crate) struct Landing {
    line: Mutex<Line>,
    /// Blocks that are acknowledged and have not landed. Without any, nobody takes the lock to look for them.
    behind: AtomicU64,
    /// The ticket of whatever is acknowledged next; changes under the lock of the line, before `behind` does.
    next: AtomicU64,
    limit: u64,
    /// For writes that wait for room: one is woken at a time, and wakes the next.
    room: Event,
}

impl Line {
    fn next(&self) -> Ticket {
        self.first + self.waiting.len() as u64
    }

    /// Puts a write of these blocks at the end.
    fn push(&mut self, blocks: Range<u64>) -> Ticket {
        let ticket = self.next();
        self.waiting.push_back(None);
        self.behind.extend(blocks.map(|block| (block, ticket)));
        ticket
    }

    /// The last write of any of these blocks.
    fn last_of(&self, range: &Range<u64>) -> Option<Ticket> {
        // A discard may have more blocks than anybody could look up.
        if range.end - range.start > self.behind.len() as u64 {
            return self
                .behind
                .iter()
                .filter(|(block, _)| range.contains(block))
                .map(|(_, ticket)| *ticket)
                .max();
        }
        range.clone().filter_map(|block| self.behind.get(&block)).max().copied()
    }

    /// Takes the next write out of the line, if it has arrived; and how many blocks it has.
    fn pop(&mut self) -> Option<(Arrived, u64)> {
        let arrived = self.waiting.front_mut()?.take()?;
        let ticket = self.first;
        self.waiting.pop_front();
        self.first += 1;
        let behind = self.no_longer_behind(&arrived.change, ticket);
        Some((arrived, behind))
    }

    fn no_longer_behind(&mut self, change: &Change, ticket: Ticket) -> u64 {
        let Change::Write { block, entries, .. } = change else { return 0 };
        let blocks = entries.len() as u64;
        for block in *block..block + blocks {
            // A later write of it may be in the line as well.
            if self.behind.get(&block) == Some(&ticket) {
                self.behind.remove(&block);
            }
        }
        blocks
    }
}

impl Landing {
    /// With room for so many blocks that are acknowledged and on their way.
    pub(crate) fn new(limit: u64) -> Self {
        let (behind, next) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { line: Mutex::default(), behind, next, limit, room: Event::new() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that are acknowledged and have not landed.
    pub(crate) fn blocks_behind(&self) -> Vec<u64> {
        self.line().behind.keys().copied().collect()
    }

    /// Whoever waits for something to land looks whether the session has ended.
    pub(crate) fn wake(&self) {
        for event in std::mem::take(&mut self.line().waiters).into_values() {
            event.notify(usize::MAX);
        }
        self.room.notify(usize::MAX);
    }
}

/// An acknowledged write on its way. Given up, it ends the session: what was acknowledged cannot be kept.
pub(crate) struct Behind<'a> {
    core: &'a Core,
    ticket: Ticket,
    arrived: bool,
}

impl Behind<'_> {
    /// The store could not take it.
    pub(crate) fn lose(self, error: &Error) {
        self.core.stop(&Error::new(
            error.kind(),
            format!(
                "a write that had completed could not be stored: {error}; detach the volume, see to its store and attach it again"
            ),
        ));
    }
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        if !self.arrived {
            self.core.stop(&Error::new(
                Kind::Io,
                "a write was given up that had completed before the store had it; detach the volume and attach it again",
            ));
        }
    }
}

impl Core {
    /// Waits until a write of these blocks, sealed and on its way, may complete before the store has it: then it lands before whatever is
    /// asked for from now on. Otherwise what `stored` said, if that ended first; neither, if the write must wait for it.
    pub(crate) async fn acknowledge(
        &self,
        blocks: Range<u64>,
        fua: bool,
        mut stored: Pin<&mut impl Future<Output = Result<()>>>,
    ) -> (Option<Behind<'_>>, Option<Result<()>>) {
        // One that never fits must not take the notice that there is room from one that does.
        let fits = blocks.end - blocks.start <= self.landing.limit;
        if fua || self.header.freshness == Freshness::Write || !fits || self.must_wait_for_store() {
            return (None, None);
        }
        // Nearly always there is room, and nobody to be told of it.
        if let Some(behind) = self.try_acknowledge(&blocks) {
            return (Some(behind), None);
        }
        loop {
            let room = self.landing.room.listen();
            if let Some(behind) = self.try_acknowledge(&blocks) {
                return (Some(behind), None);
            }
            if let Either::Left((result, _)) = select(stored.as_mut(), room).await {
                return (None, Some(result));
            }
        }
    }

    fn try_acknowledge(&self, blocks: &Range<u64>) -> Option<Behind<'_>> {
        let count = blocks.end - blocks.start;
        let mut line = self.landing.line();
        let full = self.landing.behind.load(Ordering::SeqCst) + count > self.landing.limit;
        // Under the lock: who ends the session waits for the line after it has said so.
        if full || self.stopping.load(Ordering::SeqCst) || self.commit.closed().is_some() {
            return None;
        }
        let ticket = line.push(blocks.clone());
        self.landing.next.store(ticket + 1, Ordering::SeqCst);
        let behind = self.landing.behind.fetch_add(count, Ordering::SeqCst) + count;
        if behind < self.landing.limit {
            self.landing.room.notify(1);
        }
        Some(Behind { core: self, ticket, arrived: false })
    }

    /// An acknowledged write has arrived: it lands as soon as what is before it has.
    pub(crate) fn arrive_behind(
        &self,
        runs: &RefCell<Runs>,
        mut behind: Behind<'_>,
        change: Change,
        promise: Promise<'_>,
    ) {
        behind.arrived = true;
        let mut line = self.landing.line();
        let place = usize::try_from(behind.ticket - line.first).unwrap_or(usize::MAX);
        let arrived = self.arrived(&mut line, behind.ticket, change, promise);
        if let Some(slot) = line.waiting.get_mut(place) {
            *slot = Some(arrived);
        }
        self.land(runs, line);
    }

    /// Makes a change visible that nobody was told of yet, and that has waited for those [before](Self::landed_before) it. Changes of the
    /// same blocks that are asked for at the same time have no order; each block has one of them.
    pub(crate) fn arrive(&self, runs: &RefCell<Runs>, change: Change, promise: Promise<'_>) {
        self.show(&change);
        if let Change::Write { places, .. } = change {
            runs.borrow_mut().place(self, places);
        }
        self.placing.fetch_sub(promise.items(), Ordering::SeqCst);
        drop(promise);
        self.nudge();
    }

    fn arrived(&self, line: &mut Line, ticket: Ticket, mut change: Change, promise: Promise<'_>) -> Arrived {
        if mutated(Mutation::LandsOutOfOrder) {
            let behind = line.no_longer_behind(&change, ticket);
            self.landing.behind.fetch_sub(behind, Ordering::SeqCst);
            self.show(&change);
            change = Change::Discard(0..0);
        }
        Arrived { change, promised: promise.keep() }
    }

    /// Lands what has arrived, in its order, under the lock of the line.
    fn land(&self, runs: &RefCell<Runs>, mut line: MutexGuard<'_, Line>) {
        let (mut promised, mut no_longer_behind) = (0, 0);
        while let Some((arrived, behind)) = line.pop() {
            self.show(&arrived.change);
            if let Change::Write { places, .. } = arrived.change {
                runs.borrow_mut().place(self, places);
            }
            promised += arrived.promised;
            no_longer_behind += behind;
        }
        self.landing.behind.fetch_sub(no_longer_behind, Ordering::SeqCst);
        self.placing.fetch_sub(promised, Ordering::SeqCst);
        let first = line.first;
        let unlanded = line.waiters.split_off(&first);
        let landed = std::mem::replace(&mut line.waiters, unlanded);
        drop(line);
        drop(Promise::kept(self, promised));
        for event in landed.into_values() {
            event.notify(usize::MAX);
        }
        self.landing.room.notify(1);
        self.nudge();
    }

    fn show(&self, change: &Change) {
        match change {
            Change::Write { .. } if mutated(Mutation::VisibleBeforeStored) => {}
            Change::Write { block, entries, .. } => self.overlay.insert(*block, entries),
            Change::Discard(range) => self.overlay.discard(range.clone()),
        }
    }

    /// Waits until whatever has this ticket has landed, and all before it.
    async fn has_landed(&self, ticket: Ticket) -> Result<()> {
        loop {
            let landed = {
                let mut line = self.landing.line();
                if line.first > ticket {
                    return Ok(());
                }
                // Under the lock: who ends the session waits for the line after it has said so.
                self.check_alive()?;
                line.waiters.entry(ticket).or_default().listen()
            };
            landed.await;
        }
    }

    /// What is acknowledged now has a ticket below this.
    fn next_ticket(&self) -> Ticket {
        match self.landing.behind.load(Ordering::SeqCst) {
            0 => 0,
            _ => self.landing.next.load(Ordering::SeqCst),
        }
    }

    /// For a change that is asked for now: what has a ticket below this lands before it.
    pub(crate) fn asked(&self) -> Ticket {
        if mutated(Mutation::LandsOutOfOrder) { 0 } else { self.next_ticket() }
    }

    /// Waits until whatever has a ticket below this has landed.
    pub(crate) async fn landed_before(&self, ticket: Ticket) -> Result<()> {
        match ticket.checked_sub(1) {
            Some(last) => self.has_landed(last).await,
            None => Ok(()),
        }
    }

    /// Waits until all that is acknowledged now has landed.
    pub(crate) async fn all_landed(&self) -> Result<()> {
        let all = if mutated(Mutation::FlushMissesBehind) { 0 } else { self.next_ticket() };
        self.landed_before(all).await
    }

    /// The same for all that was ever acknowledged, when the session ends and nothing more is.
    pub(crate) async fn last_landed(&self) -> Result<()> {
        // Under the lock, also when nothing seems to be behind: who found the session going on there has its ticket now.
        let all = self.landing.line().next();
        self.landed_before(all).await
    }

    /// Waits until the last acknowledged write of these blocks has landed.
    pub(crate) async fn blocks_landed(&self, blocks: Range<u64>) -> Result<()> {
        if self.landing.behind.load(Ordering::SeqCst) == 0 || mutated(Mutation::ReaderMissesBehind) {
            return Ok(());
        }
        let last = self.landing.line().last_of(&blocks);
        match last {
            Some(ticket) => self.has_landed(ticket).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
