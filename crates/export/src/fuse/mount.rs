//! Mounting and unmounting, without any library: by mount(2), or by `fusermount3` for who may not do that.

use super::Options;
use super::covered::Covered;
use crate::Error;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::{CString, OsStr};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAME: &str = "cvmio";

/// A directory with our file system on it.
#[derive(Debug)]
pub(super) struct MountPoint {
    path: PathBuf,
    /// The kernel's number of our mount: somebody may have mounted another file system over it.
    id: u64,
}

/// What a new mount consists of.
pub(super) struct Mounted {
    pub(super) point: MountPoint,
    /// The directory below.
    pub(super) covered: Covered,
    /// Where the kernel's requests arrive.
    pub(super) channel: OwnedFd,
}

impl MountPoint {
    /// Mounts on a directory, in which the first thing on the way to the file will be called `name`.
    pub(super) fn mount(mountpoint: &Path, name: &str, options: &Options) -> Result<Mounted, Error> {
        let path = std::path::absolute(mountpoint)
            .map_err(|error| Error::io(format!("finding {}", mountpoint.display()), &error))?;
        clear_dead(&path)?;
        // Links must be gone from the path: it is used again for unmounting.
        let path =
            path.canonicalize().map_err(|error| Error::io(format!("finding {}", path.display()), &error))?;
        clear_dead(&path)?;
        if mount_id(&path)?.is_root {
            return Err(mounted_already(&path));
        }
        let covered = Covered::lock(&path, name)?;
        if mount_id(&path)?.is_root {
            return Err(mounted_already(&path));
        }
        let channel = match mount_directly(&path, options) {
            Err(Error::System { errno: Errno::PERM, .. }) => mount_by_helper(&path, options)?,
            result => result?,
        };
        let id = mount_id(&path)?.id;
        Ok(Mounted { point: MountPoint { path, id }, covered, channel })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts, if nobody uses the file.
    pub(super) fn unmount(&self) -> Result<(), Error> {
        self.check_ours()?;
        unmount(&self.path, UnmountFlags::empty())
    }

    /// Takes the mount out of the directory tree, also while the file is in use.
    pub(super) fn detach(&self) -> Result<(), Error> {
        self.check_ours()?;
        unmount(&self.path, UnmountFlags::DETACH)
    }

    fn check_ours(&self) -> Result<(), Error> {
        if mount_id(&self.path)?.id == self.id {
            return Ok(());
        }
        Err(Error::Busy(format!(
            "{}: something else is mounted here now, or our mount was detached while in use: unmount that, or wait",
            self.path.display()
        )))
    }
}

struct MountId {
    id: u64,
    is_root: bool,
}

/// Asks the kernel, never the file system: its daemon may be dead, or be us.
fn mount_id(path: &Path) -> Result<MountId, Error> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::MNT_ID)
        .map_err(|errno| Error::at("looking at", path, errno))?;
    let is_root = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    Ok(MountId { id: found.stx_mnt_id, is_root })
}

pub(super) fn mounted_already(path: &Path) -> Error {
    Error::Busy(format!(
        "{}: something is mounted here already: unmount it, or use another directory",
        path.display()
    ))
}

/// Detaches what a crashed daemon left at `path`.
pub(super) fn clear_dead(path: &Path) -> Result<(), Error> {
    match rustix::fs::stat(path) {
        // Transport endpoint is not connected.
        Err(Errno::NOTCONN) => unmount(path, UnmountFlags::DETACH),
        Err(Errno::NOENT) => {
            Err(Error::Usage(format!("{}: there is no such directory to mount on: make one", path.display())))
        }
        Err(errno) => Err(Error::at("looking at", path, errno)),
        Ok(_) => Ok(()),
    }
}

fn mount_directly(path: &Path, options: &Options) -> Result<OwnedFd, Error> {
    let device = Path::new("/dev/fuse");
    let channel = rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(
        |errno| match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                Error::Usage("this kernel has no FUSE: load its module (modprobe fuse)".into())
            }
            Errno::ACCESS => Error::Usage(
                "this user may not open /dev/fuse: let everybody read and write it (chmod 666 /dev/fuse), as most systems do".into(),
            ),
            errno => Error::at("opening", device, errno),
        },
    )?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{}",
        channel.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        if options.allow_other { ",allow_other" } else { "" },
    );
    let data = CString::new(data).map_err(|_| Error::at("mounting on", path, Errno::INVAL))?;
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NOATIME;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    rustix::mount::mount(NAME, path, format!("fuse.{NAME}"), flags, data.as_c_str())
        .map_err(|errno| Error::at("mounting on", path, errno))?;
    Ok(channel)
}

/// `fusermount3` mounts for ordinary users, and sends the channel over the socket that `_FUSE_COMMFD` names.
fn mount_by_helper(path: &Path, options: &Options) -> Result<OwnedFd, Error> {
    let doing = || format!("mounting on {} with fusermount3", path.display());
    let (ours, theirs) = UnixStream::pair().map_err(|error| Error::io(doing(), &error))?;
    let mut wanted = format!("fsname={NAME},subtype={NAME},nodev,nosuid,noexec,noatime,default_permissions");
    for (set, option) in [(options.read_only, ",ro"), (options.allow_other, ",allow_other")] {
        if set {
            wanted.push_str(option);
        }
    }
    // As its standard input, the socket outlives exec under a number that is known.
    let child = Command::new("fusermount3")
        .args([OsStr::new("-o"), OsStr::new(&wanted), OsStr::new("--"), path.as_os_str()])
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::Usage(
                "mounting needs root, or fusermount3, which is not installed (package fuse3)".into(),
            ),
            _ => Error::io(doing(), &error),
        })?;
    // Nothing else holds the other end, so this ends when the helper does.
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(|error| Error::io(doing(), &error))?;
    match received {
        Ok(Some(channel)) if output.status.success() => Ok(channel),
        Err(errno) => Err(Error::system(doing(), errno)),
        _ => Err(Error::Usage(format!("{}: {}", doing(), String::from_utf8_lossy(&output.stderr).trim()))),
    }
}

fn receive_descriptor(socket: &UnixStream) -> Result<Option<OwnedFd>, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

fn unmount(path: &Path, flags: UnmountFlags) -> Result<(), Error> {
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(still_in_use(path)),
        Err(Errno::PERM) => unmount_by_helper(path, flags.contains(UnmountFlags::DETACH)),
        Err(errno) => Err(Error::at("unmounting", path, errno)),
    }
}

fn unmount_by_helper(path: &Path, lazily: bool) -> Result<(), Error> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path).stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| Error::io(format!("unmounting {} with fusermount3", path.display()), &error))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    if why.contains("busy") {
        return Err(still_in_use(path));
    }
    Err(Error::Usage(format!("unmounting {} with fusermount3: {}", path.display(), why.trim())))
}

fn still_in_use(path: &Path) -> Error {
    Error::Busy(format!("{} is still in use: unmount and detach what lies on it first", path.display()))
}
