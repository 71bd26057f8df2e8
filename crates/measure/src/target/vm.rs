//! Virtual machines as targets: booted by QEMU from this machine's own programs, and measured from within.

pub mod agent;
mod image;
mod kernel;
mod qemu;
mod qmp;
pub mod settings;
pub mod trace;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{Address, Environment, Need, Ready, file, place};
use crate::error::{Context, Error, Result};
use crate::program::{Ended, Server, find, shown};
use agent::{Agent, base64};
use cli::interrupt::Interrupt;
use image::Image;
use kernel::Kernel;
use qemu::More;
use qmp::Qmp;
use settings::{Completion, Kind, Protect};

pub use image::Contents;
pub use qemu::Accel;
pub use settings::Vm;

/// How long a guest may take to boot; emulated ones on a busy machine take half a minute.
const BOOT: Duration = Duration::from_secs(180);
/// How long a script in a guest may take: what writes the whole disk is the longest.
const SCRIPT: Duration = Duration::from_secs(1800);
/// Where a guest has the file system of its disk.
pub const MOUNT: &str = "/mnt/target";
/// So much of a console goes into an error.
const LINES: usize = 15;

/// What guests are made of.
#[derive(Args, Debug, Clone)]
pub struct Guests {
    /// Directory with boot/vmlinuz-VERSION and lib/modules/VERSION for guests
    #[arg(long = "guest-kernel", value_name = "DIR", default_value = "/")]
    pub kernel: PathBuf,
    /// Memory of a guest, as 1G
    #[arg(long = "guest-memory", value_name = "SIZE", default_value = "1G", value_parser = crate::size::parse)]
    pub memory: u64,
    /// Processors of a guest
    #[arg(long = "guest-processors", value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processors: u32,
    /// Firmware of confidential guests
    #[arg(long = "guest-firmware", value_name = "FILE")]
    pub firmware: Option<PathBuf>,
    /// QEMU, by its name or path
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    pub qemu: String,
    /// How the processors of guests run [default: kvm where the machine has it]
    #[arg(long, value_enum)]
    pub accel: Option<Accel>,
    /// Whether QEMU notes when it takes up requests and gives them back.
    #[arg(skip)]
    pub traced: bool,
}

impl Default for Guests {
    fn default() -> Self {
        Self {
            kernel: "/".into(),
            memory: 1 << 30,
            processors: 2,
            firmware: None,
            qemu: "qemu-system-x86_64".into(),
            accel: None,
            traced: false,
        }
    }
}

impl Guests {
    /// How their processors run.
    pub fn accel(&self) -> Accel {
        self.accel.unwrap_or_else(Accel::of_this_machine)
    }
}

/// Why this machine cannot have such a guest.
pub fn unavailable(vm: &Vm, guests: &Guests) -> Option<String> {
    vm.impossible().or_else(|| qemu::unavailable(vm.kind, guests))
}

/// The confidential kind that this machine hosts, or why it hosts none.
///
/// # Errors
/// Why not.
pub fn confidential(guests: &Guests) -> std::result::Result<Kind, String> {
    let why = |kind| qemu::unavailable(kind, guests);
    match (why(Kind::Snp), why(Kind::Tdx)) {
        (None, _) => Ok(Kind::Snp),
        (_, None) => Ok(Kind::Tdx),
        (Some(snp), Some(tdx)) => Err(format!("{snp}, and {tdx}")),
    }
}

/// A guest that runs, or waits for its turn.
#[derive(Debug)]
pub struct Guest {
    agent: Agent,
    qmp: Qmp,
    directory: PathBuf,
    /// Whether requests are to be polled for.
    pub polls: bool,
    /// Its kernel's version.
    pub kernel: String,
    /// Whether its disk has a file system, which is mounted.
    pub mounted: bool,
    paused: bool,
    /// Whether an answer has not come: the next one would be taken for that of another script.
    lost: bool,
}

impl Guest {
    /// Runs a script.
    ///
    /// # Errors
    /// When the guest ends or does not answer, or the end was asked for.
    pub fn run(&mut self, script: &str, server: &mut Server, interrupt: &Interrupt) -> Result<agent::Answer> {
        if self.paused {
            self.qmp.execute("cont", json!({}))?;
            self.paused = false;
        }
        let mut alive = || server.check().and_then(|()| Ok(interrupt.check()?));
        self.agent.run(script, SCRIPT, &mut alive).map_err(|error| {
            self.lost = true;
            with_console(&self.directory, error)
        })
    }

    /// # Errors
    /// When a script was not answered.
    pub fn check(&self) -> Result<()> {
        if self.lost { Err(Error::io("the guest answers no more")) } else { Ok(()) }
    }

    /// Stops its processors until the next script, so that it does not disturb others.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn pause(&mut self) -> Result<()> {
        self.qmp.execute("stop", json!({}))?;
        self.paused = true;
        Ok(())
    }

    /// Writes its memory to a file.
    ///
    /// # Errors
    /// When QEMU cannot.
    pub fn dump(&mut self, to: &Path) -> Result<()> {
        let protocol = format!("file:{}", to.display());
        self.qmp.execute("dump-guest-memory", json!({ "paging": false, "protocol": protocol })).map(drop)
    }

    /// What QEMU has noted of requests so far.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn traced(&self) -> Result<String> {
        let path = self.directory.join(qemu::TRACE);
        fs::read_to_string(&path).doing(path.display())
    }
}

/// An error with what the guest's kernel said at last.
fn with_console(directory: &Path, error: Error) -> Error {
    if error.kind() == crate::error::Kind::Interrupted {
        return error;
    }
    let said = fs::read(directory.join(qemu::CONSOLE)).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n");
    if last.is_empty() {
        error
    } else {
        Error::io(format!("{error}; the guest's console ends with:\n{last}"))
    }
}

/// A command with the file that it reads, as a script for a guest.
pub fn script(command: &Command, file: Option<&Path>) -> Result<String> {
    let mut script = String::new();
    if let Some(path) = file {
        let content = base64(&fs::read(path).doing(path.display())?);
        let (path, directory) = (path.display(), path.parent().unwrap_or(Path::new("/")).display());
        script = format!("mkdir -p '{directory}'\necho {content} | base64 -d >'{path}'\n");
    }
    Ok(script + &shown(command) + "\n")
}

/// The script that makes a file system on a device and mounts it.
pub fn file_system(device: &Path, options: &[&str]) -> String {
    let mut make = Command::new(find("mkfs.ext4").unwrap_or_else(|| "mkfs.ext4".into()));
    make.args(options).arg(device);
    let mut mount = Command::new("mount");
    mount.args(["-t", "ext4"]).arg(device).arg(MOUNT);
    format!("set -e\n{}\nmkdir -p {MOUNT}\n{}\n", shown(&make), shown(&mount))
}

/// An answer as the end of a program.
pub fn ended(answer: agent::Answer, took: Duration) -> Ended {
    Ended::new(answer.said, answer.complained, took, answer.code)
}

/// A machine that is about to boot.
pub struct Boot<'a> {
    /// Its settings.
    pub vm: &'a Vm,
    /// What is measured, when the script has run.
    pub device: PathBuf,
    /// A disk beside the one that is measured, which the guest may write: /dev/vdb, where that is virtio-blk.
    pub disk: Option<PathBuf>,
    /// What is run when it is up.
    pub script: String,
    /// What it needs beside the programs of its settings.
    pub contents: &'a Contents,
    /// Whether it needs cvmio.
    pub cvmio: bool,
}

/// Boots a machine and sets up what its settings say.
///
/// # Errors
/// When a program is missing, or it does not boot.
pub fn start(vm: &Vm, environment: &Environment<'_>) -> Result<Ready> {
    let place = place(environment)?;
    let root = place.path().canonicalize().doing(place.path().display())?;
    // A volume and LUKS2 need some more than they show.
    let room = if vm.protect == Protect::None { 0 } else { environment.size / 4 + (64 << 20) };
    file::allocate(&root.join(qemu::DISK), environment.size + room)?;
    let (set_up, device) = protection(vm, environment.size);
    let boot = Boot {
        vm,
        device,
        disk: None,
        script: set_up,
        contents: environment.contents,
        cvmio: vm.protect == Protect::Cvmio,
    };
    let mut ready = boot.start(&root, environment)?;
    ready.place = Some(place);
    Ok(ready)
}

impl Boot<'_> {
    /// Boots it in a directory that has its disk.
    ///
    /// # Errors
    /// When a program is missing, or it does not boot.
    pub fn start(self, root: &Path, environment: &Environment<'_>) -> Result<Ready> {
        let (guests, interrupt) = (environment.guests, environment.interrupt);
        let kernel = Kernel::find(&guests.kernel)?;
        self.image(&kernel, environment)?.write(&root.join(qemu::IMAGE))?;
        let more = self.more();
        let mut command = qemu::command(self.vm, guests, &kernel.image, root, &more)?;
        let mut server = Server::start(&mut command)?;
        // QEMU makes its sockets one after the other.
        let (mut agent, mut qmp) = (None, None);
        server.wait_until(interrupt, || {
            agent = agent.take().or_else(|| Agent::call(&root.join(qemu::AGENT)).ok());
            qmp = qmp.take().or_else(|| Qmp::connect(&root.join(qemu::QMP)).ok());
            agent.is_some() && qmp.is_some()
        })?;
        let (Some(mut agent), Some(qmp)) = (agent, qmp) else {
            return Err(Error::io("QEMU's sockets are gone"));
        };
        let version = agent
            .ready(BOOT, &mut || server.check().and_then(|()| Ok(interrupt.check()?)))
            .map_err(|error| with_console(root, error))?;
        let polls = self.vm.completion == Completion::Poll;
        let directory = root.to_path_buf();
        let (mounted, paused, lost) = (false, false, false);
        let mut guest = Guest { agent, qmp, directory, polls, kernel: version, mounted, paused, lost };
        let scripts = [self.checks(), self.script];
        for script in scripts.iter().filter(|script| !script.is_empty()) {
            let answer = guest.run(&format!("set -e\n{script}"), &mut server, interrupt)?;
            answer.must_succeed()?;
        }
        guest.pause()?;
        let mut ready = Ready::new(Address::File { path: self.device, direct: true }, environment.size);
        ready.commands = vec![shown(&command), format!("guest: Linux {}", guest.kernel)];
        ready.commands.extend(scripts.iter().map(|script| script.trim().to_string()));
        ready.commands.retain(|command| !command.is_empty());
        ready.server = Some(server);
        ready.guest = Some(guest);
        Ok(ready)
    }

    fn image<'k>(&self, kernel: &'k Kernel, environment: &Environment<'k>) -> Result<Image<'k>> {
        let mut image = Image::new(kernel, environment.interrupt)?;
        image.contents(self.contents)?;
        if environment.need == Need::Files {
            image.program("mkfs.ext4")?;
            image.file_if_any(Path::new("/etc/mke2fs.conf"))?;
            image.modules_if_any(&CHECKSUMS)?;
            image.modules(&["ext4"], "")?;
        }
        let (modules, parameters) = qemu::modules(self.vm);
        image.modules(modules, parameters)?;
        if !self.more().is_empty() {
            image.modules(&["virtio_blk"], "")?;
        }
        if matches!(self.vm.protect, Protect::DmCrypt | Protect::DmCryptInline | Protect::DmIntegrity) {
            image.program("cryptsetup")?;
            image.modules(&["dm_crypt"], "")?;
            image.modules_if_any(&CIPHERS)?;
        }
        if self.vm.protect == Protect::DmIntegrity {
            image.modules(&["dm_integrity"], "")?;
        }
        if self.cvmio {
            image.own("cvmio", environment.cvmio)?;
            image.modules(&["ublk_drv"], "")?;
        }
        Ok(image)
    }

    /// The disks beside the one that is measured.
    fn more(&self) -> Vec<More> {
        let own = self.disk.iter().map(|path| More { path: path.clone(), read_only: false });
        let data = self.contents.data.iter().map(|path| More { path: path.clone(), read_only: true });
        own.chain(data).collect()
    }

    /// That the guest has what its settings say; a figure of another setting would be worse than none.
    fn checks(&self) -> String {
        let device = qemu::device(self.vm.disk);
        let mut script = format!(
            "for glance in $(seq 1000); do [ -b {device} ] && break; sleep 0.01; done\n[ -b {device} ]\n"
        );
        if self.vm.completion == Completion::Poll {
            let queue = device.replace("/dev/", "/sys/block/");
            script += &format!(
                "[ \"$(cat {queue}/queue/io_poll)\" = 1 ] || {{ echo the driver of {device} has no queue that is polled; exit 1; }}\n"
            );
        }
        if self.vm.bounce {
            // The most slots that were ever in use at once: none, where requests do not go through the buffer.
            script += &format!(
                "mount -t debugfs debugfs /sys/kernel/debug\n\
                 dd if={device} of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null\n\
                 [ \"$(cat /sys/kernel/debug/swiotlb/io_tlb_used_hiwater)\" -gt 0 ] || {{ echo requests do not go through a bounce buffer; exit 1; }}\n"
            );
        }
        script
    }
}

/// What ext4 asks for, where a kernel has these as modules.
const CHECKSUMS: [&str; 2] = ["crc32c_generic", "crc32c_intel"];

/// What LUKS2 and its ciphers are made of, where a kernel has these as modules.
const CIPHERS: [&str; 13] = [
    "aesni_intel",
    "xts",
    "cbc",
    "ecb",
    "gcm",
    "ghash_generic",
    "ghash_clmulni_intel",
    "authenc",
    "sha256_generic",
    "crc32c_generic",
    "af_alg",
    "algif_skcipher",
    "algif_aead",
];

/// The script that sets up what protects, and the device that it shows.
fn protection(vm: &Vm, size: u64) -> (String, PathBuf) {
    let disk = qemu::device(vm.disk);
    let luks = |format: &str, open: &str, check: &str| {
        let script = format!(
            "head -c 32 /dev/urandom >/run/key\n\
             cryptsetup luksFormat --batch-mode --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --sector-size 4096{format} {disk} /run/key\n\
             cryptsetup open --type luks2 --key-file /run/key{open} {disk} target\n{check}"
        );
        (script, PathBuf::from("/dev/mapper/target"))
    };
    match vm.protect {
        Protect::None => (String::new(), disk.into()),
        Protect::DmCrypt => luks("", "", ""),
        Protect::DmCryptInline => luks(
            "",
            " --perf-no_read_workqueue --perf-no_write_workqueue",
            // Given to luksFormat, or by another spelling, these options have no effect; so it is looked at.
            "cryptsetup status target | grep no_read_workqueue | grep no_write_workqueue\n",
        ),
        Protect::DmIntegrity => luks(" --cipher aes-gcm-random --integrity aead --integrity-no-wipe", "", ""),
        Protect::Cvmio => {
            // The anchor lies in the guest's memory: as fast as one can be.
            let script = format!(
                "head -c 64 /dev/urandom >/run/key\n\
                 cvmio volume create {disk} --key-file /run/key --policy /run/policy.toml --size {size} --anchor file:/run/anchor --force\n\
                 cvmio volume attach {disk} --key-file /run/key --policy /run/policy.toml --name target --as ublk\n\
                 [ -b /dev/ublkb0 ]\n"
            );
            (script, "/dev/ublkb0".into())
        }
    }
}
