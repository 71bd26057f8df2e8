//! A file system with one file in it, in its root or in a directory there.

use super::Options;
use super::abi::{self, Attributes, Call, Change, Header, open};
use super::answer::Answer;
use crate::aligned::Aligned;
use crate::budget::{Budget, IN_FLIGHT, Share, weight};
use crate::{Attend, BLOCK_SIZE, Device, Done, MAX_TRANSFER, Request};
use bytes::Bytes;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::sync::Arc;

/// The largest request. The kernel's default limit (`fs.fuse.max_pages_limit`) is as much.
pub(super) const MAX_REQUEST: u32 = 1 << 20;

const _: () = assert!((MAX_REQUEST as u64).next_multiple_of(BLOCK_SIZE) + BLOCK_SIZE <= MAX_TRANSFER);

const ROOT: u64 = 1;
pub(super) const FILE: u64 = 2;
/// The directory between the root and the file, where there is one.
const BETWEEN: u64 = 3;

/// Kinds, as the upper bits of a mode.
const DIRECTORY: u32 = 0o40_000;
const REGULAR: u32 = 0o100_000;

/// Seconds: the file's name never changes, and when its size does, the kernel is told (`Mount::resized`).
const FOREVER: u64 = 86_400;

/// The kernel must ask for the root each time, so that a look at it tells a dead mount from a living one.
const ASK_AGAIN: u64 = 0;

/// What the kernel talks to.
pub(super) struct Disk {
    device: Aligned,
    share: Arc<Share>,
    name: String,
    /// The name of the directory that the file is in; `None` if that is the root.
    directory: Option<String>,
    read_only: bool,
    mapped: bool,
    wipe: bool,
    owner: (u32, u32),
}

impl Disk {
    pub(super) fn new(device: Arc<dyn Device>, name: &str, options: &Options) -> Disk {
        Disk {
            device: Aligned::new(device),
            share: Budget::of_one(IN_FLIGHT),
            name: name.into(),
            directory: options.directory.map(Into::into),
            read_only: options.read_only,
            mapped: options.mapped,
            wipe: options.wipe,
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        }
    }

    /// Whether a request's bytes are wiped when it was taken.
    pub(super) fn wipes(&self) -> bool {
        self.wipe
    }

    /// As [`Device::attendant`].
    pub(super) fn attendant(&self) -> Option<&dyn Attend> {
        self.device.attendant()
    }

    /// Begins a request, when there is room for what it takes.
    pub(super) async fn take(&self, header: &Header, argument: &[u8], rest: &[u8], answer: Answer) {
        let Some(call) = Call::decode(header, argument, rest) else { return answer.fail(Errno::INVAL) };
        match call {
            Call::Read { offset, length } => self.read(offset, length, answer).await,
            Call::Write { offset, data, flags } => self.write(offset, data, flags, answer).await,
            Call::Sync => self.device.submit(Request::Flush, empty(answer)),
            Call::Allocate { .. } if self.read_only => answer.fail(Errno::ROFS),
            Call::Allocate { offset, length, mode } => match allocation(offset, length, mode) {
                Ok(request) => self.device.submit(request, empty(answer)),
                Err(errno) => answer.fail(errno),
            },
            Call::Forgotten => answer.forget(),
            other => match self.look(header.node, other) {
                Ok(body) => answer.give(&body),
                Err(errno) => answer.fail(errno),
            },
        }
    }

    /// Answers what needs no device.
    fn look(&self, node: u64, call: Call<'_>) -> Result<Vec<u8>, Errno> {
        match call {
            Call::Lookup { name } => {
                let entry = self.entry(node).filter(|(_, _, entry)| name == *entry).ok_or(Errno::NOENT)?;
                self.attributes(entry.0).map(|(seconds, found)| found.encode_entry(seconds))
            }
            Call::Attributes => self.attributes(node).map(|(seconds, found)| found.encode(seconds)),
            Call::Change(Change { size, access }) => {
                // Times don't matter. The size does: opening the file to truncate it must not seem to have worked.
                let resized = size.is_some_and(|size| node != FILE || size != self.device.size());
                if resized || access {
                    return Err(Errno::PERM);
                }
                self.attributes(node).map(|(seconds, found)| found.encode(seconds))
            }
            Call::Open { flags } => self.open(node, flags),
            Call::OpenDirectory => Ok(abi::opened(0)),
            Call::Entries { after, length } => {
                let entry = self.entry(node).ok_or(Errno::NOTDIR)?;
                let all: [(u64, u32, &[u8]); 3] = [(node, DIRECTORY, b"."), (ROOT, DIRECTORY, b".."), entry];
                Ok(abi::entries(&all, after, length))
            }
            Call::Space => Ok(abi::space(self.device.size() / BLOCK_SIZE)),
            Call::Released => Ok(Vec::new()),
            // Closing promises nothing, and the kernel stops asking for what is not there.
            _ => Err(Errno::NOSYS),
        }
    }

    /// What is in a directory: its only entry.
    fn entry(&self, directory: u64) -> Option<(u64, u32, &[u8])> {
        match (&self.directory, directory) {
            (Some(name), ROOT) => Some((BETWEEN, DIRECTORY, name.as_bytes())),
            (None, ROOT) | (Some(_), BETWEEN) => Some((FILE, REGULAR, self.name.as_bytes())),
            _ => None,
        }
    }

    /// How long the kernel may believe it, and what it is.
    fn attributes(&self, node: u64) -> Result<(u64, Attributes), Errno> {
        let owner = self.owner;
        match node {
            ROOT | BETWEEN if node == ROOT || self.directory.is_some() => {
                let mode = DIRECTORY | 0o700;
                Ok((ASK_AGAIN, Attributes { inode: node, size: 0, mode, links: 2, owner }))
            }
            FILE => {
                let mode = REGULAR | if self.read_only { 0o444 } else { 0o600 };
                Ok((FOREVER, Attributes { inode: FILE, size: self.device.size(), mode, links: 1, owner }))
            }
            _ => Err(Errno::NOENT),
        }
    }

    fn open(&self, node: u64, flags: u32) -> Result<Vec<u8>, Errno> {
        if node != FILE {
            return Err(Errno::ISDIR);
        }
        if self.read_only && OFlags::from_bits_retain(flags) & OFlags::ACCMODE != OFlags::RDONLY {
            return Err(Errno::ROFS);
        }
        Ok(abi::opened(if self.mapped {
            // What another opener has cached is what the device has: nobody else changes it.
            open::KEEP_CACHE | open::NO_FLUSH
        } else {
            open::DIRECT | open::PARALLEL_WRITES | open::NO_FLUSH
        }))
    }

    /// The bytes from `offset` on that exist, at most `length`.
    fn available(&self, offset: u64, length: u32) -> u32 {
        let left = self.device.size().saturating_sub(offset);
        u32::try_from(left).map_or(length, |left| left.min(length))
    }

    async fn read(&self, offset: u64, length: u32, answer: Answer) {
        let length = self.available(offset, length.min(MAX_REQUEST));
        if length == 0 {
            return answer.give(&[]);
        }
        let permit = self.share.acquire(weight(length)).await;
        let done = move |result: Result<Bytes, Errno>| {
            match result {
                Ok(data) if u32::try_from(data.len()) == Ok(length) => answer.give(&data),
                Ok(_) => answer.fail(Errno::IO),
                Err(errno) => answer.fail(errno),
            }
            drop(permit);
        };
        self.device.submit(Request::Read { offset, length }, Box::new(done));
    }

    async fn write(&self, offset: u64, data: &[u8], flags: u32, answer: Answer) {
        if self.read_only {
            return answer.fail(Errno::ROFS);
        }
        let length =
            u32::try_from(data.len()).map_or(0, |length| self.available(offset, length.min(MAX_REQUEST)));
        let Some(data) = usize::try_from(length).ok().and_then(|length| data.get(..length)) else {
            return answer.fail(Errno::INVAL);
        };
        if data.is_empty() {
            return answer.fail(Errno::NOSPC);
        }
        let permit = self.share.acquire(weight(length)).await;
        let mut memory = self.device.memory(data.len());
        memory.as_mut().copy_from_slice(data);
        let done = move |result: Result<Bytes, Errno>| {
            match result {
                Ok(_) => answer.give(&abi::written(length)),
                Err(errno) => answer.fail(errno),
            }
            drop(permit);
        };
        let request = Request::Write { offset, data: memory.freeze(), fua: is_synchronous(flags) };
        self.device.submit(request, Box::new(done));
    }
}

/// Ends a request that has nothing to say but whether it went well.
fn empty(answer: Answer) -> Done {
    Box::new(move |result| match result {
        Ok(_) => answer.give(&[]),
        Err(errno) => answer.fail(errno),
    })
}

/// What `fallocate` asks for, if it is something that a device can do. Sizes never change.
fn allocation(offset: u64, length: u64, mode: u32) -> Result<Request, Errno> {
    let mode = FallocateFlags::from_bits_retain(mode);
    if mode == FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE {
        Ok(Request::Discard { offset, length })
    } else if mode.difference(FallocateFlags::KEEP_SIZE) == FallocateFlags::ZERO_RANGE {
        Ok(Request::WriteZeroes { offset, length })
    } else {
        Err(Errno::OPNOTSUPP)
    }
}

fn is_synchronous(flags: u32) -> bool {
    // O_SYNC includes the bit of O_DSYNC.
    OFlags::from_bits_retain(flags).contains(OFlags::DSYNC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_device_can_do_is_done() {
        let ask = |mode: FallocateFlags| allocation(8, 16, mode.bits());
        let (keep, punch, zero) =
            (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
        assert_eq!(ask(punch | keep), Ok(Request::Discard { offset: 8, length: 16 }));
        assert_eq!(ask(zero | keep), Ok(Request::WriteZeroes { offset: 8, length: 16 }));
        assert_eq!(ask(zero), Ok(Request::WriteZeroes { offset: 8, length: 16 }));
        for refused in
            [FallocateFlags::empty(), keep, punch, zero | punch | keep, FallocateFlags::COLLAPSE_RANGE]
        {
            assert_eq!(ask(refused), Err(Errno::OPNOTSUPP), "{refused:?}");
        }
        assert_eq!(allocation(8, 16, u32::MAX), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn synchronous_opens_are_recognised() {
        let flags = |flags: OFlags| is_synchronous(flags.bits());
        assert!(flags(OFlags::RDWR | OFlags::DSYNC));
        assert!(flags(OFlags::WRONLY | OFlags::SYNC));
        assert!(!flags(OFlags::RDWR | OFlags::DIRECT));
    }
}
