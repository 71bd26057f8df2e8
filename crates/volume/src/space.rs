//! Free space in memory: which blocks this session may take, and which wait to become free.
//!
//! Two views of "in use" exist. The *checkpointed* one is the bitmap on the store: what the published trees reach. The *current* one,
//! here, also has what was taken since, and what is freed but still pinned. It is kept only for units that this session has reserved.
//!
//! Invariants:
//! 1. A block is handed out at most once until it is released, only from a unit in state `Usable`, and only if it is free in the
//!    current view.
//! 2. `free` of a unit is the number of its blocks that are free in the current view.
//! 3. A pinned block is in use in the current view until `release`, which needs both: its batch was let go, and all readers from
//!    before that have finished.
//! 4. A unit is `Usable` exactly if it is in one of the two queues, among those that ran empty, or among those that are leaving, and in one
//!    of them only; what is usable is the sum of what is free in the queues.
//! 5. A unit's current view leaves memory only when bitmap and pins have all of it: at a freeze, nothing that was taken there was still
//!    on its way into the overlay, and since then nothing was taken there.
//! 6. Whoever waits for room is woken whenever there is more than before, whoever made it: a waiter may have found it on its own behalf,
//!    and taken only a part.
//! 7. A superblock lists each unit that a write may still be on its way to: one that was given up goes on being listed until all writes that
//!    had begun by then have ended. No run of it that a queue still holds is written to after that (`Core::run_age`).
//! 8. A discard is a write: only blocks of a unit that is reserved for it, taken before it begins and given back when it has ended.
//!
//! Nodes of the map and data go to units of their own, as far as there is room (decision 31). Of a thin volume, data leaves those of nodes alone
//! while others can be reserved for it: on a full store, the places that it has given there are what the next checkpoint goes on with (decision 40).

mod bits;
mod discard;
mod given;
mod inner;
mod known;
mod reserve;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::Event;

use crate::geometry::Geometry;
use crate::mutation::{Mutation, mutated};
use crate::readers::{Readers, Reading};
use bits::Bits;
use given::take_given;
use inner::{Inner, State, Unit};

/// What blocks are taken for. Nodes are replaced together, data one by one: apart from data, nodes leave long runs behind, in which the next
/// ones reach the store in few writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Data,
    Nodes,
}

/// Names a batch of pinned blocks.
pub(crate) type Pin = u64;

/// The session's free space.
pub(crate) struct Space {
    geometry: Geometry,
    readers: Arc<Readers>,
    /// Writes that have places, and that the store may not have yet. Counted as readers are, and for the same reason.
    writers: Arc<Readers>,
    /// For whoever waits for room.
    progress: Arc<Event>,
    /// Bytes of current views above which those that can be spared leave memory.
    most_bytes: u64,
    /// Whether what is taken lies near what is there already, so that a store that gives space as it is written to gives little.
    near: bool,
    /// Whether such a store cannot say what it has given, so that it is noted here (`known.rs`).
    untold: bool,
    inner: Mutex<Inner>,
}

impl Space {
    /// No space at all, until [`begin`](Self::begin).
    pub(crate) fn new(
        geometry: Geometry,
        readers: Arc<Readers>,
        progress: Arc<Event>,
        most_bytes: u64,
        near: bool,
        untold: bool,
    ) -> Self {
        Self {
            geometry,
            readers,
            writers: Arc::default(),
            progress,
            most_bytes,
            near,
            untold,
            inner: Mutex::default(),
        }
    }

    /// Free space as of the published bitmap: `free[u]` free blocks in unit `u`; none of it in the predecessor's units, and without the
    /// blocks that the replayed journal names.
    pub(crate) fn begin(&self, free: &[u32], foreign: &[u32], held: &[u64]) {
        let mut inner = self.lock();
        let unit = |(number, free): (u32, &u32)| {
            let range = self.geometry.unit_range(number);
            let blocks = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
            Unit {
                blocks,
                free: *free,
                state: State::Open,
                purpose: Purpose::Data,
                untidy: false,
                searched: false,
                unnoted: 0,
            }
        };
        inner.units = (0..).zip(free).map(unit).collect();
        for unit in foreign {
            if let Some(unit) = inner.units.get_mut(*unit as usize) {
                unit.state = State::Foreign;
            }
        }
        for block in held.iter().filter(|_| !mutated(Mutation::ReplayedBlocksFree)) {
            let unit = self.geometry.unit_of(*block);
            inner.held.entry(unit).or_default().push(*block);
            if let Some(unit) = inner.units.get_mut(unit as usize) {
                unit.free = unit.free.saturating_sub(1);
            }
        }
        inner.free = inner
            .units
            .iter()
            .filter(|unit| unit.state == State::Open)
            .map(|unit| u64::from(unit.free))
            .sum();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a write in, before it takes its places; until the store has it.
    pub(crate) fn begin_write(&self) -> Reading {
        self.writers.enter()
    }

    /// Takes up to `want` blocks, in runs, leaving at least `keep` blocks of the whole volume free. Empty if there is nothing to take.
    pub(crate) fn take(&self, purpose: Purpose, want: u64, keep: u64) -> Vec<Range<u64>> {
        let mut inner = self.lock();
        let mut left = want.min(inner.free.saturating_sub(keep));
        let mut runs = Vec::new();
        while left > 0 {
            if purpose == Purpose::Data && self.near && inner.data_can_have_more() {
                break;
            }
            if purpose == Purpose::Data && inner.queue.is_empty() {
                inner.preferred = None;
            }
            let Some(unit) = inner.first(purpose) else { break };
            let range = self.geometry.unit_range(unit);
            let Inner { resident, preferred, .. } = &mut *inner;
            let Some(bits) = resident.get_mut(&unit) else { break };
            let run = match preferred {
                Some(given) if purpose == Purpose::Data => take_given(bits, &range, given, left),
                _ => bits.take(left, range.end - range.start),
            };
            match run {
                Some(run) => {
                    let length = run.end - run.start;
                    left -= length;
                    bits.out += length;
                    inner.free -= length;
                    let entry = &mut inner.units[unit as usize];
                    entry.free = entry.free.saturating_sub(u32::try_from(length).unwrap_or(u32::MAX));
                    runs.push(range.start + run.start..range.start + run.end);
                }
                None => {
                    inner.queue_for(purpose).pop_front();
                    inner.queued.remove(&unit);
                    inner.emptied.insert(unit);
                }
            }
        }
        runs
    }

    /// Says that entries name these blocks, which were taken: the next freeze finds them. May come late.
    pub(crate) fn placed(&self, runs: impl IntoIterator<Item = Range<u64>>) {
        let mut inner = self.lock();
        for run in runs {
            inner.no_longer_out(&self.geometry, run);
        }
    }

    /// Gives back blocks that were taken and never written.
    pub(crate) fn give_back(&self, run: Range<u64>) {
        let mut inner = self.lock();
        inner.no_longer_out(&self.geometry, run.clone());
        for block in run {
            inner.release(&self.geometry, block);
        }
        drop(inner);
        self.progress.notify(usize::MAX);
    }

    /// Gives back places of nodes that were not written there, after all.
    pub(crate) fn give_node_places_back(&self, places: &[u64]) {
        if places.is_empty() {
            return;
        }
        let mut inner = self.lock();
        places.iter().for_each(|place| inner.release(&self.geometry, *place));
        drop(inner);
        self.progress.notify(usize::MAX);
    }

    /// Free blocks that may be taken now without a reservation.
    pub(crate) fn usable(&self) -> u64 {
        let inner = self.lock();
        inner.usable(Purpose::Data) + inner.usable(Purpose::Nodes)
    }

    /// Those of them that need not be taken from what is kept for something else.
    pub(crate) fn usable_for(&self, purpose: Purpose) -> u64 {
        self.lock().usable(purpose)
    }

    /// Free blocks of the volume that this session could have.
    pub(crate) fn free(&self) -> u64 {
        self.lock().free
    }

    /// Blocks that are freed but may not be used yet.
    pub(crate) fn pinned(&self) -> u64 {
        self.lock().pinned_blocks
    }

    /// To be called right before a freeze: finds the units whose current view is superfluous once what is frozen is in the bitmap.
    pub(crate) fn before_freeze(&self) {
        let mut inner = self.lock();
        inner.leaving.clear();
        if inner.bytes() <= self.most_bytes {
            return;
        }
        let Inner { units, resident, leaving, .. } = &mut *inner;
        let idle = |unit: u32, bits: &Bits| bits.out == 0 && units[unit as usize].state == State::Open;
        leaving.extend(resident.iter().filter(|(unit, bits)| idle(**unit, bits)).map(|(unit, _)| *unit));
    }

    /// What was frozen is in the bitmap: lets those views go that nobody has asked for since.
    pub(crate) fn after_merge(&self) {
        let mut inner = self.lock();
        for unit in std::mem::take(&mut inner.leaving) {
            inner.resident.remove(&unit);
        }
        inner.resident.shrink_to_fit();
    }

    /// Whether the unit's current view is in memory already.
    pub(crate) fn is_resident(&self, unit: u32) -> bool {
        self.lock().resident.contains_key(&unit)
    }

    /// Units that are left alone because the predecessor may be alive.
    pub(crate) fn foreign(&self) -> u64 {
        self.lock().units.iter().filter(|unit| unit.state == State::Foreign).count() as u64
    }

    /// Units that [`take_over`](Self::take_over) took.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Takes the predecessor's units: it cannot be alive any more, or space is so short that data counts more than its caution.
    /// Says whether there was anything to take.
    pub(crate) fn take_over(&self) -> bool {
        let mut inner = self.lock();
        let (mut gained, mut taken) = (0, 0);
        for unit in inner.units.iter_mut().filter(|unit| unit.state == State::Foreign) {
            unit.state = State::Open;
            gained += u64::from(unit.free);
            taken += 1;
        }
        inner.free += gained;
        inner.taken += taken;
        drop(inner);
        if gained > 0 {
            self.progress.notify(usize::MAX);
        }
        gained > 0
    }

    /// Pins blocks: they stay in use until the pin is let go.
    pub(crate) fn pin(&self, blocks: Vec<u64>) -> Pin {
        let mut inner = self.lock();
        let pin = inner.next_pin;
        inner.next_pin += 1;
        inner.pinned_blocks += blocks.len() as u64;
        inner.pinned.insert(pin, blocks);
        pin
    }

    /// What pinned these blocks has passed; they become free when no earlier reader is left.
    pub(crate) fn let_go(&self, pins: impl IntoIterator<Item = Pin>) {
        self.lock().let_go.extend(pins);
        self.collect();
    }

    /// Frees what no reader can hold any more, and wakes who waits for room.
    pub(crate) fn collect(&self) {
        if self.free_drained(&mut self.lock()) {
            self.progress.notify(usize::MAX);
        }
    }

    /// Says whether anything became free.
    fn free_drained(&self, inner: &mut Inner) -> bool {
        let mut freed = false;
        // Twice: ending one grace period may let the next begin and end at once.
        for _ in 0..2 {
            if let Some((phase, pins)) = inner.draining.take() {
                if !self.readers.drained(phase) {
                    inner.draining = Some((phase, pins));
                    return freed;
                }
                // Somebody may wait in `drain` for a reader to end; what it waits for is done here.
                self.readers.wake();
                for pin in pins {
                    let blocks = inner.pinned.remove(&pin).unwrap_or_default();
                    inner.pinned_blocks -= blocks.len() as u64;
                    freed |= !blocks.is_empty();
                    for block in blocks {
                        inner.release(&self.geometry, block);
                        if self.untold {
                            inner.note_given(&self.geometry, block, true);
                        }
                    }
                }
            }
            if !inner.let_go.is_empty()
                && let Some(phase) = self.readers.begin_grace()
            {
                let pins = std::mem::take(&mut inner.let_go);
                inner.draining = Some((phase, pins));
            }
        }
        freed
    }

    /// Whether blocks wait only for readers to end.
    pub(crate) fn is_draining(&self) -> bool {
        let inner = self.lock();
        inner.draining.is_some() || !inner.let_go.is_empty()
    }

    /// Waits until everything that was let go is free. Readers need nothing of whoever waits here.
    pub(crate) async fn drain(&self) {
        loop {
            let ended = self.readers.listen();
            self.collect();
            if !self.is_draining() {
                return;
            }
            ended.await;
        }
    }

    /// Bytes of memory that this takes.
    pub(crate) fn memory(&self) -> u64 {
        let inner = self.lock();
        inner.bytes() + (inner.units.len() * size_of::<Unit>()) as u64 + inner.pinned_blocks * 8
    }
}

#[cfg(test)]
mod tests;
