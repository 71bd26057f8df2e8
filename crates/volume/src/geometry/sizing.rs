//! The formulas. `L` is logical blocks, `P` physical blocks, `D` data blocks.
//!
//! The order is well founded: journal and unit follow from `P` alone, `D` is what header, journal and bitmap
//! leave of `P`, and what full provisioning needs follows from `L` and `D`.

use super::{BITMAP_COPIES, JOURNAL_START, MAX_PHYSICAL, Shape, saturate};

/// `n / 2^bits`, rounded up.
pub(super) fn div_up(n: u64, bits: u8) -> u64 {
    n.div_ceil(1 << bits)
}

/// Nodes of a radix tree over `items`, all levels together.
pub(super) fn tree_nodes(items: u64, leaf_bits: u8, fan_out_bits: u8) -> u64 {
    let mut level = div_up(items, leaf_bits);
    let mut sum = level;
    while level > 1 {
        level = div_up(level, fan_out_bits);
        sum += level;
    }
    sum
}

/// Levels of a radix tree over `items`, at least 1.
pub(super) fn tree_levels(items: u64, leaf_bits: u8, fan_out_bits: u8) -> u8 {
    let mut level = div_up(items, leaf_bits);
    let mut levels = 1;
    while level > 1 {
        level = div_up(level, fan_out_bits);
        levels += 1;
    }
    levels
}

/// Blocks in a segment, and segments. The journal may be a little shorter than its share of `P`, since it is
/// whole segments; its length grows with `P` all the same, for a segment of twice the size begins where the
/// share is 32 of the smaller ones.
pub(super) fn journal(physical: u64, shape: &Shape) -> (u32, u32) {
    let journal = shape.journal.of(physical);
    let segment = floor_power_of_two(shape.segment.of(journal));
    (saturate(segment), saturate(journal / segment))
}

pub(super) fn unit_blocks(physical: u64, shape: &Shape) -> u32 {
    saturate(floor_power_of_two(shape.unit.of(physical)))
}

/// Blocks of the bitmap's fixed places.
pub(super) fn bitmap_blocks(data: u64, shape: &Shape) -> u64 {
    u64::from(BITMAP_COPIES) * tree_nodes(data, shape.bitmap_bits, shape.fan_out_bits)
}

/// Blocks that a volume takes for `data` data blocks when its journal is that of `physical` blocks.
fn occupied(data: u64, physical: u64, shape: &Shape) -> u64 {
    let (segment_blocks, segments) = journal(physical, shape);
    let journal = u64::from(segment_blocks) * u64::from(segments);
    JOURNAL_START + journal + bitmap_blocks(data, shape) + data
}

/// `D`: the largest number of data blocks that fits beside header, journal and a bitmap for them.
pub(super) fn data_blocks(physical: u64, shape: &Shape) -> u64 {
    greatest(0, physical, |data| occupied(data, physical, shape) <= physical)
}

pub(super) fn reserve_target(data: u64, shape: &Shape) -> u64 {
    shape.headroom.of(data) / 2
}

/// What full provisioning needs in data blocks, without the headroom: every logical block and its map, a
/// second map for a checkpoint that changes all of it, what may be pinned in the two generations of the
/// overlay, and the salt table.
fn needed(logical: u64, shape: &Shape) -> u64 {
    let map = tree_nodes(logical, shape.fan_out_bits, shape.fan_out_bits);
    logical + 2 * map + 2 * shape.pinned.of(logical) + shape.salts.of(logical)
}

pub(super) fn is_full(logical: u64, data: u64, shape: &Shape) -> bool {
    needed(logical, shape) + shape.headroom.of(data) <= data
}

/// The smallest `P` with which `logical` blocks are fully provisioned.
///
/// First the smallest `D`, then the smallest `P` with that `D`. Both are the least fixpoint of a function that
/// grows with its argument, so iteration from below ends on it, and no smaller number will do.
pub(super) fn physical_for_full(logical: u64, shape: &Shape) -> u64 {
    let base = needed(logical, shape);
    let data = fixpoint(base, |data| base + shape.headroom.of(data));
    fixpoint(data, |physical| occupied(data, physical, shape))
}

/// The largest `L` that `physical` blocks fully provision. There must be enough for the smallest.
pub(super) fn logical_for_full(physical: u64, shape: &Shape) -> u64 {
    let data = data_blocks(physical, shape);
    greatest(shape.min_logical, shape.max_logical, |logical| is_full(logical, data, shape))
}

/// The least fixpoint at or above `from` of a function that never falls.
fn fixpoint(from: u64, function: impl Fn(u64) -> u64) -> u64 {
    let mut value = from;
    while function(value) > value && value <= MAX_PHYSICAL {
        value = function(value);
    }
    value
}

/// The greatest number in `least..=most` for which `fits` holds, given that it holds for all below that one;
/// `least` when it holds for none.
pub(super) fn greatest(mut least: u64, mut most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    while least < most {
        let middle = most - (most - least) / 2;
        if fits(middle) { least = middle } else { most = middle - 1 }
    }
    least
}

fn floor_power_of_two(n: u64) -> u64 {
    1 << n.max(1).ilog2()
}
