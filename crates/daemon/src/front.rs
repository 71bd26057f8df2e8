//! The front ends: each shows an attached volume in its own way. One file for each.

pub mod fuse;
pub mod nbd;
mod ublk;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::{events, holders};
use crate::runtime::{Claim, Place};
use cli::failure::Failure;

/// How often it is tried again to take away what is in use.
const PAUSE: Duration = Duration::from_millis(200);

/// Which front end is to show the volume, and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// As a file, and as a loop device on it.
    Fuse {
        /// Make the loop device.
        use_loop: bool,
        /// Show the file in this directory, and not in the runtime directory.
        mount: Option<PathBuf>,
    },
    /// To clients of the NBD protocol.
    Nbd(nbd::Where),
    /// As a block device of the kernel's ublk driver.
    Ublk {
        /// Its queues.
        queues: u8,
        /// The volume.
        #[serde(with = "hex::serde")]
        owner: [u8; 16],
    },
}

/// Which front end shows the volume, and where.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "front-end", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Shown {
    /// As a file.
    Fuse {
        /// The file.
        device: PathBuf,
        /// The loop device on it.
        loop_device: Option<PathBuf>,
    },
    /// To clients of the NBD protocol.
    Nbd {
        /// What they are to be told.
        uri: String,
    },
    /// As a block device of the kernel's ublk driver.
    Ublk {
        /// The device.
        device: PathBuf,
    },
}

/// Is told why a device has stopped, though nobody has taken it away.
pub type Failed = Arc<dyn Fn(Failure) + Send + Sync>;

/// A front end that shows the volume. Dropping it takes the device away, even while it is in use.
pub trait Front {
    /// Where the device is.
    fn shown(&self) -> Shown;

    /// The directory that a file system of ours is mounted on.
    fn covered(&self) -> Option<&Path> {
        None
    }

    /// Shows that the device has become larger.
    ///
    /// # Errors
    /// When the front end does not take that; it keeps the size that it had.
    fn resized(&self) -> Result<(), Failure> {
        self.shown().can_grow()
    }

    /// Takes the device away if nobody uses it.
    ///
    /// # Errors
    /// Says who does; then all stays as it is.
    fn hide(&self) -> Result<(), Failure>;

    /// The same for somebody who cannot wait for ever. Says whether nobody uses the device any more.
    fn hide_within(&self, grace: Duration) -> bool {
        // Each attempt may itself take seconds.
        let begun = Instant::now();
        let mut told = false;
        while let Err(failure) = self.hide() {
            if !std::mem::replace(&mut told, true) {
                events::tell(&format!("{failure}; waiting {} s for that", grace.as_secs()));
            }
            if begun.elapsed() >= grace {
                events::tell("the device is taken away from those who use it");
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }
}

impl Show {
    /// A block device for the volume `owner`: ublk's where the kernel has it, else a loop device on a file, and then the reason why.
    pub fn block_device(queues: u8, owner: [u8; 16]) -> (Self, Option<Failure>) {
        match export::ublk::available() {
            Ok(()) => (Self::Ublk { queues, owner }, None),
            Err(error) => (Self::Fuse { use_loop: true, mount: None }, Some(error.into())),
        }
    }

    /// What would keep the device from being shown, found before the volume is claimed for nothing.
    ///
    /// # Errors
    /// Says what to do about it.
    pub fn check(&self, place: &Place) -> Result<(), Failure> {
        match self {
            Self::Fuse { mount, use_loop } => fuse::check(mount.as_deref(), *use_loop),
            Self::Nbd(wanted) => wanted.check(place),
            Self::Ublk { .. } => Ok(export::ublk::available()?),
        }
    }

    /// What a user of this should know.
    pub fn warning(&self) -> Option<String> {
        match self {
            Self::Fuse { .. } | Self::Ublk { .. } => None,
            Self::Nbd(wanted) => wanted.warning(),
        }
    }

    /// What has to be done before this process starts its first thread.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn prepare(&self) -> Result<(), Failure> {
        match self {
            Self::Fuse { .. } | Self::Nbd(_) => Ok(()),
            Self::Ublk { .. } => Ok(export::ublk::leave_mounts()?),
        }
    }

    /// Shows the device; one that is `read_only` refuses writes by itself. `failed` hears of a device that stops by itself.
    ///
    /// # Errors
    /// When the front end refuses; nothing is left then.
    pub fn show(
        &self,
        claim: &Claim,
        disk: Disk,
        read_only: bool,
        failed: &Failed,
    ) -> Result<Box<dyn Front>, Failure> {
        if read_only || !matches!(self, Self::Ublk { .. }) {
            ublk::nothing_left(&claim.place().ublk())?;
        }
        match self {
            Self::Fuse { use_loop, mount } => {
                Ok(Box::new(fuse::Fuse::show(*use_loop, mount.as_deref(), claim, disk, read_only)?))
            }
            Self::Nbd(wanted) => Ok(Box::new(nbd::Nbd::show(wanted, claim.place(), disk, read_only)?)),
            Self::Ublk { queues, owner } => {
                Ok(Box::new(ublk::show(*queues, *owner, claim, disk, read_only, failed)?))
            }
        }
    }
}

impl Shown {
    /// The front end, by the name that `attach --as` has for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fuse { .. } => "fuse",
            Self::Nbd { .. } => "nbd",
            Self::Ublk { .. } => "ublk",
        }
    }

    /// Whether it can show a device that becomes larger. NBD has no word for it: clients see it when they connect again.
    ///
    /// # Errors
    /// Says what to do instead.
    pub fn can_grow(&self) -> Result<(), Failure> {
        match self {
            Self::Fuse { .. } | Self::Nbd { .. } => Ok(()),
            // Before Linux 6.16 the driver has no word for it either.
            Self::Ublk { .. } => Err(Failure::usage(
                "a ublk device keeps its size as long as it is there; unmount it and detach the volume, then grow it by the path of its store",
            )),
        }
    }

    /// What it is, and where, for people: one line for each way to reach it.
    pub fn places(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Fuse { device, loop_device } => {
                let mut places = vec![("file", device.display().to_string())];
                places.extend(loop_device.iter().map(|path| ("block device", path.display().to_string())));
                places
            }
            Self::Nbd { uri } => vec![("nbd", uri.clone())],
            Self::Ublk { device } => vec![("block device", device.display().to_string())],
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.places().into_iter().map(|(_, place)| place).collect();
        f.write_str(&places.join(", "))
    }
}

/// A user who left the choice to us should know what it is, and why.
pub fn warn_of_loop(why: Option<&Failure>) {
    if let Some(failure) = why {
        cli::output::warning(&format!("a loop device on a file, and no ublk device: {failure}"));
    }
}

/// "The volume is in use: ...", for [`Front::hide`].
fn in_use(users: &[String]) -> Failure {
    let list = users.join(", ");
    Failure::usage(format!("the volume is in use: {list}. Unmount or close it first; nothing was changed"))
}
