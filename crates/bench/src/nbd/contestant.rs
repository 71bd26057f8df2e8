//! The servers that take turns: our own, and others that serve or encrypt a file.

use std::fmt;
use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::NbdArgs;
use crate::program::{GLANCE, missing, process_of, run};
use daemon::failure::Failure;
use daemon::interrupt::Interrupt;

/// How long a server may take to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// `qemu-img` first finds out how fast it derives keys, by its user time over some ten milliseconds. On a busy machine the kernel's clock may
/// tick past all of that, and then it gives up; a slow hash makes that rare, and another attempt is not slower for it.
const LUKS_ATTEMPTS: u32 = 4;

/// Who serves the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contestant {
    /// A protected volume, freshness strict
    #[value(skip)]
    Cvmio,
    /// `nbdkit file`: a bare file, through the page cache
    NbdkitFile,
    /// nbdkit's luks filter over `file`: LUKS1, aes-256-xts, no integrity, through the page cache
    NbdkitLuks,
    /// `qemu-nbd`: a bare file, past the page cache
    QemuRaw,
    /// `qemu-nbd` with QEMU's LUKS driver: the same format as nbdkit's, past the page cache
    QemuLuks,
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cvmio => "cvmio",
            Self::NbdkitFile => "nbdkit-file",
            Self::NbdkitLuks => "nbdkit-luks",
            Self::QemuRaw => "qemu-raw",
            Self::QemuLuks => "qemu-luks",
        })
    }
}

/// A server that runs, and ends with this.
pub struct Server {
    pub contestant: Contestant,
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Makes what is served, in a directory of its own below `parent`, and serves it.
    ///
    /// # Errors
    /// When a program that this needs is missing or fails.
    pub fn start(
        contestant: Contestant,
        parent: &Path,
        args: &NbdArgs,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let mebibytes = args.scale.size;
        let place = parent.join(contestant.to_string());
        fs::create_dir(&place).map_err(|error| Failure::io(format!("{}: {error}", place.display())))?;
        let (mut command, socket) = match contestant {
            Contestant::Cvmio => cvmio(&place, args, interrupt)?,
            Contestant::NbdkitFile => nbdkit(&place, mebibytes, None)?,
            Contestant::NbdkitLuks => nbdkit(&place, mebibytes, Some(interrupt))?,
            Contestant::QemuRaw => qemu(&place, mebibytes, None)?,
            Contestant::QemuLuks => qemu(&place, mebibytes, Some(interrupt))?,
        };
        // In a process group of its own: the terminal's interrupt is for us, who then put everything away.
        let child = command
            .current_dir(&place)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| missing(&command, &error))?;
        let mut server = Self { contestant, child, socket };
        server.wait_until_it_listens()?;
        Ok(server)
    }

    /// Where clients find it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    fn wait_until_it_listens(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        while UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || started.elapsed() > PATIENCE {
                return Err(Failure::io(format!("the server of {} does not come up", self.contestant)));
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = process_of(&self.child);
        let started = Instant::now();
        let told = process.is_some_and(|process| kill_process(process, Signal::TERM).is_ok());
        while told && started.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(GLANCE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A size as programs are told it.
fn megabytes(mebibytes: u64) -> String {
    format!("{mebibytes}M")
}

/// A volume with all its space taken, as its peers have theirs.
fn cvmio(place: &Path, args: &NbdArgs, interrupt: &Interrupt) -> Result<(Command, PathBuf), Failure> {
    let mut key = [0; 64];
    seal::Random::fill(&seal::SystemRandom, &mut key);
    write(&place.join("key"), &key)?;
    let program = programs::find::cvmio()?;
    let us = || {
        let mut command = Command::new(&program);
        command.env("CVMIO_RUNTIME_DIR", place.join("run")).current_dir(place);
        command
    };
    let anchor = format!("file:{}", place.join("anchor").display());
    let size = megabytes(args.scale.size);
    let mut create = us();
    create.args(["volume", "create", "disk", "--provision=full", "--key-file=key"]);
    create.args(["--size", &size, "--anchor", &anchor]);
    run(&mut create, interrupt)?;
    let mut attach = us();
    attach.args(["volume", "attach", "disk", "--key-file=key", "--as=nbd", "--foreground"]);
    if args.buffered {
        attach.arg("--buffered");
    }
    if let Some(bytes) = args.block_cache {
        attach.args(["--block-cache", &bytes.to_string()]);
    }
    Ok((attach, place.join("run/disk/nbd.sock")))
}

/// Serves a bare file or, with what interrupts its making, a LUKS image.
fn nbdkit(place: &Path, mebibytes: u64, luks: Option<&Interrupt>) -> Result<(Command, PathBuf), Failure> {
    let socket = place.join("socket");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(["file", "disk"]);
    if let Some(interrupt) = luks {
        make_luks(place, mebibytes, interrupt)?;
        command.args(["--filter=luks", "passphrase=+secret"]);
    } else {
        allocate(&place.join("disk"), mebibytes)?;
    }
    Ok((command, socket))
}

/// Serves what [`nbdkit`] serves, with direct I/O.
fn qemu(place: &Path, mebibytes: u64, luks: Option<&Interrupt>) -> Result<(Command, PathBuf), Failure> {
    let socket = place.join("socket");
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--shared=0", "--cache=none", "--aio=io_uring", "--socket"]).arg(&socket);
    if let Some(interrupt) = luks {
        make_luks(place, mebibytes, interrupt)?;
        command
            .args(["--object", "secret,id=key,file=secret", "--image-opts"])
            .arg("driver=luks,key-secret=key,file.driver=file,file.filename=disk");
    } else {
        allocate(&place.join("disk"), mebibytes)?;
        command.args(["--format=raw", "disk"]);
    }
    Ok((command, socket))
}

/// A LUKS1 image with all its space taken. Its passphrase costs as little as the format allows: opening it is not what is measured.
fn make_luks(place: &Path, mebibytes: u64, interrupt: &Interrupt) -> Result<(), Failure> {
    write(&place.join("secret"), b"no secret: what it protects is random")?;
    let mut create = Command::new("qemu-img");
    create
        .current_dir(place)
        .args(["create", "-q", "-f", "luks", "--object", "secret,id=key,file=secret"])
        .args(["-o", "key-secret=key,hash-alg=sha512,iter-time=10,preallocation=falloc", "disk"])
        .arg(megabytes(mebibytes));
    for _ in 1..LUKS_ATTEMPTS {
        match run(&mut create, interrupt) {
            Err(failure) if failure.to_string().contains("accurate CPU usage") => {}
            ended => return ended.map(drop),
        }
    }
    run(&mut create, interrupt).map(drop)
}

fn allocate(path: &Path, mebibytes: u64) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::io(format!("{}: {error}", path.display()));
    let file = fs::File::create(path).map_err(failed)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, mebibytes << 20)
        .map_err(|error| failed(error.into()))
}

fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    fs::write(path, content).map_err(|error| Failure::io(format!("{}: {error}", path.display())))
}
