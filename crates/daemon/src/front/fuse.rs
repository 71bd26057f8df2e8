//! A file under FUSE, and a loop device on it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use export::fuse::{Mount, Options};

use super::{Disk, Front, Shown, holders, in_use};
use crate::runtime::Claim;
use cli::failure::Failure;

/// The file's name.
const FILE: &str = "disk";
/// How long those who are leaving are waited for, and how often they are looked at.
const LEAVING: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// A mounted file.
pub struct Fuse {
    mount: Mount,
    loop_device: Option<PathBuf>,
    device: PathBuf,
}

/// See [`super::Show::check`].
pub fn check(mount: Option<&Path>, use_loop: bool) -> Result<(), Failure> {
    if let Some(path) = mount.filter(|path| !path.is_dir()) {
        return Err(Failure::usage(format!(
            "{} is not a directory; make one, or leave --mount out",
            path.display()
        )));
    }
    if let Some(path) = mount
        && !export::fuse::is_free(path, FILE)
    {
        return Err(Failure::usage(format!(
            "{} is not empty, and what is in it would be hidden; name an empty directory with --mount",
            path.display()
        )));
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(no_fuse(&std::fs::read_to_string("/proc/filesystems").unwrap_or_default()));
    }
    let control = use_loop.then(|| File::options().read(true).write(true).open("/dev/loop-control"));
    let Some(Err(error)) = control else { return Ok(()) };
    Err(Failure::usage(match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "a loop device needs root; without --loop the volume is a file of this user".into()
        }
        std::io::ErrorKind::NotFound => {
            "there is no /dev/loop-control, so no loop device can be made: load the module (modprobe loop), or give this container the device".into()
        }
        _ => format!("no loop device can be made: {error}"),
    }))
}

/// `known`: the kernel's list of file systems (proc_filesystems(5)).
fn no_fuse(known: &str) -> Failure {
    let has_fuse = known.lines().any(|line| line.split_whitespace().next_back() == Some("fuse"));
    Failure::usage(match has_fuse {
        true => {
            "there is no /dev/fuse here, though the kernel has FUSE: give this container the device (--device /dev/fuse --cap-add SYS_ADMIN), or attach the volume with --as nbd"
        }
        false => {
            "there is no /dev/fuse, and the kernel has no FUSE yet; load its module (modprobe fuse), or attach the volume with --as nbd"
        }
    })
}

impl Fuse {
    /// Shows the device.
    ///
    /// # Errors
    /// When FUSE or the loop driver refuses; nothing is left then.
    pub fn show(
        use_loop: bool,
        mount: Option<&Path>,
        claim: &Claim,
        disk: Disk,
        read_only: bool,
    ) -> Result<Self, Failure> {
        let mountpoint = match mount {
            Some(path) => path.to_path_buf(),
            None => {
                let path = claim.place().mountpoint();
                make_directory(&path)?;
                path
            }
        };
        let options = Options { read_only, ..Options::default() };
        let mounted = Mount::new(&mountpoint, FILE, Arc::new(disk), &options)?;
        claim.link(mounted.file())?;
        let device = if mount.is_some() { mounted.file().to_path_buf() } else { claim.place().disk() };
        let loop_device = if use_loop { Some(loop_attach(mounted.file(), read_only)?) } else { None };
        if let Some(device) = &loop_device
            && let Some(identity) = export::loopdev::identity(device)
            && let Err(failure) = claim.note_loop(&identity)
        {
            // Without the note it would stay, and show errors for ever.
            let _ = loop_detach(device);
            return Err(failure);
        }
        Ok(Self { mount: mounted, loop_device, device })
    }
}

impl Front for Fuse {
    fn shown(&self) -> Shown {
        Shown::Fuse { device: self.device.clone(), loop_device: self.loop_device.clone() }
    }

    fn covered(&self) -> Option<&Path> {
        self.mount.file().parent()
    }

    fn resized(&self) -> Result<(), Failure> {
        self.mount.resized()?;
        // Also those that somebody else has made of the file.
        for device in export::loopdev::holders(self.mount.file())? {
            helper("loop-resize", &[], &device)?;
        }
        Ok(())
    }

    fn hide(&self) -> Result<(), Failure> {
        let file = self.mount.file();
        let users = || {
            let mut users = holders::of(file);
            for device in export::loopdev::holders(file).unwrap_or_default() {
                users.extend(holders::of_block_device(&device));
            }
            users.sort();
            users.dedup();
            users
        };
        let found = users();
        if !found.is_empty() {
            return Err(in_use(&found));
        }
        for device in export::loopdev::holders(file)? {
            loop_detach(&device)?;
        }
        // The kernel lets go of the file a moment after its user has closed it or ended.
        let begun = Instant::now();
        loop {
            match self.mount.unmount() {
                Err(export::Error::Busy(_)) if begun.elapsed() < LEAVING => thread::sleep(PAUSE),
                Err(export::Error::Busy(why)) => {
                    let found = users();
                    return Err(if found.is_empty() { Failure::usage(why) } else { in_use(&found) });
                }
                ended => return Ok(ended?),
            }
        }
    }
}

/// Takes away the loop device that a daemon of this name left which was killed. (Its mount goes by itself.)
///
/// # Errors
/// Says that the device is still in use.
pub fn clear_left(claim: &Claim) -> Result<(), Failure> {
    let Some(device) = claim.left_loop() else { return Ok(()) };
    loop_detach(&device).map_err(|failure| {
        let device = device.display();
        Failure::usage(format!(
            "{device} is left from a daemon that was killed, and shows nothing but errors ({failure}). Unmount what is mounted from it, then \
             `losetup -d {device}`"
        ))
    })
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    match std::fs::create_dir(path) {
        Ok(()) => Ok(()),
        // A dead mount there cannot even be looked at; the front end clears it.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Failure::io(format!("{}: {error}", path.display()))),
    }
}

/// Another process does it: this one serves the file, and must not wait for itself.
fn loop_attach(file: &Path, read_only: bool) -> Result<PathBuf, Failure> {
    let more: &[&str] = if read_only { &["--read-only"] } else { &[] };
    helper("loop-attach", more, file).map(|line| PathBuf::from(line.trim_end()))
}

fn loop_detach(device: &Path) -> Result<(), Failure> {
    helper("loop-detach", &[], device).map(drop)
}

fn helper(command: &str, more: &[&str], path: &Path) -> Result<String, Failure> {
    let fail = |error| Failure::io(format!("cvmio cannot start itself for {command}: {error}"));
    let output = Command::new("/proc/self/exe")
        .args(["volume", command])
        .args(more)
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(fail)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().trim_start_matches("cvmio: error: ").to_string();
    Err(match output.status.code() {
        Some(2) => Failure::usage(message),
        _ => Failure::io(message),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_without_the_device_is_told_from_a_kernel_without_the_driver() {
        assert!(no_fuse("nodev\tfuse\n\text4\n").to_string().contains("--device /dev/fuse"));
        assert!(no_fuse("nodev\tfusectl\n\text4\n").to_string().contains("modprobe fuse"));
    }
}
