//! Free blocks that the store is to forget: reserved by units, taken as for a write, and given back.

use std::ops::Range;

use super::inner::State;
use super::{Purpose, Space};

impl Space {
    /// The store may have something in any free block: nobody knows what sessions before this one left there.
    pub(crate) fn all_untidy(&self) {
        self.lock().units.iter_mut().for_each(|unit| unit.untidy = unit.free > 0);
    }

    /// Gives up units that are reserved for data and may hold something that nobody needs, the last to be used first, as long as `enough` free
    /// blocks stay usable: after a time without room they are many, and what is reserved for writes is not discarded. Nothing is on its way
    /// to those that go: each block that was taken there has its entry, or came back.
    pub(crate) fn give_up_surplus(&self, enough: u64) {
        let mut inner = self.lock();
        let mut usable = inner.usable(Purpose::Data);
        let super::Inner { units, resident, queue, queued, .. } = &mut *inner;
        // The first one is in use.
        for at in (1..queue.len()).rev() {
            let number = queue[at];
            let unit = &mut units[number as usize];
            let idle = resident.get(&number).is_some_and(|bits| bits.out == 0);
            let left = usable.saturating_sub(u64::from(unit.free));
            if left >= enough && unit.untidy && idle {
                unit.state = State::Open;
                queued.remove(&number);
                queue.remove(at);
                usable = left;
            }
        }
    }

    /// Chooses up to `most` units in which the store may have something that nobody needs; they are `Pending` then. Units that are kept for
    /// nodes stay as they are, so that a checkpoint finds places that the store has already; and of what could be reserved for writes, half
    /// is left.
    pub(crate) fn choose_to_discard(&self, most: usize) -> Vec<u32> {
        let mut inner = self.lock();
        let open = |unit: &super::Unit| unit.state == State::Open && unit.free > 0;
        let all: u64 = inner.units.iter().filter(|unit| open(unit)).map(|unit| u64::from(unit.free)).sum();
        let super::Inner { units, leaving, discard_cursor, .. } = &mut *inner;
        let (mut chosen, mut sum) = (Vec::new(), 0);
        let (count, from) = (units.len(), *discard_cursor);
        for step in 0..count {
            let at = (from + step) % count;
            let unit = &mut units[at];
            if chosen.len() == most {
                break;
            }
            let fits = sum + u64::from(unit.free) <= all / 2;
            if !fits || !unit.untidy || !open(unit) || unit.purpose == Purpose::Nodes {
                continue;
            }
            sum += u64::from(unit.free);
            unit.state = State::Pending;
            // What becomes free from now on is not sure to be found.
            unit.untidy = false;
            let number = u32::try_from(at).unwrap_or(u32::MAX);
            leaving.remove(&number);
            chosen.push(number);
            *discard_cursor = (at + 1) % count;
        }
        chosen
    }

    /// The reservation of these units is durable: what is free there may be discarded.
    pub(crate) fn begin_discarding(&self, units: &[u32]) {
        let mut inner = self.lock();
        for unit in units {
            inner.units[*unit as usize].state = State::Discarding;
            inner.discarding.insert(*unit);
        }
        // The store will not have given anything there.
        let is_there = |run: &Range<u64>| units.contains(&self.geometry.unit_of(run.start));
        if let Some(preferred) = &mut inner.preferred {
            preferred.retain(|run| !is_there(run));
        }
    }

    /// A unit in which something is to be discarded.
    pub(crate) fn next_to_discard(&self) -> Option<u32> {
        self.lock().discarding.first().copied()
    }

    /// Takes free blocks of a unit that is reserved for it, up to `most` in up to `runs` runs, from its block `from` on; at least `keep` blocks
    /// of the whole volume stay free. Count a write in [before](Self::begin_write).
    pub(crate) fn take_to_discard(
        &self,
        unit: u32,
        from: u64,
        (most, runs): (u64, usize),
        keep: u64,
    ) -> Vec<Range<u64>> {
        let mut inner = self.lock();
        let range = self.geometry.unit_range(unit);
        let mut left = most.min(inner.free.saturating_sub(keep));
        let mut at = from.max(range.start) - range.start;
        let mut taken = Vec::new();
        while left > 0 && taken.len() < runs {
            let Some(bits) = inner.resident.get_mut(&unit) else { break };
            let Some(run) = bits.take_from(at, left, range.end - range.start) else { break };
            let length = run.end - run.start;
            (left, at) = (left - length, run.end);
            bits.out += length;
            inner.free -= length;
            let entry = &mut inner.units[unit as usize];
            entry.free = entry.free.saturating_sub(u32::try_from(length).unwrap_or(u32::MAX));
            taken.push(range.start + run.start..range.start + run.end);
        }
        taken
    }

    /// Gives back what was taken to be discarded, when it has been.
    pub(crate) fn discarded(&self, unit: u32, runs: &[Range<u64>]) {
        let mut inner = self.lock();
        let was = inner.units[unit as usize].untidy;
        for run in runs {
            inner.no_longer_out(&self.geometry, run.clone());
            for block in run.clone() {
                inner.release(&self.geometry, block);
                inner.note_given(&self.geometry, block, false);
            }
        }
        inner.units[unit as usize].untidy = was;
        drop(inner);
        self.progress.notify(usize::MAX);
    }

    /// Nothing is on its way to this unit any more: it may be reserved again, for whatever. `untidy` if it has to be looked at again.
    pub(crate) fn end_discarding(&self, unit: u32, untidy: bool) {
        let mut inner = self.lock();
        inner.discarding.remove(&unit);
        let entry = &mut inner.units[unit as usize];
        entry.state = State::Open;
        entry.untidy |= untidy;
        entry.unnoted = 0;
        drop(inner);
        self.progress.notify(usize::MAX);
    }

    /// Whether units are reserved for discards.
    pub(crate) fn is_discarding(&self) -> bool {
        !self.lock().discarding.is_empty()
    }
}
