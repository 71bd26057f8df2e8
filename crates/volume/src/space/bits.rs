//! Which blocks of one unit are in use.

use std::ops::Range;

/// The current view of one unit: a bit per block, set = in use; and where the next search begins.
pub(super) struct Bits {
    words: Vec<u64>,
    cursor: usize,
    /// Blocks that were taken and are neither named by an entry (see [`Space::placed`](super::Space::placed)) nor given back yet.
    pub(super) out: u64,
}

impl Bits {
    pub(super) fn new(words: Vec<u64>) -> Self {
        Self { words, cursor: 0, out: 0 }
    }

    /// The next run of at most `want` free blocks behind the cursor, wrapping once; it is in use then.
    pub(super) fn take(&mut self, want: u64, length: u64) -> Option<Range<u64>> {
        let length = usize::try_from(length).ok()?;
        let want = usize::try_from(want).ok()?;
        let start =
            (self.cursor..length).chain(0..self.cursor.min(length)).find(|bit| !self.is_used(*bit as u64))?;
        let end = (start..length.min(start + want))
            .find(|bit| self.is_used(*bit as u64))
            .unwrap_or(length.min(start + want));
        for bit in start..end {
            self.set(bit as u64);
        }
        self.cursor = end % length;
        Some(start as u64..end as u64)
    }

    /// The first run of at most `want` free blocks from `from` on; it is in use then.
    pub(super) fn take_from(&mut self, from: u64, want: u64, length: u64) -> Option<Range<u64>> {
        let start = (from..length).find(|bit| !self.is_used(*bit))?;
        let most = length.min(start.saturating_add(want));
        let end = (start..most).find(|bit| self.is_used(*bit)).unwrap_or(most);
        for bit in start..end {
            self.set(bit);
        }
        Some(start..end)
    }

    /// Free runs, the first `most` of them.
    pub(super) fn free_runs(&self, length: u64, most: usize) -> Vec<Range<u64>> {
        let (mut runs, mut at) = (Vec::new(), 0);
        while runs.len() < most
            && let Some(start) = (at..length).find(|bit| !self.is_used(*bit))
        {
            at = (start..length).find(|bit| self.is_used(*bit)).unwrap_or(length);
            runs.push(start..at);
        }
        runs
    }

    /// How many of the first `length` blocks are free.
    pub(super) fn free(&self, length: u64) -> u64 {
        self.free_in(0..length)
    }

    /// How many of these blocks are free.
    pub(super) fn free_in(&self, blocks: Range<u64>) -> u64 {
        blocks.filter(|bit| !self.is_used(*bit)).count() as u64
    }

    pub(super) fn set(&mut self, bit: u64) {
        let (word, mask) = place(bit);
        self.words[word] |= mask;
    }

    pub(super) fn clear(&mut self, bit: u64) {
        let (word, mask) = place(bit);
        self.words[word] &= !mask;
    }

    fn is_used(&self, bit: u64) -> bool {
        let (word, mask) = place(bit);
        self.words[word] & mask != 0
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }
}

fn place(bit: u64) -> (usize, u64) {
    (usize::try_from(bit / 64).unwrap_or(usize::MAX), 1 << (bit % 64))
}
