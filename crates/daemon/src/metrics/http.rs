//! One page over HTTP/1.1, for a few askers at a time.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Address;
use cli::failure::Failure;

/// Most bytes of a request's head.
const MAX_HEAD: usize = 8192;
/// Most header lines.
const MAX_HEADERS: usize = 64;
/// Most askers at a time; more are hung up on.
const MAX_ASKERS: usize = 8;
/// How long one may take, for the request and for the answer each.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is served.
pub type Page = dyn Fn() -> Result<String, Failure> + Send + Sync;

/// A socket that is open, and not answered yet.
pub struct Socket {
    accept: Box<Accept>,
    file: Option<Remove>,
}

type Accept = dyn Fn() -> io::Result<Box<dyn Stream>> + Send;

/// Takes the file of a socket away when dropped.
pub struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A connection that does not wait for ever.
trait Stream: Read + Write + Send {
    fn limit(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self) -> io::Result<()> {
        self.set_read_timeout(Some(PATIENCE)).and_then(|()| self.set_write_timeout(Some(PATIENCE)))
    }
}

impl Stream for UnixStream {
    fn limit(&self) -> io::Result<()> {
        self.set_read_timeout(Some(PATIENCE)).and_then(|()| self.set_write_timeout(Some(PATIENCE)))
    }
}

impl Socket {
    /// Opens it. A socket file that nobody answers on any more is replaced.
    ///
    /// # Errors
    /// When the address is taken, or cannot be used.
    pub fn open(address: &Address) -> Result<Self, Failure> {
        let fail = |error: io::Error| {
            Failure::usage(format!("metrics cannot be served on {address}: {error}; choose another address"))
        };
        match address {
            Address::Loopback(address) => {
                let listener = TcpListener::bind(address).map_err(fail)?;
                let accept = move || listener.accept().map(|(stream, _)| Box::new(stream) as Box<dyn Stream>);
                Ok(Self { accept: Box::new(accept), file: None })
            }
            Address::Unix(path) => {
                remove_dead(path);
                let listener = UnixListener::bind(path).map_err(fail)?;
                let file = Some(Remove(path.clone()));
                std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(fail)?;
                let accept = move || listener.accept().map(|(stream, _)| Box::new(stream) as Box<dyn Stream>);
                Ok(Self { accept: Box::new(accept), file })
            }
        }
    }

    /// Answers until the process ends. What is returned takes the socket's file away when it is dropped, if there is one.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn serve(self, page: Arc<Page>) -> Result<Option<Remove>, Failure> {
        let Self { accept, file } = self;
        let thread =
            std::thread::Builder::new().name("metrics".into()).spawn(move || answer_all(&accept, &page));
        thread.map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
        Ok(file)
    }
}

fn remove_dead(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        let _ = std::fs::remove_file(path);
    }
}

fn answer_all(accept: &Accept, page: &Arc<Page>) {
    let askers = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok(mut stream) = accept() else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let place = Place::take(&askers);
        if place.number() > MAX_ASKERS || stream.limit().is_err() {
            continue;
        }
        let page = Arc::clone(page);
        let talk = move || {
            let _place = place;
            let answer = answer(&mut stream, page.as_ref());
            let _ = stream.write_all(&answer);
        };
        let _ = std::thread::Builder::new().name("metrics".into()).spawn(talk);
    }
}

/// One of the askers.
struct Place(Arc<AtomicUsize>, usize);

impl Place {
    fn take(askers: &Arc<AtomicUsize>) -> Self {
        Self(Arc::clone(askers), askers.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// From 1.
    fn number(&self) -> usize {
        self.1
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Reads a request, and makes the answer to it. An asker who does not end in time gets one as well.
fn answer(stream: &mut impl Read, page: &Page) -> Vec<u8> {
    let mut head = Vec::new();
    let begun = Instant::now();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                return reply(request.method.unwrap_or_default(), request.path.unwrap_or_default(), page);
            }
            Err(httparse::Error::TooManyHeaders) => return refuse("431 Request Header Fields Too Large", ""),
            Err(_) => return refuse("400 Bad Request", ""),
            Ok(httparse::Status::Partial) => {}
        }
        let room = MAX_HEAD.saturating_sub(head.len());
        if room == 0 {
            return refuse("431 Request Header Fields Too Large", "");
        }
        let mut some = [0; 1024];
        match stream.take(room as u64).read(&mut some) {
            Ok(count) if count > 0 && begun.elapsed() < PATIENCE => head.extend(some.into_iter().take(count)),
            _ => return refuse("408 Request Timeout", ""),
        }
    }
}

fn reply(method: &str, path: &str, page: &Page) -> Vec<u8> {
    let path = path.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => match page() {
            Ok(text) => {
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                let body = if method == "GET" { text.as_str() } else { "" };
                message("200 OK", &format!("Content-Type: {kind}\r\n"), text.len(), body)
            }
            Err(failure) => refuse("503 Service Unavailable", &failure.to_string()),
        },
        ("GET" | "HEAD", _) => refuse("404 Not Found", "the metrics are at /metrics"),
        _ => {
            let text = "405 Method Not Allowed\n";
            message("405 Method Not Allowed", "Allow: GET, HEAD\r\n", text.len(), text)
        }
    }
}

fn refuse(status: &str, why: &str) -> Vec<u8> {
    let text = format!("{status} {why}").trim_end().to_string() + "\n";
    message(status, "Content-Type: text/plain; charset=utf-8\r\n", text.len(), &text)
}

fn message(status: &str, headers: &str, length: usize, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &[u8]) -> String {
        let page = || Ok("up 1\n".to_string());
        String::from_utf8(answer(&mut &request[..], &page)).unwrap()
    }

    #[test]
    fn the_page_is_where_it_is_looked_for() {
        let said = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n") && said.ends_with("\r\n\r\nup 1\n"), "{said}");
        assert!(said.contains("Content-Length: 5\r\n"), "{said}");
        assert!(ask(b"HEAD /metrics?a=b HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
        assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(b"POST /metrics HTTP/1.1\r\n\r\n").contains("Allow: GET"));
    }

    #[test]
    fn nonsense_gets_a_refusal_whatever_its_length() {
        for (request, status) in [
            (&b""[..], "408"),
            (b"GET /metrics HTTP/1.1\r\n", "408"),
            (b"\0\0\0", "400"),
            (b"GET /metrics SPDY\r\n\r\n", "400"),
            (&[b'a'; 100_000], "431"),
            (&b"GET / HTTP/1.1\r\n".iter().chain(&[b'a'; 9000]).copied().collect::<Vec<u8>>(), "431"),
            (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65)).as_bytes(), "431"),
        ] {
            let said = ask(request);
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        }
    }

    #[test]
    fn a_volume_that_is_put_away_is_no_page() {
        let page = || Err(Failure::usage("gone"));
        let said = answer(&mut &b"GET /metrics HTTP/1.1\r\n\r\n"[..], &page);
        assert!(said.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&said));
    }
}
