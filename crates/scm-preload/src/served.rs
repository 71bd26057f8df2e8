//! The mapping that is served: one in a process.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{off_t, size_t};
use scm::client::Attached;

use crate::refuse;
use crate::region::Opened;

/// What was asked of mmap.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub address: *mut c_void,
    pub length: size_t,
    pub offset: off_t,
    pub protection: c_int,
}

struct Served {
    attached: Attached,
    start: usize,
    /// Length, offset and protection.
    asked: (size_t, off_t, c_int),
    /// How often it was asked for.
    users: usize,
}

/// Lengths are rounded up to it.
const PAGE: usize = 4096;

static SERVED: Mutex<Option<Served>> = Mutex::new(None);
/// The same for a look without the lock: most calls have nothing to do with it.
static START: AtomicU64 = AtomicU64::new(0);
static LENGTH: AtomicU64 = AtomicU64::new(0);

/// Maps the region by `map`, which gets a descriptor, and has it served.
pub fn map(opened: &Opened, asked: Asked, map: impl Fn(c_int) -> *mut c_void) -> *mut c_void {
    let key = (asked.length, asked.offset, asked.protection);
    // Held until it is served: of two threads that ask at once, the second has the first one's mapping.
    let mut served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = served.as_mut() {
        // Threads of a program often map a file each.
        if asked.address.is_null() && there.asked == key {
            there.users += 1;
            return std::ptr::with_exposed_provenance_mut(there.start);
        }
        refuse(libc::EACCES, "another mapping of a region is served already, and only one is");
        return libc::MAP_FAILED;
    }
    let mapped = map(opened.region.file().as_raw_fd());
    if mapped == libc::MAP_FAILED {
        return mapped;
    }
    let (start, length) = (mapped.addr(), asked.length);
    let Ok(offset) = u64::try_from(asked.offset) else { return libc::MAP_FAILED };
    // SAFETY: the range was just mapped, shared, from the region's file; it stays until munmap, which ends the service first: the kernel is not
    // asked for anything else that would change it.
    match unsafe { opened.region.attach(start as u64, length as u64, offset) } {
        Ok(attached) => {
            *served = Some(Served { attached, start, asked: key, users: 1 });
            LENGTH.store(length as u64, Ordering::Release);
            START.store(start as u64, Ordering::Release);
            mapped
        }
        Err(error) => {
            // SAFETY: the mapping was just made, and nobody else knows of it.
            unsafe { libc::syscall(libc::SYS_munmap, mapped, length) };
            refuse(libc::EACCES, &format!("{}: {error}", opened.path.display()));
            libc::MAP_FAILED
        }
    }
}

/// Whether a range has to do with the mapping that is served.
pub fn overlaps(address: *mut c_void, length: size_t) -> bool {
    let (start, len) = (START.load(Ordering::Acquire), LENGTH.load(Ordering::Acquire));
    let address = address.addr() as u64;
    start != 0 && address < start + len && start < address.saturating_add(length as u64)
}

/// What becomes of a call of munmap(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmap {
    /// The kernel's.
    Go,
    /// Others have the mapping still.
    Others,
    /// It would leave a part of the mapping.
    Part,
}

/// A range is to be unmapped: ends the service, if it is that of all of it.
pub fn unmap(address: *mut c_void, length: size_t) -> Unmap {
    if !overlaps(address, length) {
        return Unmap::Go;
    }
    let mut served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(there) = served.as_mut().filter(|it| it.attached.overlaps(address.addr() as u64, length as u64))
    else {
        return Unmap::Go;
    };
    let end = there.start + there.asked.0;
    if address.addr() > there.start || address.addr().saturating_add(length) < end {
        return Unmap::Part;
    }
    if there.users > 1 {
        let is_exact = address.addr() == there.start && address.addr().saturating_add(length) < end + PAGE;
        there.users -= usize::from(is_exact);
        return if is_exact { Unmap::Others } else { Unmap::Part };
    }
    START.store(0, Ordering::Release);
    drop(served.take());
    Unmap::Go
}
