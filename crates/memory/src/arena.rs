//! A queue's pool of buffers: one large mapping, cut into pieces by halving.

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{BLOCK_SIZE, Buffer, mapping::Mapping};

/// The largest piece is 2^9 blocks, 2 MiB: as large as a huge page.
const ORDERS: usize = 10;
const LARGEST: usize = 1 << (ORDERS - 1);

/// The memory of one queue's buffers. Buffers find their way back from any thread; the lock is the queue's own, so it is contended
/// only while another thread drops a buffer of this queue.
///
/// It is one range of memory, so that a queue can register it with the kernel: see [`Arena::range`].
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    free: Mutex<Buddies>,
}

impl Arena {
    /// A pool of at least `blocks` blocks, rounded up to whole huge pages, zeroed by the kernel once.
    ///
    /// # Errors
    /// When the kernel refuses the memory.
    pub fn new(blocks: usize) -> io::Result<Arc<Self>> {
        let pieces = blocks.div_ceil(LARGEST).max(1);
        let mapping = Mapping::anonymous(pieces * LARGEST * BLOCK_SIZE)?;
        mapping.advise_huge();
        Ok(Arc::new(Self { mapping, free: Mutex::new(Buddies::new(pieces)) }))
    }

    /// A pool that suits a queue with `depth` operations in flight: 128 KiB for each, within reason.
    ///
    /// # Errors
    /// When the kernel refuses the memory.
    pub fn for_depth(depth: u32) -> io::Result<Arc<Self>> {
        Self::new(usize::try_from(depth).unwrap_or(usize::MAX).clamp(16, 256) * 32)
    }

    /// A buffer from the pool or, when it is used up, from the global allocator.
    #[must_use]
    pub fn buffer(self: &Arc<Self>, blocks: usize) -> Buffer {
        let Some(first) = order_of(blocks).and_then(|order| self.lock().take(order)) else {
            return Buffer::private_zeroed(blocks);
        };
        // SAFETY: `first` lies in the mapping, whose length is a multiple of the largest piece.
        let pointer = unsafe { self.mapping.base().add(first * BLOCK_SIZE) };
        // SAFETY: the piece has just been taken, and holds at least `blocks` blocks.
        unsafe { Buffer::from_arena(pointer, blocks * BLOCK_SIZE, self.clone()) }
    }

    /// Takes back a piece that `buffer` handed out.
    pub(crate) fn release(&self, pointer: NonNull<u8>, length: usize) {
        let (base, whole) = self.range();
        let offset = pointer.addr().get() - base.addr().get();
        debug_assert!(offset < whole, "only pieces of the arena come back");
        let first = offset / BLOCK_SIZE;
        let order = order_of(length / BLOCK_SIZE).expect("only pieces of the arena come back");
        self.lock().release(first, order);
    }

    /// Address and length of the whole pool.
    #[must_use]
    pub fn range(&self) -> (NonNull<u8>, usize) {
        (self.mapping.base(), self.mapping.length())
    }

    fn lock(&self) -> MutexGuard<'_, Buddies> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Buffers of private memory to be used again, for content that no store is to get as it is.
///
/// Plaintext has its place here and not in the buffers of a store's queue: what those hold goes out to the host, and what one of
/// them held before must not matter. Clones share the pool.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Arena>);

impl Pool {
    /// A pool of at least `blocks` blocks, in whole huge pages. Memory is used only where a buffer was.
    ///
    /// # Errors
    /// When the kernel refuses the address space.
    pub fn new(blocks: usize) -> io::Result<Self> {
        Arena::new(blocks).map(Self)
    }

    /// A buffer of `blocks` blocks, with any content; from the global allocator, when the pool is used up.
    #[must_use]
    pub fn buffer(&self, blocks: usize) -> Buffer {
        self.0.buffer(blocks)
    }
}

/// The size class of a piece, or nothing if there is none so large.
fn order_of(blocks: usize) -> Option<usize> {
    let order = usize::try_from(blocks.checked_next_power_of_two()?.trailing_zeros()).ok()?;
    (order < ORDERS).then_some(order)
}

/// The free pieces, by size: a buddy allocator over bit maps. The lowest free piece goes first, so that
/// buffers taken one after the other tend to be neighbours, and can be written in one transfer.
#[derive(Debug)]
struct Buddies {
    levels: [Vec<u64>; ORDERS],
}

impl Buddies {
    fn new(pieces: usize) -> Self {
        let mut this = Self {
            levels: std::array::from_fn(|order| vec![0; (pieces << (ORDERS - 1 - order)).div_ceil(64)]),
        };
        for piece in 0..pieces {
            this.flip(ORDERS - 1, piece);
        }
        this
    }

    fn flip(&mut self, order: usize, piece: usize) {
        self.levels[order][piece / 64] ^= 1 << (piece % 64);
    }

    fn is_free(&self, order: usize, piece: usize) -> bool {
        self.levels[order][piece / 64] & (1 << (piece % 64)) != 0
    }

    fn lowest(&self, order: usize) -> Option<usize> {
        let word = self.levels[order].iter().position(|&word| word != 0)?;
        let bit = usize::try_from(self.levels[order][word].trailing_zeros()).ok()?;
        Some(word * 64 + bit)
    }

    /// The first block of a free piece of 2^order blocks.
    fn take(&mut self, order: usize) -> Option<usize> {
        let (mut at, mut piece) = (order..ORDERS).find_map(|at| Some((at, self.lowest(at)?)))?;
        self.flip(at, piece);
        while at > order {
            at -= 1;
            piece *= 2;
            self.flip(at, piece + 1);
        }
        Some(piece << order)
    }

    fn release(&mut self, first: usize, mut order: usize) {
        let mut piece = first >> order;
        while order < ORDERS - 1 && self.is_free(order, piece ^ 1) {
            self.flip(order, piece ^ 1);
            piece /= 2;
            order += 1;
        }
        debug_assert!(!self.is_free(order, piece), "a piece comes back once");
        self.flip(order, piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pieces_come_back_whole() {
        let arena = Arena::new(LARGEST).unwrap();
        let (base, length) = arena.range();
        let all: Vec<Buffer> = (0..LARGEST).map(|_| arena.buffer(1)).collect();
        let inside =
            |b: &Buffer| (base.addr().get()..base.addr().get() + length).contains(&b.as_ptr().addr());
        assert!(all.iter().all(inside));
        assert!(!inside(&arena.buffer(1)), "used up: the next is from the heap");
        std::thread::spawn(move || drop(all)).join().unwrap();
        assert!(inside(&arena.buffer(LARGEST)), "all merged again");
        assert!(!inside(&arena.buffer(LARGEST + 1)), "too large for the pool");
    }

    #[test]
    fn a_pool_that_is_used_up_still_gives_private_memory() {
        let pool = Pool::new(1).unwrap();
        let first = pool.buffer(LARGEST);
        let more = pool.clone().buffer(1);
        assert!(first.private().is_some() && more.private().is_some());
        let address = first.as_ptr();
        drop(first);
        assert_eq!(pool.buffer(1).as_ptr(), address, "it is used again");
    }

    #[test]
    fn buffers_taken_in_turn_are_neighbours() {
        let arena = Arena::new(1).unwrap();
        let [a, b] = [arena.buffer(1), arena.buffer(1)];
        assert_eq!(a.as_ptr().addr() + BLOCK_SIZE, b.as_ptr().addr());
    }

    proptest! {
        #[test]
        fn pieces_never_overlap(sizes in prop::collection::vec((1_usize..40, any::<bool>()), 1..200)) {
            let arena = Arena::new(LARGEST).unwrap();
            let mut held: Vec<Buffer> = Vec::new();
            for (blocks, give_back) in sizes {
                if give_back && !held.is_empty() {
                    held.swap_remove(blocks % held.len());
                }
                held.push(arena.buffer(blocks));
            }
            let mut ranges: Vec<_> = held.iter().map(|b| (b.as_ptr().addr(), b.len())).collect();
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            prop_assert!(ranges.iter().all(|range| range.0.is_multiple_of(BLOCK_SIZE)));
        }
    }
}
