//! Anonymous memory straight from the kernel.

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Source, Target};

const HUGE_PAGE: usize = 2 << 20;

/// A private anonymous mapping, zero until written, its start aligned to a huge page.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    whole: *mut c_void,
    whole_length: usize,
}

// SAFETY: plain memory; who may touch it when is settled by its users (Arena and MemoryStore).
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only tells the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes; memory is used only where it is touched.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn anonymous(length: usize) -> io::Result<Self> {
        let whole_length = length.max(1).checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let whole = unsafe { mmap_anonymous(ptr::null_mut(), whole_length, access, flags) }?;
        let skip = whole.cast::<u8>().align_offset(HUGE_PAGE);
        // SAFETY: `skip` is less than a huge page, which is how much longer the mapping is than `length`.
        let base = NonNull::new(unsafe { whole.cast::<u8>().add(skip) }).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length, whole, whole_length })
    }

    /// Where it begins.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Asks for huge pages; a kernel that has none is as good, only slower.
    pub fn advise_huge(&self) {
        // SAFETY: the range is ours, and the advice does not change its content.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.length, Advice::LinuxHugepage) };
    }

    /// Copies bytes from `offset` on to `target`.
    ///
    /// # Safety
    /// Nobody may write to the range meanwhile, and `target` must be elsewhere.
    ///
    /// # Panics
    /// When the mapping has fewer bytes.
    pub unsafe fn copy_to(&self, offset: usize, mut target: Target<'_>) {
        let from = self.at(offset, target.len());
        // SAFETY: inside of the mapping, all of which is initialised; the rest is this function's contract.
        unsafe { target.copy_from_raw(from) }
    }

    /// Copies `source` to `offset`.
    ///
    /// # Safety
    /// Nobody else may use the range meanwhile, no reference to it may exist, and `source` must be elsewhere.
    ///
    /// # Panics
    /// When it does not fit.
    pub unsafe fn copy_from(&self, offset: usize, source: &Source<'_>) {
        let to = self.at(offset, source.len());
        // SAFETY: inside of the mapping, and this function's contract.
        unsafe { source.copy_to_raw(to) }
    }

    /// The address of a range.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length), "inside of the mapping");
        // SAFETY: inside of the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Gives the memory of a range back to the kernel; it reads as zero from then on.
    ///
    /// # Safety
    /// Nobody else may use the range meanwhile, and no reference to it may exist.
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// # Panics
    /// When the range is outside of the mapping.
    pub unsafe fn forget(&self, offset: usize, length: usize) -> io::Result<()> {
        let start = self.at(offset, length);
        // SAFETY: the range lies in the mapping, and by this function's contract nobody is using it.
        unsafe { madvise(start.cast(), length, Advice::LinuxDontNeed) }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `anonymous` with this address and length; users keep the Mapping while they use it.
        let result = unsafe { munmap(self.whole, self.whole_length) };
        debug_assert!(result.is_ok(), "a mapping of ours can be unmapped: {result:?}");
    }
}
