//! Takes a mount away whose daemon has died.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Waits for a line, or for the end of the daemon that holds the other end of the pipe. At the end it detaches
/// the mount, unless a new daemon has already made it live again. It ignores what a terminal or a service manager
/// sends to the whole group: the daemon then unmounts by itself, and dismisses it.
const SCRIPT: &str = "trap '' INT TERM HUP; read -r line && exit 0; [ -d \"$0\" ] || umount -l -- \"$0\" || fusermount3 -uz -- \"$0\"";

/// A process that outlives a crash of this one. A shell and not a fork, since a fork would keep copies of our keys
/// and of the FUSE channel.
#[derive(Debug)]
pub(super) struct Watch {
    child: Child,
}

impl Watch {
    /// `None` if no process can be started: then a mount whose daemon died stays, dead, until the next daemon or
    /// the operator clears it.
    pub(super) fn start(mountpoint: &Path) -> Option<Watch> {
        Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .arg(mountpoint)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()
            .map(|child| Watch { child })
    }

    /// Ends it: the mount is gone.
    pub(super) fn dismiss(mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            let _ = pipe.write_all(b"\n");
        }
        let _ = self.child.wait();
    }
}
