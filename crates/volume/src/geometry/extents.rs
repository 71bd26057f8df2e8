//! Extents: the stretches of the store that a volume was laid out on, one after the other.
//!
//! Invariants:
//! 1. An extent is what its own and all earlier sizes give; a later one changes nothing of it.
//! 2. Every block of an extent has one role: a place of one bitmap node, or data; extent 0 also has what stands before the bitmap. At the
//!    end of an extent there may be a few blocks, fewer than one more node would take, that are nothing.
//! 3. Every node of the bitmap has its places in the first extent whose tree has it.
//! 4. A unit lies in one extent, and in one bitmap leaf.

use std::ops::Range;

use super::sizing::{self, div_up};
use super::{BITMAP_COPIES, Shape};
use crate::mutation::{Mutation, mutated};

/// Most times that a volume grows.
pub const MAX_GROWTHS: usize = 16;

/// One extent. Sizes are in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Extent {
    /// Logical blocks of the volume once it has this extent.
    pub(super) logical: u64,
    /// Physical blocks likewise: where the extent ends.
    pub(super) end: u64,
    /// Its first bitmap place.
    pub(super) places: u64,
    /// Its first block of data; all from the first place to here are places.
    pub(super) data: u64,
    pub(super) data_blocks: u64,
    /// The bit of its first block of data.
    pub(super) first_bit: u64,
    /// Bits of the bitmap once it has this extent.
    pub(super) bits: u64,
}

impl Extent {
    /// What `create` lays out; the bitmap begins at `places`.
    pub(super) fn first(logical: u64, physical: u64, places: u64, shape: &Shape) -> Self {
        let data_blocks = sizing::data_blocks(physical, shape);
        let data = places + sizing::bitmap_blocks(data_blocks, shape);
        Self { logical, end: physical, places, data, data_blocks, first_bit: 0, bits: data_blocks }
    }

    /// What a growth to these sizes appends; neither may be smaller than it is.
    pub(super) fn after(&self, logical: u64, physical: u64, unit_blocks: u32, shape: &Shape) -> Self {
        let first_bit = self.bits.next_multiple_of(u64::from(unit_blocks));
        let places = |data: u64| match data {
            0 => 0,
            _ => sizing::bitmap_blocks(first_bit + data, shape) - sizing::bitmap_blocks(self.bits, shape),
        };
        let length = physical - self.end;
        let data_blocks = sizing::greatest(0, length, |data| places(data) + data <= length);
        if data_blocks > 0 && mutated(Mutation::PlacesAreData) {
            let bits = first_bit + length;
            return Self {
                logical,
                end: physical,
                places: self.end,
                data: self.end,
                data_blocks: length,
                first_bit,
                bits,
            };
        }
        Self {
            logical,
            end: physical,
            places: self.end,
            data: self.end + places(data_blocks),
            data_blocks,
            first_bit,
            bits: if data_blocks == 0 { self.bits } else { first_bit + data_blocks },
        }
    }

    /// Its blocks of data.
    pub(super) fn data(&self) -> Range<u64> {
        self.data..self.data + self.data_blocks
    }

    /// Nodes that the bitmap has in a level once it has this extent; 0 above the root, and where there is no bit.
    fn nodes(&self, level: u8, shape: &Shape) -> u64 {
        if self.bits == 0 || level >= sizing::tree_levels(self.bits, shape.bitmap_bits, shape.fan_out_bits) {
            return 0;
        }
        let leaves = div_up(self.bits, shape.bitmap_bits);
        (0..level).fold(leaves, |nodes, _| div_up(nodes, shape.fan_out_bits))
    }
}

/// The first of the four places of a bitmap node, which must be one that the last extent's tree has.
pub(super) fn bitmap_place(extents: &[Extent], level: u8, index: u64, shape: &Shape) -> u64 {
    let mut before = Extent::default();
    for extent in extents {
        let new = |level: u8| extent.nodes(level, shape) - before.nodes(level, shape);
        if index < extent.nodes(level, shape) {
            let below: u64 = (0..level).map(new).sum();
            let own = index - before.nodes(level, shape);
            return extent.places + (below + own) * u64::from(BITMAP_COPIES);
        }
        before = *extent;
    }
    debug_assert!(false, "the bitmap has no node {index} at level {level}");
    0
}
