//! aws-lc's heap, in memory for secrets: that is where it keeps prepared key schedules (which begin with the key itself), what hashes and
//! MACs of keys leave behind, and the state of its random generator.
//!
//! aws-lc takes the functions that it allocates with from its caller, once, and does not zeroise what it gives back to them. Ours cut
//! blocks of a power of two from locked pages. It allocates when keys are made, for each hash, and when a thread first asks for random
//! bytes; never to seal or open a block.
//!
//! These functions run inside aws-lc, on any thread, also while that thread ends: they call neither aws-lc nor anything that does, and
//! must not unwind.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use zeroize::Zeroize;

use crate::locked::{Mapping, Slot};

/// A block's smallest size, in bytes, and its alignment.
const SMALLEST: usize = 64;
const SIZES: usize = 6;
/// What is larger has a mapping of its own.
const LARGEST: usize = SMALLEST << (SIZES - 1);
/// Blocks of one size are mapped this many bytes at a time, at least.
const CHUNK_SIZE: usize = 4096;

/// Sees to it that aws-lc allocates here. Whatever in this crate makes aws-lc allocate calls it first.
pub(crate) fn take_over() {
    static TAKEN: Once = Once::new();
    TAKEN.call_once(|| {
        // SAFETY: the three functions keep the contract of malloc, realloc and free for each other's blocks, on all threads. Nobody else
        // is inside aws-lc: only this crate calls it, and waits here before it first does. Should something else in the process have made
        // it allocate before, `give_back` and `resize` know such a block from theirs and leave it alone.
        let done =
            unsafe { aws_lc_sys::CRYPTO_set_mem_functions(Some(allocate), Some(resize), Some(give_back)) };
        // Refused only where somebody has set such functions already, at run time or when aws-lc was linked.
        assert_eq!(done, 1, "aws-lc takes the functions that it allocates with");
    });
}

static HEAP: Mutex<Heap> = Mutex::new(Heap::new());

fn heap() -> MutexGuard<'static, Heap> {
    HEAP.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Heap {
    /// Free blocks by size, all zero.
    free: [Vec<Slot>; SIZES],
    /// All that is mapped, by its address.
    chunks: BTreeMap<usize, Chunk>,
}

/// A mapping that is cut into blocks of one size, or is a single block.
struct Chunk {
    mapping: Mapping,
    block: usize,
}

impl Heap {
    const fn new() -> Self {
        Self { free: [const { Vec::new() }; SIZES], chunks: BTreeMap::new() }
    }

    /// At least `size` bytes, all zero; `None` if the system has no memory left.
    fn allocate(&mut self, size: usize) -> Option<NonNull<u8>> {
        if size > LARGEST {
            let mapping = Mapping::new(size)?;
            let (start, block) = (mapping.start(), mapping.size());
            self.chunks.insert(start.addr().get(), Chunk { mapping, block });
            return Some(start);
        }
        let block = size.max(SMALLEST).next_power_of_two();
        let free = &mut self.free[(block / SMALLEST).ilog2() as usize];
        if free.is_empty() {
            let mapping = Mapping::new(CHUNK_SIZE)?;
            free.extend(mapping.slots(block));
            self.chunks.insert(mapping.start().addr().get(), Chunk { mapping, block });
        }
        free.pop().map(|slot| slot.0)
    }

    /// The size of the block at `start`; `None` if it is not one of ours.
    fn size_of(&self, start: NonNull<u8>) -> Option<usize> {
        let (first, chunk) = self.chunks.range(..=start.addr().get()).next_back()?;
        (start.addr().get() - first < chunk.mapping.size()).then_some(chunk.block)
    }

    /// Zeroises a block of this size and takes it back.
    ///
    /// # Safety
    /// `start` is a block of `size` bytes that `allocate` handed out, and nobody uses it any more.
    unsafe fn give_back(&mut self, start: NonNull<u8>, size: usize) {
        if size > LARGEST {
            // Gone with its pages, which the kernel clears before anybody else sees them.
            drop(self.chunks.remove(&start.addr().get()));
            return;
        }
        // SAFETY: by the contract of this function these bytes are mapped, initialised, and nobody else's.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), size) }.zeroize();
        self.free[(size / SMALLEST).ilog2() as usize].push(Slot(start));
    }
}

unsafe extern "C" fn allocate(size: usize, _file: *const c_char, _line: c_int) -> *mut c_void {
    heap().allocate(size).map_or(null_mut(), |start| start.as_ptr().cast())
}

unsafe extern "C" fn resize(
    old: *mut c_void,
    size: usize,
    _file: *const c_char,
    _line: c_int,
) -> *mut c_void {
    let mut heap = heap();
    let Some(old) = NonNull::new(old.cast::<u8>()) else {
        return heap.allocate(size).map_or(null_mut(), |start| start.as_ptr().cast());
    };
    // A block that is not ours stays where it is: how large it is, nobody knows.
    let Some(before) = heap.size_of(old) else { return null_mut() };
    if size <= before {
        return old.as_ptr().cast();
    }
    let Some(new) = heap.allocate(size) else { return null_mut() };
    // SAFETY: `old` has `before` bytes, `new` has more, and they are two blocks. aws-lc gives `old` away by asking.
    unsafe {
        new.copy_from_nonoverlapping(old, before);
        heap.give_back(old, before);
    }
    new.as_ptr().cast()
}

unsafe extern "C" fn give_back(block: *mut c_void, _file: *const c_char, _line: c_int) {
    let mut heap = heap();
    let Some(start) = NonNull::new(block.cast::<u8>()) else { return };
    // A block that is not ours is leaked.
    let Some(size) = heap.size_of(start) else { return };
    // SAFETY: ours, by `size_of`; and aws-lc, which had it from `allocate` or `resize`, does not use it any more.
    unsafe { heap.give_back(start, size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(size: usize) -> *mut u8 {
        // SAFETY: no contract but that the block is given back once, which each test does.
        unsafe { allocate(size, std::ptr::null(), 0) }.cast()
    }

    fn put(block: *mut u8) {
        // SAFETY: called with blocks of `take` or `grow` only, once each.
        unsafe { give_back(block.cast(), std::ptr::null(), 0) }
    }

    fn grow(block: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: called with blocks of `take` only, which are not used any more.
        unsafe { resize(block.cast(), size, std::ptr::null(), 0) }.cast()
    }

    fn bytes<'a>(block: *mut u8, size: usize) -> &'a mut [u8] {
        // SAFETY: called with blocks of this size that nobody else uses meanwhile.
        unsafe { std::slice::from_raw_parts_mut(block, size) }
    }

    const ALL: [usize; 12] = [0, 1, 64, 65, 600, 1024, 1025, 2048, 2049, 4096, 4097, 100_000];

    #[test]
    fn blocks_are_zero_aligned_apart_and_zero_again() {
        for _ in 0..3 {
            let blocks: Vec<_> = ALL.iter().chain(&ALL).map(|&size| (take(size), size)).collect();
            for &(block, size) in &blocks {
                assert!(block.addr().is_multiple_of(SMALLEST));
                assert!(bytes(block, size).iter().all(|&byte| byte == 0), "{size}");
                bytes(block, size).fill(0xAA);
            }
            let mut ranges: Vec<_> = blocks.iter().map(|&(b, size)| (b.addr(), b.addr() + size)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:x?}");
            blocks.into_iter().for_each(|(block, _)| put(block));
        }
    }

    #[test]
    fn what_was_given_back_is_zero() {
        let mut heap = Heap::new();
        let start = heap.allocate(600).unwrap();
        bytes(start.as_ptr(), 600).fill(0xAA);
        // SAFETY: just taken, and not used any more.
        unsafe { heap.give_back(start, heap.size_of(start).unwrap()) };
        assert_eq!(heap.allocate(1000), Some(start), "the same block again");
        assert_eq!(bytes(start.as_ptr(), 1024), [0; 1024]);
    }

    #[test]
    fn growing_keeps_the_content_and_zeroises_where_it_was() {
        for (before, after) in [(10, 20), (10, 300), (200, 3000), (300, 9000), (5000, 9000), (5000, 5001)] {
            let old = take(before);
            bytes(old, before).fill(7);
            let new = grow(old, after);
            assert!(bytes(new, after)[..before].iter().all(|&byte| byte == 7), "{before} {after}");
            put(new);
        }
        let new = grow(null_mut(), 70);
        assert_eq!(bytes(new, 70), [0; 70]);
        put(new);
    }

    #[test]
    fn blocks_of_others_are_left_alone() {
        let mut other = vec![1_u8; 100];
        assert!(grow(other.as_mut_ptr(), 200).is_null());
        put(other.as_mut_ptr());
        assert_eq!(other, [1; 100]);
        put(null_mut());
    }

    #[test]
    fn what_cannot_be_had_is_null() {
        assert!(take(usize::MAX).is_null());
        assert!(take(isize::MAX as usize - 4096).is_null());
    }

    #[test]
    fn threads_share_it() {
        let work = |thread: u8| {
            for round in 0..2000_usize {
                let size = ALL[round % 8];
                let block = take(size);
                bytes(block, size).fill(thread);
                let block = grow(block, size * 3);
                assert!(bytes(block, size).iter().all(|&byte| byte == thread));
                put(block);
            }
        };
        std::thread::scope(|scope| (1..5).for_each(|thread| drop(scope.spawn(move || work(thread)))));
    }

    #[test]
    fn aws_lc_allocates_here() {
        take_over();
        // SAFETY: an allocation of aws-lc, given back to it below.
        let block = unsafe { aws_lc_sys::OPENSSL_malloc(3000) };
        let start = NonNull::new(block.cast::<u8>()).unwrap();
        assert_eq!(heap().size_of(start), Some(4096));
        // SAFETY: as above.
        unsafe { aws_lc_sys::OPENSSL_free(block) };
    }
}
