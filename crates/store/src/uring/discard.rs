//! Discards of a device that the ring cannot have: `BLKDISCARD` blocks, so a thread of its own does it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::file::Inner;
use uring::Doorbell;

/// `_IO(0x12, 119)` of `linux/fs.h`: discard a range of bytes.
const BLKDISCARD: libc::Ioctl = 0x1277;

const BLOCK: u64 = 4096;
/// Between two looks whether the thread has ended.
const PAUSE: Duration = Duration::from_millis(1);

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

    /// Waits so long for the end of the request that it is at.
    pub(super) fn leave(mut self, patience: Duration) {
        drop(self.requests.take());
        let begun = Instant::now();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if begun.elapsed() >= patience {
                return self.abandon();
            }
            thread::sleep(PAUSE);
        }
    }

    /// Leaves the thread to the request that it is at, which may never end.
    pub(super) fn abandon(mut self) {
        drop(self.thread.take());
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::*;
    use crate::{FileStore, Options};

    /// A loop device stands for the disk.
    #[test]
    fn a_device_forgets_the_blocks_that_were_named_and_no_others() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0x5a; 256 * 4096]).unwrap();
        file.as_file().sync_all().unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            let _ = writeln!(
                io::stderr(),
                "\nSKIPPED a_device_forgets_the_blocks_that_were_named_and_no_others: no loop device to be had"
            );
            return;
        };
        let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let before = file.as_file().metadata().unwrap().blocks();
        let found = discard_on(&device);
        assert!(Command::new("losetup").args(["--detach", &device]).status().unwrap().success());
        let (first, beyond) = found;
        assert_eq!(first, 0);
        assert!(beyond < 0, "a discard behind the end of the device did not fail: {beyond}");
        let after = file.as_file().metadata().unwrap().blocks();
        assert!(after + 1024 <= before, "{after} of {before} sectors are left");
        let content = std::fs::read(file.path()).unwrap();
        let kept = content[..16 * 4096].iter().chain(&content[(16 + 128) * 4096..]);
        assert!(kept.into_iter().all(|byte| *byte == 0x5a), "more than was asked for is gone");
        assert!(content[16 * 4096..(16 + 128) * 4096].iter().all(|byte| *byte == 0));
    }

    /// The results of a discard, and of one behind the end.
    fn discard_on(device: &str) -> (i32, i32) {
        let store = FileStore::open(device, Options::default()).unwrap();
        let discarder =
            Discarder::start(Arc::clone(&store.inner), Arc::new(Doorbell::new().unwrap())).unwrap();
        for (token, block, blocks) in [(1, 16, 128), (2, 4096, 16)] {
            discarder.submit(Discard { token, block, blocks });
        }
        let (begun, mut ended) = (Instant::now(), Vec::new());
        while ended.len() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(20), "{ended:?}");
            ended.extend(discarder.ended());
            thread::sleep(Duration::from_millis(1));
        }
        let tokens: Vec<u64> = ended.iter().map(|(discard, _)| discard.token).collect();
        assert_eq!(tokens, [1, 2]);
        (ended[0].1, ended[1].1)
    }
}
