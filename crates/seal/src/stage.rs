//! The private buffer through which blocks pass to and from memory that the host can write.

use std::cell::Cell;

/// Longer stages are not kept for the next time.
const KEPT: usize = 256 * 1024;

/// Aligned so that no vector access crosses a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// One stage per thread, used again and again, so that it stays in the L1 cache. It never holds what
    /// the host may not see: ciphertext, or plaintext in a mode without confidentiality.
    static STAGE: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Lends a private buffer of `len` bytes with unspecified content.
pub(crate) fn with_stage<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut stage = STAGE.take();
    let lines = len.div_ceil(size_of::<Line>());
    if stage.len() < lines {
        stage.resize(lines, Line([0; 64]));
    }
    let result = work(&mut bytes(&mut stage)[..len]);
    if len <= KEPT {
        STAGE.set(stage);
    }
    result
}

fn bytes(lines: &mut [Line]) -> &mut [u8] {
    let len = size_of_val(lines);
    // SAFETY: a Line is 64 bytes without padding, so the lines are `len` initialised bytes, and any byte
    // may be written to them; the borrow carries over.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_lent_whole_and_aligned() {
        for len in [1, 64, 4095, 4096, 4097, KEPT, KEPT + 1, 1 << 20] {
            with_stage(len, |stage| {
                assert_eq!(stage.len(), len);
                assert!(stage.as_ptr().addr().is_multiple_of(64));
                stage.fill(1);
            });
        }
        assert!(STAGE.take().len() * 64 <= KEPT);
    }
}
