//! The little of HTTP/1.1 (RFC 9112) that etcd's gateway needs: one POST at a time on a connection that is kept.
//!
//! Every size and every time has a limit, and all that a server sends is read here.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::address::Endpoint;

/// Most bytes of a status line with its fields.
const MAX_HEAD: usize = 16 * 1024;
/// Most fields of a head.
const MAX_FIELDS: usize = 64;
/// Most bytes of a body.
const MAX_BODY: usize = 64 * 1024;
/// Most bytes of the line in front of a chunk.
const MAX_CHUNK_LINE: usize = 256;

/// What a server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code, 200 for instance.
    pub status: u16,
    /// The body, decoded.
    pub body: Vec<u8>,
    /// Whether the connection may be used for another request.
    pub keeps: bool,
}

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

/// A connection to one endpoint.
pub(crate) struct Connection {
    stream: BufReader<Stream>,
    authority: String,
}

impl Connection {
    /// Connects, and with TLS ends the handshake: until here no request has been sent.
    pub(crate) fn open(
        endpoint: &Endpoint,
        tls: Option<Arc<ClientConfig>>,
        timeout: Duration,
    ) -> io::Result<Connection> {
        let deadline = Instant::now() + timeout;
        let socket = connect(endpoint, deadline)?;
        socket.set_nodelay(true)?;
        let mut timed = Timed { socket, deadline };
        let stream = match tls.filter(|_| endpoint.tls) {
            None => Stream::Plain(timed),
            Some(config) => {
                let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
                let mut session = ClientConnection::new(config, name).map_err(io::Error::other)?;
                while session.is_handshaking() {
                    session.complete_io(&mut timed)?;
                }
                Stream::Tls(Box::new(StreamOwned::new(session, timed)))
            }
        };
        Ok(Connection { stream: BufReader::new(stream), authority: endpoint.authority() })
    }

    /// Whether a connection that rested may be used: an idle server says nothing, and one that has closed it did.
    pub(crate) fn is_fresh(&mut self) -> bool {
        if !self.stream.buffer().is_empty() {
            return false;
        }
        let socket = &self.stream.get_mut().timed().socket;
        let silent = socket.set_nonblocking(true).is_ok()
            && matches!(socket.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        socket.set_nonblocking(false).is_ok() && silent
    }

    /// Sends a body and reads the answer. After an error it is unknown whether the server has it, and the connection is of no use.
    pub(crate) fn post(&mut self, path: &str, body: &str, timeout: Duration) -> io::Result<Response> {
        self.stream.get_mut().timed().deadline = Instant::now() + timeout;
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.authority,
            body.len()
        );
        let stream = self.stream.get_mut();
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        read_response(&mut self.stream)
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

/// Reads one response.
///
/// # Errors
/// [`ErrorKind::InvalidData`] when it is none, or too long; else what reading says.
pub fn read_response(from: &mut impl BufRead) -> io::Result<Response> {
    loop {
        let head = read_head(from)?;
        let parsed = parse_head(&head)?;
        // 1xx is followed by the response proper (RFC 9110, section 15.2).
        if (100..200).contains(&parsed.status) {
            continue;
        }
        let body = match parsed.framing {
            Framing::Length(length) => exactly(from, length)?,
            Framing::Chunked => chunks(from)?,
            Framing::UntilEnd => until_end(from)?,
        };
        let keeps = parsed.keeps && parsed.framing != Framing::UntilEnd;
        return Ok(Response { status: parsed.status, body, keeps });
    }
}

fn bad(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("this is no answer of an HTTP server: {why}"))
}

/// One line with its end; nothing longer than `most` bytes.
fn read_line(from: &mut impl BufRead, most: usize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(most as u64 + 1).read_until(b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => Ok(line),
        _ if line.len() > most => Err(bad("a line is too long")),
        _ => Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
    }
}

/// The status line and the fields, up to and with the empty line.
fn read_head(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let line = read_line(from, MAX_HEAD - head.len())?;
        head.extend_from_slice(&line);
        if line == b"\r\n" || line == b"\n" {
            return Ok(head);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilEnd,
}

struct Head {
    status: u16,
    framing: Framing,
    keeps: bool,
}

fn parse_head(bytes: &[u8]) -> io::Result<Head> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(bad("its head is cut short")),
        Err(error) => return Err(bad(&error.to_string())),
    }
    let status = response.code.ok_or_else(|| bad("no status"))?;
    let mut keeps = response.version == Some(1);
    let mut framing = Framing::UntilEnd;
    let mut framed = false;
    for field in response.headers.iter() {
        let value = std::str::from_utf8(field.value).unwrap_or_default().trim();
        if field.name.eq_ignore_ascii_case("connection") {
            keeps &= !value.eq_ignore_ascii_case("close");
        }
        let is_length = field.name.eq_ignore_ascii_case("content-length");
        if is_length || field.name.eq_ignore_ascii_case("transfer-encoding") {
            // Two of them are how requests are smuggled (RFC 9112, section 6.3).
            if framed {
                return Err(bad("its length is said twice"));
            }
            framed = true;
            framing = if is_length { Framing::Length(length_of(value)?) } else { coding_of(value)? };
        }
    }
    if status == 204 || status == 304 {
        framing = Framing::Length(0);
    }
    Ok(Head { status, framing, keeps })
}

fn length_of(value: &str) -> io::Result<usize> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let length =
        value.parse::<usize>().ok().filter(|_| digits).ok_or_else(|| bad("its length is no number"))?;
    if length > MAX_BODY { Err(bad("its body is too long")) } else { Ok(length) }
}

fn coding_of(value: &str) -> io::Result<Framing> {
    if value.eq_ignore_ascii_case("chunked") { Ok(Framing::Chunked) } else { Err(bad("an unknown coding")) }
}

fn exactly(from: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(body)
}

fn until_end(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    from.take(MAX_BODY as u64 + 1).read_to_end(&mut body)?;
    if body.len() > MAX_BODY { Err(bad("its body is too long")) } else { Ok(body) }
}

/// A chunked body (RFC 9112, section 7.1).
fn chunks(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_line(from, MAX_CHUNK_LINE)?;
        let size = match httparse::parse_chunk_size(&line) {
            Ok(httparse::Status::Complete((_, size))) => size,
            _ => return Err(bad("a chunk without its size")),
        };
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok().filter(|size| *size <= MAX_BODY - body.len());
        let size = size.ok_or_else(|| bad("its body is too long"))?;
        body.extend_from_slice(&exactly(from, size)?);
        if exactly(from, 2)? != b"\r\n" {
            return Err(bad("a chunk of another length than it says"));
        }
    }
    // Fields behind the body say nothing that is needed.
    let mut room = MAX_HEAD;
    loop {
        let line = read_line(from, room)?;
        room -= line.len();
        if line == b"\r\n" || line == b"\n" {
            return Ok(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Response> {
        // In small pieces, as a network may bring them.
        read_response(&mut BufReader::with_capacity(3, text.as_bytes()))
    }

    fn said(status: u16, body: &str, keeps: bool) -> Response {
        Response { status, body: body.into(), keeps }
    }

    #[test]
    fn responses_are_read() {
        for (text, wanted) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}rest", said(200, "{}", true)),
            ("HTTP/1.1 503 No\r\ncontent-length: 2\r\nConnection: Close\r\n\r\n{}", said(503, "{}", false)),
            ("HTTP/1.0 200 OK\r\n\r\nto the end", said(200, "to the end", false)),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nA;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
                said(200, "{}0123456789", true),
            ),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", said(204, "", true)),
        ] {
            assert_eq!(read(text).expect(text), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_none_or_too_long_is_refused() {
        let long = |text: &str| text.to_owned() + &"x".repeat(MAX_BODY + 2);
        for text in [
            "SSH-2.0-OpenSSH_9.2\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 65537\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n".into(),
            long("HTTP/1.1 200 OK\r\n\r\n"),
            long("HTTP/1.1 200 OK\r\nX: "),
            "HTTP/1.1 200 OK\r\n".to_owned() + &"X: y\r\n".repeat(100) + "\r\n",
        ] {
            let error = read(&text).expect_err(&text[..text.len().min(80)]);
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
        for cut in [0, 8, 30, 36, 40] {
            let text = &"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"[..cut];
            assert_eq!(read(text).expect_err("cut").kind(), ErrorKind::UnexpectedEof, "{cut}");
        }
    }
}
