//! Mounts and devices that end with their owner.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::error::{Error, Result};
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

/// Runs a command when dropped.
#[derive(Debug)]
pub struct Undo(pub Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some((program, arguments)) = self.0.split_first() {
            // There is nothing left to do where it fails, and the next run finds out.
            let _ = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// A mounted file system in a directory of its own.
#[derive(Debug)]
pub struct Mount {
    place: Option<TempDir>,
    path: PathBuf,
    server: Option<Server>,
}

impl Mount {
    /// One that `mount` has mounted on `place`.
    pub fn kernel(place: TempDir) -> Self {
        Self { path: place.path().to_path_buf(), place: Some(place), server: None }
    }

    /// One that a program serves; it is there when it shows `file`.
    pub fn fuse(command: &mut Command, place: TempDir, file: &str, interrupt: &Interrupt) -> Result<Self> {
        let path = place.path().to_path_buf();
        let server = Server::start(command)?;
        let mut mount = Self { place: Some(place), path: path.clone(), server: Some(server) };
        if let Some(server) = &mut mount.server {
            server.wait_until(interrupt, || path.join(file).exists())?;
        }
        Ok(mount)
    }

    /// Its directory.
    pub fn place(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg(&self.path).stdin(Stdio::null()).stderr(Stdio::null());
        let unmounted = unmount.status().is_ok_and(|status| status.success());
        if !unmounted {
            // Somebody still uses it: it goes when they end.
            let _ = Command::new("umount").arg("-l").arg(&self.path).stderr(Stdio::null()).status();
        }
        self.server = None;
        if let Some(place) = self.place.take() {
            // Never recursively: if it is mounted after all, what is on it is not ours to remove.
            let path = place.keep();
            let _ = std::fs::remove_dir(path);
        }
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
    let undo = Undo(["losetup", "--detach", &device].map(String::from).to_vec());
    Ok((PathBuf::from(device), Kept::Undo(undo)))
}
