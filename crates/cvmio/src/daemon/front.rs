//! The device that people see: a file under FUSE, and a loop device on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use export::fuse::{Mount, Options};

use super::disk::Disk;
use super::{Order, Ready, holders, log};
use crate::failure::Failure;
use crate::runtime::Claim;

/// How often it is tried again to take away what is in use.
const PAUSE: Duration = Duration::from_millis(200);

/// A device that is shown. Dropping it takes it away, whoever uses it.
pub struct Front {
    mount: Mount,
    loop_device: Option<PathBuf>,
    device: PathBuf,
}

impl Front {
    /// Shows the device.
    ///
    /// # Errors
    /// When FUSE or the loop driver refuses; nothing is left then.
    pub fn show(order: &Order, claim: &Claim, disk: Disk) -> Result<Self, Failure> {
        let mountpoint = match &order.mount {
            Some(path) => path.clone(),
            None => {
                let path = claim.place().mountpoint();
                make_directory(&path)?;
                path
            }
        };
        let mount = Mount::new(&mountpoint, "disk", Arc::new(disk), &Options::default())?;
        claim.link(mount.file())?;
        let device = claim.place().disk();
        let loop_device = if order.use_loop { Some(loop_attach(mount.file())?) } else { None };
        Ok(Self { mount, loop_device, device })
    }

    /// What to announce.
    pub fn ready(&self, order: &Order, size: u64, warnings: Vec<String>) -> Ready {
        Ready {
            name: order.name.clone(),
            process: std::process::id(),
            device: if order.mount.is_some() { self.mount.file().into() } else { self.device.clone() },
            loop_device: self.loop_device.clone(),
            size,
            warnings,
        }
    }

    /// Takes the device away if nobody uses it.
    ///
    /// # Errors
    /// Says who does; then all stays as it is.
    pub fn hide(&self) -> Result<(), Failure> {
        let users = holders::of(self.mount.file());
        if !users.is_empty() {
            let list = users.join(", ");
            return Err(Failure::usage(format!(
                "the volume is in use: {list}. Unmount or close it first; nothing was changed"
            )));
        }
        for device in export::loopdev::holders(self.mount.file())? {
            loop_detach(&device)?;
        }
        Ok(self.mount.unmount()?)
    }

    /// The same for somebody who cannot wait for ever.
    pub fn hide_within(&self, grace: Duration) {
        let mut waited = Duration::ZERO;
        while let Err(failure) = self.hide() {
            if waited.is_zero() {
                log(&format!("{failure}; waiting {} s for that", grace.as_secs()));
            }
            if waited >= grace {
                log("the device is taken away from those who use it");
                return;
            }
            std::thread::sleep(PAUSE);
            waited += PAUSE;
        }
    }
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
fn loop_attach(file: &Path) -> Result<PathBuf, Failure> {
    helper("loop-attach", file).map(|line| PathBuf::from(line.trim_end()))
}

fn loop_detach(device: &Path) -> Result<(), Failure> {
    helper("loop-detach", device).map(drop)
}

fn helper(command: &str, path: &Path) -> Result<String, Failure> {
    let fail = |error| Failure::io(format!("cvmio cannot start itself for {command}: {error}"));
    let output = Command::new("/proc/self/exe")
        .args(["volume", command, "--"])
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
