//! Virtual machines for tests: Debian's cloud kernel under QEMU's emulation, with `cvmio` and little else in them.
//!
//! A test asks for a [`Bed`], describes a [`Guest`], and hands it a script for a shell that is root there:
//!
//! ```no_run
//! let Some(bed) = guest::bed() else { return };
//! let said = bed.guest().modules(&["loop"]).succeed("cvmio --version");
//! ```
//!
//! Nothing is installed on this machine, and nothing needs root: packages are fetched once, checked by apt against the distribution's key,
//! and unpacked under `target/guest`, where each test program looks first whether all is as it was; their programs run there with their own
//! libraries ([decision 15](../../../docs/decisions/0015-guests.md)).

#![forbid(unsafe_code)]

mod command;
mod debian;
mod image;
mod machine;
mod program;
mod seal;
mod system;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use image::Guest;
pub use machine::{Outcome, Trouble};
pub use system::System;

use debian::Debian;

/// All that guests are made of, and this test's turn: there is one bed at a time, since a guest fills the processors.
#[derive(Debug)]
pub struct Bed {
    debian: &'static Debian,
    cvmio: PathBuf,
    running: PathBuf,
    /// Locked as long as the bed lives.
    _turn: File,
}

impl Bed {
    /// A new file of `size` bytes, all zeros, for [`Guest::disk`]. It is there until the next bed.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn disk(&self, name: &str, size: u64) -> PathBuf {
        let path = self.running.join(name);
        let made = File::create_new(&path).and_then(|file| file.set_len(size));
        made.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// `cvmio`, which runs on this machine as well.
    #[must_use]
    pub fn cvmio(&self) -> &Path {
        &self.cvmio
    }

    /// `cvmio-scm` and `libcvmio_scm.so`, which run on this machine: what they serve is the guest's persistent memory.
    ///
    /// # Panics
    /// When they do not build.
    #[must_use]
    pub fn scm(&self) -> (PathBuf, PathBuf) {
        program::scm(&target())
    }

    /// `cvmio-host`, which runs on this machine.
    ///
    /// # Panics
    /// When it does not build.
    #[must_use]
    pub fn host(&self) -> PathBuf {
        program::host(&target())
    }

    /// `cvmio-owner`, which runs on this machine.
    ///
    /// # Panics
    /// When it does not build.
    #[must_use]
    pub fn owner(&self) -> PathBuf {
        program::owner(&target())
    }

    /// `cvmio-job`, which runs on this machine and in guests of its own.
    ///
    /// # Panics
    /// When it does not build.
    #[must_use]
    pub fn job(&self) -> PathBuf {
        program::job(&target(), self.cvmio.parent().unwrap_or(Path::new("/")))
    }

    /// Puts `cvmio-bench` beside [`cvmio`](Self::cvmio).
    ///
    /// # Panics
    /// When it does not build.
    pub fn add_bench(&self) {
        program::bench(&target(), self.cvmio.parent().unwrap_or(Path::new("/")));
    }

    /// Writes a disk to an NBD server, such as `cvmio` is.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write_to(&self, disk: &Path, server: &str) {
        let mut command = self.debian.program("usr/bin/qemu-img");
        command::output(command.args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(disk).arg(server));
    }

    /// A directory with `boot/vmlinuz-VERSION` and the modules of that kernel.
    #[must_use]
    pub fn kernel(&self) -> PathBuf {
        self.debian.path("")
    }

    /// The kernel of [`kernel`](Self::kernel), as QEMU boots it.
    #[must_use]
    pub fn kernel_image(&self) -> PathBuf {
        self.debian.kernel()
    }

    /// QEMU as one program for this machine.
    ///
    /// # Panics
    /// When the script that starts it cannot be written.
    #[must_use]
    pub fn qemu(&self) -> PathBuf {
        let path = self.running.join("qemu");
        let script = machine::script(self.debian);
        fs::write(&path, script).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        command::output(std::process::Command::new("chmod").arg("+x").arg(&path));
        path
    }

    /// A guest that can be booted, with `cvmio` and busybox in it.
    #[must_use]
    pub fn guest(&self) -> Guest<'_> {
        Guest::new(self)
    }

    /// A Debian system for a guest, with nothing of ours in it yet.
    ///
    /// # Panics
    /// When it cannot be copied.
    #[must_use]
    pub fn system(&self) -> System<'_> {
        System::new(self)
    }

    /// A Debian package of `cvmio`, with this version. `None` where there is no cargo-deb, and says so in a line that `scripts/test` counts.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn package(&self, version: &str) -> Option<PathBuf> {
        program::package(version).inspect_err(|reason| skipped(reason)).ok()
    }

    fn tests(&self, name: &str) -> Vec<(String, PathBuf)> {
        program::tests(&target(), &self.running, name)
    }
}

/// Waits for this test's turn. `None` where no guest can be made, and says why in a line that `scripts/test` counts.
///
/// # Panics
/// If the directory for guests cannot be used, or `cvmio` does not build.
#[must_use]
pub fn bed() -> Option<Bed> {
    let directory = target().join("guest");
    fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let turn = File::create(directory.join("lock")).expect("the lock of guests can be made");
    turn.lock().expect("the lock of guests can be taken");
    // What a test that was killed has left.
    let running = directory.join("running");
    let _ = fs::remove_dir_all(&running);
    fs::create_dir_all(&running).expect("the directory of running guests can be made");
    // Once: to look at all that is there takes seconds.
    static DEBIAN: OnceLock<Result<Debian, String>> = OnceLock::new();
    match DEBIAN.get_or_init(|| Debian::get(&directory.join("debian"))) {
        Ok(debian) => {
            // Once, too: cargo takes a second or more to find that nothing has changed.
            static CVMIO: OnceLock<PathBuf> = OnceLock::new();
            let cvmio = CVMIO.get_or_init(|| program::cvmio(&target(), &directory)).clone();
            Some(Bed { debian, cvmio, running, _turn: turn })
        }
        Err(reason) => {
            skipped(reason);
            None
        }
    }
}

fn skipped(reason: &str) {
    let thread = std::thread::current();
    // Straight to the stream: what `eprintln!` says is shown only when a test fails.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {}: {reason}", thread.name().unwrap_or("a test"));
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Cargo's directory for what it makes.
fn target() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").map(|path| workspace().join(path));
    let path = chosen.unwrap_or_else(|| workspace().join("target"));
    fs::create_dir_all(&path).and_then(|()| path.canonicalize()).expect("cargo's directory can be made")
}
