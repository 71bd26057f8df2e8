//! A queue of a device: it takes requests from the kernel, and brings back how they ended.

use super::abi::{self, COMMIT_AND_FETCH, DESCRIPTOR, FETCH, Wanted};
use crate::budget::{Share, weight};
use crate::{Device, Error, Memory};
use bytes::Bytes;
use memory::{Access, FileMapping};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use uring::{Entry, Event, Ring, Threads, opcode, types};

/// Completions that are not of a request, by their user data.
const RUNG: u64 = u64::MAX;
/// How long the kernel may be short of memory, and when it is asked again.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);
/// `POLLIN` of poll(2).
const POLL_IN: u32 = 1;

/// A queue. It belongs to one thread, from its first request to the device's end.
pub(super) struct Queue {
    number: u16,
    depth: u16,
    device: Arc<dyn Device>,
    /// Whether changes are refused here, too: the kernel keeps them from us.
    read_only: bool,
    share: Arc<Share>,
    descriptors: Descriptors,
    ended: Arc<Ended>,
    ring: Ring,
    /// Requests, free or in flight, that the kernel still wants.
    live: u16,
}

/// Requests that have ended and that the kernel has not been told about, and what wakes the thread for them.
struct Ended {
    list: Mutex<Vec<(u16, i32)>>,
    bell: Event,
    /// The character device: data goes through it.
    file: Arc<File>,
}

impl Queue {
    /// The queue of a number and with a depth.
    ///
    /// # Errors
    /// When the kernel refuses memory or a ring.
    pub(super) fn new(
        (number, depth): (u16, u16),
        file: Arc<File>,
        device: Arc<dyn Device>,
        share: Arc<Share>,
        read_only: bool,
    ) -> Result<Self, Error> {
        let doing = || format!("setting up queue {number} of a ublk device");
        let fail = |error: io::Error| Error::io(doing(), &error);
        let descriptors = Descriptors::map(&file, number, depth).map_err(fail)?;
        let bell = Event::to_poll().map_err(fail)?;
        let ended = Arc::new(Ended { list: Mutex::default(), bell, file });
        let ring = Ring::new(u32::from(depth) + 1, Threads::Any).map_err(|error| fail(error.into()))?;
        Ok(Self { number, depth, device, read_only, share, descriptors, ended, ring, live: depth })
    }

    /// Asks for the first requests. From then on the kernel knows the thread that calls this as the queue's, and waits for it when the device
    /// is started.
    ///
    /// # Errors
    /// When the kernel refuses one.
    pub(super) fn fetch(&mut self) -> Result<(), Error> {
        self.listen();
        (0..self.depth).for_each(|tag| self.ask(tag, FETCH, 0));
        let doing = || format!("asking for the requests of queue {}", self.number);
        self.ring.submit().map_err(|error| Error::io(format!("{}: {error}", doing()), &error.into()))?;
        // Nothing ends yet but what is refused.
        match self.ring.completions().next().map(|refused| refused.result) {
            None => Ok(()),
            Some(result) => Err(Error::system(doing(), Errno::from_raw_os_error(-result.min(-1)))),
        }
    }

    /// Serves until the device is stopped.
    ///
    /// # Errors
    /// When the kernel does not let us into the ring any more. It serves no request of this queue from then on.
    pub(super) fn run(mut self) -> Result<(), Error> {
        let mut refused = None;
        while self.live > 0 {
            match self.ring.wait(None) {
                Ok(()) => refused = None,
                Err(error)
                    if error.passes() && refused.get_or_insert_with(Instant::now).elapsed() < PATIENCE =>
                {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => {
                    return Err(Error::io(
                        format!("serving queue {} of a ublk device: {error}", self.number),
                        &error.into(),
                    ));
                }
            }
            let completions: Vec<_> = self.ring.completions().collect();
            for uring::Completion { token, result } in completions {
                match u16::try_from(token) {
                    Ok(tag) if result == 0 => self.begin(tag),
                    // The device is being stopped.
                    Ok(_) => self.live -= 1,
                    Err(_) => self.listen(),
                }
            }
            let ended = std::mem::take(&mut *self.ended.list.lock().unwrap_or_else(PoisonError::into_inner));
            ended.into_iter().for_each(|(tag, result)| self.ask(tag, COMMIT_AND_FETCH, result));
        }
        Ok(())
    }

    /// Has the ring wait for the bell.
    fn listen(&mut self) {
        self.ended.bell.clear();
        let bell = types::Fd(self.ended.bell.as_fd().as_raw_fd());
        let poll = opcode::PollAdd::new(bell, POLL_IN).build().user_data(RUNG);
        // SAFETY: polling names no memory, and the eventfd is open as long as `self` lives.
        unsafe { self.push(&poll) };
    }

    fn ask(&mut self, tag: u16, command: u32, result: i32) {
        let device = types::Fd(self.ended.file.as_raw_fd());
        let entry = opcode::UringCmd16::new(device, command).cmd(abi::io_command(self.number, tag, result));
        let entry = entry.build().user_data(u64::from(tag));
        // SAFETY: the command names no memory, and the file is open as long as `self` lives.
        unsafe { self.push(&entry) };
    }

    /// # Safety
    /// As for `Ring::push`.
    unsafe fn push(&mut self, entry: &Entry) {
        // SAFETY: the caller's promise.
        while unsafe { self.ring.push(entry) }.is_err() {
            // There are entries for all; only what the kernel has not taken yet can be in the way.
            match self.ring.submit() {
                Ok(()) => {}
                Err(error) if error.passes() => std::thread::sleep(PAUSE),
                // The next wait finds the same, and says it.
                Err(_) => return,
            }
        }
    }

    /// Hands a request to the device.
    fn begin(&self, tag: u16) {
        let (number, ended) = (self.number, Arc::clone(&self.ended));
        let Some(wanted) = Wanted::decode(&self.descriptors.read(tag), self.device.size()) else {
            return ended.end(tag, Err(Errno::INVAL));
        };
        if self.read_only && wanted.changes() {
            return ended.end(tag, Err(Errno::ROFS));
        }
        // Those in flight end, and give back what they have, without this thread.
        let permit = self.share.wait(weight(wanted.transferred()));
        let ending = Ending { tag, ended: Some(Arc::clone(&ended)) };
        let data = match wanted {
            Wanted::Write { length, .. } => {
                let memory = self.device.memory(usize::try_from(length).unwrap_or(0));
                ended.fetch(number, tag, memory)
            }
            _ => Ok(Bytes::new()),
        };
        let data = match data {
            Ok(data) => data,
            Err(errno) => return ending.end(Err(errno)),
        };
        let done = move |result: Result<Bytes, Errno>| {
            let result = result.and_then(|data| match wanted {
                Wanted::Read { length, .. } => ended.deliver(number, tag, &data, length),
                _ => Ok(()),
            });
            ending.end(result.map(|()| wanted.transferred()));
            drop(permit);
        };
        self.device.submit(wanted.request(data), Box::new(done));
    }
}

/// Ends a request, with an error if nobody else does.
struct Ending {
    tag: u16,
    ended: Option<Arc<Ended>>,
}

impl Ending {
    fn end(mut self, result: Result<u32, Errno>) {
        if let Some(ended) = self.ended.take() {
            ended.end(self.tag, result);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            ended.end(self.tag, Err(Errno::IO));
        }
    }
}

impl Ended {
    fn end(&self, tag: u16, result: Result<u32, Errno>) {
        let result = match result {
            Ok(bytes) => i32::try_from(bytes).unwrap_or(-Errno::INVAL.raw_os_error()),
            Err(errno) => -errno.raw_os_error(),
        };
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push((tag, result));
        // Who finds more than one has been told of the first.
        if list.len() == 1 {
            drop(list);
            self.bell.signal();
        }
    }

    /// The data of a write.
    fn fetch(&self, queue: u16, tag: u16, mut memory: Memory) -> Result<Bytes, Errno> {
        let at = abi::data_position(queue, tag);
        let (data, mut read) = (memory.as_mut(), 0);
        while read < data.len() {
            match rustix::io::pread(&self.file, &mut data[read..], at + read as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(more) => read += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(memory.freeze())
    }

    /// Brings the data of a read to who wants it.
    fn deliver(&self, queue: u16, tag: u16, data: &[u8], length: u32) -> Result<(), Errno> {
        if data.len() as u64 != u64::from(length) {
            return Err(Errno::IO);
        }
        let at = abi::data_position(queue, tag);
        let mut written = 0;
        while written < data.len() {
            match rustix::io::pwrite(&self.file, &data[written..], at + written as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// The descriptors of a queue's requests, in memory that the kernel writes.
struct Descriptors {
    mapping: FileMapping,
    depth: u16,
}

impl Descriptors {
    fn map(file: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let length = (usize::from(depth) * DESCRIPTOR).next_multiple_of(page);
        let room = (u64::from(abi::MAX_DEPTH) * DESCRIPTOR as u64).next_multiple_of(page as u64);
        let mapping = FileMapping::new(file, u64::from(queue) * room, length, Access::Read)?;
        Ok(Self { mapping, depth })
    }

    /// A copy of a descriptor. Zeros, which are no request, for a tag that does not exist.
    fn read(&self, tag: u16) -> [u8; DESCRIPTOR] {
        let mut bytes = [0; DESCRIPTOR];
        if tag < self.depth {
            self.mapping.copy_to(usize::from(tag) * DESCRIPTOR, &mut bytes);
        }
        bytes
    }
}
