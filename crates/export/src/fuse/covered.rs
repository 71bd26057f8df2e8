//! The directory under the mount, closed as long as the volume belongs there.
//!
//! A mount can vanish while its users stay: the daemon is killed, somebody calls `umount -l`, the next daemon clears a dead mount. The path of
//! the device would then lead into a plain directory, and a write would make an ordinary file there, in the clear. So the directory is closed
//! before it is covered, and opened again only when the mount is gone in good order. Three things close it, as far as system and user allow:
//!
//! * in the device's place lies a symbolic link that leads nowhere. To open it fails for everybody, root included;
//! * the directory has mode 0, which stops its owner;
//! * it has the flag "immutable" (chattr(1)), which stops root.
//!
//! The link also says that it is ours, and which mode the directory has otherwise. So the next daemon can open what a killed one has closed.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, IFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::Error;

/// Where the link leads to: a directory that is not there, and in it the mode in octal digits.
const NOWHERE: &str = "no-volume-is-attached-here";
/// Longer is no link of ours.
const MAX_TARGET: usize = 64;
/// How long the lock of a directory is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The directory, locked: of two daemons that mount here at the same time one is refused. Dropping it opens the directory.
#[derive(Debug)]
pub(super) struct Covered {
    directory: OwnedFd,
    /// The device's name.
    name: String,
    /// The mode to be given back; `None` if this is no place for a link, and then nothing was closed.
    mode: Option<Mode>,
    stays_closed: bool,
}

impl Covered {
    /// Locks a directory, and puts the link there. What a killed daemon has closed is taken over.
    ///
    /// # Errors
    /// [`Error::Busy`] if another daemon has it, [`Error::Usage`] if it is no directory.
    pub(super) fn lock(path: &Path, name: &str) -> Result<Self, Error> {
        let directory = open(path)?;
        wait_for_lock(&directory, path)?;
        let mode = match left(&directory, name) {
            Some(mode) => Some(mode),
            None => block(&directory, name),
        };
        Ok(Self { directory, name: name.into(), mode, stays_closed: false })
    }

    /// Closes the directory to its owner and to root, as far as that can be done. Who mounts by `fusermount3` must be able to write there, so
    /// this comes behind the mount.
    pub(super) fn close(&self) {
        if self.mode.is_none() {
            return;
        }
        // A directory of somebody else, a file system without the flag, a user without the right: the link is there all the same.
        let _ = rustix::fs::fchmod(&self.directory, Mode::empty());
        let _ = set_immutable(&self.directory, true);
    }

    /// Leaves it closed: the mount could not be taken away.
    pub(super) fn leave_closed(mut self) {
        self.stays_closed = true;
    }
}

impl AsFd for Covered {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        if let (Some(mode), false) = (self.mode, self.stays_closed) {
            reopen(&self.directory, &self.name, mode);
        }
    }
}

/// Takes away the dead mount that a killed daemon has left on a directory, and opens that again; nothing happens if another daemon has it.
/// `name` is that of the device.
///
/// # Errors
/// What the system says. It is no error if nothing is left.
pub fn open_left(path: &Path, name: &str) -> Result<(), Error> {
    match super::mount::clear_dead(path) {
        Ok(()) => {}
        // There is no such directory.
        Err(Error::Usage(_)) => return Ok(()),
        Err(error) => return Err(error),
    }
    let Ok(directory) = open(path) else { return Ok(()) };
    match wait_for_lock(&directory, path) {
        Err(Error::Busy(_)) => return Ok(()),
        locked => locked?,
    }
    if let Some(mode) = left(&directory, name) {
        reopen(&directory, name, mode);
    }
    Ok(())
}

/// Whether a directory holds nothing but what a killed daemon has left there.
#[must_use]
pub fn is_free(path: &Path, name: &str) -> bool {
    // What its owner may not look into was closed, or will be refused by whoever tries to mount there.
    let Ok(entries) = std::fs::read_dir(path) else { return true };
    entries.flatten().all(|entry| entry.file_name() == name && left_at(path, name).is_some())
}

fn left_at(path: &Path, name: &str) -> Option<Mode> {
    let target = std::fs::read_link(path.join(name)).ok()?;
    mode_in(target.as_os_str().as_bytes())
}

fn reopen(directory: &OwnedFd, name: &str, mode: Mode) {
    let _ = set_immutable(directory, false);
    // The link last: it alone knows the mode.
    let _ = rustix::fs::fchmod(directory, mode);
    let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
}

fn open(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut opened = rustix::fs::open(path, flags, Mode::empty());
    if matches!(opened, Err(Errno::ACCESS)) && rustix::fs::chmod(path, Mode::RWXU).is_ok() {
        // Closed by a daemon of this user that was killed. What is mounted there refuses to have its mode changed.
        opened = rustix::fs::open(path, flags, Mode::empty());
    }
    opened.map_err(|errno| match errno {
        Errno::NOTDIR => Error::Usage(format!(
            "{}: this is not a directory, and only on one can be mounted",
            path.display()
        )),
        errno => Error::at("opening", path, errno),
    })
}

fn wait_for_lock(directory: &OwnedFd, path: &Path) -> Result<(), Error> {
    // What takes a dead mount away has it for a moment, a daemon for as long as it lives.
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_PATIENCE / 100);
            }
            Err(Errno::WOULDBLOCK) => return Err(super::mount::mounted_already(path)),
            Err(errno) => return Err(Error::at("locking", path, errno)),
        }
    }
}

/// The mode that a directory had which a killed daemon has closed.
fn left(directory: &OwnedFd, name: &str) -> Option<Mode> {
    let target = rustix::fs::readlinkat(directory, name, Vec::with_capacity(MAX_TARGET)).ok()?;
    mode_in(target.as_bytes())
}

fn mode_in(target: &[u8]) -> Option<Mode> {
    let (nowhere, mode) = Path::new(OsStr::from_bytes(target)).to_str()?.split_once('/')?;
    let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777)?;
    (nowhere == NOWHERE).then(|| Mode::from_raw_mode(mode))
}

/// Puts the link there. `None` where that cannot be: nothing can be written there then, or the file system has no links.
fn block(directory: &OwnedFd, name: &str) -> Option<Mode> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(directory).ok()?.st_mode & 0o7777);
    let target = format!("{NOWHERE}/{:04o}", mode.as_raw_mode());
    rustix::fs::symlinkat(target, directory, name).ok().map(|()| mode)
}

fn set_immutable(directory: &OwnedFd, closed: bool) -> Result<(), Errno> {
    let mut flags = rustix::fs::ioctl_getflags(directory)?;
    if flags.contains(IFlags::IMMUTABLE) != closed {
        flags.set(IFlags::IMMUTABLE, closed);
        rustix::fs::ioctl_setflags(directory, flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn directory(mode: u32) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        directory
    }

    #[test]
    fn nothing_can_be_made_in_a_closed_directory_and_it_is_as_before_when_it_was_opened() {
        let directory = directory(0o751);
        let covered = Covered::lock(directory.path(), "disk").unwrap();
        covered.close();
        let disk = directory.path().join("disk");
        assert!(fs::write(&disk, "in the clear").is_err());
        assert!(fs::File::create(&disk).is_err() && fs::metadata(&disk).is_err());
        assert_eq!(mode(directory.path()), 0);
        drop(covered);
        assert_eq!((mode(directory.path()), fs::read_dir(directory.path()).unwrap().count()), (0o751, 0));
        fs::write(&disk, "as before").unwrap();
    }

    #[test]
    fn the_next_daemon_takes_over_what_a_killed_one_has_closed() {
        let directory = directory(0o700);
        let first = Covered::lock(directory.path(), "disk").unwrap();
        first.close();
        open_left(directory.path(), "disk").unwrap();
        assert_eq!(mode(directory.path()), 0, "it belongs to somebody");
        first.leave_closed();
        assert!(is_free(directory.path(), "disk"));
        let second = Covered::lock(directory.path(), "disk").unwrap();
        second.close();
        assert_eq!(mode(directory.path()), 0);
        second.leave_closed();
        open_left(directory.path(), "disk").unwrap();
        assert_eq!((mode(directory.path()), fs::read_dir(directory.path()).unwrap().count()), (0o700, 0));
    }

    #[test]
    fn what_somebody_else_has_put_there_is_not_touched() {
        let directory = directory(0o700);
        let disk = directory.path().join("disk");
        for target in ["elsewhere/0755", NOWHERE, "no-volume-is-attached-here/77777"] {
            std::os::unix::fs::symlink(target, &disk).unwrap();
            assert!(!is_free(directory.path(), "disk"), "{target}");
            let covered = Covered::lock(directory.path(), "disk").unwrap();
            covered.close();
            assert_eq!(mode(directory.path()), 0o700, "{target}");
            drop(covered);
            assert_eq!(fs::read_link(&disk).unwrap(), Path::new(target));
            fs::remove_file(&disk).unwrap();
        }
    }
}
