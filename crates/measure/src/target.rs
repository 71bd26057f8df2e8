//! What is measured, made ready and put away.

mod blank;
mod device;
mod dm;
pub(crate) mod file;
mod mounts;
mod servers;
mod spec;
pub mod vm;
mod volume;

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::ledger::Place;
use crate::machine::mount_of;
use crate::program::{Ended, Server, output, run_within, shown};
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
    /// Whether its requests may end in this machine's page cache.
    pub page_cache: bool,
    /// Bytes that it shows.
    pub size: u64,
    /// The guest that it is seen from, if not from this machine.
    pub guest: Option<vm::Guest>,
    /// What it was looked at and is measured through.
    handle: Option<File>,
    // The order in which they are put away: first what stands on the others.
    mounts: Vec<Kept>,
    server: Option<Server>,
    devices: Vec<Kept>,
    place: Option<Place>,
}

impl Ready {
    fn new(address: Address, size: u64) -> Self {
        let (commands, mounts, devices) = (Vec::new(), Vec::new(), Vec::new());
        let (note, guest, handle, server, place) = (None, None, None, None, None);
        // What lies on a file system without direct I/O, or is shown by a program without it.
        let page_cache = matches!(address, Address::File { direct: false, .. });
        Self { address, commands, note, page_cache, size, guest, handle, mounts, server, devices, place }
    }

    /// What fio is to open. fio reads more into a name than a name: `;` and `#` end it, `:` begins another one, `$` stands for something. So on
    /// this machine it gets no name but the file itself, which this process has open: it is the one that was looked at, whatever has its name
    /// by now. In a guest names are ours.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn for_fio(&mut self) -> Result<Address> {
        let Address::File { path, direct } = &self.address else { return Ok(self.address.clone()) };
        if self.guest.is_some() {
            return Ok(self.address.clone());
        }
        if self.handle.is_none() {
            let opened = OpenOptions::new().read(true).write(true).open(path).doing(path.display())?;
            self.handle = Some(opened);
        }
        let number = self.handle.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let path = PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()));
        Ok(Address::File { path, direct: *direct })
    }

    /// # Errors
    /// When the server behind it has ended, or the guest answers no more.
    pub fn check(&mut self) -> Result<()> {
        self.server.as_mut().map_or(Ok(()), Server::check)?;
        self.guest.as_ref().map_or(Ok(()), vm::Guest::check)
    }

    /// Runs a program where the target is seen from, with the file that it reads if it does, and for no longer than this; guests have a time of their
    /// own.
    ///
    /// # Errors
    /// When it cannot be run, or the end was asked for.
    pub fn run_within(
        &mut self,
        command: &mut Command,
        file: Option<&Path>,
        time: Option<Duration>,
        interrupt: &Interrupt,
    ) -> Result<Ended> {
        if self.guest.is_none() {
            return run_within(command, time, interrupt);
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
        // What is opened exclusively cannot be mounted.
        self.handle = None;
        let device = match &self.address {
            Address::File { path, .. } => path.clone(),
            Address::Nbd(uri) => {
                let place = Place::temporary("cvmio-bench-nbd-")?;
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
        let place = Place::temporary("cvmio-bench-mount-")?;
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
        self.handle = None;
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

    /// Whether it is there already and would be overwritten.
    pub fn overwrites(&self) -> bool {
        match self {
            Self::Path(path) => !path.is_dir(),
            Self::Nbd(_) => true,
            _ => false,
        }
    }

    /// The file system and device that it lies on, if this machine knows.
    pub fn storage(&self, environment: &Environment<'_>) -> Option<String> {
        match self {
            Self::Path(path) if path.metadata().is_ok_and(|seen| seen.file_type().is_block_device()) => {
                Some(format!("the device {}", path.canonicalize().unwrap_or_else(|_| path.clone()).display()))
            }
            Self::Path(path) => Some(mount_of(path)),
            Self::Nbd(_) => None,
            Self::Tmpfs => Some("tmpfs in memory".into()),
            _ => Some(mount_of(environment.directory)),
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
pub(crate) fn place(environment: &Environment<'_>) -> Result<Place> {
    let made = Place::new_in(environment.directory, "cvmio-bench-");
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
