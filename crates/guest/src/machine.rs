//! QEMU, from power on to power off.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::debian::Debian;

/// How a script ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit code.
    pub code: i32,
    /// What it printed, errors included.
    pub output: String,
    /// What the kernel said.
    pub console: String,
    /// From power on to power off.
    pub time: Duration,
}

/// Why it is not known how a script ended.
#[derive(Debug)]
pub struct Trouble {
    /// What went wrong.
    pub reason: String,
    /// What the script had printed.
    pub output: String,
    /// What the kernel said.
    pub console: String,
}

pub(crate) struct Machine<'a> {
    pub(crate) debian: &'a Debian,
    /// For what it writes while it runs.
    pub(crate) directory: &'a Path,
    pub(crate) image: Vec<u8>,
    /// For the kernel, and for what is in the image.
    pub(crate) words: &'a str,
    pub(crate) disks: &'a [PathBuf],
    /// Sockets of vhost-user-blk servers.
    pub(crate) served: &'a [PathBuf],
    /// A file that is the guest's persistent memory, and its bytes.
    pub(crate) memory: Option<&'a (PathBuf, u64)>,
    /// For QEMU's environment.
    pub(crate) environment: &'a [(String, PathBuf)],
    /// The control socket of a TPM.
    pub(crate) tpm: Option<&'a Path>,
    /// The power is cut so long after the script has printed this text.
    pub(crate) cut: Option<(&'a str, Duration)>,
    /// As QEMU names it.
    pub(crate) processor: &'a str,
    pub(crate) limit: Duration,
}

/// Where the script's output and its exit code arrive (see `init.sh`).
const PORTS: [&str; 2] = ["output", "code"];
const HARDWARE: &str = "-M q35 -accel tcg,thread=multi -m 1G -smp 2 -nodefaults -display none -nic none";
/// All that is emulated, but protection keys and five levels of pages, which only make that slower.
pub(crate) const PROCESSOR: &str = "max,pku=off,la57=off";
/// The reason why it is not known how a script ended whose power was cut as it was asked for.
pub(crate) const CUT: &str = "its power was cut";
/// How often QEMU is looked at.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn run(machine: &Machine<'_>) -> Result<Outcome, Trouble> {
    let directory = tempfile::tempdir_in(machine.directory).expect("a temporary directory can be made");
    let at = |name: &str| directory.path().join(name);
    fs::write(at("image"), &machine.image).expect("a guest's image can be written");
    let begun = Instant::now();
    let child = command(machine, directory.path())
        .stderr(fs::File::create(at("qemu")).expect("a log can be made"))
        .spawn();
    let mut running = Running(child.unwrap_or_else(|error| panic!("QEMU cannot be started: {error}")));
    let read = |name: &str| String::from_utf8_lossy(&fs::read(at(name)).unwrap_or_default()).into_owned();
    let is_to_be_cut = || machine.cut.is_some_and(|(text, _)| read("output").contains(text));
    let ended = running.wait(machine.limit, is_to_be_cut);
    if let (Ended::Cut, Some((_, delay))) = (ended, machine.cut) {
        std::thread::sleep(delay);
        running.kill();
    }
    let time = begun.elapsed();
    let (console, output, complaints) = (read("console"), read("output"), read("qemu"));
    let code = read("code").strip_suffix('\n').and_then(|code| code.parse().ok());
    match (ended, code) {
        (Ended::Itself, Some(code)) => Ok(Outcome { code, output, console, time }),
        (Ended::Itself, None) => Err(Trouble {
            reason: format!("the guest ended before its script did. {complaints}"),
            output,
            console,
        }),
        (Ended::Cut, _) => Err(Trouble { reason: CUT.into(), output, console }),
        (Ended::Not, _) => Err(Trouble {
            reason: format!("the guest was not done in {} s", machine.limit.as_secs()),
            output,
            console,
        }),
    }
}

/// QEMU with its own libraries, modules and firmware.
fn qemu(debian: &Debian) -> Command {
    let mut command = debian.program("usr/bin/qemu-system-x86_64");
    for firmware in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(debian.path(firmware));
    }
    command.env("QEMU_MODULE_DIR", debian.path("usr/lib/x86_64-linux-gnu/qemu"));
    command
}

/// A shell script that runs it with the arguments that it is given.
pub(crate) fn script(debian: &Debian) -> String {
    let quoted = |text: &OsStr| format!("'{}'", text.to_string_lossy().replace('\'', r"'\''"));
    let command = qemu(debian);
    let mut script = String::from("#!/bin/sh\n");
    for (name, value) in command.get_envs() {
        script += &format!("export {}={}\n", name.display(), quoted(value.unwrap_or_default()));
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(quoted).collect();
    format!("{script}exec {} \"$@\"\n", words.join(" "))
}

fn command(machine: &Machine<'_>, directory: &Path) -> Command {
    let debian = machine.debian;
    let mut command = qemu(debian);
    command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null());
    command.args(HARDWARE.split(' ')).args([
        "-cpu",
        machine.processor,
        "-no-reboot",
        "-initrd",
        "image",
        "-kernel",
    ]);
    // On a busy machine an emulated timer is so late that the kernel takes it for broken, and panics; so it does not look.
    let shape = if machine.served.is_empty() { "" } else { "swiotlb=force " };
    let words = format!("console=ttyS0 quiet oops=panic panic=-1 no_timer_check {shape}{}", machine.words);
    command.arg(debian.kernel()).args(["-append", &words]);
    command.args(["-serial", "file:console", "-device", "virtio-serial-pci"]);
    for port in PORTS {
        command.args(["-chardev", &format!("file,id={port},path={port}")]);
        command.args(["-device", &format!("virtserialport,chardev={port}")]);
    }
    // A comma in a path is written twice.
    let quoted = |path: &Path| path.display().to_string().replace(',', ",,");
    if let Some((file, size)) = machine.memory {
        let backend = format!("memory-backend-file,id=pmem,share=on,mem-path={},size={size}", quoted(file));
        command.args(["-m", "1G,maxmem=4G", "-object", &backend, "-device", "virtio-pmem-pci,memdev=pmem"]);
    }
    command.envs(machine.environment.iter().map(|(name, value)| (name, value)));
    for disk in machine.disks {
        let path = quoted(disk);
        command.args(["-drive", &format!("if=virtio,format=raw,discard=unmap,file={path}")]);
    }
    if !machine.served.is_empty() {
        let memory = "memory-backend-memfd,id=ram,size=1G,share=on";
        command.args(["-object", memory, "-machine", "memory-backend=ram"]);
    }
    for (number, socket) in machine.served.iter().enumerate() {
        let path = quoted(socket);
        command.args(["-chardev", &format!("socket,id=served{number},path={path},reconnect-ms=500")]);
        let device = format!("vhost-user-blk-pci,chardev=served{number},num-queues=2");
        command.args(["-device", &format!("{device},iommu_platform=on,disable-legacy=on")]);
    }
    if let Some(control) = machine.tpm {
        command.args(["-chardev", &format!("socket,id=tpm,path={}", control.display())]);
        command.args(["-tpmdev", "emulator,id=tpm,chardev=tpm", "-device", "tpm-tis,tpmdev=tpm"]);
    }
    command
}

/// How a guest's life went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Itself,
    /// It lives, and its power is to be cut.
    Cut,
    /// It was not done in time.
    Not,
}

/// QEMU; whatever happens to who waits for it, it does not stay.
struct Running(Child);

impl Running {
    /// Waits for its end within `limit`, or until its power is to be cut.
    fn wait(&mut self, limit: Duration, is_to_be_cut: impl Fn() -> bool) -> Ended {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if self.0.try_wait().expect("a child can be waited for").is_some() {
                return Ended::Itself;
            }
            if is_to_be_cut() {
                return Ended::Cut;
            }
            std::thread::sleep(PAUSE);
        }
        Ended::Not
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the script ended with code {}\n--- output\n{}\n--- console\n{}",
            self.code, self.output, self.console
        )
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n--- output\n{}\n--- console\n{}", self.reason, self.output, self.console)
    }
}
