//! Requests of any offset and length, on a device that knows whole blocks only.

use crate::attend::Attend;
use crate::device::{BLOCK_SIZE, Device, Done, Found, Memory, Request};
use crate::range_lock::{Guard, Mode, RangeLock};
use bytes::Bytes;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

const BLOCK: usize = 4096;

/// A device that takes requests of any offset and length. Whole blocks pass straight through; a part of a block
/// is read, patched and written back while no other write can touch that block.
#[derive(Clone)]
pub(crate) struct Aligned {
    device: Arc<dyn Device>,
    lock: Arc<RangeLock>,
}

impl Aligned {
    pub(crate) fn new(device: Arc<dyn Device>) -> Aligned {
        Aligned { device, lock: Arc::default() }
    }

    pub(crate) fn size(&self) -> u64 {
        self.device.size()
    }

    /// As [`Device::memory`].
    pub(crate) fn memory(&self, bytes: usize) -> Memory {
        self.device.memory(bytes)
    }

    /// As [`Device::attendant`].
    pub(crate) fn attendant(&self) -> Option<&dyn Attend> {
        self.device.attendant()
    }

    /// As [`Device::allocated`]: for whole blocks only, since that is what is allocated.
    pub(crate) fn allocated(&self, offset: u64, length: u64, found: Found) {
        self.device.allocated(offset, length, found);
    }

    /// As [`Device::submit`], for bytes instead of blocks. What reaches beyond the end fails with `ENOSPC`; a length
    /// of zero is answered at once.
    pub(crate) fn submit(&self, request: Request, done: Done) {
        let Some((offset, length)) = extent(&request) else {
            return self.device.submit(request, done);
        };
        match offset.checked_add(length) {
            Some(end) if end <= self.device.size() => {}
            _ => return done(Err(Errno::NOSPC)),
        }
        if length == 0 {
            return done(Ok(Bytes::new()));
        }
        let blocks = offset / BLOCK_SIZE..=(offset + length - 1) / BLOCK_SIZE;
        let whole = offset.is_multiple_of(BLOCK_SIZE) && length.is_multiple_of(BLOCK_SIZE);
        let device = Arc::clone(&self.device);
        match request {
            Request::Read { .. } if whole => device.submit(request, done),
            Request::Read { offset, length } => read_part(device.as_ref(), offset, length, done),
            // Also whole blocks need the lock: a patch that was read before them would undo them.
            request if whole => self.lock.acquire(blocks, Mode::Shared, move |guard| {
                device.submit(
                    request,
                    Box::new(move |result| {
                        drop(guard);
                        done(result);
                    }),
                );
            }),
            request => self.lock.acquire(blocks, Mode::Exclusive, move |guard| {
                Chain { device, steps: split(request), guard, done }.run();
            }),
        }
    }
}

fn extent(request: &Request) -> Option<(u64, u64)> {
    match request {
        Request::Flush => None,
        Request::Read { offset, length } => Some((*offset, u64::from(*length))),
        Request::Write { offset, data, .. } => Some((*offset, data.len() as u64)),
        Request::Discard { offset, length } | Request::WriteZeroes { offset, length } => {
            Some((*offset, *length))
        }
    }
}

/// Reads the blocks around a part, and answers with the part.
fn read_part(device: &dyn Device, offset: u64, length: u32, done: Done) {
    let start = offset - offset % BLOCK_SIZE;
    let end = (offset + u64::from(length)).next_multiple_of(BLOCK_SIZE);
    let (Ok(whole), Ok(skip), Ok(wanted)) =
        (u32::try_from(end - start), usize::try_from(offset - start), usize::try_from(length))
    else {
        return done(Err(Errno::INVAL));
    };
    let cut = move |data: Bytes| {
        if data.len() < skip + wanted {
            return Err(Errno::IO);
        }
        Ok(data.slice(skip..skip + wanted))
    };
    device.submit(
        Request::Read { offset: start, length: whole },
        Box::new(move |result| done(result.and_then(cut))),
    );
}

/// A piece of a request that is not whole.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Whole(Request),
    Patch { block: u64, from: usize, bytes: Bytes, fua: bool },
}

/// Cuts a write, discard or zeroing into a part of a block, whole blocks, and a part of a block.
fn split(request: Request) -> VecDeque<Step> {
    let mut steps = VecDeque::new();
    let Some((mut offset, mut length)) = extent(&request) else { return steps };
    while length > 0 {
        let within = offset % BLOCK_SIZE;
        let part = if within > 0 || length < BLOCK_SIZE {
            length.min(BLOCK_SIZE - within)
        } else {
            length - length % BLOCK_SIZE
        };
        steps.push_back(piece(&request, offset, part));
        offset += part;
        length -= part;
    }
    steps
}

/// The bytes of `request` from `offset` on, `length` of them: whole blocks, or a part of one.
fn piece(request: &Request, offset: u64, length: u64) -> Step {
    let within = offset % BLOCK_SIZE;
    let patch =
        |bytes: Bytes, fua: bool| Step::Patch { block: offset - within, from: to_usize(within), bytes, fua };
    let partial = within > 0 || length < BLOCK_SIZE;
    match request {
        Request::Write { offset: start, data, fua } => {
            let from = to_usize(offset - start);
            let bytes = data.slice(from..from + to_usize(length));
            if partial {
                patch(bytes, *fua)
            } else {
                Step::Whole(Request::Write { offset, data: bytes, fua: *fua })
            }
        }
        _ if partial => patch(vec![0; to_usize(length)].into(), false),
        Request::Discard { .. } => Step::Whole(Request::Discard { offset, length }),
        _ => Step::Whole(Request::WriteZeroes { offset, length }),
    }
}

/// Lengths here are of data in memory, or less than a block.
fn to_usize(length: u64) -> usize {
    usize::try_from(length).expect("a length in memory fits usize")
}

/// Runs steps one after the other, then ends the request.
struct Chain {
    device: Arc<dyn Device>,
    steps: VecDeque<Step>,
    guard: Guard,
    done: Done,
}

impl Chain {
    fn run(mut self) {
        let device = Arc::clone(&self.device);
        match self.steps.pop_front() {
            None => self.end(Ok(Bytes::new())),
            Some(Step::Whole(request)) => device.submit(request, Box::new(move |result| self.go_on(result))),
            Some(Step::Patch { block, from, bytes, fua }) => {
                let read = Request::Read { offset: block, length: 4096 };
                let patch = move |result: Result<Bytes, Errno>| match result {
                    Ok(data) if data.len() == BLOCK => {
                        let device = Arc::clone(&self.device);
                        let mut memory = device.memory(BLOCK);
                        memory.as_mut().copy_from_slice(&data);
                        memory.as_mut()[from..from + bytes.len()].copy_from_slice(&bytes);
                        let write = Request::Write { offset: block, data: memory.freeze(), fua };
                        device.submit(write, Box::new(move |result| self.go_on(result)));
                    }
                    Ok(_) => self.end(Err(Errno::IO)),
                    Err(errno) => self.end(Err(errno)),
                };
                device.submit(read, Box::new(patch));
            }
        }
    }

    fn go_on(self, result: Result<Bytes, Errno>) {
        match result {
            Ok(_) => self.run(),
            Err(errno) => self.end(Err(errno)),
        }
    }

    fn end(self, result: Result<Bytes, Errno>) {
        let Chain { guard, done, .. } = self;
        drop(guard);
        done(result);
    }
}

#[cfg(test)]
mod tests;
