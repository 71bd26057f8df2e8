//! Takes a mount away whose daemon has died.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};

/// Waits for a line, or for the end of the daemon that holds the other end of the pipe. At the end it detaches
/// the mount, unless a new daemon has already made it live again. It ignores what a terminal or a service manager
/// sends to the whole group: the daemon then unmounts by itself, and dismisses it.
///
/// Its standard output is the directory below the mount. A daemon that mounts there holds a lock on it, and so does
/// this while it looks and unmounts: else a new mount could come in between, and be taken away for the dead one. The
/// daemon that dies may let go of the lock a moment behind the pipe.
const SCRIPT: &str = "trap '' INT TERM HUP; read -r line && exit 0; flock -w 5 1 || exit 0; \
    [ -d \"$0\" ] || umount -l -- \"$0\" >/dev/null || fusermount3 -uz -- \"$0\" >/dev/null";

/// A process that outlives a crash of this one. A shell and not a fork, since a fork would keep copies of our keys
/// and of the FUSE channel.
#[derive(Debug)]
pub(super) struct Watch {
    child: Child,
}

impl Watch {
    /// `None` if no process can be started: then a mount whose daemon died stays, dead, until the next daemon or
    /// the operator clears it.
    pub(super) fn start(mountpoint: &Path, below: BorrowedFd<'_>) -> Option<Watch> {
        let mut command = command(mountpoint, below)?;
        command.spawn().ok().map(|child| Watch { child })
    }

    /// Ends it: the mount is gone.
    pub(super) fn dismiss(mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            let _ = pipe.write_all(b"\n");
        }
        let _ = self.child.wait();
    }
}

/// `below` is the directory below the mount. Opened again, since a lock belongs to an open file and not to a process.
fn command(mountpoint: &Path, below: BorrowedFd<'_>) -> Option<Command> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let below = rustix::fs::openat(below, ".", flags, Mode::empty()).ok()?;
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", SCRIPT])
        .arg(mountpoint)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::from(below))
        .stderr(Stdio::null());
    Some(command)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What stands for `umount` notes whether the directory is locked while it runs. Returns what it noted.
    fn unmounted_by(held: bool) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("below")).unwrap();
        fs::create_dir(at("bin")).unwrap();
        let umount = "#!/bin/sh\nflock -n \"$0.d/../../below\" true && said=free || said=locked\necho $said \"$@\" > \"$0.said\"\n";
        fs::create_dir(at("bin/umount.d")).unwrap();
        fs::write(at("bin/umount"), umount).unwrap();
        fs::set_permissions(at("bin/umount"), fs::Permissions::from_mode(0o755)).unwrap();
        let below = File::open(at("below")).unwrap();
        if held {
            below.lock().unwrap();
        }
        // What is not there is no directory, as a dead mount is none.
        let mut command = command(Path::new("/dead"), below.as_fd()).unwrap();
        command.env("PATH", format!("{}:/usr/bin:/bin", at("bin").display()));
        let mut child = command.spawn().unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        fs::read_to_string(at("bin/umount.said")).ok()
    }

    #[test]
    fn a_mount_is_taken_away_under_the_lock_of_its_directory() {
        assert_eq!(unmounted_by(false).as_deref(), Some("locked -l -- /dead\n"));
    }

    #[test]
    fn a_new_daemon_has_the_lock_and_keeps_its_mount() {
        assert_eq!(unmounted_by(true), None);
    }
}
