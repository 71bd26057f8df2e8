//! A session's reservations: how units come to it, and when a superblock need not list them any more.

use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;

use event_listener::EventListener;

use super::bits::Bits;
use super::inner::{Inner, State, Unit};
use super::{Purpose, Space};
use crate::mutation::{Mutation, mutated};

impl Unit {
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open && self.free > 0
    }
}

impl Space {
    /// Chooses units for a reservation of data, next-fit, until they have `want` free blocks; `most` at most. They are `Pending` then. A volume
    /// that keeps [near](Self::near) what is there looks at no more units than it needs.
    pub(crate) fn choose(&self, want: u64, most: usize) -> Vec<u32> {
        let mut inner = self.lock();
        let near = self.near && !mutated(Mutation::ThinSpreads);
        let count = if near { inner.zone(want) } else { inner.units.len() };
        let open: Vec<u64> = inner.units[..count]
            .iter()
            .filter(|unit| unit.is_open() && unit.purpose == Purpose::Data)
            .map(|unit| u64::from(unit.free))
            .collect();
        // Emptier units have longer runs; passing over the fuller half is what makes random writes sequential.
        let average = open.iter().sum::<u64>() / (open.len() as u64).max(1);
        let Inner { units, cursor, leaving, .. } = &mut *inner;
        let mut chosen = Vec::new();
        let mut sum = 0;
        // What is kept for nodes comes last.
        for (purpose, threshold) in [(Purpose::Data, average), (Purpose::Data, 1), (Purpose::Nodes, 1)] {
            for step in 0..count {
                if sum >= want || chosen.len() >= most {
                    return chosen;
                }
                let at = (*cursor + step) % count;
                let unit = &mut units[at];
                if unit.is_open() && unit.purpose == purpose && u64::from(unit.free) >= threshold {
                    unit.state = State::Pending;
                    unit.purpose = Purpose::Data;
                    sum += u64::from(unit.free);
                    let number = u32::try_from(at).unwrap_or(u32::MAX);
                    leaving.remove(&number);
                    chosen.push(number);
                    if chosen.len() == 1 {
                        *cursor = (at + 1) % count;
                    }
                }
            }
        }
        chosen
    }

    /// Chooses units for the nodes of a checkpoint, until those that are kept for nodes have `want` free blocks that may be taken; `most` at
    /// most. They are `Pending` then. First come those that nodes were in before, then the emptiest.
    pub(crate) fn choose_for_nodes(&self, want: u64, most: usize) -> Vec<u32> {
        let mut inner = self.lock();
        let mut sum = inner.usable(Purpose::Nodes);
        if sum >= want {
            return Vec::new();
        }
        let zone = if self.near { inner.zone(want) } else { inner.units.len() };
        let Inner { units, leaving, .. } = &mut *inner;
        let open = (0u32..).zip(units.iter()).filter(|(_, unit)| unit.is_open());
        let mut best: BinaryHeap<(bool, bool, u32, u32)> = open
            .map(|(number, unit)| {
                let kept = unit.purpose == Purpose::Nodes;
                (kept, kept || (number as usize) < zone, unit.free, number)
            })
            .collect();
        let mut chosen = Vec::new();
        while sum < want
            && chosen.len() < most
            && let Some((_, _, free, number)) = best.pop()
        {
            units[number as usize].state = State::Pending;
            units[number as usize].purpose = Purpose::Nodes;
            leaving.remove(&number);
            sum += u64::from(free);
            chosen.push(number);
        }
        chosen
    }

    /// Up to `most` free blocks, in up to `runs` runs, of those that the next nodes go to.
    pub(crate) fn free_for_nodes(&self, most: u64, runs: usize) -> Vec<Range<u64>> {
        let inner = self.lock();
        let (mut found, mut left) = (Vec::new(), most);
        for unit in &inner.node_queue {
            let (range, Some(bits)) = (self.geometry.unit_range(*unit), inner.resident.get(unit)) else {
                continue;
            };
            for run in bits.free_runs(range.end - range.start, runs - found.len()) {
                let length = (run.end - run.start).min(left);
                left -= length;
                found.push(range.start + run.start..range.start + run.start + length);
                if left == 0 || found.len() == runs {
                    return found;
                }
            }
        }
        found
    }

    /// Takes a loaded unit in: `used` has a bit per block of the unit, as the published bitmap says.
    pub(crate) fn load(&self, unit: u32, used: Vec<u64>) {
        let mut inner = self.lock();
        let range = self.geometry.unit_range(unit);
        let mut bits = Bits::new(used);
        let pinned = inner.pinned.values().flatten();
        let held = inner.held.get(&unit).into_iter().flatten();
        for block in pinned.chain(held).filter(|block| range.contains(block)) {
            bits.set(block - range.start);
        }
        if self.untold {
            bits.know_given();
        }
        let free = bits.free(range.end - range.start);
        let was =
            std::mem::replace(&mut inner.units[unit as usize].free, u32::try_from(free).unwrap_or(u32::MAX));
        inner.free = (inner.free + free).saturating_sub(u64::from(was));
        inner.resident.insert(unit, bits);
    }

    /// The reservation of these units is durable: blocks may be taken from them.
    pub(crate) fn activate(&self, units: &[u32]) {
        let mut inner = self.lock();
        for unit in units {
            inner.units[*unit as usize].state = State::Usable;
            inner.enqueue(*unit);
        }
        drop(inner);
        self.progress.notify(usize::MAX);
    }

    /// Units that this session may still write into, for the superblock; at most `most`.
    pub(crate) fn reserved(&self, most: usize) -> Vec<u32> {
        let mut inner = self.lock();
        self.end_leaving(&mut inner);
        let leaving = inner.leaving_list.iter().flat_map(|(_, units)| units);
        let queues = inner.queue.iter().chain(&inner.node_queue);
        let mut units: Vec<u32> =
            queues.chain(&inner.emptied).chain(leaving).chain(&inner.discarding).copied().collect();
        units.sort_unstable();
        units.dedup();
        units.truncate(most);
        units
    }

    /// How many more units may be reserved before a superblock could not list them all.
    pub(crate) fn room(&self, most: usize) -> usize {
        let mut inner = self.lock();
        if inner.listed() >= most {
            self.end_leaving(&mut inner);
            inner.forget_emptied();
        }
        most.saturating_sub(inner.listed())
    }

    /// How many more units may be kept for nodes, if these and all others are `most`: what a superblock lists is for data, too.
    pub(crate) fn room_for_nodes(&self, most: usize) -> usize {
        let room = self.room(most);
        room.min((most / 2).saturating_sub(self.lock().node_queue.len()))
    }

    /// Gives up units that are kept for nodes, those with the fewest free blocks that the store has given first, until they are half of what a
    /// superblock can list: a checkpoint that finds no room takes all that it can get. Nothing is on its way to those that go.
    pub(crate) fn give_up_node_units(&self, most: usize, given: Option<&[Range<u64>]>) {
        let mut inner = self.lock();
        let surplus = inner.node_queue.len().saturating_sub(most / 2);
        if surplus == 0 {
            return;
        }
        let idle = |unit: &&u32| inner.resident.get(unit).is_some_and(|bits| bits.out == 0);
        let count = |unit: &u32| (self.count_given(&inner, *unit, given), *unit);
        let mut counted: Vec<(u64, u32)> = inner.node_queue.iter().filter(idle).map(count).collect();
        counted.sort_unstable();
        counted.truncate(surplus);
        for (_, number) in counted {
            inner.units[number as usize].state = State::Open;
            inner.queued.remove(&number);
            inner.node_queue.retain(|unit| *unit != number);
        }
    }

    /// Whether no more units may be reserved although data has less than `enough`, and a superblock could list fewer: some of them have
    /// nothing left. On a full volume each unit has a little, and one runs empty every few writes.
    pub(crate) fn list_is_spent(&self, most: usize, enough: u64) -> bool {
        let full = self.room(most) == 0;
        let inner = self.lock();
        full && inner.usable(Purpose::Data) < enough
            && !inner.emptied.is_empty()
            && inner.leaving_list.is_none()
    }

    /// Where no more units may be reserved before writes that are under way have ended: tells when one has. Look again then.
    pub(crate) fn waits_for_writes(&self, most: usize) -> Option<EventListener> {
        let ended = (self.room(most) == 0).then(|| self.writers.listen())?;
        (self.room(most) == 0 && self.lock().leaving_list.is_some()).then_some(ended)
    }

    /// A superblock that lists `listed` is durable, and runs that queues hold count no more. The bitmap has what recovery held; what is not
    /// listed must be reserved anew.
    pub(crate) fn published(&self, listed: &[u32]) {
        let mut inner = self.lock();
        inner.held.clear();
        let listed: HashSet<u32> = listed.iter().copied().collect();
        self.end_leaving(&mut inner);
        if inner.leaving_list.is_none()
            && let Some(phase) = self.writers.begin_grace()
        {
            let units = std::mem::take(&mut inner.emptied);
            inner.leaving_list = Some((phase, units));
        }
        let Inner { units, queue, node_queue, queued, emptied, leaving_list, .. } = &mut *inner;
        queue.retain(|unit| listed.contains(unit));
        node_queue.retain(|unit| listed.contains(unit));
        queued.retain(|unit| listed.contains(unit));
        for (number, unit) in (0u32..).zip(units.iter_mut()) {
            if unit.state != State::Usable {
                continue;
            }
            let leaving = leaving_list.as_ref().is_some_and(|(_, units)| units.contains(&number));
            if !queued.contains(&number) && !leaving && !emptied.contains(&number) {
                unit.state = State::Open;
            }
        }
        self.end_leaving(&mut inner);
    }

    /// Lets the leaving units go, if all writes that had begun before they were given up have ended.
    fn end_leaving(&self, inner: &mut Inner) {
        let drained = |phase: u64| self.writers.drained(phase) || mutated(Mutation::WritersForgotten);
        if let Some((_, units)) = inner.leaving_list.take_if(|(phase, _)| drained(*phase)) {
            for unit in units {
                inner.units[unit as usize].state = State::Open;
            }
        }
    }
}
