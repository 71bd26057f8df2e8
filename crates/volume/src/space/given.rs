//! Places that the store has given already: they come first when it has little left.
//!
//! What was given is the host's word. It decides only which of the free places is tried.
//!
//! Invariant: while some are preferred, data takes only these. A unit that has none of them left counts as empty. The preference ends when
//! data has no unit left and can have no other one that has some.

use std::ops::Range;

use super::bits::Bits;
use super::inner::{Inner, State, Unit};
use super::{Purpose, Space};

/// The parts of `range` that are in `given`, which is in order.
fn within(given: &[Range<u64>], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let first = given.partition_point(|run| run.end <= range.start);
    let clipped = given[first..].iter().map(move |run| run.start.max(range.start)..run.end.min(range.end));
    clipped.take_while(|run| run.start < run.end)
}

/// The parts of `range` that are not in `given`, which is in order.
fn outside(given: &[Range<u64>], range: Range<u64>) -> Vec<Range<u64>> {
    let (mut parts, mut at) = (Vec::new(), range.start);
    for run in within(given, range.clone()) {
        if at < run.start {
            parts.push(at..run.start);
        }
        at = run.end;
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    parts
}

/// Takes the first free run of at most `want` blocks of a unit, `unit`, that is in `given`.
pub(super) fn take_given(
    bits: &mut Bits,
    unit: &Range<u64>,
    given: &[Range<u64>],
    want: u64,
) -> Option<Range<u64>> {
    let mut runs = within(given, unit.clone());
    runs.find_map(|run| bits.take_from(run.start - unit.start, want, run.end - unit.start))
}

impl Unit {
    /// Free blocks of those that the store has given; `range` is the unit's.
    fn given_and_free(&self, range: Range<u64>, given: &[Range<u64>]) -> u64 {
        let blocks: u64 = within(given, range).map(|run| run.end - run.start).sum();
        // What is in use was given as well, so the rest of what was given is free.
        blocks.saturating_sub(u64::from(self.blocks.saturating_sub(self.free)))
    }
}

impl Space {
    /// Has data take places that the store has given, as long as there are some; `None`: no longer. Says whether there are any.
    pub(crate) fn prefer(&self, given: Option<&[Range<u64>]>) -> bool {
        let mut inner = self.lock();
        let kept = given.map(|given| {
            let for_data = (0u32..).zip(&inner.units).filter(|(number, unit)| {
                let can_be_had = matches!(unit.state, State::Open | State::Pending);
                unit.purpose == Purpose::Data && (can_be_had || inner.queued.contains(number))
            });
            let ranges = for_data.map(|(number, unit)| (unit, self.geometry.unit_range(number)));
            let some = ranges.filter(|(unit, range)| unit.given_and_free(range.clone(), given) > 0);
            some.flat_map(|(_, range)| within(given, range)).collect::<Vec<_>>()
        });
        inner.preferred = kept.filter(|kept| !kept.is_empty());
        inner.preferred.is_some()
    }

    /// Chooses units, those with the most free blocks that the store has given first, until these are `want`; at most `most` units. They are
    /// `Pending` then. What is kept for nodes is not for data.
    pub(crate) fn choose_given(
        &self,
        purpose: Purpose,
        given: &[Range<u64>],
        want: u64,
        most: usize,
    ) -> Vec<u32> {
        let mut inner = self.lock();
        let open = (0u32..).zip(&inner.units).filter(|(_, unit)| {
            let fits = purpose == Purpose::Nodes || unit.purpose == Purpose::Data;
            unit.state == State::Open && unit.free > 0 && fits
        });
        let mut best: Vec<(u64, u32)> = open
            .map(|(number, unit)| (unit.given_and_free(self.geometry.unit_range(number), given), number))
            .filter(|(free, _)| *free > 0)
            .collect();
        best.sort_unstable_by_key(|(free, number)| (std::cmp::Reverse(*free), *number));
        let mut sum = 0;
        let enough = |(free, _): &(u64, u32)| {
            let more = sum < want;
            sum += *free;
            more
        };
        let chosen: Vec<u32> = best.into_iter().take(most).take_while(enough).map(|(_, unit)| unit).collect();
        for number in &chosen {
            let unit = &mut inner.units[*number as usize];
            (unit.state, unit.purpose) = (State::Pending, purpose);
            inner.leaving.remove(number);
        }
        chosen
    }

    /// A free place that may be written to, and that is in `given`; it is taken then.
    pub(crate) fn take_given_place(&self, given: &[Range<u64>]) -> Option<u64> {
        let mut inner = self.lock();
        let units: Vec<u32> = inner.node_queue.iter().chain(&inner.queue).copied().collect();
        let (unit, place) = units.into_iter().find_map(|unit| {
            let range = self.geometry.unit_range(unit);
            let bits = inner.resident.get_mut(&unit)?;
            let found = take_given(bits, &range, given, 1)?;
            bits.out += 1;
            Some((unit, range.start + found.start))
        })?;
        inner.free = inner.free.saturating_sub(1);
        let entry = &mut inner.units[unit as usize];
        entry.free = entry.free.saturating_sub(1);
        // As every place of a node: it is named by the tree that is being built.
        inner.no_longer_out(&self.geometry, place..place + 1);
        Some(place)
    }

    /// Free places that data may take, or may have after a reservation, that are in `given`.
    pub(crate) fn given_to_data(&self, given: &[Range<u64>]) -> u64 {
        let inner = self.lock();
        let for_data = (0u32..).zip(&inner.units).filter(|(number, unit)| {
            let can_be_had = matches!(unit.state, State::Open | State::Pending);
            unit.purpose == Purpose::Data && (can_be_had || inner.queued.contains(number))
        });
        for_data.map(|(number, unit)| unit.given_and_free(self.geometry.unit_range(number), given)).sum()
    }

    /// Those of them that need no reservation. What is reserved is not discarded, so the store keeps them.
    pub(crate) fn given_in_hand(&self, given: &[Range<u64>]) -> u64 {
        let inner = self.lock();
        inner.queue.iter().map(|unit| self.count_given(&inner, *unit, Some(given))).sum()
    }

    /// Has nodes take units that data writes to, those with the most free places that are in `given` first, until nodes have `want` such places, or
    /// data has no more than half of its own. Data takes units of nodes when it has none left, and nobody else gives these back. Says whether it
    /// took any.
    pub(crate) fn give_data_units_to_nodes(&self, given: &[Range<u64>], want: u64) -> bool {
        let mut inner = self.lock();
        let count = |unit: &u32| (self.count_given(&inner, *unit, Some(given)), *unit);
        let mut of_nodes: u64 = inner.node_queue.iter().map(|unit| count(unit).0).sum();
        let mut counted: Vec<(u64, u32)> = inner.queue.iter().map(count).collect();
        let mut of_data = counted.iter().map(|(free, _)| *free).sum::<u64>() / 2;
        counted.sort_unstable_by_key(|(free, unit)| (std::cmp::Reverse(*free), *unit));
        let mut moved = false;
        for (free, number) in counted {
            if of_nodes >= want || free == 0 {
                break;
            }
            if free > of_data {
                continue;
            }
            (of_nodes, of_data, moved) = (of_nodes + free, of_data - free, true);
            inner.queue.retain(|unit| *unit != number);
            inner.units[number as usize].purpose = Purpose::Nodes;
            inner.node_queue.push_back(number);
        }
        moved
    }

    /// Up to `most` free blocks, in up to `runs` runs, that may be taken for this purpose and are not in `given`.
    pub(crate) fn not_given(
        &self,
        purpose: Purpose,
        given: &[Range<u64>],
        most: u64,
        runs: usize,
    ) -> Vec<Range<u64>> {
        let inner = self.lock();
        let queue = if purpose == Purpose::Data { &inner.queue } else { &inner.node_queue };
        let (mut found, mut left) = (Vec::new(), most);
        for unit in queue {
            let (range, Some(bits)) = (self.geometry.unit_range(*unit), inner.resident.get(unit)) else {
                continue;
            };
            for free in bits.free_runs(range.end - range.start, runs) {
                for run in outside(given, range.start + free.start..range.start + free.end) {
                    if left == 0 || found.len() == runs {
                        return found;
                    }
                    let run = run.start..run.end.min(run.start + left);
                    left -= run.end - run.start;
                    found.push(run);
                }
            }
        }
        found
    }

    /// Free places of those that are kept for nodes and may be written to, that are in `given`.
    pub(crate) fn given_to_nodes(&self, given: &[Range<u64>]) -> u64 {
        let inner = self.lock();
        inner.node_queue.iter().map(|unit| self.count_given(&inner, *unit, Some(given))).sum()
    }

    /// Free blocks of a unit that are in `given`; without that, those that the store is known to have given, or all.
    pub(super) fn count_given(&self, inner: &Inner, unit: u32, given: Option<&[Range<u64>]>) -> u64 {
        let range = self.geometry.unit_range(unit);
        let Some(bits) = inner.resident.get(&unit) else { return 0 };
        let free = |run: Range<u64>| bits.free_in(run.start - range.start..run.end - range.start);
        match given {
            Some(given) => within(given, range.clone()).map(free).sum(),
            None if self.untold => bits.known(),
            None => free(range.clone()),
        }
    }
}
