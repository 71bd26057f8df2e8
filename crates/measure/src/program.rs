//! Running the programs that measure and that are measured.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::error::{Context, Error, Result};
use cli::interrupt::Interrupt;

/// How often it is looked whether a program has ended.
pub const GLANCE: Duration = Duration::from_millis(10);
/// How long a server may take to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// As much of a program's output goes into an error.
const MOST_OUTPUT: usize = 1000;

/// The Debian packages of the programs that may be missing.
const PACKAGES: [(&str, &str); 32] = [
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("nbdfuse", "libnbd-bin"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-img", "qemu-utils"),
    ("cryptsetup", "cryptsetup-bin"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("redis-cli", "redis-tools"),
    ("sqlite3", "sqlite3"),
    ("initdb", "postgresql"),
    ("pg_ctl", "postgresql"),
    ("pgbench", "postgresql-contrib"),
    ("tar", "tar"),
    ("gzip", "gzip"),
    ("lz4", "lz4"),
    ("cc", "build-essential"),
    ("make", "build-essential"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("losetup", "mount"),
    ("blockdev", "util-linux"),
    ("setpriv", "util-linux"),
    ("dmsetup", "dmsetup"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("ldd", "libc-bin"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("strip", "binutils"),
    ("date", "coreutils"),
];

/// The Debian package that has a program.
pub fn package(program: &str) -> &str {
    PACKAGES.iter().find(|(name, _)| *name == program).map_or(program, |(_, package)| package)
}

/// Where a program is: at its path, on the search path, or where Debian keeps PostgreSQL's and the administrator's.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Path::new(program).is_file().then(|| program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    // First, so that server and tools are of one version.
    places.splice(0..0, versions.map(|version| version.path().join("bin")));
    places.into_iter().map(|place| place.join(program)).find(|path| path.is_file())
}

/// A program of ours: beside this one or beside `cvmio`, and else on the search path.
pub fn of_ours(name: &str, cvmio: &Path) -> PathBuf {
    let this = std::env::current_exe().unwrap_or_default();
    let places = [this.as_path(), cvmio].into_iter().filter_map(Path::parent);
    places.map(|place| place.join(name)).find(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// A command as a shell would take it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

/// What is said when a program cannot be run.
pub fn missing(command: &Command, error: std::io::Error) -> Error {
    let program = command.get_program().to_string_lossy();
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::usage(format!(
            "{program} is not installed; it is in Debian's package {}",
            package(&program)
        ));
    }
    Error::io(format!("{program} cannot be run")).because(error)
}

/// A program's process group, or its process.
fn process(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// What a program printed, cut to what a person reads.
pub fn excerpt(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(MOST_OUTPUT) {
        Some((end, _)) => format!("{} [...]", &text[..end]),
        None => text.into(),
    }
}

/// How a program ended that did.
#[derive(Debug)]
pub struct Ended {
    /// What it printed.
    pub said: String,
    /// What it printed on its error output.
    pub complained: String,
    /// How long it took.
    pub took: Duration,
    /// Whether it says that it succeeded.
    pub success: bool,
    status: String,
}

impl Ended {
    /// A program that ran elsewhere.
    pub fn new(said: String, complained: String, took: Duration, code: i32) -> Self {
        Self { said, complained, took, success: code == 0, status: format!("exit status: {code}") }
    }

    /// # Errors
    /// When the program says that it failed: with its output.
    pub fn must_succeed(self, command: &Command) -> Result<Self> {
        if self.success {
            return Ok(self);
        }
        let program = command.get_program().to_string_lossy();
        let output = if self.complained.trim().is_empty() { &self.said } else { &self.complained };
        Err(Error::io(format!("{program} failed ({}): {}", self.status, excerpt(output))))
    }
}

/// Runs a program to its end. A signal that asks for the end ends it, with all that it started, at once.
///
/// # Errors
/// When it cannot be run, or the end was asked for.
pub fn run(command: &mut Command, interrupt: &Interrupt) -> Result<Ended> {
    // To files: nobody reads meanwhile, and a pipe fills up.
    let file = || tempfile::tempfile().doing("a temporary file");
    let (mut said, mut complained) = (file()?, file()?);
    let copy = |file: &File| file.try_clone().doing("a temporary file");
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(copy(&said)?)
        .stderr(copy(&complained)?)
        .process_group(0)
        .spawn()
        .map_err(|error| missing(command, error))?;
    let status = loop {
        if let Some(status) = child.try_wait().doing(command.get_program().to_string_lossy())? {
            break status;
        }
        if let Err(end) = interrupt.check() {
            if let Some(group) = process(&child) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
            return Err(end.into());
        }
        thread::sleep(GLANCE);
    };
    let took = started.elapsed();
    let text = |file: &mut File| -> Result<String> {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).doing("a temporary file")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Ended {
        said: text(&mut said)?,
        complained: text(&mut complained)?,
        took,
        success: status.success(),
        status: status.to_string(),
    })
}

/// Runs a program that must succeed; what it printed.
///
/// # Errors
/// When it cannot be run, fails, or the end was asked for.
pub fn output(command: &mut Command, interrupt: &Interrupt) -> Result<String> {
    Ok(run(command, interrupt)?.must_succeed(command)?.said)
}

/// The first line that a program prints with `--version`; none if it is not there.
pub fn version(program: &str, interrupt: &Interrupt) -> Option<String> {
    let ended = run(Command::new(program).arg("--version"), interrupt).ok()?;
    let line =
        ended.said.lines().chain(ended.complained.lines()).map(str::trim).find(|line| !line.is_empty())?;
    Some(line.to_string())
}

/// A server that runs, and ends with this.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    said: File,
}

impl Server {
    /// Starts it, in a process group of its own: the terminal's interrupt is for us, who then put everything away.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start(command: &mut Command) -> Result<Self> {
        let said = tempfile::tempfile().doing("a temporary file")?;
        let copy = || said.try_clone().doing("a temporary file");
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(copy()?)
            .stderr(copy()?)
            .spawn()
            .map_err(|error| missing(command, error))?;
        Ok(Self { name: command.get_program().to_string_lossy().into_owned(), child, said })
    }

    /// Waits until it is ready, as `ready` says.
    ///
    /// # Errors
    /// When it ends or takes too long, or the end was asked for.
    pub fn wait_until(&mut self, interrupt: &Interrupt, mut ready: impl FnMut() -> bool) -> Result<()> {
        let started = Instant::now();
        while !ready() {
            interrupt.check()?;
            self.check()?;
            if started.elapsed() > PATIENCE {
                let output = self.output();
                return Err(Error::io(format!("{} does not come up: {output}", self.name)));
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// # Errors
    /// When it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let output = self.output();
                Err(Error::io(format!("{} ended ({status}): {output}", self.name)))
            }
            Err(error) => Err(Error::io(self.name.clone()).because(error)),
        }
    }

    fn output(&mut self) -> String {
        let mut bytes = Vec::new();
        // Best effort: this is for an error that is told in any case.
        let _ = self.said.rewind().and_then(|()| self.said.read_to_end(&mut bytes));
        excerpt(&String::from_utf8_lossy(&bytes))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let started = Instant::now();
        let told = process(&self.child).is_some_and(|process| kill_process(process, Signal::TERM).is_ok());
        while told && started.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(GLANCE);
        }
        if let Some(group) = process(&self.child) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = missing(&Command::new("redis-benchmark"), std::io::ErrorKind::NotFound.into());
        assert!(error.to_string().contains("redis-benchmark") && error.to_string().contains("redis-tools"));
    }

    #[test]
    fn a_program_that_fails_is_told_with_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo why >&2; exit 3"]);
        let error = output(&mut command, &Interrupt::default()).unwrap_err().to_string();
        assert!(error.contains("why") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_signal_ends_a_program_and_what_it_started() {
        let interrupt = Interrupt::default();
        let other = interrupt.clone();
        let setter = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            other.set();
        });
        let started = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & wait"]);
        assert!(run(&mut command, &interrupt).is_err() && started.elapsed() < Duration::from_secs(20));
        setter.join().unwrap();
    }
}
