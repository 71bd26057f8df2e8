//! Units, their queues, and what is free in them: the state behind the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;

use super::bits::Bits;
use super::{Pin, Purpose};
use crate::geometry::Geometry;
use crate::reservation::DATA_UNITS;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Not reserved; this session may reserve it (again).
    Open,
    /// The predecessor may still write there.
    Foreign,
    /// Being loaded, or reserved in a commit that is not durable yet.
    Pending,
    /// Reserved: this session writes there.
    Usable,
    /// Reserved: this session discards what is free there, and writes nothing.
    Discarding,
}

#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) blocks: u32,
    pub(super) free: u32,
    pub(super) state: State,
    /// What it is kept for.
    pub(super) purpose: Purpose,
    /// Whether the store may still have something in its free blocks.
    pub(super) untidy: bool,
    /// Whether it was looked there for what the store has given, and how many such blocks there are that were not noted: `known.rs`.
    pub(super) searched: bool,
    pub(super) unnoted: u32,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) units: Vec<Unit>,
    pub(super) resident: HashMap<u32, Bits>,
    /// Resident units that may leave memory after the checkpoint under way.
    pub(super) leaving: HashSet<u32>,
    /// Usable units with free blocks, the one in use first; those for data, and those for nodes.
    pub(super) queue: VecDeque<u32>,
    pub(super) node_queue: VecDeque<u32>,
    pub(super) queued: HashSet<u32>,
    /// Usable units that ran empty since the last superblock; somebody may still hold a run of theirs.
    pub(super) emptied: HashSet<u32>,
    /// Those that the last superblock lists, or one before it, and that writes of before may still be on their way to: the phase of these.
    pub(super) leaving_list: Option<(u64, HashSet<u32>)>,
    pub(super) cursor: usize,
    /// Units in state `Discarding`, and where the search for more of them begins.
    pub(super) discarding: BTreeSet<u32>,
    pub(super) discard_cursor: usize,
    pub(super) free: u64,
    pub(super) held: HashMap<u32, Vec<u64>>,
    pub(super) pinned: BTreeMap<Pin, Vec<u64>>,
    pub(super) next_pin: Pin,
    pub(super) pinned_blocks: u64,
    pub(super) let_go: Vec<Pin>,
    pub(super) draining: Option<(u64, Vec<Pin>)>,
    /// Places that data takes first, in order: see `given.rs`.
    pub(super) preferred: Option<Vec<Range<u64>>>,
    /// Units that were the predecessor's and are not left alone any more.
    pub(super) taken: u64,
}

impl Inner {
    /// Units that ran empty need not be listed any more when all that was taken there is named by an entry: this session writes to none of
    /// these blocks again, so whoever comes next may believe bitmap and journal about them.
    pub(super) fn forget_emptied(&mut self) {
        let Inner { units, resident, emptied, .. } = self;
        emptied.retain(|unit| {
            let writing = resident.get(unit).is_none_or(|bits| bits.out > 0);
            if !writing {
                units[*unit as usize].state = State::Open;
            }
            writing
        });
    }

    /// Units that a superblock would list now.
    pub(super) fn listed(&self) -> usize {
        let leaving = self.leaving_list.as_ref().map_or(0, |(_, units)| units.len());
        self.queue.len() + self.node_queue.len() + self.emptied.len() + leaving + self.discarding.len()
    }

    /// How many units, from the first on, are enough for who keeps near what is there already: half as many blocks are free in them as the
    /// volume has in use, and `want` that can be had.
    pub(super) fn zone(&self, want: u64) -> usize {
        let used: u64 = self.units.iter().map(|unit| u64::from(unit.blocks.saturating_sub(unit.free))).sum();
        let enough = used / 2 + want;
        let (mut free, mut open) = (0, 0);
        for (at, unit) in self.units.iter().enumerate() {
            if free >= enough && open >= want {
                return at;
            }
            free += if unit.state == State::Foreign { 0 } else { u64::from(unit.free) };
            open += if unit.state == State::Open { u64::from(unit.free) } else { 0 };
        }
        self.units.len()
    }

    pub(super) fn queue_for(&mut self, purpose: Purpose) -> &mut VecDeque<u32> {
        match purpose {
            Purpose::Data => &mut self.queue,
            Purpose::Nodes => &mut self.node_queue,
        }
    }

    pub(super) fn usable(&self, purpose: Purpose) -> u64 {
        let queue = if purpose == Purpose::Data { &self.queue } else { &self.node_queue };
        queue.iter().map(|unit| u64::from(self.units[*unit as usize].free)).sum()
    }

    /// Whether data has nothing left, but units may be reserved for it. On a store that gives space as it is written to, it waits for them then:
    /// the places that are kept for nodes are given already, and other ones may not be given.
    pub(super) fn data_can_have_more(&self) -> bool {
        let fits = |unit: &Unit| {
            unit.free > 0
                && unit.purpose == Purpose::Data
                && matches!(unit.state, State::Open | State::Pending | State::Discarding)
        };
        // Those that ran empty make room in a superblock's list: at once, or with the next one.
        let can_list = self.listed() < DATA_UNITS || !self.emptied.is_empty();
        self.queue.is_empty() && can_list && self.units.iter().any(fits)
    }

    /// The unit to take from. Where there is none for this purpose, one of the others is for it from now on: for nodes the emptiest, for data
    /// the one from which nodes lose the least.
    pub(super) fn first(&mut self, purpose: Purpose) -> Option<u32> {
        let Self { units, queue, node_queue, .. } = self;
        let (own, others) = match purpose {
            Purpose::Data => (queue, node_queue),
            Purpose::Nodes => (node_queue, queue),
        };
        if own.is_empty() {
            let free = |at: &usize| units[others[*at] as usize].free;
            let at = match purpose {
                Purpose::Data => (0..others.len()).min_by_key(free),
                Purpose::Nodes => (0..others.len()).max_by_key(free),
            };
            let unit = others.remove(at?)?;
            units[unit as usize].purpose = purpose;
            own.push_front(unit);
        }
        own.front().copied()
    }

    /// Bytes of the current views.
    pub(super) fn bytes(&self) -> u64 {
        // All units but the last of each extent have the same size.
        let longest = self.resident.values().map(Bits::bytes).take(2).max().unwrap_or(0);
        self.resident.len() as u64 * (longest + 64)
    }

    pub(super) fn no_longer_out(&mut self, geometry: &Geometry, run: Range<u64>) {
        let mut from = run.start;
        while from < run.end {
            let unit = geometry.unit_of(from);
            let to = geometry.unit_range(unit).end.min(run.end);
            if let Some(bits) = self.resident.get_mut(&unit) {
                debug_assert!(bits.out >= to - from, "unit {unit} has no {} blocks out", to - from);
                bits.out = bits.out.saturating_sub(to - from);
            }
            if to <= from {
                return;
            }
            from = to;
        }
    }

    pub(super) fn release(&mut self, geometry: &Geometry, block: u64) {
        let unit = geometry.unit_of(block);
        let start = geometry.unit_range(unit).start;
        if let Some(bits) = self.resident.get_mut(&unit) {
            bits.clear(block - start);
        }
        let Some(entry) = self.units.get_mut(unit as usize) else { return };
        entry.free += 1;
        entry.untidy = true;
        let state = entry.state;
        if state != State::Foreign {
            self.free += 1;
        }
        if state == State::Usable {
            self.enqueue(unit);
        }
    }

    pub(super) fn note_given(&mut self, geometry: &Geometry, block: u64, is_given: bool) {
        let unit = geometry.unit_of(block);
        if let Some(bits) = self.resident.get_mut(&unit) {
            bits.note_given(block - geometry.unit_range(unit).start, is_given);
        } else if let Some(unit) = self.units.get_mut(unit as usize).filter(|_| is_given) {
            unit.unnoted = unit.unnoted.saturating_add(1);
        }
    }

    pub(super) fn enqueue(&mut self, unit: u32) {
        if self.units[unit as usize].free > 0 && self.queued.insert(unit) {
            self.emptied.remove(&unit);
            if let Some((_, leaving)) = &mut self.leaving_list {
                leaving.remove(&unit);
            }
            self.queue_for(self.units[unit as usize].purpose).push_back(unit);
        }
    }
}
