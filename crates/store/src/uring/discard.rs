//! Discards of a device that the ring cannot have: `BLKDISCARD` blocks, so a thread of its own does it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::thread::{self, JoinHandle};

use crate::file::Inner;
use uring::Doorbell;

/// `_IO(0x12, 119)` of `linux/fs.h`: discard a range of bytes.
const BLKDISCARD: libc::Ioctl = 0x1277;

const BLOCK: u64 = 4096;

/// One request: what the submitter gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Discard {
    pub(super) token: u64,
    pub(super) block: u64,
    pub(super) blocks: u64,
}

type Ended = Vec<(Discard, i32)>;

/// The thread. Dropped, it ends the request that it is at and does no other.
pub(super) struct Discarder {
    requests: Option<Sender<Discard>>,
    ended: Arc<Mutex<Ended>>,
    thread: Option<JoinHandle<()>>,
}

impl Discarder {
    pub(super) fn start(store: Arc<Inner>, doorbell: Arc<Doorbell>) -> io::Result<Self> {
        let (requests, received) = channel();
        let ended = Arc::new(Mutex::new(Vec::new()));
        let results = Arc::clone(&ended);
        let thread = thread::Builder::new()
            .name("discard".into())
            .spawn(move || run(&store, &doorbell, &received, &results))?;
        Ok(Self { requests: Some(requests), ended, thread: Some(thread) })
    }

    pub(super) fn submit(&self, request: Discard) {
        // The thread lives as long as this does.
        let _ = self.requests.as_ref().map(|requests| requests.send(request));
    }

    /// What has ended since the last call, with 0 or the negative error number.
    pub(super) fn ended(&self) -> Ended {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Discarder {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(store: &Inner, doorbell: &Arc<Doorbell>, received: &Receiver<Discard>, ended: &Mutex<Ended>) {
    while let Ok(request) = received.recv() {
        let result = discard(&store.file, request.block, request.blocks);
        ended.lock().unwrap_or_else(PoisonError::into_inner).push((request, result));
        doorbell.wake_by_ref();
    }
}

fn discard(device: &OwnedFd, block: u64, blocks: u64) -> i32 {
    let range = [block * BLOCK, blocks * BLOCK];
    // SAFETY: the call reads two numbers from `range`, which outlives it, and keeps nothing.
    match unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => 0,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}
