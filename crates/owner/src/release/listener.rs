//! Connections of guests: TLS 1.3 without a certificate of theirs, and HTTP/1.1 on it.

use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anchor_owner::timed::Timed;
use http1::{answer, read_request};
use kbs::{COOKIE, MAX_MESSAGE, TlsKey};
use rustls::server::NoServerSessionStorage;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tls_files::{certificates, private_key, provider};

use super::desk::{Desk, Reply};
use crate::error::Error;
use crate::keeper::Report;
use crate::private;
use crate::server::seats::Seats;
use crate::server::spawn;

/// Connections at a time, and of one address.
const CONNECTIONS: usize = 64;
const EACH: usize = 16;
/// For the handshake, for a request with its answer, and between two.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests on one connection.
const REQUESTS: usize = 64;

/// The service's certificate and key (PEM).
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// What a connection is served with.
#[derive(Clone)]
struct Identity {
    config: Arc<ServerConfig>,
    certificate: TlsKey,
}

impl Files {
    /// Reads the files: TLS 1.3 only, without resumption and early data.
    fn load(&self) -> Result<Identity, Error> {
        private::check_key(&self.key)?;
        let chain = certificates(&self.certificate)?;
        let certificate = TlsKey::of(&chain[0]);
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| Error::Tls(error.to_string()))?
            .with_no_client_auth()
            .with_single_cert(chain, private_key(&self.key)?)
            .map_err(|error| {
                let files = format!("{} and {}", self.certificate.display(), self.key.display());
                Error::Tls(format!("{files} are no certificate with its key: {error}"))
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Identity { config: Arc::new(config), certificate })
    }
}

struct Shared {
    files: Files,
    /// What was read last: files that cannot be used are reported, and this stays in use.
    known: Mutex<Identity>,
    desk: Arc<Desk>,
    report: Report,
}

impl Shared {
    /// The files are read for each connection, so that a certificate may be renewed while the service runs.
    fn identity(&self) -> Identity {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match self.files.load() {
            Ok(identity) => *known = identity,
            Err(error) => (self.report)(&format!("the certificate for guests can't be read anew: {error}")),
        }
        known.clone()
    }
}

/// Begins to listen.
pub fn start(
    listen: SocketAddr,
    files: Files,
    desk: Arc<Desk>,
    closing: Arc<AtomicBool>,
    report: Report,
) -> Result<SocketAddr, Error> {
    let known = Mutex::new(files.load()?);
    let fail = |error| Error::Io("listen at", listen.to_string().into(), error);
    let listener = TcpListener::bind(listen).map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    let shared = Arc::new(Shared { files, known, desk, report });
    spawn("accept guests", move || accept(&listener, &shared, &closing))?;
    Ok(address)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, closing: &AtomicBool) {
    let seats: Arc<Seats<IpAddr>> = Arc::new(Seats::new(CONNECTIONS, EACH));
    for stream in listener.incoming() {
        if closing.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // No descriptor is left, for example. Connections end by their time limits.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Ok(peer) = stream.peer_addr() else { continue };
        let Some(seat) = seats.take(peer.ip()) else { continue };
        let shared = Arc::clone(shared);
        // If there is no thread for it, the connection and its seat are dropped.
        let _ = spawn("guest", move || {
            let _seat = seat;
            // An error here is the guest's going away, or its being too slow.
            let _ = serve(stream, &shared);
        });
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut socket = Timed::new(stream, PATIENCE)?;
    let Identity { config, certificate } = shared.identity();
    let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(&mut socket)?;
    }
    let mut stream = BufReader::new(StreamOwned::new(session, socket));
    for number in 1..=REQUESTS {
        stream.get_mut().sock.allow(PATIENCE);
        let request = match read_request(&mut stream, MAX_MESSAGE) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                stream.get_mut().write_all(&answer(400, &[], "{}", false))?;
                break;
            }
            Err(error) => return Err(error),
        };
        let Reply { status, session, body } = shared.desk.answer(&request, certificate);
        let cookie = session.map(|id| format!("{COOKIE}={id}; Path=/kbs; Secure; HttpOnly; SameSite=Strict"));
        let fields: Vec<(&str, &str)> = cookie.iter().map(|cookie| ("Set-Cookie", cookie.as_str())).collect();
        let keeps = request.keeps && number < REQUESTS;
        stream.get_mut().sock.allow(PATIENCE);
        stream.get_mut().write_all(&answer(status, &fields, &body, keeps))?;
        stream.get_mut().flush()?;
        if !keeps {
            break;
        }
    }
    end(stream.get_mut())
}

/// Says goodbye, and reads what is left, so that the last words arrive.
fn end(stream: &mut StreamOwned<ServerConnection, Timed>) -> io::Result<()> {
    stream.conn.send_close_notify();
    stream.sock.allow(Duration::from_secs(1));
    stream.flush()?;
    stream.sock.end_writing();
    let mut rest = [0; 512];
    while stream.sock.read(&mut rest).is_ok_and(|count| count > 0) {}
    Ok(())
}
