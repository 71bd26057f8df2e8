//! What may go wrong, by chance, and how it is told.

use fastrand::Rng;

use super::image::Block;
use memory::BLOCK_SIZE;

/// Probabilities from 0 to 1. By default all are 0: a disk that is honest, but crashes when told to.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// A read fails with `EIO`.
    pub read_error: f64,
    /// A write or discard fails with `EIO`; it may have happened all the same, or in part.
    pub write_error: f64,
    /// A write fails with `ENOSPC`, and did not happen.
    pub no_space: f64,
    /// A flush fails with `EIO`; nothing becomes durable.
    pub flush_error: f64,
    /// A flush succeeds, and nothing becomes durable.
    pub lying_flush: f64,
    /// A block of a write that succeeds is not stored.
    pub lost_write: f64,
    /// A block of a write that succeeds is stored in part.
    pub torn_write: f64,
    /// A block of a write that succeeds is stored at another place.
    pub misdirected_write: f64,
    /// A block reads as something else, this once: as what it was before, or with a bit flipped.
    pub unstable_read: f64,
    /// A read succeeds, and brings only some of its first sectors; the rest of its buffer stays as it was. (A write of which only a part
    /// is stored is `torn_write`.)
    pub short_read: f64,
    /// The buffer of a write comes back changed, if it is memory that the host can write.
    pub scribble: f64,
    /// A write of a guest that is killed by `crash_session` stays in flight, to happen long after.
    pub late_write: f64,
    /// A write stays in flight while much of what came after it ends: `complete_some` of the store mostly passes it by.
    pub slow_write: f64,
}

/// Something that happened on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The disk got an operation.
    Submitted {
        /// The guest.
        session: u64,
        /// The guest's number of the operation.
        token: u64,
        /// `read`, `write`, `flush` or `discard`.
        operation: &'static str,
        /// First block; 0 for a flush.
        block: u64,
        /// How many; 0 for a flush.
        blocks: u64,
    },
    /// An operation ended.
    Completed {
        /// The guest.
        session: u64,
        /// The guest's number of the operation.
        token: u64,
        /// Whether the guest was told that it succeeded.
        success: bool,
    },
    /// A fault of this name (a field of [`Faults`], or `bad` for a bad range) struck.
    Fault {
        /// Its name.
        name: &'static str,
        /// The block, or the first block of the operation.
        block: u64,
    },
    /// The power went, or (with `session`) a guest died.
    Crashed {
        /// The guest, if only one died.
        session: Option<u64>,
        /// Blocks of writes that were not durable and were kept whole.
        kept: usize,
        /// Those kept in part.
        torn: usize,
        /// Those lost.
        lost: usize,
    },
    /// The host changed or replaced the image.
    Tampered,
}

/// Is told what happens, as it happens. It must not call the store.
pub type Trace = Box<dyn FnMut(&Event) + Send>;

/// All that is left to chance, from one seed.
#[derive(Debug)]
pub(super) struct Chance(Rng);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// Whether something of this probability happens. What can't happen costs no randomness, so that
    /// switching one fault on does not shift the others.
    pub(super) fn strikes(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.0.f64() < probability
    }

    pub(super) fn coin(&mut self) -> bool {
        self.0.bool()
    }

    pub(super) fn fraction(&mut self) -> f64 {
        self.0.f64()
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit)
    }

    pub(super) fn block_below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }

    /// `old` with some, but not all, of its 512-byte sectors from `new`.
    pub(super) fn tear(&mut self, old: &Block, new: &Block) -> Block {
        let mask = self.0.u8(1..u8::MAX);
        let mut torn = *old;
        for sector in (0..8).filter(|sector| mask & (1 << sector) != 0) {
            let bytes = sector * 512..(sector + 1) * 512;
            torn[bytes.clone()].copy_from_slice(&new[bytes]);
        }
        torn
    }

    /// A block with one bit flipped.
    pub(super) fn flip(&mut self, block: &Block) -> Block {
        let mut flipped = *block;
        let bit = self.below(BLOCK_SIZE * 8);
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    }

    /// Anything at all.
    pub(super) fn garbage(&mut self) -> Block {
        let mut block = [0; BLOCK_SIZE];
        self.0.fill(&mut block);
        block
    }
}
