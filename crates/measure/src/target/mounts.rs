//! Mounts and devices that end with their owner.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::ledger::{self, Place, Recorded};
use crate::program::{Server, run};
use cli::interrupt::Interrupt;

/// Something that is undone when it is dropped.
#[derive(Debug)]
pub enum Kept {
    /// A mounted file system.
    Mount(Mount),
    /// A command that undoes something.
    Undo(Undo),
}

impl Kept {
    /// The directory of a kernel's file system.
    pub fn mounted_at(&self) -> Option<&Path> {
        match self {
            Self::Mount(mount) if mount.server.is_none() => Some(mount.place()),
            _ => None,
        }
    }
}

/// Runs a command when dropped, and then crosses out what was recorded.
#[derive(Debug)]
pub struct Undo {
    command: Vec<String>,
    recorded: Vec<Recorded>,
}

impl Undo {
    /// A program with its arguments, and the records of what it undoes.
    pub fn new(command: &[&str], recorded: Vec<Recorded>) -> Self {
        Self { command: command.iter().map(|word| (*word).to_string()).collect(), recorded }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some((program, arguments)) = self.command.split_first() else { return };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        if !command.status().is_ok_and(|status| status.success()) {
            // The next run tries again.
            self.recorded.drain(..).for_each(Recorded::leave);
        }
    }
}

/// A mounted file system in a directory of its own.
#[derive(Debug)]
pub struct Mount {
    /// Removed when nothing is mounted on it any more, and else left to the next run.
    place: Place,
    server: Option<Server>,
}

impl Mount {
    /// One that `mount` has mounted on `place`.
    pub fn kernel(place: Place) -> Self {
        Self { place, server: None }
    }

    /// One that a program serves; it is there when it shows `file`.
    pub fn fuse(command: &mut Command, place: Place, file: &str, interrupt: &Interrupt) -> Result<Self> {
        let path = place.path().to_path_buf();
        let server = Server::start(command)?;
        let mut mount = Self { place, server: Some(server) };
        if let Some(server) = &mut mount.server {
            server.wait_until(interrupt, || path.join(file).exists())?;
        }
        Ok(mount)
    }

    /// Its directory.
    pub fn place(&self) -> &Path {
        self.place.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmount = |more: &[&str]| {
            let mut unmount = Command::new("umount");
            unmount.args(more).arg(self.place.path()).stdin(Stdio::null()).stderr(Stdio::null());
            unmount.status().is_ok_and(|status| status.success())
        };
        if !unmount(&[]) {
            // Somebody still uses it: it goes when they end.
            unmount(&["-l"]);
        }
        self.server = None;
    }
}

/// Attaches a loop device to a file.
///
/// # Errors
/// When there is none to be had.
pub fn loop_device(file: &Path, interrupt: &Interrupt) -> Result<(PathBuf, Kept)> {
    let attach = |direct: &str| {
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show", &format!("--direct-io={direct}")]).arg(file);
        attach
    };
    let asked = ledger::loop_device(file)?;
    let mut first = attach("on");
    let ended = run(&mut first, interrupt)?;
    let said = if ended.success {
        ended.said
    } else {
        // Some file systems have no direct I/O.
        let mut second = attach("off");
        run(&mut second, interrupt)?.must_succeed(&second)?.said
    };
    let device = said.trim().to_string();
    if device.is_empty() {
        return Err(Error::io("losetup names no device"));
    }
    let known = ledger::attached(Path::new(&device), file)?;
    let undo = Undo::new(&["losetup", "--detach", &device], vec![asked, known]);
    Ok((PathBuf::from(device), Kept::Undo(undo)))
}
