//! Loop devices: a block device on top of a file.
//!
//! All of these wait for the file to be served, so a daemon that serves it must call them on a thread that does
//! not, and better leaves them to another process: a process that is killed while it waits for itself stays.
//!
//! Source: loop(4), and `linux/loop.h`.

use crate::{BLOCK_SIZE, Error};
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::ioctl::{self, Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter};
use std::ffi::{OsStr, OsString, c_void};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const CLEAR: Opcode = 0x4c01;
const SET_STATUS: Opcode = 0x4c04;
const GET_STATUS: Opcode = 0x4c05;
const SET_CAPACITY: Opcode = 0x4c07;
const CONFIGURE: Opcode = 0x4c0a;
const GET_FREE: Opcode = 0x4c82;

/// All loop devices have it (Documentation/admin-guide/devices.txt).
const MAJOR: u32 = 7;

const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

/// How often another process may take the free device before we do.
const ATTEMPTS: u32 = 32;

/// How long a device that was detached may stay open: probers such as udev look at it when it appears.
const PATIENCE: Duration = Duration::from_millis(2000);
const GLANCE: Duration = Duration::from_millis(10);

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// `LOOP_CTL_GET_FREE`: answers with the number of a loop device that is free.
struct GetFree;

// SAFETY: the operation takes no argument, so the null pointer is never followed, and it writes no memory.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(output).map_err(|_| Errno::INVAL)
    }
}

/// Makes a block device of `file`, with sectors of 4096 bytes and direct I/O, and returns its path.
///
/// # Errors
/// [`Error::Usage`] without a loop driver, or if the file can't do direct I/O; [`Error::System`] if the kernel refuses.
pub fn attach(file: &Path, read_only: bool) -> Result<PathBuf, Error> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let backing = rustix::fs::open(file, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::at("opening", file, errno))?;
    let config = configuration(&backing, file, read_only)?;
    for _ in 0..ATTEMPTS {
        let number = free_number()?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open_device(&path, number, access)?;
        // SAFETY: CONFIGURE reads a `struct loop_config`, and `Config` has its layout and is initialised in full.
        match unsafe { ioctl::ioctl(&device, Setter::<CONFIGURE, Config>::new(config)) } {
            // Somebody else has taken it since.
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(Error::at("attaching a loop device to", file, errno)),
            Ok(()) => {
                let sized = check_size(&path, &device, &backing);
                // With this one open, nobody could detach it.
                drop(device);
                if sized.is_err() {
                    detach(&path)?;
                }
                sized?;
                return check_direct(&path, number);
            }
        }
    }
    Err(Error::Busy("other processes take every free loop device before we do: try again".into()))
}

/// Detaches the loop device at `path`. What the page cache holds of it is written first. One that stays in use stays attached, also when its
/// last user has gone.
///
/// # Errors
/// [`Error::Busy`] if it is mounted or otherwise in use, [`Error::Usage`] if nothing is attached to it.
pub fn detach(path: &Path) -> Result<(), Error> {
    let number = number_of(path)?;
    // Exclusively: refused while a file system is mounted from it.
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let device = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::BUSY => in_use(path),
        errno => Error::at("opening", path, errno),
    })?;
    let before = sequence(number);
    // SAFETY: CLEAR takes no argument.
    match unsafe { ioctl::ioctl(&device, NoArg::<CLEAR>::new()) } {
        Ok(()) => {}
        Err(Errno::NXIO) => {
            return Err(Error::Usage(format!("{}: nothing is attached to it", path.display())));
        }
        Err(errno) => return Err(Error::at("detaching", path, errno)),
    }
    // The kernel lets go of the file when the last one closes the device.
    drop(device);
    let mut waited = Duration::ZERO;
    // Another one may have the number by then.
    while is_attached(number) && sequence(number) == before {
        if waited >= PATIENCE {
            return if keep(path, number, before.as_deref())? { Err(in_use(path)) } else { Ok(()) };
        }
        std::thread::sleep(GLANCE);
        waited += GLANCE;
    }
    Ok(())
}

/// Takes back that a device is to be detached when its last user closes it: its number would be free then, and may soon be that of another one,
/// while it is still named as ours. Says whether it was attached.
fn keep(path: &Path, number: u32, before: Option<&str>) -> Result<bool, Error> {
    // While this is open, ours is not the last close.
    let device = open_device(path, number, OFlags::RDONLY)?;
    if sequence(number).as_deref() != before {
        return Ok(false);
    }
    // SAFETY: GET_STATUS writes a `struct loop_info64`, and `Info` has its layout and is valid with any bytes.
    let mut info = match unsafe { ioctl::ioctl(&device, Getter::<GET_STATUS, Info>::new()) } {
        Err(Errno::NXIO) => return Ok(false),
        other => other.map_err(|errno| Error::at("looking at", path, errno))?,
    };
    info.flags &= !AUTOCLEAR;
    // SAFETY: SET_STATUS reads a `struct loop_info64`, and `Info` has its layout and is initialised in full.
    unsafe { ioctl::ioctl(&device, Setter::<SET_STATUS, Info>::new(info)) }
        .map_err(|errno| Error::at("keeping", path, errno))?;
    Ok(true)
}

/// Has the loop device at `path` take the size that its file has now, also while it is in use.
///
/// # Errors
/// [`Error::Usage`] if nothing is attached to it, [`Error::System`] if the kernel refuses.
pub fn resize(path: &Path) -> Result<(), Error> {
    let number = number_of(path)?;
    let nothing = || Error::Usage(format!("{}: nothing is attached to it", path.display()));
    let file = backing_file(OsStr::new(&format!("loop{number}"))).ok_or_else(nothing)?;
    // The driver takes the size that the kernel knows, and it asks the server of the file only when the size is looked at.
    fs::metadata(&file).map_err(|error| Error::io(format!("looking at {}", file.display()), &error))?;
    let device = open_device(path, number, OFlags::RDONLY)?;
    // SAFETY: SET_CAPACITY takes no argument.
    match unsafe { ioctl::ioctl(&device, NoArg::<SET_CAPACITY>::new()) } {
        Ok(()) => Ok(()),
        Err(Errno::NXIO) => Err(nothing()),
        Err(errno) => Err(Error::at("resizing", path, errno)),
    }
}

/// The loop devices that are attached to `file`, a path without links in it.
///
/// The file itself is never looked at: who serves it and is killed while it waits for its own answer stays, with the store locked.
///
/// # Errors
/// [`Error::System`] if `/sys/block` can't be read.
pub fn holders(file: &Path) -> Result<Vec<PathBuf>, Error> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.into());
    let blocks = Path::new("/sys/block");
    let reading = |error: std::io::Error| Error::io("reading /sys/block", &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(blocks).map_err(reading)? {
        let name = entry.map_err(reading)?.file_name();
        if backing_file(&name).is_some_and(|backing| backing == file) {
            found.push(Path::new("/dev").join(name));
        }
    }
    found.sort();
    Ok(found)
}

/// What a loop device is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// The device of the file system of its file, as stat(2) has it.
    pub device: u64,
    /// The file's inode there.
    pub inode: u64,
    /// Its number, if that is a block device itself.
    pub block_device: Option<u64>,
    /// At which of its bytes the loop device begins.
    pub offset: u64,
}

/// What the loop device at `path` is made of. `None` if nothing is attached to it, it is no loop device, or the kernel tells us nothing.
///
/// The kernel asks who serves the file: see [`holders`] for a way that does not.
#[must_use]
pub fn backing(path: &Path) -> Option<Backing> {
    let device =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).ok()?;
    // The request means something else to another driver.
    let kind = rustix::fs::fstat(&device).ok()?;
    if FileType::from_raw_mode(kind.st_mode) != FileType::BlockDevice
        || rustix::fs::major(kind.st_rdev) != MAJOR
    {
        return None;
    }
    // SAFETY: GET_STATUS writes a `struct loop_info64`, and `Info` has its layout and is valid with any bytes.
    let info = unsafe { ioctl::ioctl(&device, Getter::<GET_STATUS, Info>::new()) }.ok()?;
    let block_device = Some(info.rdevice).filter(|number| *number != 0);
    Some(Backing { device: info.device, inode: info.inode, block_device, offset: info.offset })
}

/// What tells this use of a loop device from every other one, before and after it: the kernel numbers them from boot to boot. `None` if
/// nothing is attached to it, or the kernel does not number them (before Linux 5.15).
#[must_use]
pub fn identity(path: &Path) -> Option<String> {
    let number = number_of(path).ok().filter(|number| is_attached(*number))?;
    let sequence = sequence(number)?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{} {} {}", path.display(), sequence.trim(), boot.trim()))
}

/// Another number for each use of the device; `None` where the kernel has none (before Linux 5.15).
fn sequence(number: u32) -> Option<String> {
    fs::read_to_string(format!("/sys/block/loop{number}/diskseq")).ok()
}

fn configuration(backing: &OwnedFd, file: &Path, read_only: bool) -> Result<Config, Error> {
    let invalid = |_| Error::at("attaching a loop device to", file, Errno::INVAL);
    let mut file_name = [0; 64];
    // Only what is shown to people; the last byte stays zero.
    for (to, from) in file_name[..63].iter_mut().zip(file.as_os_str().as_bytes()) {
        *to = *from;
    }
    let info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: DIRECT_IO | if read_only { READ_ONLY } else { 0 },
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    Ok(Config {
        fd: u32::try_from(backing.as_raw_fd()).map_err(invalid)?,
        block_size: u32::try_from(BLOCK_SIZE).map_err(invalid)?,
        info,
        reserved: [0; 8],
    })
}

fn free_number() -> Result<u32, Error> {
    let path = Path::new("/dev/loop-control");
    let control = open_node(path, FileType::CharacterDevice, (10, 237), OFlags::RDWR)?;
    // SAFETY: see `GetFree`.
    unsafe { ioctl::ioctl(&control, GetFree) }
        .map_err(|errno| Error::at("finding a free loop device in", path, errno))
}

fn open_device(path: &Path, number: u32, access: OFlags) -> Result<OwnedFd, Error> {
    open_node(path, FileType::BlockDevice, (MAJOR, number), access)
}

/// Opens a device, and makes its node where nobody else does (a container without devtmpfs).
fn open_node(
    path: &Path,
    kind: FileType,
    (major, minor): (u32, u32),
    access: OFlags,
) -> Result<OwnedFd, Error> {
    let open = || rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty());
    let opened = match open() {
        Err(Errno::NOENT) => {
            let mode = Mode::RUSR | Mode::WUSR;
            match rustix::fs::mknodat(CWD, path, kind, mode, rustix::fs::makedev(major, minor)) {
                Ok(()) | Err(Errno::EXIST) => open(),
                Err(errno) => return Err(Error::at("making the device node", path, errno)),
            }
        }
        opened => opened,
    };
    opened.map_err(|errno| match errno {
        Errno::NODEV | Errno::NXIO => Error::Usage(format!(
            "{}: this kernel has no loop driver: load it (modprobe loop)",
            path.display()
        )),
        errno => Error::at("opening", path, errno),
    })
}

/// The kernel falls back to the page cache where direct I/O is not possible. On our own export that would hold
/// everything twice, and could lock up when memory runs out.
/// The driver asks the file system for the file's size, and takes an error for a size of nothing (`lo_calculate_size`): the device would be there,
/// and empty.
fn check_size(path: &Path, device: &OwnedFd, backing: &OwnedFd) -> Result<(), Error> {
    let looking = |errno| Error::at("looking at", path, errno);
    let wanted = rustix::fs::fstat(backing).map_err(looking)?.st_size;
    for again in [true, false] {
        if rustix::fs::seek(device, SeekFrom::End(0)).map_err(looking)? > 0 || wanted == 0 {
            return Ok(());
        }
        if again {
            // SAFETY: SET_CAPACITY takes no argument.
            unsafe { ioctl::ioctl(device, NoArg::<SET_CAPACITY>::new()) }.map_err(looking)?;
        }
    }
    Err(Error::Busy(format!("the kernel does not learn the size of {}: try again", path.display())))
}

fn check_direct(path: &Path, number: u32) -> Result<PathBuf, Error> {
    if fs::read_to_string(format!("/sys/block/loop{number}/loop/dio")).is_ok_and(|dio| dio.trim() == "1") {
        return Ok(path.into());
    }
    detach(path)?;
    Err(Error::Usage(
        "the kernel can't do direct I/O of 4096 bytes on this file, so no loop device is made of it".into(),
    ))
}

fn number_of(path: &Path) -> Result<u32, Error> {
    let name = path.strip_prefix("/dev").ok().and_then(Path::to_str);
    name.and_then(|name| name.strip_prefix("loop"))
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| {
            Error::Usage(format!("{}: this is not a loop device (/dev/loop and a number)", path.display()))
        })
}

fn is_attached(number: u32) -> bool {
    backing_file(OsStr::new(&format!("loop{number}"))).is_some()
}

/// The file under a loop device, as the kernel names it.
fn backing_file(name: &OsStr) -> Option<PathBuf> {
    let mut content = fs::read(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()?;
    content.pop_if(|last| *last == b'\n');
    Some(PathBuf::from(OsString::from_vec(content)))
}

fn in_use(path: &Path) -> Error {
    Error::Busy(format!(
        "{} is in use: unmount what is mounted from it, and close it everywhere",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loop_devices_are_taken_for_such() {
        assert_eq!(number_of(Path::new("/dev/loop0")), Ok(0));
        assert_eq!(number_of(Path::new("/dev/loop123")), Ok(123));
        for other in [
            "/dev/loop",
            "/dev/loop-control",
            "/dev/loop+1",
            "/dev/sda",
            "loop1",
            "/dev/loop1p1",
            "/dev/loop99999999999",
        ] {
            assert!(matches!(number_of(Path::new(other)), Err(Error::Usage(_))), "{other}");
        }
    }

    #[test]
    fn a_file_without_loop_devices_has_no_holders() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(holders(file.path()), Ok(Vec::new()));
    }
}
