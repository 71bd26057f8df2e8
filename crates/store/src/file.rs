//! A file or block device of the host, over `io_uring`.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::patience::{GIVEN_UP, Question, Silences};
use crate::uring::FileQueue;
use crate::{BLOCK_SIZE, Error, ErrorKind, Queue, Store, Usage};

pub(crate) const BLOCK: u64 = 4096;
const _: () = assert!(BLOCK_SIZE == 4096, "BLOCK is BLOCK_SIZE as the kernel counts");

/// How often and after what pause something in use is tried again.
const RETRIES: u32 = 15;
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// How long the host may take to say how much room is left, before what it said last counts.
const USAGE_PATIENCE: Duration = Duration::from_secs(1);

/// How to open a file or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Go past the page cache (`O_DIRECT`). Without it, data is copied once more and lies twice in memory.
    pub direct: bool,
    /// Open for reading only: writes and discards fail as `ReadOnly`. Several may so have one file or device.
    pub read_only: bool,
    /// Create a sparse file of so many blocks. It must not exist yet, or be empty: that is what is left where this was interrupted.
    pub create: Option<u64>,
    /// Refuse what somebody else has open this way: by `flock` for a file, by `O_EXCL` for a device, which
    /// also keeps mounted ones out. Those that only read a device are known to each other, and to who would
    /// write there, by a shared `flock`.
    pub exclusive: bool,
    /// How long the host may leave a request without an answer. Then the store has [ended](Store::ended): the kernel itself would wait for ever
    /// (virtio-blk has no time-out of its own, nor has FUSE).
    pub deadline: Duration,
}

/// Longer than the kernel's own drivers take to give up where they do (SCSI: 30 s, six times; a path of NVMe over fabrics may be away for minutes).
const DEADLINE: Duration = Duration::from_mins(5);

impl Default for Options {
    fn default() -> Self {
        Self { direct: true, read_only: false, create: None, exclusive: true, deadline: DEADLINE }
    }
}

/// A file or block device.
#[derive(Debug, Clone)]
pub struct FileStore {
    pub(crate) inner: Arc<Inner>,
}

/// What a store shares with its queues.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) file: OwnedFd,
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) is_device: bool,
    pub(crate) deadline: Duration,
    /// Why the host is believed no more.
    end: OnceLock<String>,
    pub(crate) silences: Silences,
    /// Size in blocks when somebody last asked. A queue goes no further, so a write never makes a file grow.
    blocks: AtomicU64,
    /// Of a file, how much room it takes and is left.
    usage: OnceLock<Option<Question<Usage>>>,
}

impl Inner {
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Ends the session with this host. The first reason counts.
    pub(crate) fn end(&self, reason: String) {
        let _ = self.end.set(reason);
    }

    pub(crate) fn ended(&self) -> Option<&String> {
        self.end.get()
    }

    /// Asks the kernel for the size in bytes; works for files and devices.
    fn size(&self) -> io::Result<u64> {
        Ok(rustix::fs::seek(&self.file, SeekFrom::End(0))?)
    }
}

impl FileStore {
    /// Opens `path`, or creates it.
    ///
    /// # Errors
    /// Of every [`ErrorKind`] but `OutOfRange`; each says what to do about it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        if options.create.is_some() && options.read_only {
            let message = "cannot create what is opened for reading only";
            return Err(Error::new(ErrorKind::ReadOnly, "open", name, message));
        }
        let mut attempt = Self::attempt(path, options, &name);
        // The kernel lets go of a killed program's ring, and of its files, some ten milliseconds after the
        // program is gone; who restarts it at once should not be told that it still runs.
        for _ in 0..RETRIES {
            if !matches!(&attempt, Err(error) if error.kind == ErrorKind::InUse) {
                break;
            }
            thread::sleep(RETRY_AFTER);
            attempt = Self::attempt(path, options, &name);
        }
        attempt
    }

    /// Size in bytes, as the kernel states it now.
    ///
    /// # Errors
    /// When the host has taken it away.
    pub fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.inner.is_device
    }

    fn attempt(path: &Path, options: Options, name: &str) -> Result<Self, Error> {
        // Looked at before it is opened: opening a pipe would block, and a tape would rewind.
        if options.create.is_none() {
            let metadata = fs::metadata(path).map_err(|error| system(&error, name))?;
            check_type(FileType::from_raw_mode(mode_of(&metadata)), name)?;
        }
        let (file, is_new) = open_file(path, options, name)?;
        let stat = rustix::fs::fstat(&file).map_err(|error| system(&error.into(), name))?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        check_type(file_type, name)?;
        if file_type == FileType::BlockDevice {
            check_sector(&file, name)?;
            if !options.read_only {
                check_writable(&file, name)?;
            }
        }
        if options.exclusive {
            lock(&file, options.read_only, name)?;
        }
        if options.exclusive && file_type == FileType::BlockDevice {
            settle_device(path, &file, options.read_only, name)?;
        }
        if let Some(blocks) = options.create {
            size_new(&file, blocks).map_err(|error| {
                // What has got a content meanwhile is somebody else's.
                if is_new && error.kind() != io::ErrorKind::AlreadyExists {
                    let _ = fs::remove_file(path);
                }
                system(&error, name)
            })?;
            sync_parent(path).map_err(|error| system(&error, name))?;
        }
        let inner = Inner {
            file,
            name: name.into(),
            read_only: options.read_only,
            is_device: file_type == FileType::BlockDevice,
            deadline: options.deadline,
            end: OnceLock::new(),
            silences: Silences::default(),
            blocks: AtomicU64::new(0),
            usage: OnceLock::new(),
        };
        let size = inner.size().map_err(|error| system(&error, &inner.name))?;
        inner.blocks.store(whole_blocks(size, &inner.name)?, Ordering::Relaxed);
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// For a user that does its I/O by itself. The lock of an exclusive opening lasts as long as the kernel has a request of this descriptor in flight.
impl AsFd for FileStore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

impl Store for FileStore {
    fn blocks(&self) -> u64 {
        if self.inner.ended().is_some() {
            return self.inner.blocks();
        }
        // A host that can't tell any more has taken the disk away.
        let blocks = self.inner.size().unwrap_or(0) / BLOCK;
        self.inner.blocks.store(blocks, Ordering::Relaxed);
        blocks
    }

    fn rest(&self) -> Result<Vec<u8>, Error> {
        let failed = |error: io::Error| {
            Error::from_errno(error.raw_os_error().unwrap_or(libc::EIO), "read the end", self.name())
        };
        let size = self.inner.size().map_err(failed)?;
        let mut bytes = vec![0; usize::try_from(size % BLOCK).unwrap_or(0)];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        // By another opening of the same file: direct I/O reads no part of a block.
        let file = File::open(format!("/proc/self/fd/{}", self.inner.file.as_raw_fd())).map_err(failed)?;
        file.read_exact_at(&mut bytes, size / BLOCK * BLOCK).map_err(failed)?;
        Ok(bytes)
    }

    fn name(&self) -> String {
        self.inner.name.clone()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(FileQueue::new(self.inner.clone(), depth)?))
    }

    /// On a device there is nothing to do.
    fn allocate(&self) -> Result<(), Error> {
        let file = &self.inner.file;
        let failed = |error: Errno| Error::from_errno(error.raw_os_error(), "allocate", self.name());
        let stat = rustix::fs::fstat(file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size == 0 {
            return Ok(());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let missing = size.saturating_sub(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        let system = rustix::fs::fstatvfs(file).map_err(failed)?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        if missing > free {
            // Asked first: a file system would take all that it has before it says so.
            let message = format!(
                "it lacks {missing} bytes, and its file system has {free} left; make it smaller, or let the volume be thin"
            );
            return Err(Error::new(ErrorKind::NoSpace, "allocate", self.name(), message));
        }
        self.reserve(0, size)?;
        rustix::fs::fsync(file).map_err(failed)
    }

    fn allocate_range(&self, blocks: Range<u64>) -> Result<(), Error> {
        // What lies beyond the end would make the file longer.
        let end = blocks.end.min(self.blocks());
        if self.inner.is_device || blocks.start >= end {
            return Ok(());
        }
        self.reserve(blocks.start * BLOCK, (end - blocks.start) * BLOCK)
    }

    fn given(&self, blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
        if self.inner.is_device {
            return None;
        }
        crate::given::given(&self.inner.file, blocks.start..blocks.end.min(self.blocks()))
    }

    fn usage(&self) -> Option<Usage> {
        if self.inner.is_device {
            return None;
        }
        let question = self.inner.usage.get_or_init(|| {
            let file = self.inner.file.try_clone().ok()?;
            Question::new(move || usage(&file)).ok()
        });
        question.as_ref()?.answer(USAGE_PATIENCE)
    }

    fn extend(&self, blocks: u64, whole: bool) -> Result<(), Error> {
        let file = &self.inner.file;
        let failed = |error: Errno| Error::from_errno(error.raw_os_error(), "extend", self.name());
        let stat = rustix::fs::fstat(file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let is_short = self.blocks() < blocks;
        if is_short {
            let size = blocks.checked_mul(BLOCK).ok_or(Errno::FBIG).map_err(failed)?;
            rustix::fs::ftruncate(file, size).map_err(failed)?;
        }
        let ended = match whole {
            true => self.allocate(),
            false if is_short => rustix::fs::fsync(file).map_err(failed),
            false => Ok(()),
        };
        if ended.is_err() && is_short {
            // Nothing has been written there. If this fails as well, the rest of the file belongs to nothing.
            let _ = rustix::fs::ftruncate(file, u64::try_from(stat.st_size).unwrap_or(0));
            self.blocks();
        }
        ended
    }

    fn ended(&self) -> Option<String> {
        self.inner.ended().cloned()
    }

    fn silent_for(&self) -> Option<Duration> {
        self.inner.silences.longest()
    }

    fn give_up(&self) {
        self.inner.end(GIVEN_UP.into());
    }
}

/// What a file takes, and what its file system has left.
fn usage(file: &OwnedFd) -> Option<Usage> {
    let taken = u64::try_from(rustix::fs::fstat(file).ok()?.st_blocks).ok()?.saturating_mul(512);
    let system = rustix::fs::fstatvfs(file).ok()?;
    Some(Usage { taken, left: system.f_bavail.saturating_mul(system.f_frsize) })
}

impl FileStore {
    fn reserve(&self, offset: u64, length: u64) -> Result<(), Error> {
        loop {
            match rustix::fs::fallocate(&self.inner.file, FallocateFlags::empty(), offset, length) {
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => {
                    let message =
                        "its file system cannot reserve space; use another one, or let the volume be thin";
                    return Err(Error::new(ErrorKind::Unsupported, "allocate", self.name(), message));
                }
                reserved => {
                    let failed =
                        |error: Errno| Error::from_errno(error.raw_os_error(), "allocate", self.name());
                    return reserved.map_err(failed);
                }
            }
        }
    }
}

fn mode_of(metadata: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata)
}

/// What the system said on opening.
fn system(error: &io::Error, name: &str) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let error = Error::from_errno(errno, "open", name);
    let hint = match error.kind {
        ErrorKind::InUse => "; it is mounted, or another program has it open",
        ErrorKind::Exists => "; to use what is there, open it without creating it",
        ErrorKind::NoSpace if errno == libc::EFBIG => {
            "; its file system has no files of this size: choose another (XFS), a block device, or a smaller volume"
        }
        ErrorKind::PermissionDenied => "; is this user allowed to read and write it?",
        _ => "",
    };
    Error { message: error.message.clone() + hint, ..error }
}

fn check_type(file_type: FileType, name: &str) -> Result<(), Error> {
    match file_type {
        FileType::RegularFile | FileType::BlockDevice => Ok(()),
        FileType::Directory => {
            let message = "it is a directory; name a file or a block device";
            Err(Error::new(ErrorKind::Directory, "open", name, message))
        }
        other => {
            let message = format!("it is neither a file nor a block device, but a {other:?}");
            Err(Error::new(ErrorKind::Unsupported, "open", name, message))
        }
    }
}

/// The file, and whether it was made now.
fn open_file(path: &Path, options: Options, name: &str) -> Result<(OwnedFd, bool), Error> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    flags.set(OFlags::DIRECT, options.direct);
    // It matters for block devices only, and there that nobody else may have it.
    let alone = options.exclusive && !options.read_only;
    let there = if alone { flags | OFlags::EXCL } else { flags };
    // With CREATE it means that nothing may be there.
    let new = flags | OFlags::CREATE | OFlags::EXCL;
    let mode = Mode::RUSR | Mode::WUSR;
    let opened = match options.create {
        None => rustix::fs::open(path, there, mode).map(|file| (file, false)),
        Some(_) => match rustix::fs::open(path, new, mode) {
            Err(Errno::EXIST) if is_empty_file(path) => {
                rustix::fs::open(path, there, mode).map(|file| (file, false))
            }
            Err(Errno::INVAL) if is_empty_file(path) => {
                // Direct I/O was refused, and the file created all the same.
                let _ = fs::remove_file(path);
                Err(Errno::INVAL)
            }
            made => made.map(|file| (file, true)),
        },
    };
    opened.map_err(|errno| match errno {
        Errno::INVAL if options.direct => {
            let message = "what it lies on cannot do direct I/O (some in-memory and network file systems \
                cannot); put it elsewhere, or open it without direct I/O, at the price of a copy";
            Error::new(ErrorKind::Unsupported, "open", name, message)
        }
        Errno::NOENT if options.create.is_some() => {
            Error::new(ErrorKind::NotFound, "create", name, "there is no such directory; make it first")
        }
        errno => system(&errno.into(), name),
    })
}

fn is_empty_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

/// A disk whose sectors are larger than a block would have to read and write again what lies beside.
fn check_sector(file: impl AsFd, name: &str) -> Result<(), Error> {
    let sector = rustix::fs::ioctl_blksszget(file).map_err(|error| system(&error.into(), name))?;
    if u64::from(sector) > BLOCK {
        let message = format!("its sectors have {sector} bytes, and more than {BLOCK} are not supported");
        return Err(Error::new(ErrorKind::Unsupported, "open", name, message));
    }
    Ok(())
}

fn lock(file: impl AsFd, read_only: bool, name: &str) -> Result<(), Error> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    rustix::fs::flock(file, operation).map_err(|errno| match errno {
        Errno::WOULDBLOCK => {
            let message = "it is attached already, here or by another program; detach it there first";
            Error::new(ErrorKind::InUse, "open", name, message)
        }
        errno => system(&errno.into(), name),
    })
}

/// Who writes to a device is kept apart from others by `O_EXCL`, and has found by its lock that nobody reads: it keeps that lock no longer,
/// since udev leaves a device alone that is locked (systemd's "Locking Block Device Access"), and those who wait for udev wait long. Who reads
/// keeps its shared lock, which udev shares, and looks whether somebody has the device alone. In this order, so that of a reader and a writer
/// who come at the same time at most one gets it.
fn settle_device(path: &Path, file: &OwnedFd, read_only: bool, name: &str) -> Result<(), Error> {
    let failed = |errno: Errno| system(&errno.into(), name);
    if read_only {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOCTTY;
        rustix::fs::open(path, flags, Mode::empty()).map(drop).map_err(failed)
    } else {
        rustix::fs::flock(file, FlockOperation::Unlock).map_err(failed)
    }
}

/// Gives a file its size, durably, unless somebody else was first.
fn size_new(file: &OwnedFd, blocks: u64) -> io::Result<()> {
    let size = blocks.checked_mul(BLOCK).ok_or(io::Error::from_raw_os_error(libc::EFBIG))?;
    if rustix::fs::fstat(file)?.st_size != 0 {
        return Err(Errno::EXIST.into());
    }
    rustix::fs::ftruncate(file, size)?;
    Ok(rustix::fs::fsync(file)?)
}

/// Sees to it that a new file survives a crash.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// The whole blocks of so many bytes. What is over is left alone: the last sectors of a device, or what somebody has appended to a file. One
/// that was cut short has fewer blocks than its volume, which says so.
fn whole_blocks(size: u64, name: &str) -> Result<u64, Error> {
    match size / BLOCK {
        0 if size > 0 => {
            let message = format!("it has {size} bytes, and one block has {BLOCK}; choose another store");
            Err(Error::new(ErrorKind::TooSmall, "open", name, message))
        }
        0 => {
            let message = "it is empty: it needs the length that the store is to have, or must not be there, to be made";
            Err(Error::new(ErrorKind::TooSmall, "open", name, message))
        }
        blocks => Ok(blocks),
    }
}

/// Whether a block device refuses writes. It may be opened for writing all the same, and each write fails.
fn check_writable(file: &OwnedFd, name: &str) -> Result<(), Error> {
    /// `_IO(0x12, 94)` of `linux/fs.h`: the read-only flag of a device.
    const BLKROGET: libc::Ioctl = 0x125e;
    let mut flag: libc::c_int = 0;
    // SAFETY: the call writes one `int` to `flag`, which outlives it.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut flag) } != 0 {
        return Err(system(&io::Error::last_os_error(), name));
    }
    if flag == 0 {
        return Ok(());
    }
    let message =
        "it is write-protected; attach it for reading only, or lift the protection (blockdev --setrw)";
    Err(Error::new(ErrorKind::ReadOnly, "open", name, message))
}
