//! Which blocks hold something, found in overlay and map without reading any data.

use crate::core::Core;
use crate::error::Result;
use crate::io::Io;

/// A stretch of neighbouring logical blocks that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// How many blocks; never zero.
    pub blocks: u64,
    /// Whether something was written there. What was not, or was discarded since, reads as zeros.
    pub allocated: bool,
}

impl Core {
    /// The extents of a stretch of logical blocks, in order: as they were at some moment, for each leaf of the map.
    pub(crate) async fn allocation(&self, io: &Io, block: u64, blocks: u64) -> Result<Vec<Extent>> {
        self.check_range(block, blocks)?;
        self.blocks_landed(block..block + blocks).await?;
        // The nodes that are read must not be written over meanwhile.
        let _reading = self.readers.enter();
        let (mut at, end) = (block, block + blocks);
        let mut extents = Vec::new();
        while at < end {
            // No more entries in memory at once than a leaf has.
            let stop = end.min((at | ((1 << self.geometry.fan_out_bits) - 1)) + 1);
            let entries = self.entries(io, at, usize::try_from(stop - at).unwrap_or(0)).await?;
            entries.iter().for_each(|entry| extend(&mut extents, !entry.is_absent()));
            at = stop;
        }
        Ok(extents)
    }
}

/// Adds one block.
fn extend(extents: &mut Vec<Extent>, allocated: bool) {
    match extents.last_mut() {
        Some(last) if last.allocated == allocated => last.blocks += 1,
        _ => extents.push(Extent { blocks: 1, allocated }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_alike_are_one_extent() {
        let mut extents = Vec::new();
        [true, true, false, true].into_iter().for_each(|allocated| extend(&mut extents, allocated));
        let expected = [(2, true), (1, false), (1, true)];
        assert_eq!(extents, expected.map(|(blocks, allocated)| Extent { blocks, allocated }));
    }
}
