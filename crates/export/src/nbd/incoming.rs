//! What a client sends, for a thread that has others to serve: it takes what has come, and never waits.

use super::link::Socket;
use crate::attend::{Readable, Watch};
use futures::future::FutureExt;
use futures::io::AsyncRead;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Bytes that a client's requests are read into, as far as they are small. Larger payloads go past it.
pub(super) const BUFFER: usize = 32 << 10;

/// Bytes of large payloads after which others have their turn.
const TURN: usize = 512 << 10;

/// A socket without TLS that is to be read on another thread.
pub(super) struct Incoming {
    socket: Arc<Socket>,
    descriptor: Arc<OwnedFd>,
}

impl Incoming {
    /// # Errors
    /// When the process has too many descriptors.
    pub(super) fn new(socket: Arc<Socket>) -> io::Result<Self> {
        let descriptor = Arc::new(socket.as_fd().try_clone_to_owned()?);
        Ok(Self { socket, descriptor })
    }

    /// The same on the thread that has `watch`.
    pub(super) fn watched(self, watch: Watch) -> Watched {
        let Self { socket, descriptor } = self;
        Watched { socket, descriptor, watch, read: 0, spent: false, waiting: None }
    }
}

/// A socket that is read when it is said to have something.
pub(super) struct Watched {
    socket: Arc<Socket>,
    descriptor: Arc<OwnedFd>,
    watch: Watch,
    /// Bytes that were read since others had their turn.
    read: usize,
    /// Before there is more, it is the others' turn.
    spent: bool,
    waiting: Option<Readable>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                // Who watched is gone, and does not serve any more.
                ready!(waiting.poll_unpin(context)).unwrap_or(Err(Errno::CANCELED))?;
                self.waiting = None;
            }
            if !self.spent {
                match rustix::net::recv(&*self.socket, &mut *bytes, RecvFlags::DONTWAIT) {
                    Ok((read, _)) => {
                        self.read += read;
                        // A large payload comes in parts, and none of them is of use to anybody alone.
                        self.spent = bytes.len() <= BUFFER || self.read >= TURN;
                        return Poll::Ready(Ok(read));
                    }
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => {}
                    Err(errno) => return Poll::Ready(Err(errno.into())),
                }
            }
            (self.spent, self.read) = (false, 0);
            self.waiting = Some(self.watch.readable(&self.descriptor));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attend::Attendance;
    use futures::AsyncReadExt;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, channel};
    use std::task::Waker;

    /// A client of which each byte that it sends is told, or what the system said instead.
    fn client(attendance: &mut Attendance) -> (UnixStream, Receiver<Result<u8, Option<i32>>>) {
        let (client, socket) = UnixStream::pair().unwrap();
        let incoming = Incoming::new(Arc::new(Socket::Unix(socket))).unwrap();
        let (sender, said) = channel();
        attendance.admit(Box::new(move |watch| {
            Box::pin(async move {
                let mut watched = incoming.watched(watch);
                let mut byte = [0];
                loop {
                    let read = watched.read_exact(&mut byte).await;
                    let goes_on = read.is_ok();
                    sender.send(read.map(|()| byte[0]).map_err(|error| error.raw_os_error())).unwrap();
                    if !goes_on {
                        return;
                    }
                }
            })
        }));
        (client, said)
    }

    #[test]
    fn who_sends_much_gives_way_after_each_part() {
        let mut attendance = Attendance::default();
        let (mut first, from_first) = client(&mut attendance);
        let (mut second, from_second) = client(&mut attendance);
        first.write_all(b"abc").unwrap();
        second.write_all(b"x").unwrap();
        let mut wishes = Vec::new();
        for (from_both, wanted) in [(vec![Ok(b'a'), Ok(b'x')], 2), (vec![Ok(b'b')], 2), (vec![Ok(b'c')], 2)] {
            attendance.run(Waker::noop(), &mut wishes);
            attendance.run(Waker::noop(), &mut wishes);
            let said: Vec<_> = from_first.try_iter().chain(from_second.try_iter()).collect();
            assert_eq!((said, wishes.len()), (from_both, wanted));
            wishes.drain(..).for_each(|wish| wish.seen.send(Ok(())).unwrap());
        }
        // Told too early, they wait again.
        attendance.run(Waker::noop(), &mut wishes);
        assert!(from_first.try_recv().is_err() && from_second.try_recv().is_err());
        assert_eq!(wishes.len(), 2);
    }

    #[test]
    fn a_large_payload_is_read_in_one_turn_while_there_is_something() {
        let (mut client, socket) = UnixStream::pair().unwrap();
        let incoming = Incoming::new(Arc::new(Socket::Unix(socket))).unwrap();
        let mut attendance = Attendance::default();
        let (sender, said) = channel();
        attendance.admit(Box::new(move |watch| {
            Box::pin(async move {
                let mut watched = incoming.watched(watch);
                let mut payload = vec![0; BUFFER * 3];
                for part in payload.chunks_mut(BUFFER + 1) {
                    let read = watched.read(part).await.unwrap();
                    sender.send(read).unwrap();
                }
            })
        }));
        client.write_all(&[1; BUFFER * 3]).unwrap();
        let mut wishes = Vec::new();
        attendance.run(Waker::noop(), &mut wishes);
        // The last part is small enough for others to come first.
        assert_eq!(said.try_iter().collect::<Vec<_>>(), [BUFFER + 1, BUFFER + 1, BUFFER - 2]);
        assert!(wishes.is_empty());
    }

    #[test]
    fn who_cannot_be_watched_is_not_served() {
        let mut attendance = Attendance::default();
        let (_first, from_first) = client(&mut attendance);
        let (_second, from_second) = client(&mut attendance);
        let mut wishes = Vec::new();
        attendance.run(Waker::noop(), &mut wishes);
        attendance.run(Waker::noop(), &mut wishes);
        wishes.remove(0).seen.send(Err(Errno::NOTSUP)).unwrap();
        drop(wishes);
        attendance.run(Waker::noop(), &mut Vec::new());
        attendance.run(Waker::noop(), &mut Vec::new());
        assert_eq!(from_first.recv(), Ok(Err(Some(Errno::NOTSUP.raw_os_error()))));
        assert_eq!(from_second.recv(), Ok(Err(Some(Errno::CANCELED.raw_os_error()))));
    }
}
