//! The connection's bytes: a socket, plain or under TLS, with one half to read from and one to write to.

use super::Peer;
use rustix::net::{Shutdown, sockopt};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a peer that vanished may go unnoticed: until the first probe, between probes, and how many.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(10), 6);

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Replies at once, and looks from time to time whether the peer is still there.
    pub(super) fn prepare(&self) -> io::Result<()> {
        if let Socket::Tcp(stream) = self {
            stream.set_nodelay(true)?;
            let (idle, between, count) = KEEP_ALIVE;
            sockopt::set_socket_keepalive(stream, true)?;
            sockopt::set_tcp_keepidle(stream, idle)?;
            sockopt::set_tcp_keepintvl(stream, between)?;
            sockopt::set_tcp_keepcnt(stream, count)?;
        }
        Ok(())
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> Peer {
        match self {
            Socket::Unix(stream) => process_of(stream).map_or(Peer::Unknown, Peer::Process),
            Socket::Tcp(stream) => stream.peer_addr().map_or(Peer::Unknown, Peer::Address),
        }
    }

    /// Ends reading and writing, on whatever thread.
    pub(super) fn cut(&self) {
        let _ = rustix::net::shutdown(self, Shutdown::Both);
    }

    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => {
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(patience)
            }
            Socket::Tcp(stream) => {
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(patience)
            }
        }
    }
}

/// The process that connected. For one of another pid namespace the kernel says 0, a number that `rustix` takes for impossible.
fn process_of(stream: &UnixStream) -> Option<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of_val(&credentials)).ok()?;
    // SAFETY: both pointers lead to locals that outlive the call, `length` is the size of what the first leads to, and whatever numbers the
    // kernel writes there are a `ucred`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    let process = u32::try_from(credentials.pid).ok().filter(|&process| process > 0);
    process.filter(|_| result == 0)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).read(bytes),
            Socket::Tcp(stream) => (&*stream).read(bytes),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).write(bytes),
            Socket::Tcp(stream) => (&*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The two halves of a connection.
pub(super) struct Link {
    pub(super) input: Input,
    pub(super) output: Output,
}

/// What the client sends.
pub(super) struct Input {
    socket: Arc<Socket>,
    deadline: Option<Instant>,
    tls: Option<Incoming>,
}

/// What the client gets.
pub(super) struct Output {
    socket: Arc<Socket>,
    session: Option<Arc<Mutex<ServerConnection>>>,
    /// Records on their way to the socket.
    sealed: Vec<u8>,
}

/// TLS records that came in.
struct Incoming {
    session: Arc<Mutex<ServerConnection>>,
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

/// Bytes that are read from the socket at a time.
const CHUNK: usize = 32 << 10;

impl Link {
    /// A link over a socket, whose client must have agreed on everything before `deadline`.
    pub(super) fn new(socket: Arc<Socket>, deadline: Instant) -> Link {
        Link {
            input: Input { socket: Arc::clone(&socket), deadline: Some(deadline), tls: None },
            output: Output { socket, session: None, sealed: Vec::new() },
        }
    }

    /// Goes on under TLS, after a handshake.
    ///
    /// # Errors
    /// What is wrong with the client or its certificate.
    pub(super) fn start_tls(self, config: &Arc<ServerConfig>) -> io::Result<Link> {
        let Input { socket, deadline, .. } = self.input;
        let mut session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut Timed { socket: &socket, deadline })?;
        }
        let session = Arc::new(Mutex::new(session));
        let incoming = Incoming {
            session: Arc::clone(&session),
            bytes: vec![0; CHUNK].into_boxed_slice(),
            begin: 0,
            end: 0,
        };
        Ok(Link {
            input: Input { socket: Arc::clone(&socket), deadline, tls: Some(incoming) },
            output: Output { socket, session: Some(session), sealed: Vec::new() },
        })
    }

    /// All is agreed upon: from now on the client may take its time.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.input.deadline = None;
        self.input.socket.set_patience(None)
    }
}

impl Input {
    /// Whether what is read is what the socket has.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }
}

/// A socket that a client must not keep busy beyond the deadline.
struct Timed<'a> {
    socket: &'a Socket,
    deadline: Option<Instant>,
}

impl Timed<'_> {
    fn hurry(&self) -> io::Result<()> {
        let Some(deadline) = self.deadline else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_patience(Some(left))
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        let mut socket = self.socket;
        socket.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hurry()?;
        let mut socket = self.socket;
        socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut socket = Timed { socket: &self.socket, deadline: self.deadline };
        match &mut self.tls {
            None => socket.read(bytes),
            Some(incoming) => incoming.read(&mut socket, bytes),
        }
    }
}

impl Incoming {
    fn read(&mut self, socket: &mut Timed<'_>, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut session = lock(&self.session);
            match session.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Also the end, if the client said that it is one.
                ended => return ended,
            }
            if let Some(mut rest) = self.bytes.get(self.begin..self.end).filter(|rest| !rest.is_empty()) {
                self.begin += session.read_tls(&mut rest)?;
                session.process_new_packets().map_err(io::Error::other)?;
                continue;
            }
            drop(session);
            self.begin = 0;
            self.end = socket.read(&mut self.bytes)?;
            if self.end == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(session) = &self.session else { return (&*self.socket).write(bytes) };
        let taken = {
            let mut session = lock(session);
            let taken = session.writer().write(bytes)?;
            while session.wants_write() {
                session.write_tls(&mut self.sealed)?;
            }
            taken
        };
        // Not under the lock: a client that does not read must still be able to send.
        let sent = (&*self.socket).write_all(&self.sealed);
        self.sealed.clear();
        sent.map(|()| taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    /// Whether what is written goes through TLS.
    pub(super) fn is_sealed(&self) -> bool {
        self.session.is_some()
    }

    /// Says goodbye, so that the client can tell the end from a cut.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if let Some(session) = &self.session {
            let mut session = lock(session);
            session.send_close_notify();
            while session.wants_write() {
                session.write_tls(&mut self.sealed)?;
            }
        }
        (&*self.socket).write_all(&self.sealed)
    }
}

fn lock(session: &Mutex<ServerConnection>) -> MutexGuard<'_, ServerConnection> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}
