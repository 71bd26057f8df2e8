//! Where everything stands on the store, and how much of it there is.
//!
//! All places follow from two sizes, logical blocks `L` and physical blocks `P`, and from a [`Shape`]; and from the
//! sizes of each growth after. The formulas are listed in `docs/semantics.md`, section "Sizes"; the header repeats their
//! results, and a header that says anything else is refused ([`Geometry::check`]).

use std::fmt;
use std::ops::Range;

use crate::format::ad::Tree;
use crate::format::{BLOCK_SIZE, Malformed};

mod extents;
mod growth;
mod shape;
mod sizing;
#[cfg(test)]
mod tests;

use extents::Extent;
pub use extents::MAX_GROWTHS;
pub use growth::GrowthError;
pub use shape::{Shape, Share};

/// Blocks before the journal: two copies of header and key slots, and four superblock slots.
pub const JOURNAL_START: u64 = 8;
/// First of the four superblock slots.
pub const SUPERBLOCK_START: u64 = 4;
/// Superblock slots.
pub const SUPERBLOCK_SLOTS: u8 = 4;
/// Fixed places of each bitmap node.
pub const BITMAP_COPIES: u8 = 4;
/// Most physical blocks of a volume: an entry has 40 bits for a place.
pub const MAX_PHYSICAL: u64 = 1 << 40;

/// The sizes of a volume and all places that follow from them.
///
/// Made only by the functions here, so the public numbers agree with each other. All are in blocks of 4 KiB
/// unless a unit is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks that the user sees now.
    pub logical_blocks: u64,
    /// Blocks of the store that the volume occupies now.
    pub physical_blocks: u64,
    /// log2 of the entries in a map node, and in an inner bitmap node.
    pub fan_out_bits: u8,
    /// log2 of the salts in a salt-table leaf, and of the entries in an inner node of that table.
    pub salt_bits: u8,
    /// log2 of the bits in a bitmap leaf.
    pub bitmap_bits: u8,
    /// Blocks in a journal segment.
    pub segment_blocks: u32,
    /// Segments of the journal.
    pub segments: u32,
    /// Blocks in a unit, which is what a session reserves. Divides the bits of a bitmap leaf.
    pub unit_blocks: u32,
    shape: Shape,
    /// Extent 0, and one for each growth.
    extents: [Extent; 1 + MAX_GROWTHS],
    growths: u8,
    data_blocks: u64,
    map_levels: u8,
    bitmap_levels: u8,
}

/// Why there is no volume of the sizes asked for. Sizes are in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeError {
    /// The logical size is outside the limits.
    Logical {
        /// What was asked for.
        asked: u64,
        /// The smallest logical size.
        least: u64,
        /// The largest logical size.
        most: u64,
    },
    /// The store is too small, or larger than an entry can address.
    Physical {
        /// What there is.
        has: u64,
        /// The fewest blocks that would do.
        least: u64,
        /// The most blocks that can be addressed.
        most: u64,
    },
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |blocks: u64| u128::from(blocks) * BLOCK_SIZE as u128;
        match *self {
            Self::Logical { asked, least, most } => write!(
                f,
                "a volume of {} bytes is not possible; choose a size from {} to {} bytes",
                bytes(asked),
                bytes(least),
                bytes(most)
            ),
            Self::Physical { has, least, most } => write!(
                f,
                "a store of {} bytes cannot hold this volume; give it from {} to {} bytes",
                bytes(has),
                bytes(least),
                bytes(most)
            ),
        }
    }
}

impl std::error::Error for SizeError {}

impl Geometry {
    /// Fewest logical blocks of a volume of the standard shape: 16 MiB.
    pub const MIN_LOGICAL: u64 = Shape::STANDARD.min_logical;
    /// Most logical blocks of a volume of the standard shape: 64 TiB.
    pub const MAX_LOGICAL: u64 = Shape::STANDARD.max_logical;

    /// The smallest volume with `logical_blocks` whose overwrites never run out of space.
    ///
    /// # Errors
    /// When the size is outside the shape's limits.
    pub fn for_logical(logical_blocks: u64, shape: Shape) -> Result<Self, SizeError> {
        check_logical(logical_blocks, &shape)?;
        Ok(Self::lay_out(logical_blocks, sizing::physical_for_full(logical_blocks, &shape), shape))
    }

    /// The volume with the most logical blocks that a store of `physical_blocks` holds fully provisioned.
    /// It occupies the whole store.
    ///
    /// # Errors
    /// When the store is too small for the smallest volume, or larger than [`MAX_PHYSICAL`].
    pub fn for_physical(physical_blocks: u64, shape: Shape) -> Result<Self, SizeError> {
        check_physical(physical_blocks, &shape)?;
        Ok(Self::lay_out(sizing::logical_for_full(physical_blocks, &shape), physical_blocks, shape))
    }

    /// A volume that may promise more logical blocks than the store can hold.
    ///
    /// # Errors
    /// When the logical size is outside the shape's limits, or the store smaller than that of the smallest
    /// fully provisioned volume, or larger than [`MAX_PHYSICAL`].
    pub fn thin(logical_blocks: u64, physical_blocks: u64, shape: Shape) -> Result<Self, SizeError> {
        check_logical(logical_blocks, &shape)?;
        check_physical(physical_blocks, &shape)?;
        Ok(Self::lay_out(logical_blocks, physical_blocks, shape))
    }

    /// Both sizes must be within the limits.
    fn lay_out(logical_blocks: u64, physical_blocks: u64, shape: Shape) -> Self {
        let (segment_blocks, segments) = sizing::journal(physical_blocks, &shape);
        let bitmap_start = JOURNAL_START + u64::from(segment_blocks) * u64::from(segments);
        let first = Extent::first(logical_blocks, physical_blocks, bitmap_start, &shape);
        let mut extents = [Extent::default(); 1 + MAX_GROWTHS];
        extents[0] = first;
        Self {
            logical_blocks,
            physical_blocks,
            fan_out_bits: shape.fan_out_bits,
            salt_bits: shape.salt_bits,
            bitmap_bits: shape.bitmap_bits,
            segment_blocks,
            segments,
            unit_blocks: sizing::unit_blocks(physical_blocks, &shape),
            shape,
            extents,
            growths: 0,
            data_blocks: 0,
            map_levels: 0,
            bitmap_levels: 0,
        }
        .summed_up()
    }

    /// With one more extent; there must be room for it.
    fn with(mut self, extent: Extent) -> Self {
        self.growths += 1;
        self.extents[usize::from(self.growths)] = extent;
        self.summed_up()
    }

    /// Fills in what follows from all extents.
    fn summed_up(self) -> Self {
        let last = *self.last();
        Self {
            logical_blocks: last.logical,
            physical_blocks: last.end,
            data_blocks: self.extents().iter().map(|extent| extent.data_blocks).sum(),
            map_levels: sizing::tree_levels(last.logical, self.fan_out_bits, self.fan_out_bits),
            bitmap_levels: sizing::tree_levels(last.bits, self.bitmap_bits, self.fan_out_bits),
            ..self
        }
    }

    fn extents(&self) -> &[Extent] {
        &self.extents[..=usize::from(self.growths)]
    }

    fn created(&self) -> &Extent {
        &self.extents[0]
    }

    fn last(&self) -> &Extent {
        &self.extents[usize::from(self.growths)]
    }

    /// How often the volume has grown.
    pub fn growths(&self) -> usize {
        usize::from(self.growths)
    }

    /// Logical and physical blocks at creation, and behind each growth.
    pub fn sizes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.extents().iter().map(|extent| (extent.logical, extent.end))
    }

    /// The volume as it was when it had grown so often; as it is, if that is more often than it has.
    pub fn as_of(&self, growths: usize) -> Self {
        let mut earlier = *self;
        while earlier.growths() > growths {
            earlier.extents[earlier.growths()] = Extent::default();
            earlier.growths -= 1;
        }
        earlier.summed_up()
    }

    /// Checks that the numbers are what the formulas give for the two sizes and `shape`.
    ///
    /// # Errors
    /// Names the first number that is not.
    pub fn check(&self, shape: Shape) -> Result<(), Malformed> {
        let wrong = |field, message: String| Malformed { what: "geometry", field, message };
        let (logical, physical) = match self.growths {
            0 => (self.logical_blocks, self.physical_blocks),
            _ => (self.created().logical, self.created().end),
        };
        check_logical(logical, &shape).map_err(|error| wrong("logical blocks", error.to_string()))?;
        check_physical(physical, &shape).map_err(|error| wrong("physical blocks", error.to_string()))?;
        let right = Self::lay_out(logical, physical, shape);
        let numbers: [(&'static str, u64, u64); 6] = [
            ("map fan-out", self.fan_out_bits.into(), right.fan_out_bits.into()),
            ("salt-table fan-out", self.salt_bits.into(), right.salt_bits.into()),
            ("bitmap leaf bits", self.bitmap_bits.into(), right.bitmap_bits.into()),
            ("segment blocks", self.segment_blocks.into(), right.segment_blocks.into()),
            ("segments", self.segments.into(), right.segments.into()),
            ("unit blocks", self.unit_blocks.into(), right.unit_blocks.into()),
        ];
        for (field, is, must) in numbers {
            if is != must {
                return Err(wrong(field, format!("is {is}, but sizes and shape give {must}")));
            }
        }
        let grow = |right: Self, (logical, physical)| {
            right.grown(logical, physical).map_err(|error| wrong("growths", error.to_string()))
        };
        if *self != self.sizes().skip(1).try_fold(right, grow)? {
            return Err(wrong("shape", "places were computed for another shape".into()));
        }
        Ok(())
    }

    /// The numbers that a header claims, checked.
    pub(crate) fn from_header(claim: &Claim, shape: Shape) -> Result<Self, Malformed> {
        // What is not part of the claim is computed, once the sizes are known to be sane; else `check` says no.
        let least =
            Self::lay_out(shape.min_logical, sizing::physical_for_full(shape.min_logical, &shape), shape);
        let right = Self::thin(claim.logical_blocks, claim.physical_blocks, shape).unwrap_or(least);
        let geometry = Self {
            logical_blocks: claim.logical_blocks,
            physical_blocks: claim.physical_blocks,
            fan_out_bits: claim.fan_out_bits,
            salt_bits: claim.salt_bits,
            bitmap_bits: claim.bitmap_bits,
            segment_blocks: claim.segment_blocks,
            segments: claim.segments,
            unit_blocks: claim.unit_blocks,
            ..right
        };
        geometry.check(shape)?;
        let grow = |geometry: Self, growth: &(u64, u64)| geometry.grown(growth.0, growth.1);
        claim.growths.iter().try_fold(geometry, grow).map_err(|error| Malformed {
            what: "geometry",
            field: "growths",
            message: error.to_string(),
        })
    }

    /// The shape that the volume was laid out with.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Logical size in bytes.
    pub fn logical_bytes(&self) -> u64 {
        self.logical_blocks * BLOCK_SIZE as u64
    }

    /// First block of the journal.
    pub fn journal_start(&self) -> u64 {
        JOURNAL_START
    }

    /// First block of a journal segment, which must be below `segments`.
    pub fn segment_start(&self, segment: u32) -> u64 {
        JOURNAL_START + u64::from(segment) * u64::from(self.segment_blocks)
    }

    /// First block of the bitmap's fixed places.
    pub fn bitmap_start(&self) -> u64 {
        self.segment_start(self.segments)
    }

    /// The fixed place of copy `copy` (0 to 3) of node `index` in `level` of the bitmap, which must have that node.
    pub fn bitmap_place(&self, level: u8, index: u64, copy: u8) -> u64 {
        extents::bitmap_place(self.extents(), level, index, &self.shape) + u64::from(copy)
    }

    /// Whether a physical block is one of the bitmap's fixed places.
    pub fn is_bitmap_place(&self, physical: u64) -> bool {
        self.extents().iter().any(|extent| (extent.places..extent.data).contains(&physical))
    }

    /// First block of data and map nodes in what the volume was created with.
    pub fn data_start(&self) -> u64 {
        self.created().data
    }

    /// Number of blocks for data and map nodes.
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// The blocks for data and map nodes, extent by extent.
    pub fn data(&self) -> impl Iterator<Item = Range<u64>> {
        self.extents().iter().map(Extent::data)
    }

    /// Whether a physical block is one of those that hold data and map nodes.
    pub fn holds(&self, physical: u64) -> bool {
        self.extent_of(physical).is_some()
    }

    fn extent_of(&self, physical: u64) -> Option<&Extent> {
        self.extents().iter().find(|extent| extent.data().contains(&physical))
    }

    /// The bit of a physical block, which must be one that the volume [`holds`](Self::holds) data in.
    pub fn bit_of(&self, physical: u64) -> u64 {
        let extent = self.extent_of(physical);
        debug_assert!(extent.is_some(), "block {physical} holds no data");
        extent.map_or(0, |extent| physical - extent.data + extent.first_bit)
    }

    /// Levels of the map, at least 1; its root is in the last.
    pub fn map_levels(&self) -> u8 {
        self.map_levels
    }

    /// Levels of the salt table; its root is in the last.
    pub fn salt_levels(&self) -> u8 {
        self.shape.salt_levels
    }

    /// Levels of the bitmap, at least 1; its root is in the last.
    pub fn bitmap_levels(&self) -> u8 {
        self.bitmap_levels
    }

    /// Levels of a tree, at least 1.
    pub fn levels(&self, tree: Tree) -> u8 {
        match tree {
            Tree::Map => self.map_levels,
            Tree::Salts | Tree::OldSalts => self.shape.salt_levels,
            Tree::Bitmap => self.bitmap_levels,
        }
    }

    /// Number of nodes in a level of a tree; leaves are level 0, and above the root there is always 1.
    pub fn nodes(&self, tree: Tree, level: u8) -> u64 {
        let (leaves, fan_out_bits) = match tree {
            Tree::Map => (sizing::div_up(self.logical_blocks, self.fan_out_bits), self.fan_out_bits),
            Tree::Salts | Tree::OldSalts => {
                (1 << (self.salt_bits * (self.shape.salt_levels - 1)), self.salt_bits)
            }
            Tree::Bitmap => (sizing::div_up(self.last().bits, self.bitmap_bits), self.fan_out_bits),
        };
        (0..level).fold(leaves, |nodes, _| sizing::div_up(nodes, fan_out_bits))
    }

    /// Nodes of a map without an absent entry, all levels together.
    pub fn map_nodes(&self) -> u64 {
        sizing::tree_nodes(self.logical_blocks, self.fan_out_bits, self.fan_out_bits)
    }

    /// The most map nodes that change with so many of its entries, all levels together.
    pub(crate) fn most_nodes_of(&self, entries: u64) -> u64 {
        (0..self.map_levels).map(|level| entries.min(self.nodes(Tree::Map, level))).sum()
    }

    /// The fewest nodes that a map of `mapped` blocks can have, all levels together.
    pub fn least_map_nodes(&self, mapped: u64) -> u64 {
        sizing::tree_nodes(mapped, self.fan_out_bits, self.fan_out_bits)
    }

    /// Nodes of the bitmap, all levels together.
    pub fn bitmap_nodes(&self) -> u64 {
        sizing::tree_nodes(self.last().bits, self.bitmap_bits, self.fan_out_bits)
    }

    /// The highest epoch that the salt table has room for.
    pub fn last_epoch(&self) -> u32 {
        (1 << (self.salt_bits * self.shape.salt_levels)) - 1
    }

    /// Number of units; the last of each extent may be shorter than `unit_blocks`.
    pub fn units(&self) -> u32 {
        saturate(self.last().bits.div_ceil(u64::from(self.unit_blocks)))
    }

    /// The unit of a physical block, which must be one that the volume [`holds`](Self::holds) data in.
    pub fn unit_of(&self, physical: u64) -> u32 {
        saturate(self.bit_of(physical) / u64::from(self.unit_blocks))
    }

    /// The physical blocks of a unit; empty when there is no such unit.
    pub fn unit_range(&self, unit: u32) -> Range<u64> {
        let first = u64::from(unit) * u64::from(self.unit_blocks);
        let extent = self.extents().iter().find(|extent| first < extent.bits).unwrap_or(self.last());
        let place = |bit: u64| extent.data + bit.saturating_sub(extent.first_bit).min(extent.data_blocks);
        place(first)..place(first + u64::from(self.unit_blocks))
    }

    /// How many blocks may be pinned (freed or superseded, and not reusable yet) before a commit is forced.
    pub fn pinned_limit(&self) -> u64 {
        self.shape.pinned.of(self.logical_blocks.min(self.data_blocks))
    }

    /// How many free blocks a session keeps reserved ahead of its writes.
    pub fn reserve_target(&self) -> u64 {
        sizing::reserve_target(self.data_blocks, &self.shape)
    }

    /// Most blocks that a thin volume takes of its store, however often it is overwritten, if never more than `mapped` were mapped or being
    /// written, and no session left alone more than `foreign` units of its predecessor: `docs/semantics.md`, "Space". `tells`: whether the store
    /// says what it has left.
    pub fn most_taken(&self, mapped: u64, foreign: u64, tells: bool) -> u64 {
        let changes = 2 * self.pinned_limit();
        let nodes = self.most_nodes_of(mapped + changes);
        let in_use = mapped + nodes + 4;
        let pinned = changes + nodes + 4;
        let fixed = self.physical_blocks - self.data_blocks;
        let ahead = self.reserve_target() + self.node_room(self.map_nodes(), tells);
        fixed + (in_use + pinned) * 3 / 2 + ahead + (2 + foreign) * u64::from(self.unit_blocks)
    }

    /// Places for nodes that a thin volume has its store give ahead, if a checkpoint makes `nodes` at most. Of one that does not say what it has
    /// left, they must be enough for two checkpoints in a row and a quarter more: these have three eighths each.
    pub(crate) fn node_room(&self, nodes: u64, tells: bool) -> u64 {
        match tells {
            true => nodes.min(4096),
            false => (nodes * 8).div_ceil(3).min(16_384).min(self.data_blocks() / 16),
        }
    }

    /// Blocks kept aside for the salt table.
    pub fn salt_reserve(&self) -> u64 {
        self.shape.salts.of(self.logical_blocks)
    }

    /// Whether there are blocks enough for every logical block, and so an overwrite never runs out of space.
    pub fn fully_provisioned(&self) -> bool {
        sizing::is_full(self.logical_blocks, self.data_blocks, &self.shape)
    }
}

/// A header's geometry fields, not yet believed.
pub(crate) struct Claim {
    pub logical_blocks: u64,
    pub physical_blocks: u64,
    pub fan_out_bits: u8,
    pub salt_bits: u8,
    pub bitmap_bits: u8,
    pub segment_blocks: u32,
    pub segments: u32,
    pub unit_blocks: u32,
    /// Logical and physical blocks behind each growth.
    pub growths: Vec<(u64, u64)>,
}

fn check_logical(asked: u64, shape: &Shape) -> Result<(), SizeError> {
    let (least, most) = (shape.min_logical, shape.max_logical);
    if (least..=most).contains(&asked) { Ok(()) } else { Err(SizeError::Logical { asked, least, most }) }
}

fn check_physical(has: u64, shape: &Shape) -> Result<(), SizeError> {
    let (least, most) = (sizing::physical_for_full(shape.min_logical, shape), MAX_PHYSICAL);
    if (least..=most).contains(&has) { Ok(()) } else { Err(SizeError::Physical { has, least, most }) }
}

/// The limits on sizes keep every count that goes through here below 2^32.
fn saturate(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
