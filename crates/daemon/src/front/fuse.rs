//! A file under FUSE, and a loop device on it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use export::fuse::{Mount, Options};

use super::{Disk, Front, Shown, holders, in_use};
use crate::failure::Failure;
use crate::runtime::Claim;

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
    if !Path::new("/dev/fuse").exists() {
        return Err(Failure::usage("this kernel has no FUSE; load its module (modprobe fuse)"));
    }
    let control = use_loop.then(|| File::options().read(true).write(true).open("/dev/loop-control"));
    if let Some(Err(error)) = control
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Err(Failure::usage(
            "a loop device needs root; without --loop the volume is a file of this user",
        ));
    }
    Ok(())
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
        let mounted = Mount::new(&mountpoint, "disk", Arc::new(disk), &options)?;
        claim.link(mounted.file())?;
        let device = if mount.is_some() { mounted.file().to_path_buf() } else { claim.place().disk() };
        let loop_device = if use_loop { Some(loop_attach(mounted.file(), read_only)?) } else { None };
        if let Some(identity) = loop_device.as_deref().and_then(export::loopdev::identity) {
            claim.note_loop(&identity)?;
        }
        Ok(Self { mount: mounted, loop_device, device })
    }
}

impl Front for Fuse {
    fn shown(&self) -> Shown {
        Shown::Fuse { device: self.device.clone(), loop_device: self.loop_device.clone() }
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
        let users = holders::of(self.mount.file());
        if !users.is_empty() {
            return Err(in_use(&users));
        }
        for device in export::loopdev::holders(self.mount.file())? {
            loop_detach(&device)?;
        }
        Ok(self.mount.unmount()?)
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
