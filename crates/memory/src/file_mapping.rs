//! Files mapped into memory and shared with all others that map them.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::{BLOCK_SIZE, Buffer, copy_once};

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only to be read.
    Read,
    /// To be read and written.
    ReadWrite,
}

/// A part of a file (a memfd, a device's memory, a file on persistent memory), mapped with `MAP_SHARED`.
///
/// It counts as shared memory: every access is a copy that loads or stores each byte once. If the file is made shorter than the mapping,
/// an access beyond its end kills the process (`SIGBUS`); a file that others may truncate must be sealed (`F_SEAL_SHRINK`) first.
#[derive(Debug)]
pub struct FileMapping {
    base: NonNull<u8>,
    length: usize,
    access: Access,
}

// SAFETY: plain memory, reached by raw copies only; the mapping belongs to the process, not to a thread.
unsafe impl Send for FileMapping {}
// SAFETY: as above; what several threads copy at once may mix, as it may with other processes, but forms no reference.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps `length` bytes of `file` from byte `offset` (a multiple of the page size) on, and reads the pages in at once.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(file: &impl AsFd, offset: u64, length: usize, access: Access) -> io::Result<Self> {
        Self::map(file, offset, length, access, MapFlags::POPULATE)
    }

    /// The same without reading anything in: a page of the file that nobody has touched stays so until somebody does. For the memory of a
    /// guest, which is not ours to fill.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn untouched(file: &impl AsFd, offset: u64, length: usize, access: Access) -> io::Result<Self> {
        Self::map(file, offset, length, access, MapFlags::NORESERVE)
    }

    fn map(
        file: &impl AsFd,
        offset: u64,
        length: usize,
        access: Access,
        flags: MapFlags,
    ) -> io::Result<Self> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::SHARED | flags;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(ptr::null_mut(), length, protection, flags, file, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length, access })
    }

    /// Where it begins, at a page boundary; valid for accesses of [`len`](Self::len) bytes. No reference may be made from it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the kernel maps no empty range")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies bytes from `offset` on into `target`, each loaded once. A second copy may differ.
    ///
    /// # Panics
    /// When the mapping has fewer bytes.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) {
        let from = self.at(offset, target.len());
        // SAFETY: `at` keeps the source inside the mapping, and a private slice does not overlap it.
        unsafe { copy_once(from, target.as_mut_ptr(), target.len()) }
    }

    /// Copies `source` to `offset`, each byte stored once.
    ///
    /// # Panics
    /// When it does not fit, or the mapping is only to be read.
    pub fn copy_from(&self, offset: usize, source: &[u8]) {
        assert_eq!(self.access, Access::ReadWrite, "this mapping is only to be read");
        let to = self.at(offset, source.len());
        // SAFETY: `at` keeps the target inside the mapping, which can be written; a private slice does not overlap it.
        unsafe { copy_once(source.as_ptr(), to, source.len()) }
    }

    /// Loads two bytes by one access, with acquire ordering.
    ///
    /// # Panics
    /// When the mapping has fewer bytes, or the offset is odd.
    #[must_use]
    pub fn load_u16(&self, offset: usize) -> u16 {
        assert!(offset.is_multiple_of(2), "a word begins at an even offset");
        let from = self.at(offset, 2);
        #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
        // SAFETY: `at` keeps the word inside the mapping, and it is aligned. No reference is formed.
        let value = unsafe { from.cast::<u16>().read_volatile() };
        fence(Ordering::Acquire);
        value
    }

    /// Stores two bytes by one access, with release ordering.
    ///
    /// # Panics
    /// When the mapping has fewer bytes or is only to be read, or the offset is odd.
    pub fn store_u16(&self, offset: usize, value: u16) {
        assert_eq!(self.access, Access::ReadWrite, "this mapping is only to be read");
        assert!(offset.is_multiple_of(2), "a word begins at an even offset");
        let to = self.at(offset, 2);
        fence(Ordering::Release);
        #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
        // SAFETY: as in `load_u16`, and the mapping can be written.
        unsafe {
            to.cast::<u16>().write_volatile(value);
        }
    }

    /// Returns when `length` bytes from `offset` (a multiple of the page size) on are in the file (`msync(2)`).
    ///
    /// # Errors
    /// When the file's medium fails.
    ///
    /// # Panics
    /// When the mapping has fewer bytes.
    pub fn sync(&self, offset: usize, length: usize) -> io::Result<()> {
        let from = self.at(offset, length);
        // SAFETY: `at` keeps the range inside the mapping, and writing it back does not change it.
        Ok(unsafe { msync(from.cast::<c_void>(), length, MsyncFlags::SYNC) }?)
    }

    /// The whole mapping as a buffer in shared memory.
    ///
    /// # Panics
    /// When it is only to be read, or is no whole number of blocks.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        assert_eq!(self.access, Access::ReadWrite, "this mapping is only to be read");
        assert!(self.length.is_multiple_of(BLOCK_SIZE), "a buffer is a whole number of blocks long");
        let (base, length) = (self.base, self.length);
        // SAFETY: mapped for reading and writing until `self` is dropped, and the kernel has initialised it. Others that map the file may
        // use it too: that is what `shared` is for.
        unsafe { Buffer::from_raw(base, length, true, Box::new(self)) }
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.length);
        assert!(fits, "{length} bytes at {offset} are outside of a mapping of {}", self.length);
        // SAFETY: inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this address and length; each user of an address in it keeps the mapping meanwhile.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(result.is_ok(), "a mapping of ours can be unmapped: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file(blocks: usize) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len((blocks * BLOCK_SIZE) as u64).unwrap();
        file
    }

    #[test]
    fn all_who_map_a_file_see_the_same_bytes() {
        let file = file(3);
        let [one, other] =
            [0, 0].map(|at| FileMapping::new(&file, at, 2 * BLOCK_SIZE, Access::ReadWrite).unwrap());
        one.copy_from(4093, b"across");
        let mut found = [0; 6];
        other.copy_to(4093, &mut found);
        assert_eq!(&found, b"across");
        one.sync(0, 2 * BLOCK_SIZE).unwrap();
        file.read_exact_at(&mut found, 4093).unwrap();
        assert_eq!(&found, b"across");
        let tail = FileMapping::new(&file, BLOCK_SIZE as u64, BLOCK_SIZE, Access::Read).unwrap();
        tail.copy_to(0, &mut found[..3]);
        assert_eq!(&found[..3], b"oss");
    }

    #[test]
    fn untouched_memory_is_filled_by_use_only_and_words_are_shared() {
        let file = file(64);
        let taken = |file: &std::fs::File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        let before = taken(&file);
        let one = FileMapping::untouched(&file, 0, 64 * BLOCK_SIZE, Access::ReadWrite).unwrap();
        let other = FileMapping::untouched(&file, 0, BLOCK_SIZE, Access::Read).unwrap();
        assert_eq!(taken(&file), before);
        one.store_u16(4094, 0x1234);
        assert_eq!(other.load_u16(4094), 0x1234);
    }

    #[test]
    #[should_panic(expected = "even offset")]
    fn a_word_is_not_torn() {
        let _ = FileMapping::new(&file(1), 0, BLOCK_SIZE, Access::Read).unwrap().load_u16(1);
    }

    #[test]
    fn as_a_buffer_it_is_shared() {
        let file = file(1);
        let watch = FileMapping::new(&file, 0, BLOCK_SIZE, Access::Read).unwrap();
        let mut buffer = FileMapping::new(&file, 0, BLOCK_SIZE, Access::ReadWrite).unwrap().into_buffer();
        assert!(buffer.is_shared() && buffer.private().is_none());
        buffer.copy_from(1, b"x");
        let mut found = [0; 3];
        watch.copy_to(0, &mut found);
        assert_eq!(&found, b"\0x\0");
    }

    #[test]
    #[should_panic(expected = "only to be read")]
    fn what_is_only_to_be_read_is_not_written() {
        FileMapping::new(&file(1), 0, BLOCK_SIZE, Access::Read).unwrap().copy_from(0, b"x");
    }

    #[test]
    #[should_panic(expected = "outside of a mapping")]
    fn a_copy_past_the_end_is_refused() {
        FileMapping::new(&file(2), 0, BLOCK_SIZE, Access::Read).unwrap().copy_to(4093, &mut [0; 4]);
    }
}
