//! The mapping in a client's address space: what the kernel is asked about it.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::protocol::Mapped;

/// The mapping, until it is over.
#[derive(Debug)]
pub(super) struct Pages {
    mapped: Mapped,
    /// Whether the mapping is gone; held while something is done to it.
    is_over: Mutex<bool>,
    /// What was said last of a failure, so that it is said once.
    told: Mutex<String>,
}

impl Pages {
    /// # Safety
    /// The range is a shared mapping of a file until [`end`](Pages::end).
    pub(super) unsafe fn new(mapped: Mapped) -> Pages {
        Pages { mapped, is_over: Mutex::new(false), told: Mutex::default() }
    }

    pub(super) fn mapped(&self) -> Mapped {
        self.mapped
    }

    pub(super) fn is_over(&self) -> bool {
        *self.lock()
    }

    /// Has a page come alone, and no child of the process with it.
    ///
    /// # Errors
    /// [`Error::Io`] if the mapping would be a child's, too: the server could not take pages out of its page tables.
    pub(super) fn prepare(&self) -> Result<(), Error> {
        let Mapped { address, length, .. } = self.mapped;
        // Neighbours must not come with a page, neither now nor when the kernel puts pages together later. A kernel without transparent huge
        // pages refuses the advice.
        let _ = self.advise(address, length, libc::MADV_NOHUGEPAGE);
        self.advise(address, length, libc::MADV_DONTFORK)
            .map_err(|error| Error::io("keeping the mapping from children of the process", error))
    }

    /// Takes everything out of the page tables.
    ///
    /// # Errors
    /// As [`take_out`](Pages::take_out).
    pub(super) fn take_out_all(&self) -> io::Result<()> {
        self.take_out(self.mapped.address, self.mapped.length)
    }

    /// Takes a range out of the page tables, as far as it is in the mapping; also where it is locked into memory (mlock(2)).
    ///
    /// # Errors
    /// As the kernel says: the range may be in the page tables.
    pub(super) fn take_out(&self, address: u64, len: u64) -> io::Result<()> {
        let is_over = self.lock();
        let start = address.max(self.mapped.address);
        let end = address.saturating_add(len).min(self.mapped.address + self.mapped.length);
        if *is_over || start >= end {
            return Ok(());
        }
        match self.advise(start, end - start, libc::MADV_DONTNEED) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // It is locked. Linux 5.18 takes out what is.
                self.advise(start, end - start, libc::MADV_DONTNEED_LOCKED)
            }
            result => result,
        }
    }

    /// Ends the mapping's service. An error of the kernel is all the same: nobody touches the mapping any more.
    pub(super) fn end(&self) {
        if let Err(error) = self.take_out_all() {
            self.tell(&error);
        }
        *self.lock() = true;
    }

    /// Tells the VMM's owner that pages stay in its page tables, once for each reason.
    pub(super) fn tell(&self, error: &io::Error) {
        let reason = error.to_string();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told != reason {
            eprintln!(
                "cvmio-scm: pages of the region cannot be taken out of this process's page tables ({reason}), so they stay open, in the clear; \
                 is its memory locked (mlock, `-overcommit mem-lock`) on a kernel before 5.18, or is madvise(2) forbidden?"
            );
            *told = reason;
        }
    }

    fn advise(&self, address: u64, len: u64, advice: i32) -> io::Result<()> {
        let start = usize::try_from(address).map_err(io::Error::other)?;
        let len = usize::try_from(len).map_err(io::Error::other)?;
        // SAFETY: the range is in the mapping, which is there (`new`'s contract, and `is_over`); it is shared, so its content stays. The system
        // call itself, so that a preloaded library which looks at a program's advice does not look at this.
        let done = unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
