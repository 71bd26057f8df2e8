//! A queue of a device: it takes requests from the kernel, and brings back how they ended.

use super::abi::{self, COMMIT_AND_FETCH, DESCRIPTOR, FETCH, Wanted};
use crate::budget::{Share, weight};
use crate::{Device, Error, Memory};
use bytes::Bytes;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Completions that are not of a request, by their user data.
const RUNG: u64 = u64::MAX;
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
    ring: IoUring,
    /// Requests, free or in flight, that the kernel still wants.
    live: u16,
}

/// Requests that have ended and that the kernel has not been told about, and what wakes the thread for them.
struct Ended {
    list: Mutex<Vec<(u16, i32)>>,
    bell: OwnedFd,
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
        let fail = |errno| Error::system(doing(), errno);
        let descriptors = Descriptors::map(&file, number, depth).map_err(fail)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(fail)?;
        let ended = Arc::new(Ended { list: Mutex::default(), bell, file });
        let ring = IoUring::builder().setup_clamp().setup_coop_taskrun().build(u32::from(depth) + 1);
        let ring = ring.map_err(|error| Error::io(doing(), &error))?;
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
        self.ring.submit().map_err(|error| Error::io(doing(), &error))?;
        // Nothing ends yet but what is refused.
        match self.ring.completion().next().map(|refused| refused.result()) {
            None => Ok(()),
            Some(result) => Err(Error::system(doing(), Errno::from_raw_os_error(-result.min(-1)))),
        }
    }

    /// Serves until the device is stopped.
    pub(super) fn run(mut self) {
        while self.live > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                // The kernel ends the device's requests when this thread's ring goes.
                Err(_) => return,
            }
            let completions: Vec<_> =
                self.ring.completion().map(|one| (one.user_data(), one.result())).collect();
            for (token, result) in completions {
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
    }

    /// Has the ring wait for the bell.
    fn listen(&mut self) {
        // What it has counted is of no use, and it may have counted nothing.
        let _ = rustix::io::read(&self.ended.bell, &mut [0; 8]);
        let bell = types::Fd(self.ended.bell.as_raw_fd());
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
    /// As for `SubmissionQueue::push`.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller's promise.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // There are entries for all; only what a signal has kept back can be in the way.
            let _ = self.ring.submit();
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
            self.ring();
        }
    }

    fn ring(&self) {
        // Fails only when the counter is at its limit, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
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
    base: *mut c_void,
    length: usize,
    depth: u16,
}

// SAFETY: a mapping belongs to the process, not to a thread; we only read it.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(file: &File, queue: u16, depth: u16) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let length = (usize::from(depth) * DESCRIPTOR).next_multiple_of(page);
        let room = (u64::from(abi::MAX_DEPTH) * DESCRIPTOR as u64).next_multiple_of(page as u64);
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), length, access, flags, file, u64::from(queue) * room)
        }?;
        Ok(Self { base, length, depth })
    }

    /// A copy of a descriptor. Zeros, which are no request, for a tag that does not exist.
    fn read(&self, tag: u16) -> [u8; DESCRIPTOR] {
        if tag >= self.depth {
            return [0; DESCRIPTOR];
        }
        // SAFETY: the mapping has a descriptor for each tag below the depth, aligned to eight bytes as the page is, and lives as long as `self`.
        // Nobody forms a reference to it; the kernel wrote this one before it handed us the request, and leaves it alone until we are done.
        let words: [u64; DESCRIPTOR / 8] =
            unsafe { self.base.cast::<[u64; DESCRIPTOR / 8]>().add(usize::from(tag)).read_volatile() };
        let mut bytes = [0; DESCRIPTOR];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this address and length, and no longer used.
        let result = unsafe { rustix::mm::munmap(self.base, self.length) };
        debug_assert!(result.is_ok(), "a mapping of ours can be unmapped: {result:?}");
    }
}
