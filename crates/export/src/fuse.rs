//! A device as one regular file under a FUSE mount.
//!
//! The file is opened for direct I/O unless [`Options::mapped`] says otherwise: the page cache above a loop device, or of the program that
//! opens the file, is enough. Requests of up to 1 MiB are taken in parallel: by the device's own threads if it has such ([`Attend`]), else by
//! as many as [`Options::threads`] says. They are answered by whatever thread the device completes them on. `fsync` is a flush, punching a
//! hole discards, zeroing a range zeroes.
//!
//! [`Attend`]: crate::Attend

mod abi;
mod answer;
mod channel;
mod covered;
mod filesystem;
mod mount;
mod serve;
mod watch;

use crate::{BLOCK_SIZE, Device, Error};
use channel::Channel;
use covered::Covered;
pub use covered::{is_free, open_left};
use filesystem::Disk;
use mount::{MountPoint, Mounted};
use serve::Ended;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use watch::Watch;

/// How to show the device.
#[derive(Debug, Clone)]
pub struct Options {
    /// Refuse writes with `EROFS`.
    pub read_only: bool,
    /// Let other users in, as far as the file's mode does (0600, so: root). Without it, only the user who mounts
    /// can see the file. Who is not root needs `user_allow_other` in `/etc/fuse.conf` for it.
    pub allow_other: bool,
    /// Threads that take requests from the kernel where the device has none for it, each on a channel of its own. At least 1.
    pub threads: usize,
    /// Let programs map the file and share the mapping, through the page cache. Without it the file is for direct I/O only, and cannot be
    /// mapped so.
    pub mapped: bool,
    /// Shows the file in a directory of this name, not in the mount itself. A program that makes the files that it does not find makes no
    /// directories: without the mount it fails, whoever has made the directory below the mount, and when.
    pub directory: Option<&'static str>,
    /// Wipes each request's bytes when the device has taken them, so that no copy of what it carries outlives it here.
    pub wipe: bool,
    /// Asynchronous requests that the kernel may have in flight; beyond that it makes callers wait. At least 1.
    pub max_background: u16,
}

impl Default for Options {
    fn default() -> Options {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            read_only: false,
            allow_other: false,
            threads: processors.min(4),
            mapped: false,
            directory: None,
            wipe: false,
            max_background: 256,
        }
    }
}

/// A mounted device. Dropping it unmounts: at once from the directory tree, and for those who still have the
/// file open when they close it.
#[derive(Debug)]
pub struct Mount {
    point: MountPoint,
    file: PathBuf,
    running: Mutex<Option<Running>>,
    ended: Arc<Ended>,
    /// Only who serves keeps it open: if nobody does, the kernel tells its users so.
    channel: Weak<Channel>,
}

/// How long the kernel may take, after unmounting, to end the session. It takes longer only while another mount
/// namespace has a copy of the mount.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Running {
    watch: Option<Watch>,
    covered: Covered,
}

impl Mount {
    /// Mounts `device` on the directory `mountpoint`, as the file `name` in it.
    ///
    /// What a crashed daemon left mounted there is taken away first.
    ///
    /// # Errors
    /// [`Error::Busy`] if something is mounted there already, [`Error::Usage`] if the directory or the name won't do,
    /// [`Error::System`] if the kernel refuses.
    pub fn new(
        mountpoint: &Path,
        name: &str,
        device: Arc<dyn Device>,
        options: &Options,
    ) -> Result<Mount, Error> {
        check_name(name)?;
        options.directory.map_or(Ok(()), check_name)?;
        check_size(device.size())?;
        let Mounted { point, covered, channel } =
            MountPoint::mount(mountpoint, options.directory.unwrap_or(name), options)?;
        let channel = Arc::new(Channel::new(channel));
        let disk = Arc::new(Disk::new(device, name, options));
        let ended = Arc::new(Ended::default());
        let started = channel
            .agree(options)
            .and_then(|()| serve::start(&channel, &disk, options.threads.max(1), &ended));
        if let Err(error) = started {
            let _ = point.detach();
            return Err(Error::io(format!("starting to serve {}", point.path().display()), &error));
        }
        let channel = Arc::downgrade(&channel);
        let watch = Watch::start(point.path(), covered.as_fd());
        covered.close();
        let file = point.path().join(options.directory.unwrap_or_default()).join(name);
        Ok(Mount { point, file, running: Mutex::new(Some(Running { watch, covered })), ended, channel })
    }

    /// The path of the file that is the device.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Says that the device has another size: the kernel asks for it the next time somebody looks.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel does not take the notice.
    pub fn resized(&self) -> Result<(), Error> {
        let told = self.channel.upgrade().map_or(Ok(()), |channel| channel.forget_attributes());
        told.map_err(|errno| Error::system(format!("resizing {}", self.file.display()), errno))
    }

    /// Unmounts, and returns when the last request has been answered. Does nothing if that was done before, here
    /// or by `umount`.
    ///
    /// # Errors
    /// [`Error::Busy`] while the file is open; the mount then stays as it is.
    pub fn unmount(&self) -> Result<(), Error> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            return Ok(());
        }
        if !self.ended.is_set() {
            self.point.unmount().map_err(|error| self.explain(error))?;
        }
        if !self.ended.wait(Some(PATIENCE)) {
            return Err(Error::Busy(format!(
                "{} was unmounted here, but another mount namespace (a container, a service) still has it",
                self.point.path().display()
            )));
        }
        running.take().map_or(Ok(()), |running| self.end(running))
    }

    /// Returns when the device is not mounted any more, by [`Mount::unmount`] or by somebody's `umount`.
    ///
    /// # Errors
    /// When serving ended in another way.
    pub fn wait(&self) -> Result<(), Error> {
        self.ended.wait(None);
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        running.map_or(Ok(()), |running| self.end(running))
    }

    fn end(&self, running: Running) -> Result<(), Error> {
        running.watch.into_iter().for_each(Watch::dismiss);
        let serving = || format!("serving {}", self.point.path().display());
        self.ended.failure().map_or(Ok(()), |errno| Err(Error::system(serving(), errno)))
    }

    fn explain(&self, error: Error) -> Error {
        let Error::Busy(why) = error else { return error };
        let holders = crate::loopdev::holders(&self.file).unwrap_or_default();
        let names: Vec<_> = holders.iter().map(|path| path.display().to_string()).collect();
        if names.is_empty() {
            Error::Busy(why)
        } else {
            Error::Busy(format!("{why} (by {})", names.join(", ")))
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(running) = running.take() else { return };
        let detached = self.ended.is_set() || self.point.detach().is_ok();
        // The file may still be open, so the session is not waited for: it ends with the last user.
        if !detached {
            return running.covered.leave_closed();
        }
        running.watch.into_iter().for_each(Watch::dismiss);
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let bytes = name.as_bytes();
    if bytes.is_empty()
        || bytes.len() > 255
        || name == "."
        || name == ".."
        || bytes.iter().any(|b| b"/\0".contains(b))
    {
        return Err(Error::Usage(format!(
            "{name:?} can't be the name of a file: use 1 to 255 bytes, and no slash"
        )));
    }
    Ok(())
}

fn check_size(size: u64) -> Result<(), Error> {
    // A file's size is a signed 64-bit number to the kernel.
    if size == 0 || !size.is_multiple_of(BLOCK_SIZE) || i64::try_from(size).is_err() {
        return Err(Error::Usage(format!(
            "a device of {size} bytes can't be shown: its size must be a multiple of 4096"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files() {
        for good in ["volume", "a b", "ä", &"x".repeat(255)] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
            assert!(matches!(check_name(bad), Err(Error::Usage(_))), "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_whole_blocks_that_the_kernel_can_count() {
        assert_eq!(check_size(4096), Ok(()));
        for bad in [0, 1, 4095, 6000, u64::MAX - 4095] {
            assert!(matches!(check_size(bad), Err(Error::Usage(_))), "{bad}");
        }
    }
}
