//! userfaultfd(2): the system calls that the server and its clients need. Public for what measures the kernel's part of a fault.
//!
//! Source: Linux, include/uapi/linux/userfaultfd.h, and Documentation/admin-guide/mm/userfaultfd.rst.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::Error;

const API: u64 = 0xaa;
const FEATURE_MINOR_HUGETLBFS: u64 = 1 << 9;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_POISON: u64 = 1 << 14;
const MODE_MISSING: u64 = 1;
const MODE_MINOR: u64 = 4;
/// Of a fault: why it is one. Without both, the page has no memory.
const FLAG_WP: u64 = 2;
const FLAG_MINOR: u64 = 4;
const IOC_NEW: libc::c_ulong = 0xaa00;
const IOC_API: libc::c_ulong = 0xc018_aa3f;
const IOC_REGISTER: libc::c_ulong = 0xc020_aa00;
const IOC_WAKE: libc::c_ulong = 0x8010_aa02;
const IOC_COPY: libc::c_ulong = 0xc028_aa03;
const IOC_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const IOC_CONTINUE: libc::c_ulong = 0xc020_aa07;
const IOC_POISON: libc::c_ulong = 0xc020_aa08;
/// Bytes of a message (`struct uffd_msg`).
const MESSAGE: usize = 32;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// What the kernel tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Somebody touched an address and waits.
    Fault {
        /// The address.
        address: u64,
        /// Whether the page has no memory: of a file, a hole.
        is_missing: bool,
    },
    /// A range was given back by its owner: it reads as zeros from now on.
    Removed(u64, u64),
    /// A range is not mapped any more.
    Unmapped(u64, u64),
    /// Something that nobody asked for.
    Other,
}

/// Opens a userfaultfd for the calling process that can tell of touches of pages which have memory, also of the kernel's own.
///
/// # Errors
/// [`Error::Usage`] if the process may not, or the kernel cannot; says what to change.
pub fn open_minor() -> Result<OwnedFd, Error> {
    let uffd = create().map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Usage(
            "this process may not use userfaultfd: let its user open /dev/userfaultfd, or set the sysctl vm.unprivileged_userfaultfd to 1, \
             or give it the capability CAP_SYS_PTRACE; in a container or service with a seccomp profile, let that allow userfaultfd(2) as well"
                .into(),
        ),
        Some(libc::ENOSYS) => {
            Error::Usage("this kernel has no userfaultfd (CONFIG_USERFAULTFD): serve the region by FUSE".into())
        }
        _ => Error::io("opening a userfaultfd", error),
    })?;
    let minor = FEATURE_MINOR_SHMEM | FEATURE_MINOR_HUGETLBFS;
    // A kernel before 6.6 cannot poison pages; then whoever touches a corrupt one waits for good.
    match handshake(&uffd, minor | FEATURE_POISON).or_else(|_| handshake(&uffd, minor)) {
        Ok(()) => Ok(uffd),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(Error::Usage(
            "this kernel's userfaultfd has no minor faults: Linux 5.14 has them for shmem and hugetlbfs; serve the region by FUSE".into(),
        )),
        Err(error) => Err(Error::io("asking for minor faults", error)),
    }
}

fn handshake(uffd: &OwnedFd, features: u64) -> io::Result<()> {
    let mut api = [API, features, 0];
    // SAFETY: `api` is a `struct uffdio_api`: three words, which the kernel reads and writes.
    unsafe { ioctl(uffd, IOC_API, api.as_mut_ptr().cast()) }
}

fn create() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    if let Ok(device) = File::options().read(true).write(true).open("/dev/userfaultfd") {
        // SAFETY: an ioctl without memory; the descriptor that it returns is new and ours.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, flags) };
        if made >= 0 {
            // SAFETY: as above.
            return Ok(unsafe { OwnedFd::from_raw_fd(made) });
        }
    }
    // SAFETY: a system call without memory.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    match i32::try_from(made) {
        // SAFETY: the descriptor is new and ours.
        Ok(made) if made >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(made) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// From now on, touches of pages of the range that are in no page table wait for [`resume`], whether the file has memory for them or a hole.
///
/// # Errors
/// As the kernel says; `EINVAL` for memory that is neither shmem nor hugetlbfs.
pub fn register(uffd: &OwnedFd, address: u64, len: u64) -> io::Result<()> {
    let mut register = [address, len, MODE_MISSING | MODE_MINOR, 0];
    // SAFETY: `register` is a `struct uffdio_register`: four words.
    unsafe { ioctl(uffd, IOC_REGISTER, register.as_mut_ptr().cast()) }
}

/// Maps what the page cache has for the range, and lets those go on that touched it. A range that is mapped already is no error.
///
/// # Errors
/// `EAGAIN` if the process changes its mappings just now, `ESRCH` or `ENOENT` if it or the mapping is gone.
pub fn resume(uffd: BorrowedFd<'_>, address: u64, len: u64) -> io::Result<()> {
    let mut range = [address, len, 0, 0];
    // SAFETY: `range` is a `struct uffdio_continue`: four words.
    match unsafe { ioctl(&uffd, IOC_CONTINUE, range.as_mut_ptr().cast()) } {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => wake(uffd, address, len),
        result => result,
    }
}

/// Lets those go on that touched the range.
///
/// # Errors
/// As the kernel says.
pub fn wake(uffd: BorrowedFd<'_>, address: u64, len: u64) -> io::Result<()> {
    let mut range = [address, len];
    // SAFETY: `range` is a `struct uffdio_range`: two words.
    unsafe { ioctl(&uffd, IOC_WAKE, range.as_mut_ptr().cast()) }
}

/// Gives anonymous memory this content, and lets those go on that touched it. Memory that is there already is no error.
///
/// # Errors
/// As [`resume`]; also `EAGAIN` while an event was not read.
pub fn copy(uffd: BorrowedFd<'_>, address: u64, content: &[u8]) -> io::Result<()> {
    let mut copy = [address, content.as_ptr().addr() as u64, content.len() as u64, 0, 0];
    // SAFETY: `copy` is a `struct uffdio_copy`: five words, of which the second and third name `content`, which the kernel reads.
    match unsafe { ioctl(&uffd, IOC_COPY, copy.as_mut_ptr().cast()) } {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => wake(uffd, address, content.len() as u64),
        result => result,
    }
}

/// Gives anonymous memory zeros.
///
/// # Errors
/// As [`copy`].
pub fn zero(uffd: BorrowedFd<'_>, address: u64, len: u64) -> io::Result<()> {
    let mut range = [address, len, 0, 0];
    // SAFETY: `range` is a `struct uffdio_zeropage`: four words.
    match unsafe { ioctl(&uffd, IOC_ZEROPAGE, range.as_mut_ptr().cast()) } {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => wake(uffd, address, len),
        result => result,
    }
}

/// Makes every touch of the range, those that wait included, a memory error (SIGBUS) of the process.
///
/// # Errors
/// `EINVAL` before Linux 6.6.
pub fn poison(uffd: BorrowedFd<'_>, address: u64, len: u64) -> io::Result<()> {
    let mut range = [address, len, 0, 0];
    // SAFETY: `range` is a `struct uffdio_poison`: four words.
    unsafe { ioctl(&uffd, IOC_POISON, range.as_mut_ptr().cast()) }
}

/// Reads what the kernel has to tell; nothing if there is nothing.
///
/// # Errors
/// As the kernel says.
pub fn read(uffd: BorrowedFd<'_>, events: &mut Vec<Event>) -> io::Result<()> {
    let mut messages = [0; MESSAGE * 16];
    let count = match rustix::io::read(uffd, &mut messages[..]) {
        Err(rustix::io::Errno::AGAIN) => return Ok(()),
        result => result?,
    };
    let (whole, _) = messages[..count].as_chunks::<MESSAGE>();
    events.extend(whole.iter().map(decode));
    Ok(())
}

fn decode(message: &[u8; MESSAGE]) -> Event {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| message[at + i]));
    match message[0] {
        EVENT_PAGEFAULT => {
            Event::Fault { address: word(16), is_missing: word(8) & (FLAG_WP | FLAG_MINOR) == 0 }
        }
        EVENT_REMOVE => Event::Removed(word(8), word(16)),
        EVENT_UNMAP => Event::Unmapped(word(8), word(16)),
        _ => Event::Other,
    }
}

/// # Safety
/// `argument` is what the request takes.
unsafe fn ioctl(uffd: &impl AsRawFd, request: libc::c_ulong, argument: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: the caller's.
    if unsafe { libc::ioctl(uffd.as_raw_fd(), request, argument) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
