//! What one guest has done, or one job of the owner's, and what it may do next.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use volume::geometry::Geometry;

/// A block that a guest wrote.
pub(super) struct Written {
    pub(super) content: Arc<Vec<u8>>,
    pub(super) offset: usize,
    /// Which of the guest's stores it was, once the guest knows that it happened.
    pub(super) stored: Option<u64>,
}

/// A copy of header and key slots, as far as a guest knows.
#[derive(Clone, Copy, Default)]
enum Copied {
    /// Written by somebody before, and perhaps still in the disk's cache.
    #[default]
    Before,
    /// Written by this guest, and on its way.
    InFlight,
    /// The same, and on the store: which of the guest's stores it was.
    Stored(u64),
}

#[derive(Default)]
pub(super) struct Desk {
    pub(super) blocks: HashMap<u64, Written>,
    pub(super) stored: u64,
    pub(super) durable: u64,
    /// Flushes that ended well.
    flushes: u64,
    pub(super) writes: u64,
    /// Digests of the records that it wrote, by place.
    pub(super) records: HashMap<u64, [u8; 32]>,
    /// Which volume key its guest has.
    pub(super) key: usize,
    /// Units that its last superblock lists; none before the first.
    listed: Option<HashSet<u32>>,
    /// Units that its records reserve, by generation, behind what that covers.
    reserved: BTreeMap<u64, Vec<u32>>,
    /// Data on its way to the store, by a number of its own.
    writing: BTreeMap<u64, Range<u64>>,
    copies: [Copied; 2],
}

impl Desk {
    pub(super) fn new(key: usize) -> Self {
        Self { key, ..Self::default() }
    }

    /// Whether a successor would leave this unit alone.
    fn has(&self, unit: u32) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.contains(&unit))
            || self.reserved.values().any(|units| units.contains(&unit))
    }

    /// A block of these for which [`has`](Self::has) does not hold.
    fn stray(&self, blocks: &Range<u64>, geometry: &Geometry) -> Option<u64> {
        blocks.clone().find(|block| !self.has(geometry.unit_of(*block)))
    }

    /// Data is on its way to these blocks.
    pub(super) fn begin_data(
        &mut self,
        number: u64,
        blocks: Range<u64>,
        geometry: &Geometry,
    ) -> Result<(), String> {
        let stray = self.stray(&blocks, geometry);
        self.writing.insert(number, blocks);
        match stray {
            Some(block) => Err(format!("data goes to block {block}, whose unit its guest has not reserved")),
            None => Ok(()),
        }
    }

    pub(super) fn end_data(&mut self, number: u64) {
        self.writing.remove(&number);
    }

    /// A record reserves units.
    pub(super) fn reserve(&mut self, generation: u64, units: &[u32]) {
        self.reserved.entry(generation).or_default().extend(units);
    }

    /// A superblock lists units, and covers the records as far as a generation.
    pub(super) fn list(&mut self, units: &[u32], generation: u64, geometry: &Geometry) -> Result<(), String> {
        self.listed = Some(units.iter().copied().collect());
        self.reserved.retain(|behind, _| *behind > generation);
        match self.writing.values().find_map(|blocks| self.stray(blocks, geometry)) {
            Some(block) => Err(format!("it lists no unit of block {block}, and a write is on its way there")),
            None => Ok(()),
        }
    }

    /// A copy of header and key slots is on its way; the other one is what must be left if that goes wrong.
    pub(super) fn begin_copy(&mut self, copy: usize) -> Result<(), String> {
        let other = self.copies[1 - copy];
        self.copies[copy] = Copied::InFlight;
        let durable = match other {
            Copied::Before => self.flushes > 0,
            Copied::InFlight => false,
            Copied::Stored(stored) => stored <= self.durable,
        };
        let refusal = || format!("copy {copy} of the header is written, and the other may not be durable");
        if durable { Ok(()) } else { Err(refusal()) }
    }

    pub(super) fn end_copy(&mut self, copy: usize) {
        self.copies[copy] = Copied::Stored(self.stored);
    }

    /// A flush ended well: as many stores as were known when it began are durable.
    pub(super) fn flushed(&mut self, stored: u64) {
        self.durable = self.durable.max(stored);
        self.flushes += 1;
    }
}
