//! Reservations: where a session may write, before it does.
//!
//! Invariants:
//! 1. A unit is written to only when the commit that reserves it is durable, and anchored (at level `off`, durable).
//! 2. Each reservation has a record in the journal and does not wait for room there. So a checkpoint's nodes are reserved by its own commit,
//!    and what writers take meanwhile is reserved only while the journal is not tight.
//! 3. A commit that a reservation has begun is not given up when what it was for has ended.

use std::cell::Cell;

use futures::future::join;

use crate::cache::NodeKey;
use crate::commit::Want;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::Tree;
use crate::format::item::{Item, Units};
use crate::format::superblock::MAX_UNITS;
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::space::{Pin, Purpose};

/// Units that may be reserved for data; the rest of what a superblock can list is for the nodes of a checkpoint.
pub(crate) const DATA_UNITS: usize = MAX_UNITS * 3 / 4;

/// What the next reservation of a transaction takes at least of the blocks that are `free`. Each has a record, and nothing makes room in the
/// journal before the transaction ends: they grow as `records` run short, so that the last block is reserved before the last record is
/// written.
fn share_of_rest(free: u64, records: u64) -> u64 {
    free.div_ceil((records / 2).max(1))
}

impl Core {
    /// Whether data will soon need more units.
    pub(crate) fn is_short_of_usable(&self) -> bool {
        self.space.usable_for(Purpose::Data) < self.limits.reserve_low
    }

    /// Tells the maintenance job, whatever it does.
    pub(crate) fn want_units(&self) {
        self.work.notify(usize::MAX);
        self.units_wanted.notify(usize::MAX);
    }

    /// Whether data will soon need more units, and there are some.
    pub(crate) fn needs_units(&self) -> bool {
        self.is_short_of_usable() && self.space.free() > self.space.usable()
    }

    /// Reserves units until the target is met, up to `most` in all; durable when it returns. False if there is nothing to reserve.
    pub(crate) async fn reserve(&self, io: &Io, most: usize) -> Result<bool> {
        let usable = self.space.usable_for(Purpose::Data);
        let mut want = self.limits.reserve_target.saturating_sub(usable).max(1);
        if self.is_transactional() {
            let records = self.commit.records_left(&self.geometry);
            let rest = self.space.free().saturating_sub(self.space.usable());
            want = want.max(share_of_rest(rest, records));
        }
        let units = self.choose_for_data(want, self.space.room(most));
        if units.is_empty() {
            return Ok(false);
        }
        self.reserve_units(io, &units).await?;
        self.space.activate(&units);
        Ok(true)
    }

    /// Reserves these units; durable when it returns.
    pub(crate) async fn reserve_units(&self, io: &Io, units: &[u32]) -> Result<()> {
        self.begin_reservation(io, units).await?;
        let data = !self.is_transactional() || mutated(Mutation::TransactionLeaks);
        // Anchored, whatever the level: of what is only durable, a successor that has claimed the volume already knows nothing.
        self.commit(io, Want { data, anchor: true, urgent: true, ..Want::default() }).await.map(drop)
    }

    /// Has the next commit reserve units, which are usable when that is durable.
    async fn begin_reservation(&self, io: &Io, units: &[u32]) -> Result<()> {
        self.load_units(io, units).await?;
        for group in units.chunks(8) {
            self.commit.add_control(Item::Reserve(Units::new(group).ok_or_else(|| {
                Error::new(
                    Kind::Defect,
                    "a reservation has more units than the format allows; report this as a defect",
                )
            })?));
        }
        if mutated(Mutation::UsedBeforeReserved) {
            self.space.activate(units);
        }
        Ok(())
    }

    /// Brings the current view of units into memory.
    pub(crate) async fn load_units(&self, io: &Io, units: &[u32]) -> Result<()> {
        for unit in units {
            if !self.space.is_resident(*unit) {
                let used = self.unit_bits(io, *unit).await?;
                self.space.load(*unit, used);
            }
        }
        Ok(())
    }

    /// A bit per block of a unit, as the bitmap has it.
    pub(crate) async fn unit_bits(&self, io: &Io, unit: u32) -> Result<Vec<u64>> {
        let range = self.geometry.unit_range(unit);
        let first = self.geometry.bit_of(range.start);
        let key = NodeKey { tree: Tree::Bitmap, level: 0, index: first >> self.geometry.bitmap_bits };
        let bits = range.end - range.start;
        let words = usize::try_from(bits.div_ceil(64)).unwrap_or(0);
        let Some(page) = self.node(io, key).await? else { return Ok(vec![0; words]) };
        let skip = first & ((1 << self.geometry.bitmap_bits) - 1);
        let mut used = vec![0u64; words];
        for bit in 0..bits {
            let at = skip + bit;
            let byte = page[usize::try_from(at / 8).unwrap_or(0)];
            used[usize::try_from(bit / 64).unwrap_or(0)] |= u64::from(byte >> (at % 8) & 1) << (bit % 64);
        }
        Ok(used)
    }

    /// A node's place is named by the tree that is being built, and by nothing that a later freeze could miss.
    pub(crate) fn take_node_place(&self) -> Option<u64> {
        if self.is_store_short()
            && let Some(place) = self.space.take_known_place()
        {
            return Some(place);
        }
        let run = self.space.take(Purpose::Nodes, 1, 0).into_iter().next()?;
        self.space.placed([run.clone()]);
        Some(run.start)
    }

    /// A free block for a map or salt node.
    pub(crate) async fn node_place(&self, io: &Io) -> Result<u64> {
        loop {
            if let Some(place) = self.take_node_place() {
                return Ok(place);
            }
            // A merge works on many leaves at once. Whoever comes second must wait: the first one's units are not usable before
            // their reservation is durable, and to look for more meanwhile would find nothing left.
            let _reserving = self.reserving.lock().await;
            if let Some(place) = self.take_node_place() {
                return Ok(place);
            }
            if self.space.is_draining() {
                self.space.drain().await;
                continue;
            }
            let reserved = self.reserve(io, MAX_UNITS).await?;
            if !reserved && self.space.is_discarding() {
                self.discards_ended().await;
                continue;
            }
            if !reserved && !self.space.take_over() {
                return Err(Error::new(
                    Kind::NoSpace,
                    "no block is left for the volume's own map; detach it, enlarge its backing file and attach it again",
                ));
            }
        }
    }

    /// Has the checkpoint's commit reserve units for the nodes that it will make: so they need no commit of their own.
    pub(crate) async fn begin_reservation_for_nodes(&self, io: &Io) -> Result<Vec<u32>> {
        let nodes = self.geometry.most_nodes_of(self.overlay.active());
        let units = self.choose_for_nodes(nodes, self.space.room(MAX_UNITS));
        self.begin_reservation(io, &units).await?;
        Ok(units)
    }

    /// Merges, and meanwhile reserves what writers take, so that they need not wait, nor take what is kept for nodes.
    pub(crate) async fn merge_and_reserve(&self, io: &Io) -> Result<Pin> {
        let merged = Cell::new(false);
        let merge = async {
            let pin = self.merge(io).await;
            merged.set(true);
            self.units_wanted.notify(usize::MAX);
            pin
        };
        // Not given up when the merge ends: it may be in the middle of a commit.
        let reserve = async {
            loop {
                let listener = self.units_wanted.listen();
                if merged.get() {
                    return Ok(());
                }
                // A tight journal is the checkpoint's: each reservation has a record.
                if self.needs_units() && !self.journal_is_tight() {
                    let _reserving = self.reserving.lock().await;
                    self.reserve(io, DATA_UNITS).await?;
                }
                listener.await;
            }
        };
        let (pin, reserved) = join(merge, reserve).await;
        reserved.and(pin)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::share_of_rest;

    proptest! {
        /// However much a transaction writes, its reservations leave room for its own end.
        #[test]
        fn the_last_block_is_reserved_before_the_journal_is_full(free in 0..1_u64 << 40, records in 4..100_000_u64) {
            let (mut free, mut left) = (free, records);
            while free > 0 {
                free = free.saturating_sub(share_of_rest(free, left));
                left -= 1;
            }
            prop_assert!(left > 0);
        }
    }
}
