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
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::error::{Context, Error, Result};
use crate::program::{Ended, Server, output, run, shown};
use cli::interrupt::Interrupt;

pub use mounts::{Kept, Mount};
pub use spec::{Front, Settings, Spec, Variation, Volume, one_less};
pub use vm::{Accel, Contents, Guests, Vm};

/// What is needed of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Blocks, as fio takes them.
    Blocks,
    /// A file system, for applications.
    Files,
}

/// What every target is made with: where, how large, by which programs.
pub struct Environment<'a> {
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
    /// What the measurement needs in guests.
    pub contents: &'a Contents,
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
    /// When the server behind it has ended, or the guest answers no more.
    pub fn check(&mut self) -> Result<()> {
        self.server.as_mut().map_or(Ok(()), Server::check)?;
        self.guest.as_ref().map_or(Ok(()), vm::Guest::check)
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
        if self.guest.is_none() {
            return run(command, interrupt);
        }
        let (answer, took) = self.turn(&vm::script(command, file)?, interrupt)?;
        Ok(vm::ended(answer, took))
    }

    /// Runs a script in the guest and stops its processors again; the answer, and how long it took by this machine's clock.
    ///
    /// # Errors
    /// When there is no guest, or it does not answer.
    pub fn turn(&mut self, script: &str, interrupt: &Interrupt) -> Result<(vm::agent::Answer, Duration)> {
        let began = Instant::now();
        let answer = self.script(script, interrupt)?;
        let took = began.elapsed();
        if let Some(guest) = &mut self.guest {
            guest.pause()?;
        }
        Ok((answer, took))
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

    /// Makes a file system on it, and mounts that, in the guest if there is one; the directory.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn directory(&mut self, environment: &Environment<'_>) -> Result<PathBuf> {
        if let Some(place) = self.mounts.iter().find_map(Kept::mounted_at) {
            return Ok(place.to_path_buf());
        }
        if self.guest.is_some() {
            return self.directory_in_guest(environment);
        }
        let device = match &self.address {
            Address::File { path, .. } => path.clone(),
            Address::Nbd(uri) => {
                let place = TempDir::with_prefix("cvmio-bench-nbd-").doing("a directory to mount NBD in")?;
                let mut mount = Command::new("nbdfuse");
                mount.arg(place.path()).arg(uri);
                self.commands.push(shown(&mount));
                let mount = Mount::fuse(&mut mount, place, "nbd", environment.interrupt)?;
                let file = mount.place().join("nbd");
                self.mounts.push(Kept::Mount(mount));
                file
            }
        };
        let device = if device.starts_with("/dev") {
            device
        } else {
            let (device, undo) = mounts::loop_device(&device, environment.interrupt)?;
            self.mounts.insert(0, undo);
            device
        };
        let mut make = Command::new("mkfs.ext4");
        make.args(EXT4).arg(&device);
        self.commands.push(shown(&make));
        output(&mut make, environment.interrupt)?;
        let place = TempDir::with_prefix("cvmio-bench-mount-").doing("a directory to mount in")?;
        let mut mount = Command::new("mount");
        mount.arg(&device).arg(place.path());
        self.commands.push(shown(&mount));
        output(&mut mount, environment.interrupt)?;
        let mount = Mount::kernel(place);
        let at = mount.place().to_path_buf();
        // Before what it stands on.
        self.mounts.insert(0, Kept::Mount(mount));
        Ok(at)
    }

    /// The same in a guest, where it stays mounted until the guest ends.
    fn directory_in_guest(&mut self, environment: &Environment<'_>) -> Result<PathBuf> {
        let place = PathBuf::from(vm::MOUNT);
        let Address::File { path: device, .. } = &self.address else {
            return Err(Error::usage("a guest's disk is a block device"));
        };
        if self.guest.as_ref().is_some_and(|guest| guest.mounted) {
            return Ok(place);
        }
        let script = vm::file_system(device, &EXT4);
        self.commands.push(script.trim().into());
        let (answer, _) = self.turn(&script, environment.interrupt)?;
        answer.must_succeed()?;
        if let Some(guest) = &mut self.guest {
            guest.mounted = true;
        }
        Ok(place)
    }
}

/// How an ext4 is made. All of it is written at once: a lazy one goes on writing while something is measured.
const EXT4: [&str; 4] = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];

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
    pub fn start(&self, environment: &Environment<'_>) -> Result<Ready> {
        match self {
            Self::Path(path) => device::start(path, environment),
            Self::Nbd(uri) => servers::external(uri, environment),
            Self::Tmpfs => file::tmpfs(environment),
            Self::Cvmio(volume) => volume::start(volume, environment),
            Self::Nbdkit => servers::nbdkit(false, environment),
            Self::NbdkitLuks => servers::nbdkit(true, environment),
            Self::Qemu => servers::qemu(false, environment),
            Self::QemuLuks => servers::qemu(true, environment),
            Self::DmCrypt => dm::start(false, environment),
            Self::DmIntegrity => dm::start(true, environment),
            Self::Vm(machine) => vm::start(machine, environment),
        }
    }

    /// Why this machine cannot have it, whatever is installed.
    pub fn unavailable(&self, environment: &Environment<'_>) -> Option<String> {
        match self {
            Self::Vm(machine) => vm::unavailable(machine, environment.guests),
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

/// A private directory in the environment's directory.
pub(crate) fn place(environment: &Environment<'_>) -> Result<TempDir> {
    let made = TempDir::with_prefix_in("cvmio-bench-", environment.directory);
    made.map_err(|error| {
        Error::usage(format!(
            "{} cannot hold files; choose another directory with --dir",
            environment.directory.display()
        ))
        .because(error)
    })
}

/// Whether the user named a target to be overwritten.
fn may_destroy(what: &str, environment: &Environment<'_>) -> bool {
    environment.destroy.iter().any(|named| named == what)
}
