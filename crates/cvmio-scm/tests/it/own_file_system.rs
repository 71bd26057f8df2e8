//! Regions on a file system of the test's own, by FUSE, with a place for one file: one whose files cannot be mapped and shared (direct I/O), and
//! one that fails a page.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::support::{PAGE, Place};

const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::ZERO;

/// The file, if it is there.
#[derive(Clone, Default)]
struct OneFile {
    content: Arc<Mutex<Option<Vec<u8>>>>,
    /// It may be mapped and shared.
    mapped: bool,
    /// A page that cannot be read, or [`NONE`].
    bad: Arc<AtomicU64>,
    /// Reads wait, and are counted, while it is closed.
    gate: Arc<Gate>,
}

/// A disk that is slow.
#[derive(Default)]
struct Gate {
    is_closed: AtomicBool,
    waiting: AtomicU64,
}

/// No page: what is behind the last one.
const NONE: u64 = u64::MAX;

impl OneFile {
    fn content(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.content.lock().unwrap()
    }

    fn flags(&self) -> FopenFlags {
        if self.mapped { FopenFlags::empty() } else { FopenFlags::FOPEN_DIRECT_IO }
    }

    fn attributes(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        let (kind, perm, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            _ => (FileType::RegularFile, 0o600, self.content().as_ref().ok_or(Errno::ENOENT)?.len() as u64),
        };
        let then = SystemTime::UNIX_EPOCH;
        let (atime, mtime, ctime, crtime) = (then, then, then, then);
        let (nlink, uid, gid, rdev, blksize, flags) = (1, 0, 0, 0, 4096, 0);
        let blocks = size.div_ceil(512);
        Ok(FileAttr {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            blksize,
            flags,
        })
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let (Some(size), Some(content)) = (size, self.content().as_mut()) {
            content.resize(usize::try_from(size).unwrap(), 0);
        }
        self.getattr(request, ino, handle, reply);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        *self.content() = Some(Vec::new());
        let attributes = self.attributes(FILE).unwrap();
        reply.created(&TTL, &attributes, Generation(0), FileHandle(0), self.flags());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), self.flags());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.gate.waiting.fetch_add(u64::from(self.gate.is_closed.load(Ordering::Acquire)), Ordering::AcqRel);
        while self.gate.is_closed.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let bad = self.bad.load(Ordering::Relaxed);
        if offset / PAGE as u64 <= bad && bad < (offset + u64::from(size)).div_ceil(PAGE as u64) {
            return reply.error(Errno::EIO);
        }
        let content = self.content();
        let there = content.as_deref().unwrap_or_default();
        let start = there.len().min(usize::try_from(offset).unwrap());
        let end = there.len().min(start + usize::try_from(size).unwrap());
        reply.data(&there[start..end]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut content = self.content();
        let start = usize::try_from(offset).unwrap();
        content.as_mut().unwrap()[start..start + data.len()].copy_from_slice(data);
        reply.written(u32::try_from(data.len()).unwrap());
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        *self.content() = None;
        reply.ok();
    }
}

/// The file system, mounted for as long as this lives.
struct Mounted<'a> {
    at: &'a Path,
    _session: BackgroundSession,
}

impl<'a> Mounted<'a> {
    fn new(at: &'a Path, file: &OneFile) -> Mounted<'a> {
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0", device.as_raw_fd());
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("one-file", at, "fuse", flags, options).unwrap();
        let session = Session::from_fd(file.clone(), device, SessionACL::All, fuser::Config::default());
        Mounted { at, _session: session.and_then(Session::spawn).unwrap() }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.at, UnmountFlags::DETACH);
    }
}

/// Every command says so, and neither makes nor changes anything.
#[test]
fn a_file_system_without_shared_mappings_is_refused_by_every_command() {
    let place = Place::new();
    place.succeed("create region --size 256k --key-file key");
    let region = std::fs::read(place.at("region")).unwrap();
    std::fs::create_dir(place.at("direct")).unwrap();
    let file = OneFile { bad: Arc::new(NONE.into()), ..OneFile::default() };
    let directory = place.at("direct");
    let mounted = Mounted::new(&directory, &file);
    let about = "its file system has no shared mappings";
    place.fail("create direct/region --size 256k --key-file key", 2, about);
    assert!(file.content().is_none(), "a file that is no region was left behind");
    *file.content() = Some(region.clone());
    // It can be read well; it is the mapping that is refused.
    assert!(std::fs::read(place.at("direct/region")).unwrap() == region);
    for words in [
        "serve direct/region --key-file key --mode fuse --mountpoint mnt --socket socket",
        "serve direct/region --key-file key --mode userfaultfd --socket socket",
        "recover direct/region --key-file key",
        "check direct/region --key-file key",
        "accept direct/region --key-file key --all",
        "status direct/region",
    ] {
        place.fail(words, 2, about);
        place.fail(words, 2, "direct/region: ");
        place.fail(words, 2, "put the region on tmpfs, hugetlbfs or a DAX file system");
        assert!(file.content().as_ref() == Some(&region), "{words}: the file was changed");
        assert!(!place.at("socket").exists(), "{words}: a socket was left behind");
    }
    assert_eq!(std::fs::read_dir(place.at("mnt")).unwrap().count(), 0);
    drop(mounted);
    // Moved to where it can be mapped, it is a region.
    std::fs::write(place.at("region"), file.content().as_ref().unwrap()).unwrap();
    place.succeed("check region --key-file key");
}

/// A page of the medium cannot be read (SIGBUS of the server): requests fail, nothing is written any more, and when the medium is mended every
/// page is there.
#[test]
fn a_medium_that_fails_a_page_ends_serving_by_fuse_and_loses_no_page() {
    let place = Place::new();
    let directory = place.at("failing");
    std::fs::create_dir(&directory).unwrap();
    let file = OneFile { mapped: true, bad: Arc::new(NONE.into()), ..OneFile::default() };
    let mounted = Mounted::new(&directory, &file);
    place.succeed("create failing/region --size 256k --key-file key");
    let serve = "serve failing/region --key-file key --mode fuse --mountpoint mnt --socket socket";
    let server = place.serve(serve);
    let pmem = File::options().read(true).write(true).open(place.at("mnt/region/pmem")).unwrap();
    for page in [3, 40] {
        pmem.write_all_at(&[9; PAGE], page * PAGE as u64).unwrap();
    }
    pmem.sync_all().unwrap();
    drop(pmem);
    server.stop();
    // What the kernel has of the file is forgotten, as at a start of the machine.
    drop(mounted);
    file.bad.store(40, Ordering::Relaxed);
    let mounted = Mounted::new(&directory, &file);
    let server = place.serve(serve);
    let pmem = File::options().read(true).write(true).open(place.at("mnt/region/pmem")).unwrap();
    let mut page = [0; PAGE];
    pmem.read_exact_at(&mut page, 3 * PAGE as u64).unwrap();
    assert_eq!(page, [9; PAGE]);
    let before = file.content().clone();
    assert!(pmem.read_exact_at(&mut page, 40 * PAGE as u64).is_err());
    assert!(place.succeed("status --socket socket").contains("the medium has failed"));
    let written = pmem.write_all_at(&[8; PAGE], 3 * PAGE as u64).and_then(|()| pmem.sync_all());
    assert!(written.is_err());
    drop(pmem);
    server.kill();
    place.fail("check failing/region --key-file key", 3, "is gone at offset 163840");
    drop(mounted);
    assert!(*file.content() == before, "something was written to a medium that had failed");
    file.bad.store(NONE, Ordering::Relaxed);
    let _mounted = Mounted::new(&directory, &file);
    place.succeed("recover failing/region --key-file key");
    let server = place.serve(serve);
    let pmem = File::open(place.at("mnt/region/pmem")).unwrap();
    for number in [3, 40] {
        pmem.read_exact_at(&mut page, number * PAGE as u64).unwrap();
        assert_eq!(page, [9; PAGE], "page {number}");
    }
    drop(pmem);
    server.stop();
    place.succeed("check failing/region --key-file key");
}

/// What a VMM does for a guest whose disk has direct I/O, into memory that is the region's.
const DIRECT_READ: &str = "
import mmap, os, sys
memory = mmap.mmap(os.open('socket/pmem', os.O_RDWR), 262144)
disk = os.open('slow/disk', os.O_RDONLY)
assert os.preadv(disk, [memoryview(memory)[5 * 4096:6 * 4096]], 0) == 4096
sys.stdin.readline()
assert memory[5 * 4096:6 * 4096] == b'Z' * 4096
";

/// A direct read holds its page, not its mapping, and nothing tells of that. So the page stays open for as long as the operator says. The other half
/// shows what that time is for: without it the read ends in ciphertext, and the page is corrupt.
#[test]
fn a_page_that_a_slow_disk_is_read_into_is_not_encrypted_for_a_while() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    for io_ms in [600_000, 0] {
        let place = Place::new();
        place.succeed("create region --size 256k --key-file key");
        std::fs::create_dir(place.at("slow")).unwrap();
        let file = OneFile { bad: Arc::new(NONE.into()), ..OneFile::default() };
        *file.content() = Some(vec![b'Z'; PAGE]);
        file.gate.is_closed.store(true, Ordering::Release);
        let directory = place.at("slow");
        let mounted = Mounted::new(&directory, &file);
        let serve = "serve region --key-file key --mode userfaultfd --socket socket --idle-ms 5";
        let server = place.serve(&format!("{serve} --io-ms {io_ms}"));
        let mut program = Command::new("/usr/bin/python3");
        program.args(["-c", DIRECT_READ]).current_dir(place.at(""));
        program.env("LD_PRELOAD", crate::preload::library()).stdin(Stdio::piped());
        let mut child = program.spawn().unwrap();
        while file.gate.waiting.load(Ordering::Acquire) == 0 {
            assert!(child.try_wait().unwrap().is_none(), "it has ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        let open = || place.succeed("status --socket socket").contains(", 1 open,");
        if io_ms == 0 {
            while open() {
                std::thread::sleep(Duration::from_millis(5));
            }
        } else {
            std::thread::sleep(Duration::from_millis(300));
            assert!(open());
        }
        file.gate.is_closed.store(false, Ordering::Release);
        drop(child.stdin.take());
        let ended = child.wait().unwrap();
        if io_ms == 0 {
            assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}");
        } else {
            assert!(ended.success(), "{ended}");
        }
        drop(mounted);
        server.kill();
    }
}
