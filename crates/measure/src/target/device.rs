//! Paths that the user names: directories, files and block devices. What holds data is not touched without leave.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;

use super::{Address, Environment, Ready, blank, file, may_destroy};
use crate::error::{Context, Error, Result};
use crate::program::run;

/// Takes a path as a target.
///
/// # Errors
/// When it is not there, in use, too small, or holds data and was not named in `--destroy-data`.
pub fn start(path: &Path, environment: &Environment<'_>) -> Result<Ready> {
    let shown = path.display();
    let kind =
        std::fs::metadata(path).map_err(|error| Error::usage(format!("{shown}")).because(error))?.file_type();
    if kind.is_dir() {
        return file::in_directory(path, environment);
    }
    if !kind.is_block_device() && !kind.is_file() {
        return Err(Error::usage(format!("{shown} is neither a directory, nor a file, nor a block device")));
    }
    let mut opened = open(path)?;
    let size = opened.seek(SeekFrom::End(0)).doing(&shown)?;
    if size < environment.size {
        return Err(Error::usage(format!(
            "{shown} has {} MiB, and --size says {} MiB; choose a smaller --size",
            size >> 20,
            environment.size >> 20
        )));
    }
    if !may_destroy(&path.to_string_lossy(), environment) {
        let found = blank::data_in(&opened, size, environment.size, environment.interrupt)?;
        if let Some(at) = found {
            let what = signature(&opened, environment).map(|what| format!(" ({what})")).unwrap_or_default();
            return Err(Error::usage(format!(
                "{shown} holds data{what}, at byte {at}, which would be overwritten; if that may be lost, say --destroy-data {shown}"
            )));
        }
    }
    let direct = file::direct(path);
    let mut ready = Ready::new(Address::File { path: path.to_path_buf(), direct }, environment.size);
    // It is kept open: what was looked at is what is overwritten, and nobody mounts a device meanwhile.
    ready.handle = Some(opened);
    Ok(ready)
}

/// What blkid takes it for, for people; whether it holds data does not depend on that.
fn signature(file: &File, environment: &Environment<'_>) -> Option<String> {
    let mut ask = Command::new("blkid");
    ask.args(["-p", "-o", "value", "-s", "TYPE", "-s", "PTTYPE", "--"]);
    ask.arg(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    let said = run(&mut ask, environment.interrupt).ok()?.said;
    let words: Vec<&str> = said.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Opens it for itself: the kernel then refuses a block device that is mounted, swapped on, or part of another.
fn open(path: &Path) -> Result<File> {
    let open = |flags: OFlags| {
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        opened.map_err(|error| {
            let shown = path.display();
            if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) {
                return Error::usage(format!("{shown} is in use: it is mounted, or part of another device"));
            }
            Error::usage(format!("{shown} cannot be opened")).because(error)
        })
    };
    // Not blocking: somebody may have put a pipe in its place.
    let plain = open(OFlags::NONBLOCK)?;
    let kind = plain.metadata().doing(path.display())?.file_type();
    if kind.is_file() {
        return Ok(plain);
    }
    let exclusive = open(OFlags::EXCL | OFlags::NONBLOCK)?;
    if exclusive.metadata().doing(path.display())?.file_type().is_block_device() {
        return Ok(exclusive);
    }
    Err(Error::usage(format!("{} is neither a file nor a block device", path.display())))
}
