//! The file that outlives a server: whose device it is, and a ring of changes.

use crate::{Error, MAX_TRANSFER, Request};
use rustix::fs::{FallocateFlags, StatFs};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the ring. At half of it a flush begins.
pub(super) const CAPACITY: u64 = 64 << 20;
/// Where the ring begins in the file, behind the record.
const RING: u64 = 4096;
/// Bytes in front of each change's data: kind (4), mark (4), offset (8), length (8).
pub(super) const HEADER: u64 = 24;
const MARK: u64 = 4;
const ENDED: u32 = 1;

const MAGIC: [u8; 8] = *b"cvmublk2";
const TAIL: u64 = 40;
const HEAD: u64 = 48;

/// File systems that are in memory.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Whose device it is: the first bytes of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ublk) struct Record {
    /// The device's number.
    pub(in crate::ublk) number: u32,
    /// The process that serves it, and one that was about to.
    pub(in crate::ublk) servers: [u32; 2],
    /// The volume that it shows.
    pub(in crate::ublk) owner: [u8; 16],
}

/// Where changes are kept.
#[derive(Debug)]
pub(in crate::ublk) struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    /// Makes the file, and takes all its memory at once.
    ///
    /// # Errors
    /// [`Error::Usage`] if it would not be in memory: what is in it is plaintext.
    pub(in crate::ublk) fn create(path: &Path, record: &Record) -> Result<Self, Error> {
        let fail = |error: io::Error| Error::io(format!("keeping changes in {}", path.display()), &error);
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(fail)?;
        let log = Self { file, path: path.into() };
        let found = rustix::fs::fstatfs(&log.file).map_err(|errno| fail(errno.into()))?;
        if !is_memory(&found) {
            log.remove();
            return Err(Error::Usage(format!("{} is not in memory (tmpfs)", path.display())));
        }
        let taken = rustix::fs::fallocate(&log.file, FallocateFlags::empty(), 0, RING + CAPACITY);
        let written = taken.map_err(io::Error::from).and_then(|()| log.set_record(record));
        // The magic last: what has one is whole.
        match written.and_then(|()| log.file.write_all_at(&MAGIC, 0)) {
            Ok(()) => Ok(log),
            Err(error) => {
                log.remove();
                Err(fail(error))
            }
        }
    }

    /// What a server has left, if one has.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(in crate::ublk) fn open(path: &Path) -> Result<Option<(Self, Record)>, Error> {
        let fail = |error: io::Error| Error::io(format!("reading {}", path.display()), &error);
        let file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(error)),
        };
        let log = Self { file, path: path.into() };
        let mut bytes = [0; 40];
        match log.file.read_exact_at(&mut bytes, 0) {
            Ok(()) if bytes.starts_with(&MAGIC) => {}
            // Its server died while it made it.
            Ok(()) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(fail(error)),
        }
        let number = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let owner = std::array::from_fn(|index| bytes[24 + index]);
        let record = Record { number: number(8), servers: [number(12), number(16)], owner };
        Ok(Some((log, record)))
    }

    /// Says who serves the device.
    pub(in crate::ublk) fn set_record(&self, record: &Record) -> io::Result<()> {
        let mut bytes = Vec::from(record.number.to_ne_bytes());
        bytes.extend(record.servers.iter().flat_map(|server| server.to_ne_bytes()));
        bytes.extend([0; 4]);
        bytes.extend(record.owner);
        self.file.write_all_at(&bytes, 8)
    }

    pub(in crate::ublk) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the oldest change is that is not durable.
    pub(super) fn tail(&self) -> io::Result<u64> {
        self.number(TAIL)
    }

    /// Where the next change goes.
    pub(super) fn head(&self) -> io::Result<u64> {
        self.number(HEAD)
    }

    /// Forgets what is in front of `position`.
    pub(super) fn set_tail(&self, position: u64) -> io::Result<()> {
        self.set_number(TAIL, position)
    }

    fn number(&self, at: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn set_number(&self, at: u64, value: u64) -> io::Result<()> {
        self.file.write_all_at(&value.to_ne_bytes(), at)
    }

    /// Adds a change at `position`; how many bytes it takes.
    pub(super) fn append(&self, position: u64, request: &Request) -> io::Result<u64> {
        let (kind, offset, length, data): (u32, _, _, &[u8]) = match request {
            Request::Write { offset, data, .. } => (1, *offset, data.len() as u64, data),
            Request::Discard { offset, length } => (3, *offset, *length, &[]),
            Request::WriteZeroes { offset, length } => (5, *offset, *length, &[]),
            Request::Read { .. } | Request::Flush => return Ok(0),
        };
        let kind = [kind, 0].into_iter().flat_map(u32::to_ne_bytes);
        let header: Vec<u8> = kind.chain([offset, length].into_iter().flat_map(u64::to_ne_bytes)).collect();
        self.put(position, &header)?;
        self.put(position + HEADER, data)?;
        let size = HEADER + data.len() as u64;
        // Only now it counts.
        self.set_number(HEAD, position + size)?;
        Ok(size)
    }

    /// Marks the change at `position` as one that has ended well.
    pub(super) fn mark(&self, position: u64) -> io::Result<()> {
        self.put(position + MARK, &ENDED.to_ne_bytes())
    }

    /// The change at `position`, if it has ended well, and where the next one is.
    pub(super) fn change(&self, position: u64) -> io::Result<(Option<Request>, u64)> {
        let mut header = [0; 24];
        self.get(position, &mut header)?;
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| header[at + index]));
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| header[at + index]));
        let (offset, length) = (word(8), word(16));
        let next = position + HEADER;
        let (request, next) = match half(0) {
            1 if length <= MAX_TRANSFER => {
                let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
                self.get(next, &mut data)?;
                (Request::Write { offset, data: data.into(), fua: false }, next + length)
            }
            3 => (Request::Discard { offset, length }, next),
            5 => (Request::WriteZeroes { offset, length }, next),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(((half(4) == ENDED).then_some(request), next))
    }

    fn put(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let (first, second) = bytes.split_at(before_the_end(position, bytes.len()));
        self.file.write_all_at(first, RING + position % CAPACITY)?;
        self.file.write_all_at(second, RING)
    }

    fn get(&self, position: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (first, second) = bytes.split_at_mut(before_the_end(position, bytes.len()));
        self.file.read_exact_at(first, RING + position % CAPACITY)?;
        self.file.read_exact_at(second, RING)
    }
}

/// Whether a file system is in memory.
pub(in crate::ublk) fn is_memory(found: &StatFs) -> bool {
    [TMPFS, RAMFS].contains(&found.f_type)
}

/// How many of so many bytes are in front of the ring's end.
fn before_the_end(position: u64, length: usize) -> usize {
    usize::try_from(CAPACITY - position % CAPACITY).map_or(length, |left| left.min(length))
}
