//! Paths that the user names: directories, files and block devices. What holds data is not touched without leave.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{Address, Environment, Ready, file, may_destroy};
use crate::error::{Context, Error, Result};

/// So much is looked at, at the beginning and at the end, to find out whether something holds data.
const LOOK: u64 = 1 << 20;

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
    let mut opened = open(path, kind.is_block_device())?;
    let size = opened.seek(SeekFrom::End(0)).doing(&shown)?;
    if size < environment.size {
        return Err(Error::usage(format!(
            "{shown} has {} MiB, and --size says {} MiB; choose a smaller --size",
            size >> 20,
            environment.size >> 20
        )));
    }
    if !may_destroy(&path.to_string_lossy(), environment) && holds_data(&mut opened, size).doing(&shown)? {
        return Err(Error::usage(format!(
            "{shown} holds data, which would be overwritten; if that may be lost, say --destroy-data {shown}"
        )));
    }
    let direct = file::direct(path);
    Ok(Ready::new(Address::File { path: path.to_path_buf(), direct }, environment.size))
}

/// Opens it for itself: the kernel then refuses a block device that is mounted, swapped on, or part of another.
fn open(path: &Path, device: bool) -> Result<File> {
    let flags = if device { OFlags::EXCL.bits() } else { 0 };
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(i32::try_from(flags).unwrap_or(0)).open(path);
    opened.map_err(|error| {
        let shown = path.display();
        if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) {
            return Error::usage(format!("{shown} is in use: it is mounted, or part of another device"));
        }
        Error::usage(format!("{shown} cannot be opened")).because(error)
    })
}

/// Whether the first or the last megabyte has anything but zeros.
fn holds_data(file: &mut File, size: u64) -> std::io::Result<bool> {
    for from in [0, size.saturating_sub(LOOK)] {
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.by_ref().take(LOOK).read_to_end(&mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}
