//! What is measured, made ready and put away.

mod device;
mod dm;
pub(crate) mod file;
mod mounts;
mod servers;
mod spec;
pub mod vm;
mod volume;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use tempfile::TempDir;

use crate::error::{Context, Error, Result};
use crate::interrupt::Interrupt;
use crate::program::{Ended, Server, output, run, shown};

pub use mounts::{Kept, Mount};
pub use spec::{Front, Settings, Spec, Variation, Volume, one_less};
pub use vm::{Accel, Guests, Vm};

/// What is needed of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Blocks, as fio takes them.
    Blocks,
    /// A file system, for applications.
    Files,
}

/// What every target is made with.
pub struct Ground<'a> {
    /// What is needed of it.
    pub need: Need,
    /// Where files are made.
    pub directory: &'a Path,
    /// Bytes that each target shows.
    pub size: u64,
    /// The command line program that makes volumes.
    pub cvmio: &'a Path,
    /// Targets that hold data and may be overwritten, as the user wrote them.
    pub destroy: &'a [String],
    /// What guests are made of.
    pub guests: &'a Guests,
    /// Ends everything.
    pub interrupt: &'a Interrupt,
}

/// How a target is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A file or block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// Whether requests pass the page cache by.
        direct: bool,
    },
    /// An NBD server's address.
    Nbd(String),
}

/// A target that can be measured. Dropping it puts away what was made for it.
pub struct Ready {
    /// How it is reached.
    pub address: Address,
    /// The commands that made it.
    pub commands: Vec<String>,
    /// What a reader must know about it.
    pub note: Option<String>,
    /// Bytes that it shows.
    pub size: u64,
    /// The guest that it is seen from, if not from this machine.
    pub guest: Option<vm::Guest>,
    // The order in which they are put away: first what stands on the others.
    mounts: Vec<Kept>,
    server: Option<Server>,
    devices: Vec<Kept>,
    place: Option<TempDir>,
}

impl Ready {
    fn new(address: Address, size: u64) -> Self {
        let (commands, mounts, devices) = (Vec::new(), Vec::new(), Vec::new());
        Self { address, commands, note: None, size, guest: None, mounts, server: None, devices, place: None }
    }

    /// # Errors
    /// When the server behind it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.server.as_mut().map_or(Ok(()), Server::check)
    }

    /// Runs a program where the target is seen from, with the file that it reads if it does.
    ///
    /// # Errors
    /// When it cannot be run, or the end was asked for.
    pub fn run(
        &mut self,
        command: &mut Command,
        file: Option<&Path>,
        interrupt: &Interrupt,
    ) -> Result<Ended> {
        match (&mut self.guest, &mut self.server) {
            (Some(guest), Some(server)) => {
                let began = Instant::now();
                let answer = guest.run(&vm::script(command, file)?, server, interrupt)?;
                guest.pause()?;
                Ok(vm::ended(answer, began.elapsed()))
            }
            _ => run(command, interrupt),
        }
    }

    /// Runs a script in the guest.
    ///
    /// # Errors
    /// When there is no guest, or it does not answer.
    pub fn script(&mut self, script: &str, interrupt: &Interrupt) -> Result<vm::agent::Answer> {
        match (&mut self.guest, &mut self.server) {
            (Some(guest), Some(server)) => guest.run(script, server, interrupt),
            _ => Err(Error::usage("this target is no virtual machine")),
        }
    }

    /// Makes a file system on it, and mounts that; the directory.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn directory(&mut self, ground: &Ground<'_>) -> Result<PathBuf> {
        if let Some(place) = self.mounts.iter().find_map(Kept::mounted_at) {
            return Ok(place.to_path_buf());
        }
        let device = match &self.address {
            Address::File { path, .. } => path.clone(),
            Address::Nbd(uri) => {
                let place = TempDir::with_prefix("cvmio-bench-nbd-").doing("a directory to mount NBD in")?;
                let mut mount = Command::new("nbdfuse");
                mount.arg(place.path()).arg(uri);
                self.commands.push(shown(&mount));
                let mount = Mount::fuse(&mut mount, place, "nbd", ground.interrupt)?;
                let file = mount.place().join("nbd");
                self.mounts.push(Kept::Mount(mount));
                file
            }
        };
        let device = if device.starts_with("/dev") {
            device
        } else {
            let (device, undo) = mounts::loop_device(&device, ground.interrupt)?;
            self.mounts.insert(0, undo);
            device
        };
        let mut make = Command::new("mkfs.ext4");
        // Written at once: a lazy one goes on writing while something is measured.
        make.args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]).arg(&device);
        self.commands.push(shown(&make));
        output(&mut make, ground.interrupt)?;
        let place = TempDir::with_prefix("cvmio-bench-mount-").doing("a directory to mount in")?;
        let mut mount = Command::new("mount");
        mount.arg(&device).arg(place.path());
        self.commands.push(shown(&mount));
        output(&mut mount, ground.interrupt)?;
        let mount = Mount::kernel(place);
        let at = mount.place().to_path_buf();
        // Before what it stands on.
        self.mounts.insert(0, Kept::Mount(mount));
        Ok(at)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.guest = None;
        self.mounts.clear();
        self.server = None;
        self.devices.clear();
        self.place = None;
    }
}

impl Spec {
    /// Makes it ready.
    ///
    /// # Errors
    /// When something that it needs is missing or fails, or it holds data that may not be destroyed.
    pub fn start(&self, ground: &Ground<'_>) -> Result<Ready> {
        match self {
            Self::Path(path) => device::start(path, ground),
            Self::Nbd(uri) => servers::external(uri, ground),
            Self::Tmpfs => file::tmpfs(ground),
            Self::Cvmio(volume) => volume::start(volume, ground),
            Self::Nbdkit => servers::nbdkit(false, ground),
            Self::NbdkitLuks => servers::nbdkit(true, ground),
            Self::Qemu => servers::qemu(false, ground),
            Self::QemuLuks => servers::qemu(true, ground),
            Self::DmCrypt => dm::start(false, ground),
            Self::DmIntegrity => dm::start(true, ground),
            Self::Vm(machine) => vm::start(machine, ground),
        }
    }

    /// Why this machine cannot have it, whatever is installed.
    pub fn unavailable(&self, ground: &Ground<'_>) -> Option<String> {
        match self {
            Self::Vm(machine) => vm::unavailable(machine, ground.guests, ground.need),
            Self::DmCrypt | Self::DmIntegrity => dm::unavailable(),
            Self::Cvmio(Volume { front: Some(Front::Ublk), .. })
                if !Path::new("/dev/ublk-control").exists() =>
            {
                Some("the kernel has no ublk driver (modprobe ublk_drv)".into())
            }
            _ => None,
        }
    }

    /// A name that fits into a legend.
    pub fn name(&self) -> String {
        match self {
            Self::Path(path) if path.is_dir() => "file".into(),
            Self::Path(path) => path.display().to_string(),
            Self::Nbd(_) => "nbd".into(),
            Self::Nbdkit => "nbdkit file".into(),
            Self::NbdkitLuks => "nbdkit LUKS".into(),
            Self::Qemu => "qemu file".into(),
            Self::QemuLuks => "qemu LUKS".into(),
            other => other.to_string().replacen("cvmio:", "cvmio ", 1).replacen("vm:", "vm ", 1),
        }
    }
}

/// A private directory in the ground's.
pub(crate) fn place(ground: &Ground<'_>) -> Result<TempDir> {
    let made = TempDir::with_prefix_in("cvmio-bench-", ground.directory);
    made.map_err(|error| {
        Error::usage(format!(
            "{} cannot hold files; choose another directory with --dir",
            ground.directory.display()
        ))
        .because(error)
    })
}

/// Whether the user named a target to be overwritten.
fn may_destroy(what: &str, ground: &Ground<'_>) -> bool {
    ground.destroy.iter().any(|named| named == what)
}
