//! A server's own view of what is mounted.

use crate::Error;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change};
use rustix::thread::UnshareFlags;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Gives the calling thread, and those that it starts from now on, a mount namespace of its own, without what lies on ublk devices. To be called
/// once, before any other thread is started.
///
/// A process that holds the last mount of a file system unmounts it as it ends, also when it is killed. If that lies on the device that the process
/// serves, it waits for itself, and nobody can end it. The last mount may be in a namespace that the process shares, or a copy that it got when
/// it left one. What is unmounted elsewhere later is unmounted here too, where mounts are shared (as systemd has them).
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`.
pub fn leave() -> Result<(), Error> {
    let fail = |errno| Error::system("leaving the mount namespace", errno);
    // SAFETY: only mounts are unshared, and with them this thread's root and working directory; no file descriptor changes its meaning.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.map_err(fail)?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).map_err(fail)?;
    let table = fs::read("/proc/self/mountinfo")
        .map_err(|error| Error::io("reading /proc/self/mountinfo", &error))?;
    // The newest first: it may cover older ones.
    for mount in mounts(&table).into_iter().rev().filter(lies_on_ublk) {
        rustix::mount::unmount(&mount.at, UnmountFlags::DETACH)
            .map_err(|errno| Error::at("leaving", &mount.at, errno))?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Major and minor number of the file system's device, as `8:1`.
    device: String,
    at: PathBuf,
    /// What was mounted, if that is a path.
    source: PathBuf,
}

/// The lines of a mountinfo (proc_pid_mountinfo(5)).
fn mounts(table: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        // Behind the dash: type, source, options. How many fields there are in front of it, differs.
        let dash = fields.iter().position(|&field| field == b"-")?;
        Some(Mount {
            device: String::from_utf8(fields.get(2)?.to_vec()).ok()?,
            at: path(fields.get(4)?),
            source: path(fields.get(dash + 2)?),
        })
    };
    table.split(|&byte| byte == b'\n').filter_map(mount).collect()
}

/// A path in which the kernel writes blanks and backslashes as three octal digits.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = (first == b'\\').then(|| tail.first_chunk::<3>()).flatten();
        let value = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(first));
        rest = if value.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes).into()
}

/// Whether a mount's device is a ublk device, a part of one, or lies on one.
fn lies_on_ublk(mount: &Mount) -> bool {
    // A file system of many devices has a number of its own, and names one of them.
    let source = fs::metadata(&mount.source).ok().filter(|_| mount.source.starts_with("/dev")).map(|found| {
        let number = found.rdev();
        format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
    });
    let devices = std::iter::once(mount.device.clone()).chain(source);
    devices.into_iter().any(|device| is_on_ublk(&Path::new("/sys/dev/block").join(device)))
}

fn is_on_ublk(device: &Path) -> bool {
    let Ok(device) = device.canonicalize() else { return false };
    if device.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"ublkb")) {
        return true;
    }
    let below = fs::read_dir(device.join("slaves"));
    below.into_iter().flatten().flatten().any(|entry| is_on_ublk(&entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_whatever_is_in_their_paths() {
        let table = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
            41 36 259:2 / /srv/my\\040own\\134data rw - ext4 /dev/ublkb0 rw\nnonsense\n";
        let mount = |device: &str, at: &str, source: &str| Mount {
            device: device.into(),
            at: at.into(),
            source: source.into(),
        };
        let expected =
            [mount("98:0", "/mnt2", "/dev/root"), mount("259:2", "/srv/my own\\data", "/dev/ublkb0")];
        assert_eq!(mounts(table), expected);
        assert_eq!(path(b"\\04"), PathBuf::from("\\04"), "cut off");
    }

    #[test]
    fn what_lies_on_no_device_lies_on_no_ublk_device() {
        let table = fs::read("/proc/self/mountinfo").unwrap();
        let found = mounts(&table).into_iter().find(|mount| mount.at == Path::new("/proc")).unwrap();
        assert!(!lies_on_ublk(&found));
    }
}
