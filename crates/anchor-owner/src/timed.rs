//! A TCP connection on which everything ends at a deadline, however slowly the peer sends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// A connection with a deadline. A plain read time-out would begin anew with each byte that the peer sends.
#[derive(Debug)]
pub struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    /// `stream`, with its first deadline after `time`.
    ///
    /// # Errors
    /// If the socket can't be told to send small messages at once.
    pub fn new(stream: TcpStream, time: Duration) -> io::Result<Timed> {
        stream.set_nodelay(true)?;
        Ok(Timed { stream, deadline: Instant::now() + time })
    }

    /// From now on, everything must have ended after `time`.
    pub fn allow(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }

    /// Tells the peer that nothing more comes. It fails only if the connection is gone already.
    pub fn end_writing(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The time that is left; never zero, which a socket would take for no limit.
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(late()) } else { Ok(left) }
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

/// A socket reports its time-out as `WouldBlock`.
fn named(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { late() } else { error }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer).map_err(named)
    }
}

impl Write for Timed {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(buffer).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
