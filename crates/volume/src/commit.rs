//! Commits: what was completed becomes durable, and anchored, together.
//!
//! Invariants:
//! 1. One commit at a time; its leader is the task that found none running. A flush is satisfied by a commit that began after it.
//! 2. A commit holds every change that completed before it began, on whatever queue (the overlay's cut), and every control item
//!    added before it.
//! 3. The order is: records written, store flushed, anchor moved, then pins let go. With data integrity off the store is flushed
//!    before the records too, since recovery could not tell whether data arrived.
//!    What reserves something (units, or a segment of the journal) is anchored before that is used, whatever the level.
//!    At level `interval` the anchor moves beside the commits that follow ([`Core::anchor_beside`]): a slow anchor holds nobody up before a limit
//!    of the window is reached. What a commit reserved is anchored before it is used there, too.
//! 4. When anything fails in between, the state on the store is unknown: the session is poisoned and writes no more.
//! 5. One move of the anchor at a time, and none to an earlier generation than the one before.
//! 6. A commit begins when it takes its number, under the lock under which callers ask for the next one's, and before the cut. Its leader may
//!    rest before that ([`Core::rest`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anchor::{Stamp, State};
use event_listener::Event;
use futures::future::{select, try_join_all};

use crate::admission::Promise;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::item::Item;
use crate::format::protections::Freshness;
use crate::format::record::items_per_record;
use crate::format::superblock::Leg;
use crate::geometry::Geometry;
use crate::io::Io;
use crate::journal::Journal;
use crate::mutation::{Mutation, mutated};
use crate::space::Pin;
use crate::witness::{Anchored, Witness};

mod moves;
mod rest;

use rest::Waiting;

/// What a caller wants of a commit.
#[derive(Clone, Copy, Default)]
pub(crate) struct Want {
    /// The changes of the overlay (else only control items).
    pub(crate) data: bool,
    /// The anchor must have moved.
    pub(crate) anchor: bool,
    /// The overlay's active generation is frozen at the cut.
    pub(crate) freeze: bool,
    /// May use the segments that are kept for checkpoints.
    pub(crate) urgent: bool,
    /// From now on the anchor vouches for the header with this digest.
    pub(crate) header: Option<[u8; 32]>,
    /// The session's last: the anchor says then that nobody has the volume, and no commit follows.
    pub(crate) release: bool,
}

/// Where a commit ended.
#[derive(Clone)]
pub(crate) struct Committed {
    pub(crate) generation: u64,
    pub(crate) head: [u8; 32],
    /// Where the journal goes on, and in which segment behind that.
    pub(crate) leg: Leg,
    pub(crate) next_segment: u32,
}

struct Inner {
    running: bool,
    /// Callers that wait for the commit of another one.
    waiting: u64,
    /// Callers when the last commit ended: those that it served, and those that had come too late for it.
    callers: u64,
    /// How long the last move of the anchor within a commit took.
    move_time: Duration,
    /// The anchor is being moved.
    moving: bool,
    begun: u64,
    /// The last commit that is durable, and the last that is anchored.
    durable: u64,
    anchored: u64,
    /// Generation and head of the last one that is durable.
    end: (u64, [u8; 32]),
    /// Changes of the overlay below these sequence numbers are durable, and anchored.
    durable_sequence: u64,
    anchored_sequence: u64,
    /// The last commit that reserved a segment.
    reserved: u64,
    poison: Option<Error>,
    /// More was said about the reason.
    explained: bool,
    /// The last commit has begun.
    released: bool,
    control: Vec<Item>,
    /// What each commit superseded, until the anchor covers it.
    pins: VecDeque<(u64, Pin)>,
    anchored_by: Anchored,
    anchored_at: Duration,
    unanchored_bytes: u64,
}

/// The state of committing.
pub(crate) struct Commit {
    inner: Mutex<Inner>,
    journal: Mutex<Journal>,
    /// Items for which the journal has room, as of its last change.
    capacity: AtomicU64,
    changed: Event,
    /// For a leader that rests: another caller waits.
    arrived: Event,
}

impl Commit {
    pub(crate) fn new(geometry: &Geometry, journal: Journal, anchored_by: Anchored, now: Duration) -> Self {
        let inner = Inner {
            running: false,
            waiting: 0,
            callers: 0,
            move_time: Duration::ZERO,
            moving: false,
            begun: 0,
            durable: 0,
            anchored: 0,
            end: (journal.generation, journal.head),
            durable_sequence: 0,
            anchored_sequence: 0,
            reserved: 0,
            poison: None,
            explained: false,
            released: false,
            control: Vec::new(),
            pins: VecDeque::new(),
            anchored_by,
            anchored_at: now,
            unanchored_bytes: 0,
        };
        let capacity = AtomicU64::new(journal.capacity(geometry) as u64);
        Self {
            inner: Mutex::new(inner),
            journal: Mutex::new(journal),
            capacity,
            changed: Event::new(),
            arrived: Event::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn poison(&self, reason: &Error) {
        self.lock().poison.get_or_insert_with(|| reason.clone());
        self.changed.notify(usize::MAX);
    }

    /// Adds a sentence to the reason why the session ended, once.
    pub(crate) fn explain(&self, sentence: impl FnOnce(&Error) -> Option<String>) {
        let mut inner = self.lock();
        if inner.explained {
            return;
        }
        if let Some(sentence) = inner.poison.as_ref().and_then(sentence) {
            inner.poison = inner.poison.take().map(|reason| reason.with_sentence(&sentence));
            inner.explained = true;
        }
    }

    /// The changes below this sequence number are those that the claim covers.
    pub(crate) fn begin_at(&mut self, sequence: u64) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        (inner.durable_sequence, inner.anchored_sequence) = (sequence, sequence);
    }

    /// The anchor covers all changes of the overlay below this sequence number.
    pub(crate) fn anchored_sequence(&self) -> u64 {
        self.lock().anchored_sequence
    }

    pub(crate) fn poisoned(&self) -> Option<Error> {
        self.lock().poison.clone()
    }

    /// Why nothing can be committed any more: a failure, or the session's end.
    pub(crate) fn closed(&self) -> Option<Error> {
        let inner = self.lock();
        inner.poison.clone().or_else(|| inner.released.then(Core::stopped))
    }

    /// Ends the session: whoever waits for a commit waits in vain.
    pub(crate) fn close(&self) {
        self.lock().released = true;
        self.changed.notify(usize::MAX);
    }

    pub(crate) fn add_control(&self, item: Item) {
        self.lock().control.push(item);
    }

    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.lock().anchored_by.stamp().cloned()
    }

    /// What this session may move its anchor by.
    fn witness(&self) -> Option<Witness> {
        self.lock().anchored_by.witness().cloned()
    }

    /// Generation and head of the chain now.
    pub(crate) fn position(&self) -> (u64, [u8; 32]) {
        let journal = self.journal();
        (journal.generation, journal.head)
    }

    pub(crate) fn free_segments(&self) -> usize {
        self.journal().free()
    }

    /// Data items that one commit has room for beside the control items that wait, in this segment and the next one.
    pub(crate) fn room(&self, geometry: &Geometry) -> u64 {
        let control = self.lock().control.len();
        self.journal().room(geometry).saturating_sub(control) as u64
    }

    /// Records of one block for which the journal has room, until a checkpoint makes more.
    pub(crate) fn records_left(&self, geometry: &Geometry) -> u64 {
        self.journal().blocks_left(geometry)
    }

    /// Whether the session had to begin in the predecessor's segments.
    pub(crate) fn began_crowded(&self) -> bool {
        self.journal().crowded
    }

    pub(crate) fn can_retire(&self) -> bool {
        self.journal().can_retire()
    }

    /// Stops leaving the predecessor's segments alone; the next checkpoint frees them.
    pub(crate) fn take_over(&self, geometry: &Geometry) {
        self.journal().take_over();
        self.note_capacity(geometry);
    }

    /// Where the chain ends.
    pub(crate) fn end(&self, geometry: &Geometry) -> Committed {
        self.journal().committed(geometry)
    }

    pub(crate) fn retire(&self, geometry: &Geometry, leg: &Leg) {
        self.journal().retire(leg);
        self.note_capacity(geometry);
    }

    fn note_capacity(&self, geometry: &Geometry) {
        self.capacity.store(self.journal().capacity(geometry) as u64, Ordering::SeqCst);
    }

    /// Whether a segment was reserved that the anchor does not know.
    pub(crate) fn reservation_waits(&self) -> bool {
        let inner = self.lock();
        inner.reserved > inner.anchored && !inner.moving
    }

    /// How long ago the anchor moved, and how many bytes and commits it does not cover.
    pub(crate) fn unanchored(&self, now: Duration) -> (Duration, u64, u64) {
        let inner = self.lock();
        (
            now.saturating_sub(inner.anchored_at),
            inner.unanchored_bytes,
            inner.durable.saturating_sub(inner.anchored),
        )
    }
}

fn abandoned() -> Error {
    Error::new(Kind::Io, "a commit was abandoned half-way; detach the volume and attach it again")
}

/// Ends a commit that its task gave up: nobody knows what arrived.
struct Leading<'a> {
    core: &'a Core,
    ended: bool,
    /// Whether it is one of those that come back with the next flush: the maintenance job is not.
    is_caller: bool,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.core.stop(&abandoned());
        }
        {
            let mut inner = self.core.commit.lock();
            inner.running = false;
            inner.callers = inner.waiting + u64::from(self.is_caller);
        }
        self.core.commit.changed.notify(usize::MAX);
    }
}

impl Core {
    /// Segments that only a checkpoint's commits may use: half of them for all changes that may be waiting or under way, one for the
    /// session that comes next, the rest for reservations and for blocks that records do not fill.
    pub(crate) fn kept_segments(&self) -> usize {
        (self.geometry.segments / 4).max(2) as usize
    }

    /// Changes that may wait for the journal or be under way, however much room there is now: other commits may take it away before, up
    /// to the segments that are kept.
    pub(crate) fn journal_share(&self) -> u64 {
        (self.kept_segments() / 2 * items_per_record(self.geometry.segment_blocks)) as u64
    }

    /// The same, when part of the kept segments is used up already.
    pub(crate) fn journal_room(&self) -> u64 {
        let segment = items_per_record(self.geometry.segment_blocks);
        let rest = (self.kept_segments().div_ceil(2) - 1) * segment;
        let capacity = self.commit.capacity.load(Ordering::SeqCst);
        self.journal_share().min(capacity.saturating_sub(rest as u64))
    }

    /// Whether a commit that is not urgent has to wait for a checkpoint to make room in the journal.
    pub(crate) fn journal_is_tight(&self) -> bool {
        self.commit.free_segments() <= self.kept_segments()
    }

    /// Whether every commit moves the anchor.
    pub(crate) fn anchors_always(&self) -> bool {
        matches!(self.header.freshness, Freshness::Strict | Freshness::Write)
    }

    /// Makes what was completed before the call durable, and anchored if that is wanted or the level demands it.
    pub(crate) async fn commit(&self, io: &Io, want: Want) -> Result<Committed> {
        let wanted = want.anchor && self.header.freshness != Freshness::Off;
        let anchor = wanted || self.anchors_always() || self.anchor_is_due();
        let target = {
            // Whoever waits for room in the journal would come back at once, again and again.
            let joins = mutated(Mutation::CommitJoinsRunning) && !self.journal_is_owed();
            let inner = self.commit.lock();
            inner.begun + u64::from(!(joins && inner.running))
        };
        loop {
            let listener = self.commit.changed.listen();
            let progress = self.progress.listen();
            let tight = !want.urgent && self.journal_is_tight();
            let due = self.anchor_is_due();
            let leads = {
                let mut inner = self.commit.lock();
                if let Some(reason) = &inner.poison {
                    return Err(reason.clone());
                }
                let reached = if anchor { inner.anchored } else { inner.durable };
                if reached >= target && !want.freeze && !want.release && want.header.is_none() {
                    let journal = self.commit.journal();
                    return Ok(self.committed(&journal));
                }
                if inner.released && !inner.running {
                    return Err(Self::stopped());
                }
                // At a limit of the window nothing is added to what the anchor does not cover, until the move under way has ended.
                let leads = !(inner.running || tight || (due && inner.moving));
                if leads {
                    inner.running = true;
                    inner.released = want.release;
                }
                leads
            };
            if leads {
                return self.lead(io, want, anchor).await;
            }
            let _waiting = (!want.urgent).then(|| Waiting::new(&self.commit));
            if tight {
                self.want_checkpoint();
                select(listener, progress).await;
            } else {
                listener.await;
            }
        }
    }

    fn committed(&self, journal: &Journal) -> Committed {
        journal.committed(&self.geometry)
    }

    async fn lead(&self, io: &Io, want: Want, anchor: bool) -> Result<Committed> {
        let mut leading = Leading { core: self, ended: false, is_caller: !want.urgent };
        if anchor && self.anchors_always() && !want.urgent && !want.release {
            self.rest().await;
        }
        let result = self.perform(io, want, anchor).await;
        leading.ended = true;
        if let Err(error) = &result
            && !mutated(Mutation::FailedCommitGoesOn)
        {
            self.stop(error);
        }
        drop(leading);
        let (committed, beside) = result.map_err(|error| self.reason(error))?;
        if let Some(number) = beside {
            self.anchor_beside(number).await?;
        }
        Ok(committed)
    }

    /// Writes a commit. With the number of one that is to be anchored beside those that follow.
    async fn perform(&self, io: &Io, want: Want, mut anchor: bool) -> Result<(Committed, Option<u64>)> {
        let beside = self.header.freshness == Freshness::Interval && !want.release && want.header.is_none();
        let mut reserves = false;
        // Again: others may have committed while this one waited.
        anchor |= self.anchor_is_due();
        // What the overlay's cut takes out still needs its room.
        let waiting = if want.data { self.overlay.pending() } else { 0 };
        let mut promises = vec![Promise::again(self, waiting)];
        let (items, number, sequence) = self.cut(want);
        promises.push(Promise::again(self, (items.len() as u64).saturating_sub(waiting)));
        if !items.is_empty() {
            if !self.header.integrity && !mutated(Mutation::DataNotFlushed) {
                io.flush().await?;
            }
            reserves = self.write_items(io, &items, anchor).await?;
            anchor |= reserves && !beside;
            self.commit.note_capacity(&self.geometry);
            self.counters.commits.add(1);
        }
        drop(promises);
        let committed = self.committed(&self.commit.journal());
        {
            let mut inner = self.commit.lock();
            inner.durable = number;
            inner.end = (committed.generation, committed.head);
            inner.durable_sequence = inner.durable_sequence.max(sequence);
            inner.unanchored_bytes += items.len() as u64 * memory::BLOCK_SIZE as u64;
            if reserves {
                inner.reserved = number;
            }
        }
        if anchor && beside {
            return Ok((committed, Some(number)));
        }
        if anchor {
            let state = if want.release { State::Released } else { State::Claimed };
            let reached = self.reached();
            let begun = self.environment.clock.now();
            self.move_alone((committed.generation, committed.head), state, want.header).await?;
            self.covered(&reached);
            self.commit.lock().move_time = self.environment.clock.now().saturating_sub(begun);
        } else {
            self.let_go(false, number);
            if reserves {
                // The maintenance job anchors it before it is needed.
                self.work.notify(usize::MAX);
            }
        }
        Ok((committed, None))
    }

    /// Writes changes to the journal, durably. Says whether the last of them reserved a segment, and so must be anchored.
    ///
    /// More than fits into this segment and the next one goes in parts, with the anchor moved in between: a successor leaves just these two
    /// segments alone, so a third may be written only by who still has the volume. Each part ends at a state that existed. A transaction has
    /// to be one commit; one that could become too large is spilt (see `publish_transaction`).
    async fn write_items(&self, io: &Io, items: &[Item], anchor: bool) -> Result<bool> {
        let anchored = self.header.freshness != Freshness::Off;
        let whole = !anchored || self.header.freshness == Freshness::Transaction;
        let mut rest = items;
        loop {
            let crosses = rest.len() > self.commit.journal().rest(&self.geometry);
            if !whole && crosses && !mutated(Mutation::SegmentNotAnchored) {
                // The next segment is ours to write when the anchor knows it.
                let reserved = self.commit.lock().reserved;
                self.anchor_beside(reserved).await?;
            }
            let room = if whole { rest.len() } else { self.commit.journal().room(&self.geometry) };
            let (now, later) = rest.split_at(rest.len().min(room));
            rest = later;
            let (records, reserves) = {
                let mut journal = self.commit.journal();
                let before = journal.place();
                let records = journal.records(self, io, now)?;
                // The first record of a segment is what reserves the next one.
                (records, before.1 == 0 || before.0 != journal.place().0)
            };
            if (anchor || reserves) && anchored && mutated(Mutation::AnchorBeforeJournal) {
                let ahead = self.committed(&self.commit.journal());
                self.move_anchor_to((ahead.generation, ahead.head), State::Claimed, None).await?;
            }
            let blocks: usize = records.iter().map(|(_, buffer)| buffer.blocks()).sum();
            try_join_all(records.into_iter().map(|(place, buffer)| self.write_fixed(io, place, buffer)))
                .await?;
            if !mutated(Mutation::RecordNotFlushed) {
                io.flush().await?;
            }
            self.counters.journal_blocks.add(blocks as u64);
            if rest.is_empty() {
                return Ok(reserves && anchored);
            }
            let here = self.committed(&self.commit.journal());
            self.move_alone((here.generation, here.head), State::Claimed, None).await?;
        }
    }

    /// Takes what this commit is to hold. What it supersedes is pinned under the commit's number.
    fn cut(&self, want: Want) -> (Vec<Item>, u64, u64) {
        // Control items first: a reservation or epoch stands before the entries that use it.
        let (mut items, number) = {
            let mut inner = self.commit.lock();
            inner.begun += 1;
            (std::mem::take(&mut inner.control), inner.begun)
        };
        let mut sequence = 0;
        if want.data {
            let cut = self.overlay.cut(want.freeze);
            self.reopen();
            items.extend(cut.items);
            self.pin(number, cut.superseded);
            sequence = cut.end;
        }
        (items, number, sequence)
    }

    /// Pins blocks until commit `number` is anchored (durable, at level `off`).
    pub(crate) fn pin(&self, number: u64, blocks: Vec<u64>) {
        if !blocks.is_empty() {
            let pin = self.space.pin(blocks);
            self.commit.lock().pins.push_back((number, pin));
            if mutated(Mutation::ReuseBeforeCommit) {
                self.space.let_go([pin]);
            }
        }
    }

    fn let_go(&self, anchored: bool, number: u64) {
        if anchored || self.header.freshness == Freshness::Off || mutated(Mutation::ReuseBeforeAnchor) {
            let pins: Vec<Pin> = {
                let mut inner = self.commit.lock();
                let ready = inner.pins.iter().take_while(|(commit, _)| *commit <= number).count();
                inner.pins.drain(..ready).map(|(_, pin)| pin).collect()
            };
            self.space.let_go(pins);
        }
        self.progress.notify(usize::MAX);
    }
}
