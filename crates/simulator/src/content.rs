//! What the simulator writes: blocks that say which write they are of.

use memory::BLOCK_SIZE;

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

/// Words before the filling: magic, block, version.
const HEAD: usize = 3;

static ZERO: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// The words of the filling, so that a torn or mixed block is told from a whole one. Half of a run's time was once spent here: each word is
/// a sum on, which the compiler turns into vectors.
fn filling(block: u64, version: u64) -> impl Fn(u64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = (block ^ version.rotate_left(32)).wrapping_mul(STEP);
    move |at| {
        let mixed = start.wrapping_add(at.wrapping_mul(STEP));
        mixed ^ (mixed >> 29)
    }
}

/// Stamps a page.
pub(crate) fn stamp(page: &mut [u8], block: u64, version: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    let filling = filling(block, version);
    for (at, word) in (0u64..).zip(words.iter_mut()) {
        *word = filling(at).to_le_bytes();
    }
    for (word, value) in words.iter_mut().zip([MAGIC, block, version]) {
        *word = value.to_le_bytes();
    }
}

/// Reads a page's stamp.
pub(crate) fn parse(page: &[u8]) -> Content {
    debug_assert_eq!(page.len(), BLOCK_SIZE);
    if *page == ZERO {
        return Content::Zero;
    }
    let (words, _) = page.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    let (block, version) = (word(1), word(2));
    let filling = filling(block, version);
    // All of them, without looking for the first that differs: that is what makes it fast.
    let differs = (HEAD as u64..)
        .zip(&words[HEAD..])
        .fold(0, |differs, (at, word)| differs | (u64::from_le_bytes(*word) ^ filling(at)));
    if word(0) == MAGIC && differs == 0 { Content::Written { block, version } } else { Content::Garbage }
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
