//! A region on a file system whose files cannot be mapped and shared: one by FUSE with direct I/O, with a place for one file.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
    Session, SessionACL, TimeOrNow,
};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::support::Place;

const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::ZERO;

/// The file, if it is there.
#[derive(Clone, Default)]
struct OneFile(Arc<Mutex<Option<Vec<u8>>>>);

impl OneFile {
    fn content(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap()
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
        reply.created(&TTL, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
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
        let content = self.content();
        let there = content.as_deref().unwrap_or_default();
        let start = there.len().min(usize::try_from(offset).unwrap());
        let end = there.len().min(start + usize::try_from(size).unwrap());
        reply.data(&there[start..end]);
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
    let file = OneFile::default();
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
        "qemu-args direct/region",
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
