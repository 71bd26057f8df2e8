//! The kernel's requests by read(2), and their answers by write(2).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use futures::pending;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Setter, opcode};
use zeroize::Zeroize;

use super::Options;
use super::abi::{self, Agreed, BEFORE_DATA, Header, Hello, IN_HEADER, SMALLEST_BUFFER, feature};
use super::answer::{Answer, Way};
use super::filesystem::{Disk, FILE, MAX_REQUEST};
use crate::attend::Watch;

/// Bytes of the largest request.
const ROOM: usize = BEFORE_DATA + MAX_REQUEST as usize;
const _: () = assert!(ROOM >= SMALLEST_BUFFER);

/// Requests that are taken before others have their turn.
const TURN: usize = 8;

/// `FUSE_DEV_IOC_CLONE`: this descriptor becomes another way to the requests of that one.
const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);

/// A way to the requests of one mount.
#[derive(Debug)]
pub(super) struct Channel {
    descriptor: Arc<OwnedFd>,
}

/// How a thread waits for the kernel's next request.
pub(super) enum Waiter {
    /// It does nothing else.
    Alone,
    /// It has others to serve.
    Watched(Watch),
}

impl Waiter {
    /// Ends when there is something to read, or the mount is gone.
    async fn readable(&self, descriptor: &Arc<OwnedFd>) -> Result<(), Errno> {
        match self {
            // Whatever has become of the watch, a thread of its own can wait: also where a store that has ended fails all that waits with it.
            Self::Watched(watch) => match watch.readable(descriptor).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(Errno::CANCELED),
            },
            Self::Alone => {
                let mut looked = [PollFd::new(descriptor, PollFlags::IN)];
                rustix::io::retry_on_intr(|| rustix::event::poll(&mut looked, None)).map(drop)
            }
        }
    }
}

impl Channel {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor: Arc::new(descriptor) }
    }

    /// Has reads return at once, for a thread that must not wait in them.
    pub(super) fn never_wait(&self) -> Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(&self.descriptor)?;
        rustix::fs::fcntl_setfl(&self.descriptor, flags | OFlags::NONBLOCK)
    }

    /// Another way to the same requests, on which a thread can wait beside others; the same one where the kernel gives no other.
    pub(super) fn another(&self) -> Self {
        match clone(self.descriptor.as_fd()) {
            Ok(descriptor) => Self::new(descriptor),
            Err(_) => Self { descriptor: Arc::clone(&self.descriptor) },
        }
    }

    /// Agrees with the kernel on how to go on. The mount's first request must not have been read.
    ///
    /// # Errors
    /// When this is no kernel that one could agree with.
    pub(super) fn agree(&self, options: &Options) -> io::Result<()> {
        let mut bytes = vec![0; SMALLEST_BUFFER.max(ROOM)];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.descriptor, &mut *bytes))?;
        let hello = Header::decode(&bytes[..read]).and_then(|header| {
            let end = (IN_HEADER + header.argument()).min(read);
            Some((header.unique, Hello::decode(&header, &bytes[IN_HEADER..end])?))
        });
        let (unique, hello) =
            hello.ok_or_else(|| io::Error::other("the kernel begins with another request"))?;
        if hello.major != abi::MAJOR || hello.minor < abi::OLDEST {
            self.send(unique, Some(Errno::PROTO), &[]);
            let Hello { major, minor, .. } = hello;
            let message =
                format!("this kernel speaks FUSE {major}.{minor}; it takes 7.31 (Linux 5.4) or later");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        // Without some of these, requests come one at a time; it still works.
        let wanted = feature::ASYNC_READ
            | feature::BIG_WRITES
            | feature::ASYNC_DIRECT
            | feature::PARALLEL_DIRECTORIES
            | feature::MAX_PAGES
            | feature::MORE;
        let agreed = Agreed {
            minor: hello.minor.min(abi::MINOR),
            features: hello.features & wanted,
            max_background: options.max_background.max(1),
            largest: MAX_REQUEST,
        };
        self.write(unique, None, &agreed.encode())?;
        Ok(())
    }

    /// Takes requests until the mount is gone.
    ///
    /// # Errors
    /// [`Errno::CANCELED`] when this thread cannot go on waiting, and another has to; otherwise what the kernel says.
    pub(super) async fn serve(self: &Arc<Self>, disk: &Disk, waiter: &Waiter) -> Result<(), Errno> {
        let mut bytes = vec![0; ROOM];
        let mut taken = 0;
        loop {
            match rustix::io::read(&self.descriptor, &mut *bytes) {
                Ok(read) => {
                    self.take(disk, &bytes[..read]).await;
                    if disk.wipes() {
                        bytes[..read].zeroize();
                    }
                }
                Err(Errno::AGAIN) => {
                    taken = 0;
                    waiter.readable(&self.descriptor).await?;
                    continue;
                }
                // Whoever asked does not wait for it any more.
                Err(Errno::INTR | Errno::NOENT) => continue,
                // A thread hears ECONNABORTED if the mount went just when it took a request: fuse_dev_do_read in Linux.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(errno) => return Err(errno),
            }
            taken += 1;
            if taken % TURN == 0 && matches!(waiter, Waiter::Watched(_)) {
                give_way().await;
            }
        }
    }

    async fn take(self: &Arc<Self>, disk: &Disk, bytes: &[u8]) {
        let Some(header) = Header::decode(bytes).filter(|header| header.length == bytes.len()) else {
            return;
        };
        let (argument, rest) = bytes[IN_HEADER..].split_at(header.argument().min(bytes.len() - IN_HEADER));
        let way: Arc<dyn Way> = Arc::clone(self) as _;
        disk.take(&header, argument, rest, Answer::new(header.unique, way)).await;
    }

    /// Has the kernel ask for the file's size the next time that somebody looks.
    ///
    /// # Errors
    /// When the kernel does not take the notice.
    pub(super) fn forget_attributes(&self) -> Result<(), Errno> {
        match rustix::io::write(&self.descriptor, &abi::forget_attributes(FILE)) {
            // Nobody has looked at the file yet, so there is nothing to forget.
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn write(&self, unique: u64, error: Option<Errno>, body: &[u8]) -> Result<(), Errno> {
        let header = abi::reply(unique, error, body.len());
        let pieces = [IoSlice::new(&header), IoSlice::new(body)];
        let pieces = if body.is_empty() { &pieces[..1] } else { &pieces };
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.descriptor, pieces)).map(drop)
    }
}

impl Way for Channel {
    fn send(&self, unique: u64, error: Option<Errno>, body: &[u8]) {
        // Whoever asked may not wait any more, and then nobody misses it.
        let _ = self.write(unique, error, body);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Lets others of this thread go on first.
async fn give_way() {
    let waker = futures::future::poll_fn(|context| std::task::Poll::Ready(context.waker().clone())).await;
    waker.wake();
    pending!();
}

fn clone(descriptor: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    let device = Path::new("/dev/fuse");
    let another = rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number = u32::try_from(descriptor.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: CLONE reads a 32-bit descriptor, which is open.
    unsafe { ioctl::ioctl(&another, Setter::<CLONE, u32>::new(number)) }?;
    Ok(another)
}
