//! Changes that a device's users have been told are done, and that are not durable yet: kept where they outlive this process.
//!
//! A device that goes on after its server was killed must not have forgotten a write that had ended: the file system does not keep it any
//! longer, and its next flush would succeed. (To who has not flushed, a machine may lose such a write; a server's death is no reason to.) So each
//! change goes into a ring in a file in memory before the device gets it, is marked there when it has ended well, and leaves it when a flush that
//! began after its end has ended. The next server repeats what is marked, in order, before the first request. What had not ended the kernel
//! asks for again; what was refused must not happen after all, and might be refused again.

mod log;

pub(super) use log::{Log, Record, is_memory};

use crate::{Device, Done, Error, Memory, Request};
use bytes::Bytes;
use log::{CAPACITY, HEADER};
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device whose changes are kept. Clones share it.
#[derive(Clone)]
pub(super) struct RecoveryLog(Arc<Shared>);

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

impl RecoveryLog {
    /// Repeats what the log has, and keeps in it what comes.
    ///
    /// # Errors
    /// When the log cannot be read, or the device fails.
    pub(super) fn new(device: Arc<dyn Device>, log: Log) -> Result<Self, Error> {
        let doing = || format!("repeating the changes in {}", log.path().display());
        let fail = |error: io::Error| Error::io(doing(), &error);
        let (mut tail, head) = (log.tail().map_err(fail)?, log.head().map_err(fail)?);
        while tail < head {
            let (ended, next) = log.change(tail).map_err(fail)?;
            if let Some(request) = ended {
                finish(&device, request).map_err(|errno| Error::system(doing(), errno))?;
            }
            tail = next;
        }
        finish(&device, Request::Flush).map_err(|errno| Error::system(doing(), errno))?;
        log.set_tail(head).map_err(fail)?;
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
        let open = Open { recovery: self.clone(), position };
        let end = move |result: Result<Bytes, Errno>| {
            let result = result.and_then(|data| open.ended().map(|()| data));
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
        let recovery = self.clone();
        let end = move |result: Result<Bytes, Errno>| {
            let result = result.and_then(|data| recovery.0.release(covered).map(|()| data));
            done(result);
            recovery.admit();
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

impl Device for RecoveryLog {
    fn size(&self) -> u64 {
        self.0.device.size()
    }

    fn memory(&self, bytes: usize) -> Memory {
        self.0.device.memory(bytes)
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
            let written = self.log.set_tail(position);
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
    recovery: RecoveryLog,
    position: u64,
}

impl Open {
    /// Notes that it has ended well: from now on it may be called done.
    fn ended(&self) -> Result<(), Errno> {
        let marked = self.recovery.0.log.mark(self.position);
        marked.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.recovery.0.state().open.remove(&self.position);
        self.recovery.relieve();
    }
}

/// A flush of our own, until it has ended in whatever way.
struct Flushing(RecoveryLog);

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
fn finish(device: &Arc<dyn Device>, request: Request) -> Result<Bytes, Errno> {
    let (sender, receiver) = channel();
    device.submit(request, Box::new(move |result| drop(sender.send(result))));
    receiver.recv().unwrap_or(Err(Errno::IO))
}

#[cfg(test)]
mod tests;
