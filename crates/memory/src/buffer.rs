//! Memory for I/O, known only by address and length.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::arena::Arena;
use crate::{BLOCK_SIZE, Shared, SharedMut, Source, Target};

/// An owned, block-aligned piece of memory that is a whole number of blocks long.
///
/// It may be private memory or memory that the host can write at any moment, so no reference to it is handed
/// out unless it is private. [`Buffer::source`] and [`Buffer::target`] are the way to the bytes of either kind.
/// Its content is always initialised, though not always to anything in particular.
pub struct Buffer {
    pointer: NonNull<u8>,
    length: usize,
    shared: bool,
    owner: Owner,
}

/// Whom the memory goes back to.
enum Owner {
    /// The global allocator.
    Heap,
    /// A queue's pool.
    Arena(Arc<Arena>),
    /// Whatever the dropped value does.
    Foreign { _guard: Box<dyn Send> },
}

// SAFETY: a Buffer is the only way to its memory, neither the global allocator nor an Arena (which is Sync)
// cares which thread gives memory back, and a foreign owner is Send.
unsafe impl Send for Buffer {}

// SAFETY: through `&Buffer` its memory is only read, and its owner is not reached at all.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Private memory of `blocks` blocks from the global allocator, all zero.
    #[must_use]
    pub fn private_zeroed(blocks: usize) -> Self {
        let length = blocks.checked_mul(BLOCK_SIZE).expect("a buffer fits the address space");
        let layout = heap_layout(length);
        // SAFETY: the layout's size is not zero (see heap_layout).
        let Some(pointer) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self { pointer, length, shared: false, owner: Owner::Heap }
    }

    /// Takes over memory that lives elsewhere. `shared` says that the host can write it; `owner` is dropped
    /// when the buffer is, and gives the memory back.
    ///
    /// # Panics
    /// When `pointer` is not aligned to a block, or `length` is not in whole blocks.
    ///
    /// # Safety
    /// Until `owner` is dropped, `pointer` must be valid for reads and writes of `length` bytes, all
    /// initialised, and nothing else in this security domain may use them. Unless `shared` is set, no other
    /// domain may write them either.
    #[must_use]
    pub unsafe fn from_raw(pointer: NonNull<u8>, length: usize, shared: bool, owner: Box<dyn Send>) -> Self {
        assert!(pointer.addr().get().is_multiple_of(BLOCK_SIZE), "a buffer begins at a block boundary");
        assert!(length.is_multiple_of(BLOCK_SIZE), "a buffer is a whole number of blocks long");
        Self { pointer, length, shared, owner: Owner::Foreign { _guard: owner } }
    }

    /// The same memory, to be treated from now on as memory that the host can write.
    #[must_use]
    pub fn into_shared(self) -> Self {
        let mut this = self;
        this.shared = true;
        this
    }

    /// A piece of `arena`; `Arena::release` gets it back.
    ///
    /// # Safety
    /// `pointer` and `length` must describe a piece that `arena` has just handed out.
    pub(crate) unsafe fn from_arena(pointer: NonNull<u8>, length: usize, arena: Arc<Arena>) -> Self {
        Self { pointer, length, shared: false, owner: Owner::Arena(arena) }
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty buffer has no use, so nobody asks")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Length in blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.length / BLOCK_SIZE
    }

    /// Where it begins; valid for reads of `len()` bytes.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer.as_ptr()
    }

    /// Where it begins; valid for reads and writes of `len()` bytes.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Whether the host can write this memory.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// The content, if nobody else can change it.
    #[must_use]
    pub fn private(&self) -> Option<&[u8]> {
        if self.shared {
            return None;
        }
        // SAFETY: initialised (every constructor sees to that), valid for `length` bytes, and, since it is
        // not shared, written through `&mut self` only.
        Some(unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length) })
    }

    /// The content for change, if nobody else can change it.
    #[must_use]
    pub fn private_mut(&mut self) -> Option<&mut [u8]> {
        if self.shared {
            return None;
        }
        // SAFETY: as in `private`, and `&mut self` makes this the only access.
        Some(unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) })
    }

    /// Some of its bytes, to copy from or to open.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
    #[must_use]
    pub fn source(&self, range: Range<usize>) -> Source<'_> {
        let length = self.check(&range);
        // SAFETY: `check` keeps the range inside the buffer.
        let pointer = unsafe { self.pointer.as_ptr().add(range.start) };
        if self.shared {
            // SAFETY: valid and initialised as long as the buffer, no reference is ever made to shared memory, and it is written by the
            // copies of `target` only.
            return Source::Shared(unsafe { Shared::from_raw(pointer, length) });
        }
        // SAFETY: as in `private`.
        Source::Private(unsafe { slice::from_raw_parts(pointer, length) })
    }

    /// Some of its bytes, to copy to or to seal into.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
    #[must_use]
    pub fn target(&mut self, range: Range<usize>) -> Target<'_> {
        let length = self.check(&range);
        // SAFETY: `check` keeps the range inside the buffer.
        let pointer = unsafe { self.pointer.as_ptr().add(range.start) };
        if self.shared {
            // SAFETY: as in `source`.
            return Target::Shared(unsafe { SharedMut::from_raw(pointer, length) });
        }
        // SAFETY: as in `private_mut`.
        Target::Private(unsafe { slice::from_raw_parts_mut(pointer, length) })
    }

    /// Copies `source` into the buffer at byte `offset`. Works for shared memory too: each byte is stored once.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn copy_from(&mut self, offset: usize, source: &[u8]) {
        match self.target(offset..offset.saturating_add(source.len())) {
            Target::Private(target) => target.copy_from_slice(source),
            Target::Shared(mut target) => target.copy_from(source),
        }
    }

    /// Copies bytes from `offset` on into `target`. Works for shared memory too, of which each byte is loaded once: what arrives in
    /// `target` then is the host's word at that moment, and a second copy may differ.
    ///
    /// # Panics
    /// When the buffer has fewer bytes.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) {
        match self.source(offset..offset.saturating_add(target.len())) {
            Source::Private(source) => target.copy_from_slice(source),
            Source::Shared(source) => source.copy_to(target),
        }
    }

    /// Length of a range that is inside.
    fn check(&self, range: &Range<usize>) -> usize {
        let fits = range.start <= range.end && range.end <= self.length;
        assert!(fits, "bytes {range:?} are outside of a buffer of {}", self.length);
        range.end - range.start
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: allocated in `private_zeroed` with this very layout.
            Owner::Heap => unsafe { dealloc(self.pointer.as_ptr(), heap_layout(self.length)) },
            Owner::Arena(arena) => arena.release(self.pointer, self.length),
            Owner::Foreign { .. } => {}
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.shared { "shared" } else { "private" };
        write!(f, "Buffer({} blocks, {kind})", self.blocks())
    }
}

/// At least one block, so that the size is never zero.
fn heap_layout(length: usize) -> Layout {
    Layout::from_size_align(length.max(BLOCK_SIZE), BLOCK_SIZE).expect("a buffer fits the address space")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn private_memory_is_zero_aligned_and_visible() {
        let mut buffer = Buffer::private_zeroed(3);
        assert_eq!((buffer.len(), buffer.blocks(), buffer.is_shared()), (3 * BLOCK_SIZE, 3, false));
        assert!(buffer.as_ptr().addr().is_multiple_of(BLOCK_SIZE));
        assert!(buffer.private().unwrap().iter().all(|&byte| byte == 0));
        buffer.private_mut().unwrap()[BLOCK_SIZE] = 7;
        let mut byte = [0];
        buffer.copy_to(BLOCK_SIZE, &mut byte);
        assert_eq!(byte, [7]);
    }

    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn shared_memory_is_reached_by_copies_only_and_its_owner_dropped_once() {
        let mut memory = Buffer::private_zeroed(1);
        let dropped = Arc::new(AtomicUsize::new(0));
        let pointer = NonNull::new(memory.as_mut_ptr()).unwrap();
        let owner = Box::new((Counted(dropped.clone()), memory));
        // SAFETY: the memory lives in `owner`, and nobody else has it.
        let mut shared = unsafe { Buffer::from_raw(pointer, BLOCK_SIZE, true, owner) };
        assert!(shared.private().is_none() && shared.private_mut().is_none());
        shared.copy_from(4090, b"secret");
        let mut back = [0; 6];
        shared.copy_to(4090, &mut back);
        assert_eq!(&back, b"secret");
        drop(shared);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    #[should_panic(expected = "outside of a buffer")]
    fn a_copy_past_the_end_is_refused() {
        Buffer::private_zeroed(1).copy_from(4093, b"four");
    }

    #[test]
    #[should_panic(expected = "outside of a buffer")]
    fn an_offset_that_overflows_is_refused() {
        Buffer::private_zeroed(1).copy_to(usize::MAX, &mut [0; 2]);
    }

    #[test]
    fn the_parts_of_a_buffer_are_what_it_is() {
        let mut private = Buffer::private_zeroed(1);
        let Target::Private(bytes) = private.target(10..12) else { panic!("it is private") };
        bytes.fill(5);
        let Source::Private(bytes) = private.source(9..12) else { panic!("it is private") };
        assert_eq!(bytes, [0, 5, 5]);
        let mut shared = private.into_shared();
        let Target::Shared(mut part) = shared.target(11..13) else { panic!("it is shared") };
        part.copy_from(&[6, 6]);
        let Source::Shared(part) = shared.source(9..13) else { panic!("it is shared") };
        let mut bytes = [0; 4];
        part.copy_to(&mut bytes);
        assert_eq!(bytes, [0, 5, 6, 6]);
    }

    #[test]
    #[should_panic(expected = "outside of a buffer")]
    fn a_part_that_ends_before_it_begins_is_refused() {
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
        let _ = Buffer::private_zeroed(1).source(2..1);
    }
}
