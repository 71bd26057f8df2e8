//! A device for clients of the NBD protocol: on a unix socket, or over TCP.
//!
//! The threads of the device take a client's requests, if they can ([`Attend`]), and put each reply into its socket, in whatever order they
//! come. A thread of the client's own writes those replies that its socket has no room for. Under TLS, and on a device that cannot, another
//! one of its own takes the requests.
//!
//! What a client does wrong, or does not do at all, costs its own connection only: sizes are checked before memory is taken, memory in
//! flight is limited for each client and for all, and nobody waits for a client but its own threads.
//!
//! A flush covers every write that has completed, on whichever connection: clients may use several.

mod answer;
mod clients;
mod connection;
mod handshake;
mod incoming;
mod link;
mod outbox;
mod tls;
pub mod wire;

use crate::aligned::Aligned;
use crate::budget::{Budget, IN_FLIGHT, Limits};
use crate::{Attend, Device, Error};
use clients::{Clients, Seat};
use connection::{Connection, MAX_REQUEST};
use futures::executor::block_on;
use futures::io::AllowStdIo;
use handshake::{Offer, handshake};
use incoming::Incoming;
use link::{Input, Link, Socket};
use outbox::{Writer, outbox};
use rustls::ServerConfig;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use clients::Peer;
pub use tls::Tls;

/// Clients that may be connected at once. Each takes up to two threads.
pub const MAX_CLIENTS: usize = 32;

/// Memory in flight: for one client as much as the kernel of this machine gets, and for each further one the largest request.
const LIMITS: Limits =
    Limits { own: MAX_REQUEST as u64, each: IN_FLIGHT, common: IN_FLIGHT - MAX_REQUEST as u64 };

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long to wait when the system has no descriptor or thread for one more client.
const PAUSE: Duration = Duration::from_millis(100);

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket, which is made; only its owner may connect.
    Unix(PathBuf),
    /// An address and a port; port 0 for any that is free.
    Tcp(SocketAddr),
}

/// How to show the device.
#[derive(Debug, Clone)]
pub struct Options {
    /// The export's name. Clients that name none get it, too.
    pub name: String,
    /// Where clients connect.
    pub listen: Listen,
    /// Let nobody in without TLS.
    pub tls: Option<Tls>,
    /// Refuse writes with `EPERM`.
    pub read_only: bool,
}

impl Options {
    /// Finds what would keep the device from being shown, before anything is done.
    ///
    /// # Errors
    /// [`Error::Usage`] if others could read along or come in, or if a file of TLS won't do.
    pub fn check(&self) -> Result<(), Error> {
        self.load().map(drop)
    }

    fn load(&self) -> Result<Option<Arc<ServerConfig>>, Error> {
        if let Listen::Tcp(address) = self.listen
            && !address.ip().is_loopback()
            && self.tls.as_ref().is_none_or(|tls| tls.clients.is_none())
        {
            return Err(Error::Exposed(address));
        }
        self.tls.as_ref().map(Tls::load).transpose()
    }
}

/// A device that is shown. Dropping it hangs up on everybody.
#[derive(Debug)]
pub struct Server {
    uri: String,
    listener: Arc<Listener>,
    clients: Arc<Clients>,
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

/// What all connections share.
struct Shared {
    device: Aligned,
    name: String,
    tls: Option<Arc<ServerConfig>>,
    read_only: bool,
    budget: Arc<Budget>,
    clients: Arc<Clients>,
}

impl Server {
    /// Listens, and serves `device` to all clients.
    ///
    /// # Errors
    /// As [`Options::check`], and [`Error::System`] if the socket or a thread can't be made.
    pub fn start(device: Arc<dyn Device>, options: &Options) -> Result<Server, Error> {
        let tls = options.load()?;
        let listener = Arc::new(Listener::bind(&options.listen)?);
        let uri = listener.uri(tls.is_some())?;
        let clients = Arc::new(Clients::new(MAX_CLIENTS));
        let shared = Arc::new(Shared {
            device: Aligned::new(device),
            name: options.name.clone(),
            tls,
            read_only: options.read_only,
            budget: Budget::new(LIMITS),
            clients: Arc::clone(&clients),
        });
        let server = Server { uri, listener: Arc::clone(&listener), clients };
        std::thread::Builder::new()
            .name("nbd".into())
            .spawn(move || accept(&listener, &shared))
            .map_err(|error| Error::io("starting to serve NBD clients", &error))?;
        Ok(server)
    }

    /// What clients are to be told, such as `nbd://127.0.0.1:10809`.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Takes no more clients, if none uses the device now. Does nothing if that was done before.
    ///
    /// # Errors
    /// Who does; then all stays as it is.
    pub fn close(&self) -> Result<(), Vec<Peer>> {
        self.clients.close()?;
        self.listener.end();
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.clients.cut();
        self.listener.end();
    }
}

impl Listener {
    fn bind(listen: &Listen) -> Result<Listener, Error> {
        match listen {
            Listen::Unix(path) => {
                let fail =
                    |error: io::Error| Error::io(format!("making the socket {}", path.display()), &error);
                let listener = UnixListener::bind(path).map_err(fail)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
                Ok(Listener::Unix(listener, path.clone()))
            }
            Listen::Tcp(address) => TcpListener::bind(address)
                .map(Listener::Tcp)
                .map_err(|error| Error::io(format!("listening on {address}"), &error)),
        }
    }

    fn uri(&self, tls: bool) -> Result<String, Error> {
        let scheme = if tls { "nbds" } else { "nbd" };
        Ok(match self {
            Listener::Unix(_, path) => format!("{scheme}+unix:///?socket={}", Escaped(path)),
            Listener::Tcp(listener) => {
                let address =
                    listener.local_addr().map_err(|error| Error::io("asking for the port", &error))?;
                format!("{scheme}://{address}")
            }
        })
    }

    fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Unix(listener, _) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
        }
    }

    /// Lets `accept` return, and takes the socket away.
    fn end(&self) {
        let fd = match self {
            Listener::Unix(listener, _) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        };
        let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A path in a URI.
struct Escaped<'a>(&'a Path);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_os_str().as_encoded_bytes().iter().try_for_each(|&byte| match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => write!(f, "{}", char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => write!(f, "{}", char::from(byte)),
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

/// Gives each client a thread of its own, until there are to be no more.
fn accept(listener: &Listener, shared: &Arc<Shared>) {
    loop {
        let socket = listener.accept();
        if shared.clients.is_closed() {
            return;
        }
        let Ok(socket) = socket else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let socket = Arc::new(socket);
        // Who finds no seat is hung up on.
        let Some(seat) = shared.clients.enter(&socket) else { continue };
        let shared = Arc::clone(shared);
        let talk = move || {
            // Whatever ended it, the client notices by itself, and the volume's log has the errors of requests.
            let _ = talk(&shared, socket, seat);
        };
        let _ = std::thread::Builder::new().name("nbd-client".into()).spawn(talk);
    }
}

fn talk(shared: &Shared, socket: Arc<Socket>, seat: Seat) -> io::Result<()> {
    socket.prepare()?;
    let offer = Offer {
        name: &shared.name,
        size: shared.device.size(),
        flags: flags(shared.read_only),
        most: MAX_REQUEST,
        seat: &seat,
        tls: shared.tls.as_ref(),
    };
    let link = Link::new(Arc::clone(&socket), Instant::now() + PATIENCE);
    let Some((mut link, agreed)) = handshake(link, &offer)? else { return Ok(()) };
    link.settle()?;
    let Link { input, output } = link;
    let (outbox, writer) = outbox(Arc::clone(&socket), output);
    let connection = Connection {
        device: shared.device.clone(),
        read_only: shared.read_only,
        agreed,
        share: shared.budget.share(),
        outbox,
    };
    let served = match shared.device.attendant() {
        Some(threads) if input.is_plain() => attend(threads, connection, &socket, writer),
        _ => converse(connection, input, &socket, writer),
    };
    // First: who has waited to be hung up on is not in anybody's way any more.
    drop(seat);
    socket.cut();
    served
}

/// Has the device's threads take the client's requests, and writes on this one those replies that wait for the client.
fn attend(
    threads: &dyn Attend,
    connection: Connection,
    socket: &Arc<Socket>,
    writer: Writer,
) -> io::Result<()> {
    let incoming = Incoming::new(Arc::clone(socket))?;
    let socket = Arc::clone(socket);
    threads.attend(Box::new(move |watch| {
        Box::pin(async move {
            if connection.serve(incoming.watched(watch)).await.is_err() {
                socket.cut();
            }
        })
    }));
    // What is in flight ends first, and is replied to as far as anybody listens.
    writer.run();
    Ok(())
}

/// Takes the client's requests on this thread, and has another write those replies that wait for the client.
fn converse(connection: Connection, input: Input, socket: &Socket, writer: Writer) -> io::Result<()> {
    let writer = std::thread::Builder::new().name("nbd-replies".into()).spawn(move || writer.run())?;
    let served = block_on(connection.serve(AllowStdIo::new(input)));
    if served.is_err() {
        socket.cut();
    }
    // As above.
    let _ = writer.join();
    served
}

/// Transmission flags that do not depend on what is agreed upon.
fn flags(read_only: bool) -> u16 {
    const HAS_FLAGS: u16 = 1;
    const READ_ONLY: u16 = 1 << 1;
    const FLUSH: u16 = 1 << 2;
    const FUA: u16 = 1 << 3;
    const TRIM: u16 = 1 << 5;
    const WRITE_ZEROES: u16 = 1 << 6;
    const SEVERAL_CONNECTIONS: u16 = 1 << 8;
    const FAST_ZERO: u16 = 1 << 11;
    let always = HAS_FLAGS | FLUSH | FUA | SEVERAL_CONNECTIONS;
    always | if read_only { READ_ONLY } else { TRIM | WRITE_ZEROES | FAST_ZERO }
}
