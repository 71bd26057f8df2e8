//! Which blocks of one unit are in use.

use std::ops::Range;

/// The current view of one unit: a bit per block, set = in use; and where the next search begins.
pub(super) struct Bits {
    words: Vec<u64>,
    cursor: usize,
    /// Blocks that were taken and are neither named by an entry (see [`Space::placed`](super::Space::placed)) nor given back yet.
    pub(super) out: u64,
    /// A bit per block that the store is known to have given (`known.rs`); empty where that does not matter.
    given: Vec<u64>,
}

impl Bits {
    pub(super) fn new(words: Vec<u64>) -> Self {
        Self { words, cursor: 0, out: 0, given: Vec::new() }
    }

    /// From now on it is known which blocks the store has given: for the time being, those that are in use.
    pub(super) fn know_given(&mut self) {
        self.given.clone_from(&self.words);
    }

    pub(super) fn note_given(&mut self, bit: u64, is_given: bool) {
        let (word, mask) = place(bit);
        match self.given.get_mut(word) {
            Some(given) if is_given => *given |= mask,
            Some(given) => *given &= !mask,
            None => {}
        }
    }

    /// How many free blocks the store is known to have given.
    pub(super) fn known(&self) -> u64 {
        self.given.iter().zip(&self.words).map(|(given, used)| u64::from((given & !used).count_ones())).sum()
    }

    /// The first of them; it is in use then.
    pub(super) fn take_known(&mut self) -> Option<u64> {
        let mut words = self.given.iter().zip(&mut self.words).enumerate();
        words.find_map(|(at, (given, used))| {
            let free = given & !*used;
            (free != 0).then(|| {
                *used |= 1 << free.trailing_zeros();
                at as u64 * 64 + u64::from(free.trailing_zeros())
            })
        })
    }

    /// The first run, of at most `most` blocks from `from` on, that are free and not known to be given.
    pub(super) fn unknown_run(&self, from: u64, length: u64, most: u64) -> Option<Range<u64>> {
        let is_unknown = |bit: &u64| {
            let (word, mask) = place(*bit);
            !self.is_used(*bit) && self.given.get(word).is_none_or(|given| given & mask == 0)
        };
        let start = (from..length).find(is_unknown)?;
        let most = length.min(start.saturating_add(most));
        Some(start..(start..most).find(|bit| !is_unknown(bit)).unwrap_or(most))
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
        (self.words.len() + self.given.len()) as u64 * 8
    }
}

fn place(bit: u64) -> (usize, u64) {
    (usize::try_from(bit / 64).unwrap_or(usize::MAX), 1 << (bit % 64))
}
