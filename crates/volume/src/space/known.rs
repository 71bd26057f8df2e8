//! Which free blocks a store has given that cannot say so itself: what this session knows of it.
//!
//! Invariants:
//! 1. A block counts as given when something was written there, or was found there, and it was not discarded since. What bitmap, pins and journal
//!    say is in use when a unit is loaded was written; so was what comes back by a pin. What comes back because it was never written was not.
//! 2. What is known of a unit is in its view, and leaves memory with it. Knowing too little costs a look at the store; knowing too much, a write that
//!    is refused.

use std::cmp::Reverse;
use std::ops::Range;

use super::inner::State;
use super::{Purpose, Space};

impl Space {
    /// The store has a block of a unit whose view is in memory; or it does not, after all.
    pub(crate) fn note_given(&self, block: u64, is_given: bool) {
        self.lock().note_given(&self.geometry, block, is_given);
    }

    /// Free places of those that are kept for nodes and may be written to, that the store is known to have given.
    pub(crate) fn known_to_nodes(&self) -> u64 {
        let inner = self.lock();
        let known = |unit: &u32| inner.resident.get(unit).map_or(0, super::Bits::known);
        inner.node_queue.iter().map(known).sum()
    }

    /// The same of one unit.
    pub(crate) fn known_in(&self, unit: u32) -> u64 {
        self.lock().resident.get(&unit).map_or(0, super::Bits::known)
    }

    /// A place that may be written to, and that the store is known to have given; it is taken then. Those of nodes come first.
    pub(crate) fn take_known_place(&self) -> Option<u64> {
        let mut inner = self.lock();
        let units: Vec<u32> = inner.node_queue.iter().chain(&inner.queue).copied().collect();
        let (unit, bit) =
            units.into_iter().find_map(|unit| Some((unit, inner.resident.get_mut(&unit)?.take_known()?)))?;
        inner.free = inner.free.saturating_sub(1);
        let entry = &mut inner.units[unit as usize];
        entry.free = entry.free.saturating_sub(1);
        Some(self.geometry.unit_range(unit).start + bit)
    }

    /// Takes the next run of at most `most` free blocks of those that are kept for nodes, of which it is not known whether the store has given them.
    pub(crate) fn take_unknown(&self, most: u64) -> Option<Range<u64>> {
        let mut inner = self.lock();
        let units: Vec<u32> = inner.node_queue.iter().copied().collect();
        let run = units.into_iter().find_map(|unit| {
            let range = self.geometry.unit_range(unit);
            let bits = inner.resident.get_mut(&unit)?;
            let run = bits.unknown_run(0, range.end - range.start, most)?;
            run.clone().for_each(|bit| bits.set(bit));
            bits.out += run.end - run.start;
            Some(range.start + run.start..range.start + run.end)
        })?;
        let length = run.end - run.start;
        inner.free = inner.free.saturating_sub(length);
        let entry = &mut inner.units[self.geometry.unit_of(run.start) as usize];
        entry.free = entry.free.saturating_sub(u32::try_from(length).unwrap_or(u32::MAX));
        Some(run)
    }

    /// Free blocks of a unit whose view is in memory, of which it is not known whether the store has given them.
    pub(crate) fn unknown(&self, unit: u32) -> Vec<Range<u64>> {
        let inner = self.lock();
        let range = self.geometry.unit_range(unit);
        let (mut runs, mut at) = (Vec::new(), 0);
        while let Some(bits) = inner.resident.get(&unit)
            && let Some(run) = bits.unknown_run(at, range.end - range.start, u64::MAX)
        {
            at = run.end;
            runs.push(range.start + run.start..range.start + run.end);
        }
        runs
    }

    /// Whether a unit could be reserved, and has something free.
    pub(crate) fn is_open(&self, unit: u32) -> bool {
        self.lock().units.get(unit as usize).is_some_and(super::Unit::is_open)
    }

    /// Units that could be reserved and in which there may be something that the store has given: first those in which the most became free.
    pub(crate) fn to_search(&self) -> Vec<u32> {
        let inner = self.lock();
        let open = (0u32..).zip(&inner.units).filter(|(_, unit)| unit.is_open());
        let promising = open.filter(|(_, unit)| unit.unnoted > 0 || !unit.searched);
        let mut units: Vec<(u32, u32)> = promising.map(|(number, unit)| (unit.unnoted, number)).collect();
        units.sort_unstable_by_key(|(unnoted, number)| (Reverse(*unnoted), *number));
        units.into_iter().map(|(_, number)| number).collect()
    }

    /// A unit was searched, and its view has what was found.
    pub(crate) fn searched(&self, unit: u32) {
        let mut inner = self.lock();
        let unit = &mut inner.units[unit as usize];
        (unit.searched, unit.unnoted) = (true, 0);
    }

    /// Keeps units for nodes, of those that could be reserved; they are `Pending` then.
    pub(crate) fn keep_for_nodes(&self, units: &[u32]) {
        let mut inner = self.lock();
        for number in units {
            let unit = &mut inner.units[*number as usize];
            (unit.state, unit.purpose) = (State::Pending, Purpose::Nodes);
            inner.leaving.remove(number);
        }
    }

    /// Lets a view go that was loaded for a search, and from which nothing was taken since.
    pub(crate) fn unload(&self, unit: u32) {
        let mut inner = self.lock();
        let Some(bits) = inner.resident.get(&unit).filter(|bits| bits.out == 0) else { return };
        let known = u32::try_from(bits.known()).unwrap_or(u32::MAX);
        if inner.units[unit as usize].state == State::Open {
            inner.resident.remove(&unit);
            inner.units[unit as usize].unnoted = known;
        }
    }
}
