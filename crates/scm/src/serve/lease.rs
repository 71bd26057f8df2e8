//! The lock that says that a VMM may have pages of a region in its page tables: on the first byte of the region's file, by open file
//! description (fcntl(2), `F_OFD_SETLK`), so that it goes with the process that holds it. VMMs hold it shared, a server takes it alone before
//! it recovers.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;

/// Held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease<'a>(&'a File);

impl<'a> Lease<'a> {
    /// Waits for all VMMs to let go.
    ///
    /// # Errors
    /// [`Error::Busy`] if one has not within `patience`.
    pub(crate) fn exclusive(file: &'a File, path: &Path, patience: Duration) -> Result<Lease<'a>, Error> {
        let begun = Instant::now();
        loop {
            match lock(file, libc::F_WRLCK) {
                Ok(()) => return Ok(Lease(file)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Error::io(format!("locking {}", path.display()), error)),
            }
            if begun.elapsed() >= patience {
                return Err(Error::Busy(format!(
                    "{}: a VMM still has this region mapped, and may write to its open pages: end the VMM first",
                    path.display()
                )));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The lease that was taken by this descriptor before.
    pub(crate) fn of_descriptor(file: &'a File) -> Lease<'a> {
        Lease(file)
    }

    /// Holds the lock as a VMM; waits for a server that recovers.
    ///
    /// # Errors
    /// As the kernel says.
    pub(crate) fn shared(file: &'a File) -> io::Result<Lease<'a>> {
        loop {
            match lock(file, libc::F_RDLCK) {
                Ok(()) => return Ok(Lease(file)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let _ = lock(self.0, libc::F_UNLCK);
    }
}

fn lock(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: all-zero is a valid flock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    lock.l_len = 1;
    // SAFETY: `lock` is a flock, which the kernel reads.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(if error.raw_os_error() == Some(libc::EACCES) { io::ErrorKind::WouldBlock.into() } else { error })
}
