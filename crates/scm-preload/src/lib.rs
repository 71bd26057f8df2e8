//! `libcvmio_scm.so`: preloaded into an unmodified VMM, it has the VMM's mapping of an encrypted region served by userfaultfd.
//!
//! ```sh
//! CVMIO_SCM_REGION=/dev/shm/region CVMIO_SCM_SOCKET=/run/scm LD_PRELOAD=libcvmio_scm.so qemu-system-x86_64 ...
//! ```
//!
//! It takes the place of mmap(2), munmap(2) and madvise(2). A shared mapping of the file that `CVMIO_SCM_REGION` names is handed to the server on
//! `CVMIO_SCM_SOCKET`; if the server does not take it, the mmap fails and the reason is on standard error, since the VMM would see ciphertext.
//! Advice to use huge pages for it is left out. All other calls go to the kernel as they are.

use std::ffi::{OsString, c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{off_t, size_t};
use scm::client::{Attached, attach};

/// The region that is waited for, and the server's socket.
struct Wanted {
    region: OsString,
    socket: OsString,
    device: u64,
    inode: u64,
}

static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
static SERVED: Mutex<Option<Served>> = Mutex::new(None);
/// The mapping that is served, for a look without the lock: most calls have nothing to do with it.
static START: AtomicU64 = AtomicU64::new(0);
static LENGTH: AtomicU64 = AtomicU64::new(0);

fn wanted() -> Option<&'static Wanted> {
    let find = || {
        let region = std::env::var_os("CVMIO_SCM_REGION")?;
        let socket = std::env::var_os("CVMIO_SCM_SOCKET")?;
        let found = std::fs::metadata(&region).ok()?;
        Some(Wanted { region, socket, device: found.dev(), inode: found.ino() })
    };
    WANTED.get_or_init(find).as_ref()
}

fn is_wanted(descriptor: c_int, wanted: &Wanted) -> bool {
    // SAFETY: fstat writes a stat into memory for one, which is read only if it did.
    unsafe {
        let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
        libc::fstat(descriptor, found.as_mut_ptr()) == 0 && {
            let found = found.assume_init();
            found.st_dev == wanted.device && found.st_ino == wanted.inode
        }
    }
}

/// mmap(2).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    let map = |descriptor: c_int| unsafe {
        let mapped = libc::syscall(libc::SYS_mmap, address, length, protection, flags, descriptor, offset);
        let mapped = usize::try_from(mapped.cast_unsigned()).unwrap_or(usize::MAX);
        std::ptr::with_exposed_provenance_mut::<c_void>(mapped)
    };
    let is_shared = [libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE].contains(&(flags & libc::MAP_TYPE));
    let is_it = |wanted: &&Wanted| descriptor >= 0 && is_shared && is_wanted(descriptor, wanted);
    let Some(wanted) = wanted().filter(is_it) else { return map(descriptor) };
    let asked = (length as u64, offset, protection);
    // Held until it is served: of two threads that ask at once, the second has the first one's mapping.
    let mut served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    if address.is_null()
        && let Some(mapped) = shared(&mut served, asked)
    {
        return mapped;
    }
    // The kernel tells of touches in mappings only that may be written to, also if they are not.
    let file = File::options().read(true).write(true).open(&wanted.region);
    let mapped = map(file.as_ref().map_or(descriptor, AsRawFd::as_raw_fd));
    if mapped == libc::MAP_FAILED {
        return mapped;
    }
    match serve(&mut served, wanted, mapped, asked) {
        Ok(()) => mapped,
        Err(error) => {
            eprintln!("libcvmio_scm: {}: {error}", Path::new(&wanted.region).display());
            // SAFETY: the mapping was just made, and nobody else knows of it; errno is this thread's.
            unsafe {
                libc::syscall(libc::SYS_munmap, mapped, length);
                *libc::__errno_location() = libc::EACCES;
            }
            libc::MAP_FAILED
        }
    }
}

/// mmap(2), by the name that programs with large files use.
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap(address, length, protection, flags, descriptor, offset) }
}

/// What was asked of mmap: length, offset and protection.
type Asked = (u64, off_t, c_int);

/// The mapping that is served.
struct Served {
    _attached: Attached,
    start: usize,
    asked: Asked,
    /// How often it was asked for.
    users: usize,
}

/// The mapping that is served, for one more user who asks for the same: threads of a program often map a file each.
fn shared(served: &mut Option<Served>, asked: Asked) -> Option<*mut c_void> {
    let served = served.as_mut().filter(|served| served.asked == asked)?;
    served.users += 1;
    Some(std::ptr::with_exposed_provenance_mut(served.start))
}

fn serve(
    served: &mut Option<Served>,
    wanted: &Wanted,
    mapped: *mut c_void,
    asked: Asked,
) -> Result<(), String> {
    if served.is_some() {
        return Err("another mapping of it is served already, and only one is".into());
    }
    let (length, offset, _) = asked;
    let offset = u64::try_from(offset).map_err(|error| error.to_string())?;
    let start = mapped.addr();
    // SAFETY: the range was just mapped, shared, from the region's file; it stays until munmap below, which ends the service first.
    let attached =
        unsafe { attach(wanted.region.as_ref(), wanted.socket.as_ref(), start as u64, length, offset) };
    let attached = attached.map_err(|error| error.to_string())?;
    *served = Some(Served { _attached: attached, start, asked, users: 1 });
    LENGTH.store(length, Ordering::Release);
    START.store(start as u64, Ordering::Release);
    Ok(())
}

/// Whether a range has to do with the mapping that is served.
fn is_served(address: *mut c_void, length: size_t) -> bool {
    let (start, len) = (START.load(Ordering::Acquire), LENGTH.load(Ordering::Acquire));
    let address = address.addr() as u64;
    start != 0 && address < start + len && start < address.saturating_add(length as u64)
}

/// munmap(2).
///
/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    if is_served(address, length) {
        let mut served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(others) = served.as_mut().filter(|served| served.users > 1) {
            others.users -= 1;
            return 0;
        }
        START.store(0, Ordering::Release);
        drop(served.take());
    }
    // SAFETY: the caller's.
    let done = unsafe { libc::syscall(libc::SYS_munmap, address, length) };
    c_int::try_from(done).unwrap_or(-1)
}

/// madvise(2), without huge pages for the mapping that is served: a page's neighbours must not come with it.
///
/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    if matches!(advice, libc::MADV_HUGEPAGE | libc::MADV_COLLAPSE) && is_served(address, length) {
        return 0;
    }
    // SAFETY: the caller's.
    let done = unsafe { libc::syscall(libc::SYS_madvise, address, length, advice) };
    c_int::try_from(done).unwrap_or(-1)
}
