//! Changes that a device's users have been told are done, and that are not durable yet: kept where they outlive this process.
//!
//! A device that goes on after its server was killed must not have forgotten a write that had ended: the file system does not keep it any
//! longer, and its next flush would succeed. (To who has not flushed, a machine may lose such a write; a server's death is no reason to.) So each
//! change goes into a ring in a file in memory before the device gets it, and leaves it when a flush that began after its end has ended. The next
//! server repeats what is in the ring, in order, before the first request. A change may be there that had not ended: the kernel asks for it again.

use crate::{Device, Done, Error, MAX_TRANSFER, Request};
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the ring. At half of it a flush begins.
const CAPACITY: u64 = 64 << 20;
/// Where the ring begins in the file, behind the record.
const RING: u64 = 4096;
/// Bytes in front of each change's data: kind, offset, length.
const HEADER: u64 = 24;

const MAGIC: [u8; 8] = *b"cvmublk1";
const TAIL: u64 = 40;
const HEAD: u64 = 48;

/// File systems that are in memory.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Whose device it is: the first bytes of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// The device's number.
    pub(super) number: u32,
    /// The process that serves it, and one that was about to.
    pub(super) servers: [u32; 2],
    /// The volume that it shows.
    pub(super) owner: [u8; 16],
}

/// Where changes are kept.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    /// Makes the file, and takes all its memory at once.
    ///
    /// # Errors
    /// [`Error::Usage`] if it would not be in memory: what is in it is plaintext.
    pub(super) fn create(path: &Path, record: &Record) -> Result<Self, Error> {
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
        let taken = rustix::fs::fallocate(&log.file, rustix::fs::FallocateFlags::empty(), 0, RING + CAPACITY);
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
    pub(super) fn open(path: &Path) -> Result<Option<(Self, Record)>, Error> {
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
    pub(super) fn set_record(&self, record: &Record) -> io::Result<()> {
        let mut bytes = Vec::from(record.number.to_ne_bytes());
        bytes.extend(record.servers.iter().flat_map(|server| server.to_ne_bytes()));
        bytes.extend([0; 4]);
        bytes.extend(record.owner);
        self.file.write_all_at(&bytes, 8)
    }

    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
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
    fn append(&self, position: u64, request: &Request) -> io::Result<u64> {
        let (kind, offset, length, data): (u64, _, _, &[u8]) = match request {
            Request::Write { offset, data, .. } => (1, *offset, data.len() as u64, data),
            Request::Discard { offset, length } => (3, *offset, *length, &[]),
            Request::WriteZeroes { offset, length } => (5, *offset, *length, &[]),
            Request::Read { .. } | Request::Flush => return Ok(0),
        };
        let header: Vec<u8> = [kind, offset, length].into_iter().flat_map(u64::to_ne_bytes).collect();
        self.put(position, &header)?;
        self.put(position + HEADER, data)?;
        let size = HEADER + data.len() as u64;
        // Only now it counts.
        self.set_number(HEAD, position + size)?;
        Ok(size)
    }

    /// The change at `position`, and where the next one is.
    fn change(&self, position: u64) -> io::Result<(Request, u64)> {
        let mut header = [0; 24];
        self.get(position, &mut header)?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| header[at + index]));
        let (offset, length) = (word(8), word(16));
        let next = position + HEADER;
        Ok(match word(0) {
            1 if length <= MAX_TRANSFER => {
                let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
                self.get(next, &mut data)?;
                (Request::Write { offset, data, fua: false }, next + length)
            }
            3 => (Request::Discard { offset, length }, next),
            5 => (Request::WriteZeroes { offset, length }, next),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
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
pub(super) fn is_memory(found: &rustix::fs::StatFs) -> bool {
    [TMPFS, RAMFS].contains(&found.f_type)
}

/// How many of so many bytes are in front of the ring's end.
fn before_the_end(position: u64, length: usize) -> usize {
    usize::try_from(CAPACITY - position % CAPACITY).map_or(length, |left| left.min(length))
}

/// A device whose changes are kept. Clones share it.
#[derive(Clone)]
pub(super) struct Kept(Arc<Shared>);

struct Shared {
    device: Arc<dyn Device>,
    log: Log,
    state: Mutex<State>,
}

/// Positions count all bytes that were ever kept; the ring has those from `tail` to `head`.
#[derive(Default)]
struct State {
    tail: u64,
    head: u64,
    /// Where the changes are that the device has not ended.
    open: BTreeSet<u64>,
    /// For lack of room.
    waiting: VecDeque<(Request, Done)>,
    /// A flush of our own is in flight.
    flushing: bool,
}

impl Kept {
    /// Repeats what the log has, and keeps in it what comes.
    ///
    /// # Errors
    /// When the log cannot be read, or the device fails.
    pub(super) fn new(device: Arc<dyn Device>, log: Log) -> Result<Self, Error> {
        let doing = || format!("repeating the changes in {}", log.path.display());
        let fail = |error: io::Error| Error::io(doing(), &error);
        let (mut tail, head) = (log.number(TAIL).map_err(fail)?, log.number(HEAD).map_err(fail)?);
        while tail < head {
            let (request, next) = log.change(tail).map_err(fail)?;
            finish(&device, request).map_err(|errno| Error::system(doing(), errno))?;
            tail = next;
        }
        finish(&device, Request::Flush).map_err(|errno| Error::system(doing(), errno))?;
        log.set_number(TAIL, head).map_err(fail)?;
        let state = Mutex::new(State { tail: head, head, ..State::default() });
        Ok(Self(Arc::new(Shared { device, log, state })))
    }

    /// The device is gone, and with it what was kept for it.
    pub(super) fn remove(&self) {
        self.0.log.remove();
    }

    /// Keeps a change and hands it to the device.
    fn change(&self, request: Request, done: Done) {
        let mut state = self.0.state();
        // Those that wait keep their order.
        if !state.waiting.is_empty() || !state.has_room(&request) {
            state.waiting.push_back((request, done));
            drop(state);
            return self.relieve();
        }
        self.keep(state, request, done);
    }

    fn keep(&self, mut state: MutexGuard<'_, State>, request: Request, done: Done) {
        let position = state.head;
        match self.0.log.append(position, &request) {
            Ok(size) => state.head += size,
            Err(error) => {
                drop(state);
                return done(Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
            }
        }
        state.open.insert(position);
        let half_full = state.head - state.tail > CAPACITY / 2;
        drop(state);
        let open = Open { kept: self.clone(), position };
        let end = move |result| {
            drop(open);
            done(result);
        };
        self.0.device.submit(request, Box::new(end));
        if half_full {
            self.relieve();
        }
    }

    fn flush(&self, done: Done) {
        let covered = self.0.state().covered();
        let kept = self.clone();
        let end = move |result: Result<Vec<u8>, Errno>| {
            let result = result.and_then(|data| kept.0.release(covered).map(|()| data));
            done(result);
            kept.admit();
        };
        self.0.device.submit(Request::Flush, Box::new(end));
    }

    /// Begins a flush if the ring needs one and one would help. If it would not, the end of the oldest change comes back here.
    fn relieve(&self) {
        let mut state = self.0.state();
        let needed = !state.waiting.is_empty() || state.head - state.tail > CAPACITY / 2;
        if !needed || state.flushing || state.covered() == state.tail {
            return;
        }
        state.flushing = true;
        drop(state);
        let flushing = Flushing(self.clone());
        self.flush(Box::new(move |result| flushing.end(result.err())));
    }

    /// Lets those in that have waited for room.
    fn admit(&self) {
        loop {
            let mut state = self.0.state();
            match state.waiting.pop_front() {
                Some((request, done)) if state.has_room(&request) => self.keep(state, request, done),
                Some(waiting) => {
                    state.waiting.push_front(waiting);
                    drop(state);
                    return self.relieve();
                }
                None => return,
            }
        }
    }
}

impl Device for Kept {
    fn size(&self) -> u64 {
        self.0.device.size()
    }

    fn submit(&self, request: Request, done: Done) {
        match request {
            Request::Read { .. } => self.0.device.submit(request, done),
            Request::Flush => self.flush(done),
            Request::Write { .. } | Request::Discard { .. } | Request::WriteZeroes { .. } => {
                self.change(request, done)
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is in front of `position`.
    fn release(&self, position: u64) -> Result<(), Errno> {
        let mut state = self.state();
        if position > state.tail {
            let written = self.log.set_number(TAIL, position);
            written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            state.tail = position;
        }
        Ok(())
    }
}

impl State {
    fn has_room(&self, request: &Request) -> bool {
        let data = if let Request::Write { data, .. } = request { data.len() as u64 } else { 0 };
        self.head - self.tail + HEADER + data <= CAPACITY
    }

    /// What a flush that begins now makes durable: all in front of this position.
    fn covered(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.head)
    }
}

/// A change that the device has, until it has ended in whatever way.
struct Open {
    kept: Kept,
    position: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.kept.0.state().open.remove(&self.position);
        self.kept.relieve();
    }
}

/// A flush of our own, until it has ended in whatever way.
struct Flushing(Kept);

impl Flushing {
    fn end(self, failed: Option<Errno>) {
        if let Some(errno) = failed {
            let waiting = std::mem::take(&mut self.0.0.state().waiting);
            waiting.into_iter().for_each(|(_, done)| done(Err(errno)));
        }
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        self.0.0.state().flushing = false;
    }
}

/// Has a device do something, and waits for it.
fn finish(device: &Arc<dyn Device>, request: Request) -> Result<Vec<u8>, Errno> {
    let (sender, receiver) = channel();
    device.submit(request, Box::new(move |result| drop(sender.send(result))));
    receiver.recv().unwrap_or(Err(Errno::IO))
}

#[cfg(test)]
mod tests;
