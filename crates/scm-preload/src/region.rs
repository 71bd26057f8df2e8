//! The region's path, and the stand-in that its descriptors are of.

use std::ffi::{OsStr, c_int};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use scm::client::Region;

/// The path's end: the region is this under the server's socket.
const NAME: &str = "/pmem";

/// A region that the program has opened.
pub struct Opened {
    pub region: Region,
    pub path: PathBuf,
    stand_in: File,
    device: u64,
    inode: u64,
}

static OPENED: Mutex<Vec<Arc<Opened>>> = Mutex::new(Vec::new());
/// Whether there is one, for a look without the lock: most calls have nothing to do with it.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// The server's socket, if a path is that of a region.
fn socket(path: &[u8]) -> Option<&Path> {
    let socket = Path::new(OsStr::from_bytes(path.strip_suffix(NAME.as_bytes())?));
    // The C library's functions of that name are this library's, and come here again, but with another end.
    std::fs::metadata(socket).is_ok_and(|found| found.file_type().is_socket()).then_some(socket)
}

/// Whether a path is that of a region.
pub fn is_named(path: &[u8]) -> bool {
    socket(path).is_some()
}

/// A descriptor of the stand-in, or -1 with errno; `None` if the path is none of a region.
pub fn open(path: &[u8], flags: c_int) -> Option<c_int> {
    let socket = socket(path)?;
    let opened = find(socket).and_then(|opened| {
        // To be written only, so that nobody reads zeros from it; and nothing can be written.
        let descriptor =
            File::options().write(true).open(format!("/proc/self/fd/{}", opened.stand_in.as_raw_fd()));
        descriptor.map_err(|error| format!("a descriptor for it: {error}"))
    });
    match opened {
        Ok(file) => {
            let descriptor = file.into_raw_fd();
            if flags & libc::O_CLOEXEC == 0 {
                // SAFETY: the descriptor is ours, and has no other flag.
                unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
            }
            Some(descriptor)
        }
        Err(error) => {
            crate::refuse(libc::EACCES, &format!("{}{NAME}: {error}", socket.display()));
            Some(-1)
        }
    }
}

/// The region of a socket. It is asked for once, so that its descriptors are of one stand-in.
fn find(socket: &Path) -> Result<Arc<Opened>, String> {
    let path = std::path::absolute(socket).map_err(|error| error.to_string())?;
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.iter().find(|known| known.path == path) {
        return Ok(Arc::clone(known));
    }
    let region = Region::ask(&path).map_err(|error| error.to_string())?;
    let stand_in = stand_in(&region).map_err(|error| format!("a stand-in for it: {error}"))?;
    let found = stand_in.metadata().map_err(|error| error.to_string())?;
    let (device, inode) = (found.dev(), found.ino());
    let opened = Arc::new(Opened { region, path, stand_in, device, inode });
    all.push(Arc::clone(&opened));
    IS_ANY.store(true, Ordering::Release);
    Ok(opened)
}

/// A file of the region's length, on pages of the same size, to which nothing can be written, also not through a mapping.
fn stand_in(region: &Region) -> io::Result<File> {
    let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    if let Some(huge) = region.huge_page() {
        flags |= libc::MFD_HUGETLB | huge.trailing_zeros() << libc::MFD_HUGE_SHIFT;
    }
    // SAFETY: a system call with a constant string; the descriptor that it returns is new and ours.
    let file = unsafe {
        let made = libc::memfd_create(c"cvmio-scm".as_ptr(), flags);
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(made)
    };
    file.set_len(region.length())?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is ours.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Whether a region was opened.
pub fn is_any() -> bool {
    IS_ANY.load(Ordering::Acquire)
}

/// The region that a descriptor stands for.
pub fn of(descriptor: c_int) -> Option<Arc<Opened>> {
    if descriptor < 0 || !is_any() {
        return None;
    }
    // SAFETY: fstat writes a stat into memory for one, which is read only if it did.
    let found = unsafe {
        let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
        if libc::fstat(descriptor, found.as_mut_ptr()) != 0 {
            return None;
        }
        found.assume_init()
    };
    let all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|it| it.device == found.st_dev && it.inode == found.st_ino).map(Arc::clone)
}
