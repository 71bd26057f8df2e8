//! The client's side: a connection, and requests on it.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::Endpoint;
use crate::response::{Response, read_response};

/// A socket that gives up when a request has taken too long as a whole.
struct Timed {
    socket: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn rest(&self) -> io::Result<Duration> {
        let rest = self.deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() { Err(too_long()) } else { Ok(rest) }
    }
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "no answer in time")
}

/// A socket's time-out is told as `WouldBlock`.
fn timely<T>(done: io::Result<T>) -> io::Result<T> {
    done.map_err(|error| if error.kind() == ErrorKind::WouldBlock { too_long() } else { error })
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.rest()?))?;
        timely(self.socket.read(buffer))
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.rest()?))?;
        timely(self.socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Stream {
    fn timed(&mut self) -> &mut Timed {
        match self {
            Stream::Plain(timed) => timed,
            Stream::Tls(tls) => &mut tls.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.read(buffer),
            Stream::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.write(bytes),
            Stream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(timed) => timed.flush(),
            Stream::Tls(tls) => tls.flush(),
        }
    }
}

/// A request to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// The path, with its slash.
    pub path: &'a str,
    /// Fields beside `Host`, `Content-Type` and `Content-Length`. Without line feeds, which the caller sees to.
    pub fields: &'a [(&'a str, &'a str)],
    /// JSON, or nothing.
    pub body: &'a str,
    /// Most bytes of an answer's body.
    pub most: usize,
}

/// A connection to one endpoint.
pub struct Connection {
    stream: BufReader<Stream>,
    authority: String,
}

impl Connection {
    /// Connects, and with TLS ends the handshake: until here no request has been sent. `tls` is for an endpoint with TLS; without it there, the
    /// connection fails.
    ///
    /// # Errors
    /// Those of the network, and of TLS.
    pub fn open(
        endpoint: &Endpoint,
        tls: Option<Arc<ClientConfig>>,
        timeout: Duration,
    ) -> io::Result<Connection> {
        let deadline = Instant::now() + timeout;
        let socket = connect(endpoint, deadline)?;
        socket.set_nodelay(true)?;
        let mut timed = Timed { socket, deadline };
        let stream = if endpoint.tls {
            let config = tls.ok_or_else(|| io::Error::other("nothing says how to speak TLS"))?;
            let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
            let mut session = ClientConnection::new(config, name).map_err(io::Error::other)?;
            while session.is_handshaking() {
                session.complete_io(&mut timed)?;
            }
            Stream::Tls(Box::new(StreamOwned::new(session, timed)))
        } else {
            Stream::Plain(timed)
        };
        Ok(Connection { stream: BufReader::new(stream), authority: endpoint.authority() })
    }

    /// Whether a connection that rested may be used: an idle server says nothing, and one that has closed it did.
    pub fn is_fresh(&mut self) -> bool {
        if !self.stream.buffer().is_empty() {
            return false;
        }
        let socket = &self.stream.get_mut().timed().socket;
        let silent = socket.set_nonblocking(true).is_ok()
            && matches!(socket.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        socket.set_nonblocking(false).is_ok() && silent
    }

    /// The certificate that the server has shown, over TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self.stream.get_ref() {
            Stream::Plain(_) => None,
            Stream::Tls(tls) => tls.conn.peer_certificates()?.first(),
        }
    }

    /// Sends a request and reads the answer. After an error it is unknown whether the server has it, and the connection is of no use.
    ///
    /// # Errors
    /// Those of the network; [`ErrorKind::InvalidData`] if the answer is none.
    pub fn ask(&mut self, request: &Outgoing<'_>, timeout: Duration) -> io::Result<Response> {
        self.stream.get_mut().timed().deadline = Instant::now() + timeout;
        let Outgoing { method, path, body, .. } = request;
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.authority);
        for (name, value) in request.fields {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            text += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        text += &format!("\r\n{body}");
        let stream = self.stream.get_mut();
        stream.write_all(text.as_bytes())?;
        stream.flush()?;
        read_response(&mut self.stream, request.most)
    }
}

fn connect(endpoint: &Endpoint, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (endpoint.host.as_str(), endpoint.port).to_socket_addrs()? {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(too_long());
        }
        match TcpStream::connect_timeout(&address, rest) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
