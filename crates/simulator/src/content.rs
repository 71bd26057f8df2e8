//! What the simulator writes: blocks that say which write they are of.

use store::BLOCK_SIZE;

/// What a block that was read turns out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// All zero: never written, or discarded.
    Zero,
    /// What a write stamped, whole.
    Written {
        /// The logical block that it was written to.
        block: u64,
        /// Which write it was.
        version: u64,
    },
    /// Anything else.
    Garbage,
}

const MAGIC: u64 = 0x6376_6d69_6f73_696d;

/// Word `at` of the filling, so that a torn or mixed block is told from a whole one.
fn filling(block: u64, version: u64, at: u64) -> u64 {
    let mixed = (block ^ version.rotate_left(32)).wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// Stamps a page.
pub(crate) fn stamp(page: &mut [u8], block: u64, version: u64) {
    for (at, word) in (0u64..).zip(page.chunks_exact_mut(8)) {
        let value = match at {
            0 => MAGIC,
            1 => block,
            2 => version,
            _ => filling(block, version, at),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Reads a page's stamp.
pub(crate) fn parse(page: &[u8]) -> Content {
    debug_assert_eq!(page.len(), BLOCK_SIZE);
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&page[at * 8..at * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    if word(0) == 0 {
        return if page.iter().all(|byte| *byte == 0) { Content::Zero } else { Content::Garbage };
    }
    let (block, version) = (word(1), word(2));
    let whole =
        word(0) == MAGIC && (3..512usize).zip(3u64..).all(|(at, n)| word(at) == filling(block, version, n));
    if whole { Content::Written { block, version } } else { Content::Garbage }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_and_any_change_is_seen() {
        let mut page = vec![0; BLOCK_SIZE];
        assert_eq!(parse(&page), Content::Zero);
        stamp(&mut page, 7, 9);
        assert_eq!(parse(&page), Content::Written { block: 7, version: 9 });
        for byte in [0, 9, 17, 24, 4095] {
            page[byte] ^= 1;
            assert_ne!(parse(&page), Content::Written { block: 7, version: 9 }, "byte {byte}");
            page[byte] ^= 1;
        }
        page.fill(0);
        page[4000] = 1;
        assert_eq!(parse(&page), Content::Garbage);
    }
}
