//! What the second reader knows of the volume.

use seal::{DataMode, Suite};
use volume::geometry::Geometry;

/// What it needs to know of the volume.
pub(crate) struct Book {
    pub(crate) volume: [u8; 16],
    pub(crate) suite: Suite,
    pub(crate) mode: DataMode,
    pub(crate) integrity: bool,
    /// The host changes blocks. Without integrity nobody notices, and a change of key seals anew what was made of them.
    pub(crate) tampering: bool,
    /// The disk may show an attach what it held before, and at level `off` nobody can tell: with an older header comes its key.
    pub(crate) older_headers: bool,
    pub(crate) geometry: Geometry,
}

impl Book {
    /// Whether data may stand in a block: behind the bitmap of the created volume, or behind the places that a growth adds at the head of
    /// what it takes, four for each node that the larger bitmap has and the smaller has not.
    pub(super) fn holds_data(&self, block: u64) -> bool {
        let geometry = &self.geometry;
        let nodes = |bits: u64| {
            let mut level = bits.div_ceil(1 << geometry.bitmap_bits);
            let mut sum = level;
            while level > 1 {
                level = level.div_ceil(1 << geometry.fan_out_bits);
                sum += level;
            }
            sum
        };
        let unit = u64::from(geometry.unit_blocks);
        let mut sizes = geometry.sizes();
        let Some((_, mut end)) = sizes.next() else { return false };
        let mut bits = geometry.as_of(0).data_blocks();
        if block < end {
            return block >= geometry.data_start();
        }
        for (_, next) in sizes {
            let first = bits.div_ceil(unit) * unit;
            let places = |data: u64| 4 * (nodes(first + data) - nodes(bits));
            let data = (1..=next - end).rev().find(|data| places(*data) + data <= next - end);
            if let Some(data) = data {
                if block < next {
                    return block >= end + places(data);
                }
                bits = first + data;
            }
            end = next;
        }
        false
    }
}
