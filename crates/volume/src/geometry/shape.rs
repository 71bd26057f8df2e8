//! The constants that the formulas are fed with.

/// A part of something, within bounds: `of(n)` is `n / divisor`, but at least `least` and at most `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// What the whole is divided by.
    pub divisor: u64,
    /// Lower bound of the result.
    pub least: u64,
    /// Upper bound of the result.
    pub most: u64,
}

impl Share {
    const fn new(divisor: u64, least: u64, most: u64) -> Self {
        Self { divisor, least, most }
    }

    /// The share of `whole`, rounded down.
    pub fn of(&self, whole: u64) -> u64 {
        (whole / self.divisor).clamp(self.least, self.most)
    }
}

/// Sizes of tree nodes, and how the other parts of a volume grow with it. All counts are blocks.
///
/// There are two: the one that volumes have, and one whose trees are deep and whose journal is short on a few
/// thousand blocks, for simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// log2 of the entries in a map node, and in an inner bitmap node.
    pub fan_out_bits: u8,
    /// log2 of the salts in a salt-table leaf, and of the entries in an inner node of that table.
    pub salt_bits: u8,
    /// log2 of the bits in a bitmap leaf.
    pub bitmap_bits: u8,
    /// Levels of the salt table.
    pub salt_levels: u8,
    /// Fewest logical blocks.
    pub min_logical: u64,
    /// Most logical blocks.
    pub max_logical: u64,
    /// Journal, as a share of the physical blocks.
    pub journal: Share,
    /// Segment, as a share of the journal; then rounded down to a power of two.
    pub segment: Share,
    /// Unit, as a share of the physical blocks; then rounded down to a power of two.
    pub unit: Share,
    /// Blocks that may be pinned, as a share of the logical blocks (of the data blocks, if those are fewer).
    pub pinned: Share,
    /// What two sessions, one and its predecessor, keep reserved together, as a share of the data blocks.
    /// Of even bounds, and a divisor above 1: [`Geometry::for_logical`](super::Geometry::for_logical) relies
    /// on it to grow by at most one block for each data block.
    pub headroom: Share,
    /// Blocks kept for the salt table, as a share of the logical blocks.
    pub salts: Share,
}

impl Shape {
    /// The shape of every volume on a real store.
    pub const STANDARD: Self = Self {
        fan_out_bits: 7,
        salt_bits: 6,
        bitmap_bits: 15,
        salt_levels: 4,
        min_logical: 1 << 12,
        max_logical: 1 << 34,
        journal: Share::new(64, 256, 65_536),
        segment: Share::new(16, 16, 256),
        unit: Share::new(256, 64, 32_768),
        pinned: Share::new(32, 256, 262_144),
        headroom: Share::new(32, 256, 131_072),
        salts: Share::new(256, 64, 4_096),
    };

    /// A shape for simulation: the map of 4096 blocks is six levels deep, and the journal soon comes round.
    pub const TINY: Self = Self {
        fan_out_bits: 2,
        salt_bits: 2,
        bitmap_bits: 6,
        salt_levels: 4,
        min_logical: 1 << 6,
        max_logical: 1 << 16,
        journal: Share::new(1, 48, 48),
        segment: Share::new(1, 4, 4),
        unit: Share::new(1, 16, 16),
        pinned: Share::new(8, 32, 262_144),
        headroom: Share::new(16, 64, 1_024),
        salts: Share::new(1, 128, 128),
    };
}
