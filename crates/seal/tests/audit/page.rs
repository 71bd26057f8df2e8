//! A page that two sides map, as guest and host do.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{copy_nonoverlapping, null_mut};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a block, and of a page.
pub const SIZE: usize = 4096;
/// A block, in private memory.
pub type Block = [u8; SIZE];

/// One mapping of a shared page.
pub struct Page(*mut u8);

impl Page {
    /// A new shared page, to be mapped as often as one likes. Programs that are started inherit the file.
    pub fn file() -> OwnedFd {
        let file = memfd_create("audit", MemfdFlags::empty()).expect("memfd_create works");
        ftruncate(&file, SIZE as u64).expect("there is memory for a page");
        file
    }

    pub fn map(file: &impl AsFd) -> Page {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap(null_mut(), SIZE, access, MapFlags::SHARED, file, 0) };
        Page(start.expect("a page can be mapped").cast())
    }

    /// The first of its [`SIZE`] bytes. No reference may cover them while another side writes.
    pub fn start(&self) -> *mut u8 {
        self.0
    }

    pub fn read(&self) -> Block {
        let mut block = [0; SIZE];
        // SAFETY: both sides have SIZE bytes, and `block` is private.
        unsafe { copy_nonoverlapping(self.0, block.as_mut_ptr(), SIZE) };
        block
    }

    pub fn write(&self, block: &Block) {
        // SAFETY: both sides have SIZE bytes, and `block` is private.
        unsafe { copy_nonoverlapping(block.as_ptr(), self.0, SIZE) };
    }

    /// The byte at `offset`, now.
    #[cfg(target_arch = "x86_64")]
    pub fn byte(&self, offset: usize) -> u8 {
        assert!(offset < SIZE);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(offset).read_volatile() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { munmap(self.0.cast::<c_void>(), SIZE) }.expect("it was mapped");
    }
}
