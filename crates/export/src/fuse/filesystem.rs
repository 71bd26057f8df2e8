//! A file system with one file in it, in its root or in a directory there.

use super::Options;
use crate::aligned::Aligned;
use crate::budget::{Budget, IN_FLIGHT, Share, weight};
use crate::{BLOCK_SIZE, Device, MAX_TRANSFER, Request};
use bytes::Bytes;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The largest request. The kernel's default limit (`fs.fuse.max_pages_limit`) is as much.
const MAX_REQUEST: u32 = 1 << 20;

const _: () = assert!((MAX_REQUEST as u64).next_multiple_of(BLOCK_SIZE) + BLOCK_SIZE <= MAX_TRANSFER);

pub(super) const FILE: INodeNo = INodeNo(2);
/// The directory between the root and the file, where there is one.
const DIRECTORY: INodeNo = INodeNo(3);

/// The file's name never changes, and when its size does, the kernel is told (`Mount::resized`).
const FOREVER: Duration = Duration::from_secs(86_400);

/// The kernel must ask for the root each time, so that a look at it tells a dead mount from a living one.
const ASK_AGAIN: Duration = Duration::ZERO;

/// What the kernel talks to.
pub(super) struct Disk {
    device: Aligned,
    share: Arc<Share>,
    name: OsString,
    /// The name of the directory that the file is in; `None` if that is the root.
    directory: Option<OsString>,
    read_only: bool,
    mapped: bool,
    max_background: u16,
    owner: (u32, u32),
}

impl Disk {
    pub(super) fn new(device: Arc<dyn Device>, name: OsString, options: &Options) -> Disk {
        Disk {
            device: Aligned::new(device),
            share: Budget::of_one(IN_FLIGHT),
            name,
            directory: options.directory.map(OsString::from),
            read_only: options.read_only,
            mapped: options.mapped,
            max_background: options.max_background.max(1),
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        }
    }

    fn attributes(&self, inode: INodeNo) -> Option<(Duration, FileAttr)> {
        let (ttl, kind, perm, nlink, size) = match inode {
            INodeNo::ROOT => (ASK_AGAIN, FileType::Directory, 0o700, 2, 0),
            DIRECTORY if self.directory.is_some() => (ASK_AGAIN, FileType::Directory, 0o700, 2, 0),
            FILE => (
                FOREVER,
                FileType::RegularFile,
                if self.read_only { 0o444 } else { 0o600 },
                1,
                self.device.size(),
            ),
            _ => return None,
        };
        let attributes = FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        Some((ttl, attributes))
    }

    /// What is in a directory: its only entry.
    fn entry(&self, directory: INodeNo) -> Option<(INodeNo, FileType, &OsStr)> {
        match (&self.directory, directory) {
            (Some(name), INodeNo::ROOT) => Some((DIRECTORY, FileType::Directory, name)),
            (None, INodeNo::ROOT) | (Some(_), DIRECTORY) => Some((FILE, FileType::RegularFile, &self.name)),
            _ => None,
        }
    }

    fn reply_attributes(&self, inode: INodeNo, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some((ttl, attributes)) => reply.attr(&ttl, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// The bytes from `offset` on that exist, at most `length`.
    fn available(&self, offset: u64, length: u32) -> u32 {
        let left = self.device.size().saturating_sub(offset);
        u32::try_from(left).map_or(length, |left| left.min(length))
    }

    fn submit_empty(&self, request: Request, reply: ReplyEmpty) {
        let answer = move |result: Result<Bytes, rustix::io::Errno>| match result {
            Ok(_) => reply.ok(),
            Err(errno) => reply.error(to_kernel(errno)),
        };
        self.device.submit(request, Box::new(answer));
    }
}

fn to_kernel(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

/// What `fallocate` asks for, if it is something that a device can do. Sizes never change.
fn fallocate_request(offset: u64, length: u64, mode: i32) -> Result<Request, Errno> {
    let mode = u32::try_from(mode).map(FallocateFlags::from_bits_retain).map_err(|_| Errno::EINVAL)?;
    if mode == FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE {
        Ok(Request::Discard { offset, length })
    } else if mode.difference(FallocateFlags::KEEP_SIZE) == FallocateFlags::ZERO_RANGE {
        Ok(Request::WriteZeroes { offset, length })
    } else {
        Err(Errno::EOPNOTSUPP)
    }
}

fn is_synchronous(flags: OpenFlags) -> bool {
    // O_SYNC includes the bit of O_DSYNC.
    u32::try_from(flags.0).is_ok_and(|bits| OFlags::from_bits_retain(bits).contains(OFlags::DSYNC))
}

impl Filesystem for Disk {
    fn init(&mut self, _request: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |limit| io::Error::other(format!("the kernel's limit is {limit}"));
        config.set_max_write(MAX_REQUEST).map_err(refused)?;
        config.set_max_background(self.max_background).map_err(|limit| refused(limit.into()))?;
        // Reads ahead never happen with direct I/O; the value only bounds the pages of a request.
        let _ = config.set_max_readahead(MAX_REQUEST);
        // Without these, requests come one at a time; it still works, so an old kernel is no error.
        for wanted in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(wanted);
        }
        Ok(())
    }

    fn lookup(&self, _request: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let entry = self.entry(parent).filter(|(_, _, entry)| *entry == name);
        match entry.and_then(|(inode, ..)| self.attributes(inode)) {
            Some((ttl, attributes)) => reply.entry(&ttl, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _request: &fuser::Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.reply_attributes(inode, reply);
    }

    fn setattr(
        &self,
        _request: &fuser::Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Times don't matter. The size does: opening the file to truncate it must not seem to have worked.
        let resized = size.is_some_and(|size| inode != FILE || size != self.device.size());
        if resized || mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        self.reply_attributes(inode, reply);
    }

    fn open(&self, _request: &fuser::Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        if self.read_only && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let flags = if self.mapped {
            // What another opener has cached is what the device has: nobody else changes it.
            FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
        } else {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH
        };
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = self.available(offset, size);
        if length == 0 {
            return reply.data(&[]);
        }
        let permit = self.share.wait(weight(length));
        let answer = move |result: Result<Bytes, rustix::io::Errno>| {
            match result {
                Ok(data) if u32::try_from(data.len()) == Ok(length) => reply.data(&data),
                Ok(_) => reply.error(Errno::EIO),
                Err(errno) => reply.error(to_kernel(errno)),
            }
            drop(permit);
        };
        self.device.submit(Request::Read { offset, length }, Box::new(answer));
    }

    fn write(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        let length = u32::try_from(data.len()).map_or(0, |length| self.available(offset, length));
        let Some(data) = usize::try_from(length).ok().and_then(|length| data.get(..length)) else {
            return reply.error(Errno::EINVAL);
        };
        if data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        let permit = self.share.wait(weight(length));
        let mut memory = self.device.memory(data.len());
        memory.as_mut().copy_from_slice(data);
        let answer = move |result: Result<Bytes, rustix::io::Errno>| {
            match result {
                Ok(_) => reply.written(length),
                Err(errno) => reply.error(to_kernel(errno)),
            }
            drop(permit);
        };
        let request = Request::Write { offset, data: memory.freeze(), fua: is_synchronous(flags) };
        self.device.submit(request, Box::new(answer));
    }

    fn flush(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing promises nothing. The kernel then stops asking, where it does not know FOPEN_NOFLUSH.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.submit_empty(Request::Flush, reply);
    }

    fn fallocate(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        match fallocate_request(offset, length, mode) {
            Ok(request) => self.submit_empty(request, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _request: &fuser::Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(entry) = self.entry(inode) else { return reply.error(Errno::ENOTDIR) };
        let entries = [
            (inode, FileType::Directory, OsStr::new(".")),
            (INodeNo::ROOT, FileType::Directory, OsStr::new("..")),
            entry,
        ];
        // An entry's offset is where to go on after it.
        for (next, (inode, kind, name)) in (1_u64..).zip(entries) {
            if next > offset && reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &fuser::Request, _inode: INodeNo, reply: ReplyStatfs) {
        reply.statfs(self.device.size() / BLOCK_SIZE, 0, 0, 2, 0, 4096, 255, 4096);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_device_can_do_is_done() {
        let ask = |mode: FallocateFlags| fallocate_request(8, 16, i32::try_from(mode.bits()).unwrap());
        let (keep, punch, zero) =
            (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
        assert_eq!(ask(punch | keep), Ok(Request::Discard { offset: 8, length: 16 }));
        assert_eq!(ask(zero | keep), Ok(Request::WriteZeroes { offset: 8, length: 16 }));
        assert_eq!(ask(zero), Ok(Request::WriteZeroes { offset: 8, length: 16 }));
        for refused in
            [FallocateFlags::empty(), keep, punch, zero | punch | keep, FallocateFlags::COLLAPSE_RANGE]
        {
            assert_eq!(ask(refused), Err(Errno::EOPNOTSUPP), "{refused:?}");
        }
        assert_eq!(fallocate_request(8, 16, -1), Err(Errno::EINVAL));
    }

    #[test]
    fn synchronous_opens_are_recognised() {
        let flags = |flags: OFlags| is_synchronous(OpenFlags(i32::try_from(flags.bits()).unwrap()));
        assert!(flags(OFlags::RDWR | OFlags::DSYNC));
        assert!(flags(OFlags::WRONLY | OFlags::SYNC));
        assert!(!flags(OFlags::RDWR | OFlags::DIRECT));
    }
}
