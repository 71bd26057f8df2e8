//! Files on a disk and in memory.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, OFlags, fallocate, statvfs};

use super::{Address, Environment, Kept, Mount, Need, Ready, place};
use crate::error::{Context, Error, Result};
use crate::ledger::Place;
use crate::program::{output, shown};

/// Makes a file with all its space taken.
///
/// # Errors
/// When there is no space, before any is taken.
pub fn allocate(path: &Path, bytes: u64) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let space = statvfs(directory).doing(directory.display())?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < bytes {
        return Err(Error::usage(format!(
            "{} has {} MiB free and {} MiB are needed; choose a smaller --size or another --dir",
            directory.display(),
            free >> 20,
            bytes >> 20
        )));
    }
    let file = File::create(path).doing(path.display())?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        // Some file systems cannot: the preconditioning writes everything in any case.
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes).doing(path.display()),
        Err(error) => Err(Error::io(format!("{}", path.display())).because(error)),
    }
}

/// Whether a file can be read past the page cache.
pub fn direct(path: &Path) -> bool {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(flags).open(path).is_ok()
}

/// A file of its own in a directory.
///
/// # Errors
/// When there is no space.
pub fn in_directory(directory: &Path, environment: &Environment<'_>) -> Result<Ready> {
    let place = place(&Environment { directory, ..*environment })?;
    let path = place.path().join("disk");
    allocate(&path, environment.size)?;
    let mut ready = plain(&path, environment.size);
    ready.place = Some(place);
    Ok(ready)
}

fn plain(path: &Path, size: u64) -> Ready {
    let direct = direct(path);
    let mut ready = Ready::new(Address::File { path: path.to_path_buf(), direct }, size);
    ready.note = (!direct && path.exists())
        .then(|| "its file system has no direct I/O, so it goes through the page cache".into());
    ready
}

/// A file on a tmpfs of its own, or where that may not be mounted, in /dev/shm.
///
/// # Errors
/// When memory does not suffice.
pub fn tmpfs(environment: &Environment<'_>) -> Result<Ready> {
    enough_memory(environment.size)?;
    if !rustix::process::geteuid().is_root() {
        return in_directory(Path::new("/dev/shm"), environment);
    }
    let place = Place::temporary("cvmio-bench-tmpfs-")?;
    let mut mount = Command::new("mount");
    // Space for an ext4's worth of a test and its own overhead.
    let size = format!("size={}", environment.size + environment.size / 8 + (16 << 20));
    mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(place.path());
    output(&mut mount, environment.interrupt)?;
    let mount_point = Mount::kernel(place);
    let path = mount_point.place().join("disk");
    if environment.need == Need::Blocks {
        allocate(&path, environment.size)?;
    }
    let mut ready = plain(&path, environment.size);
    ready.commands.push(shown(&mount));
    // It is memory, and has no disk to pass by.
    ready.page_cache = false;
    ready.mounts.push(Kept::Mount(mount_point));
    Ok(ready)
}

fn enough_memory(bytes: u64) -> Result<()> {
    let meminfo = fs::read_to_string("/proc/meminfo").doing("/proc/meminfo")?;
    let free = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib =
        free.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    match kib {
        Some(kib) if kib << 10 < bytes => Err(Error::usage(format!(
            "tmpfs: {} MiB of memory are available and {} MiB are needed; choose a smaller --size",
            kib >> 10,
            bytes >> 20
        ))),
        _ => Ok(()),
    }
}
