//! A mapping that is touched by single loads and stores.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A shared mapping of a file, or private memory.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: *mut u8,
    len: usize,
}

impl Mapped {
    /// Maps a file by the C library's mmap, so that a preloaded library has it served.
    pub(crate) fn file(file: &File, len: usize) -> io::Result<Mapped> {
        Mapped::new(file.as_raw_fd(), libc::MAP_SHARED, len)
    }

    /// Memory of this process alone.
    pub(crate) fn private(len: usize) -> io::Result<Mapped> {
        Mapped::new(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, len)
    }

    fn new(descriptor: i32, flags: i32, len: usize) -> io::Result<Mapped> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, descriptor, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped { base: base.cast(), len })
    }

    pub(crate) fn address(&self) -> usize {
        self.base.addr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of a word that is in the mapping.
    fn word(&self, at: usize) -> *mut u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "a word of the mapping");
        self.base.wrapping_add(at).cast()
    }

    pub(crate) fn load(&self, at: usize) -> u64 {
        // SAFETY: `word` is mapped and aligned, and any eight bytes are a number.
        unsafe { self.word(at).read_volatile() }
    }

    pub(crate) fn store(&self, at: usize, value: u64) {
        // SAFETY: as in `load`.
        unsafe { self.word(at).write_volatile(value) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this address and length, and nobody else knows it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
