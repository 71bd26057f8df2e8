//! Disks, workers and sockets, put together.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use error_kind::{HasKind, Kind};
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use uring::Event;
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::counters::{Snapshot, add};
use crate::disk::Disk;
use crate::limits::Limits;
use crate::session::{Seat, Session};
use crate::settings::{Mode, Settings, SettingsError};
use crate::worker::{Worker, WorkerError};

/// Why a server was not started.
#[derive(Debug)]
pub enum StartError {
    /// The settings can't be.
    Settings(SettingsError),
    /// A disk can't be opened.
    Disk(store::Error),
    /// A core is not there, or not for this process.
    Core {
        /// The one that was named.
        core: usize,
        /// Those that may be.
        allowed: Vec<usize>,
    },
    /// There is no io_uring.
    Ring(uring::SetupError),
    /// Another process answers at this socket, or something that is no socket lies there.
    SocketInUse(PathBuf),
    /// A socket can't be made.
    Socket(PathBuf, io::Error),
    /// The system refuses a thread, or a descriptor.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(error) => write!(f, "{error}"),
            Self::Disk(error) => write!(f, "{error}"),
            Self::Core { core, allowed } => {
                let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "core {core} does not exist, or is not for this process; there are {}",
                    allowed.join(", ")
                )
            }
            Self::Ring(error) => write!(f, "{error}"),
            Self::SocketInUse(path) => {
                write!(
                    f,
                    "{}: another process serves at this socket, or it is no socket; choose another path, or end that process",
                    path.display()
                )
            }
            Self::Socket(path, error) => {
                write!(
                    f,
                    "{}: no socket can be made there: {error}; is its directory there, and may this user write to it?",
                    path.display()
                )
            }
            Self::System(error) => write!(f, "the system refuses what a server needs: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Settings(error) => Some(error),
            Self::Disk(error) => Some(error),
            Self::Ring(error) => Some(error),
            Self::Socket(_, error) | Self::System(error) => Some(error),
            Self::Core { .. } | Self::SocketInUse(_) => None,
        }
    }
}

impl HasKind for StartError {
    fn kind(&self) -> Kind {
        match self {
            Self::Settings(_) | Self::Core { .. } | Self::SocketInUse(_) => Kind::Usage,
            Self::Disk(error) => error.kind(),
            Self::Ring(_) | Self::Socket(..) | Self::System(_) => Kind::Io,
        }
    }

    fn is_in_use(&self) -> bool {
        match self {
            Self::Disk(error) => error.is_in_use(),
            error => matches!(error, Self::SocketInUse(_)),
        }
    }
}

/// How a disk is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Where its VMM connects.
    pub socket: PathBuf,
    /// What is served there.
    pub file: PathBuf,
    /// Bytes.
    pub size: u64,
    /// How requests are noticed.
    pub mode: Mode,
    /// Whether it is only to be read.
    pub read_only: bool,
    /// Whether a VMM is connected.
    pub connected: bool,
    /// Queues that are served now.
    pub queues: u16,
    /// Why it is not served any more, until the guest or its VMM begins anew.
    pub ended: Option<String>,
    /// Whether a flush has failed: nothing more is written until the server is started again.
    pub failed: bool,
    /// What was counted.
    pub counters: Snapshot,
}

/// A running server. It ends when it is dropped: requests in flight end first, and VMMs see their connection closed.
#[derive(Debug)]
pub struct Server {
    // Before the workers, which must live as long as a session.
    listeners: Vec<Listener>,
    _workers: Arc<[Worker]>,
}

/// The thread of one disk.
#[derive(Debug)]
struct Listener {
    seat: Arc<Seat>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// By what a listener is stopped.
#[derive(Debug)]
struct Stop {
    is_over: AtomicBool,
    event: Event,
    /// The connection that it serves.
    stream: Mutex<Option<UnixStream>>,
}

impl Server {
    /// Opens all disks, starts the workers, and listens.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub fn start(settings: &Settings) -> Result<Self, StartError> {
        settings.check().map_err(StartError::Settings)?;
        let disks: Result<Vec<_>, _> = settings.disks.iter().map(Disk::open).collect();
        let disks = disks.map_err(StartError::Disk)?;
        let cores: Vec<Option<usize>> = match settings.cores.as_slice() {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        let workers: Result<Arc<[Worker]>, _> = cores.into_iter().map(Worker::start).collect();
        let workers = workers.map_err(|error| match error {
            WorkerError::Ring(error) => StartError::Ring(error),
            WorkerError::System(error) => StartError::System(error),
            WorkerError::Core(core, allowed) => StartError::Core { core, allowed },
        })?;
        let mut listeners = Vec::new();
        for (number, (settings, disk)) in settings.disks.iter().zip(disks).enumerate() {
            let limits = Limits::new(settings.requests_per_second, settings.bytes_per_second, Instant::now());
            let seat = Seat {
                settings: settings.clone(),
                disk: Arc::new(disk),
                counters: Arc::default(),
                limits: limits.map(Arc::new),
                workers: workers.clone(),
                first_worker: number,
                is_connected: AtomicBool::new(false),
                running: AtomicU16::new(0),
                fate: Mutex::default(),
            };
            listeners.push(Listener::start(Arc::new(seat))?);
        }
        Ok(Self { listeners, _workers: workers })
    }

    /// How each disk is, in the order of the settings.
    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        let status = |listener: &Listener| {
            let seat = &listener.seat;
            Status {
                socket: seat.settings.socket.clone(),
                file: seat.settings.file.clone(),
                size: seat.disk.bytes(),
                mode: seat.settings.mode,
                read_only: seat.settings.read_only,
                connected: seat.is_connected.load(Ordering::Relaxed),
                queues: seat.running.load(Ordering::Relaxed),
                ended: seat.fate().reason(),
                failed: seat.disk.is_failed(),
                counters: seat.counters.snapshot(),
            }
        };
        self.listeners.iter().map(status).collect()
    }
}

impl Listener {
    fn start(seat: Arc<Seat>) -> Result<Self, StartError> {
        let listener = bind(&seat.settings.socket)?;
        let event = Event::to_poll().map_err(StartError::System)?;
        let stop = Arc::new(Stop { is_over: AtomicBool::new(false), event, stream: Mutex::default() });
        let (of_thread, stops) = (seat.clone(), stop.clone());
        let thread = thread::Builder::new().name("session".into());
        let thread =
            thread.spawn(move || listen(&listener, &of_thread, &stops)).map_err(StartError::System)?;
        Ok(Self { seat, stop, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.is_over.store(true, Ordering::Release);
        self.stop.event.signal();
        if let Some(stream) = &*self.stop.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.seat.settings.socket);
    }
}

/// Listens at a path. What a server that was killed has left there is taken over.
fn bind(path: &Path) -> Result<UnixListener, StartError> {
    let failed = |error| StartError::Socket(path.into(), error);
    if let Ok(found) = std::fs::symlink_metadata(path) {
        let is_socket = found.file_type().is_socket();
        let is_left =
            || UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if !is_socket || !is_left() {
            return Err(StartError::SocketInUse(path.into()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Lets one VMM in after the other.
fn listen(listener: &UnixListener, seat: &Arc<Seat>, stop: &Stop) {
    while !stop.is_over.load(Ordering::Acquire) {
        let event = stop.event.as_fd();
        let mut waiting =
            [PollFd::new(listener, PollFlags::IN), PollFd::from_borrowed_fd(event, PollFlags::IN)];
        let _ = poll(&mut waiting, None);
        let Ok((stream, _)) = listener.accept() else { continue };
        if stream.set_nonblocking(false).is_err() {
            continue;
        }
        let Ok(copy) = stream.try_clone() else { continue };
        *stop.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
        // Whoever has stopped it before it was there has not closed it.
        if stop.is_over.load(Ordering::Acquire) {
            return;
        }
        attend(stream, seat);
        *stop.stream.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Serves one VMM until it goes.
fn attend(stream: UnixStream, seat: &Arc<Seat>) {
    let name = seat.settings.socket.display();
    add(&seat.counters.sessions, 1);
    seat.is_connected.store(true, Ordering::Relaxed);
    log::info!("{name}: a VMM has connected");
    let session = Arc::new(Mutex::new(Session::new(seat.clone())));
    let mut handler = BackendReqHandler::from_stream(stream, session.clone());
    let error = loop {
        if let Err(error) = handler.handle_request() {
            break error;
        }
    };
    session.lock().unwrap_or_else(PoisonError::into_inner).end();
    seat.is_connected.store(false, Ordering::Relaxed);
    match error {
        Error::Disconnected => log::info!("{name}: the VMM has gone"),
        Error::SocketBroken(error) | Error::SocketError(error) => {
            log::info!("{name}: the VMM has gone: {error}");
        }
        error => log::error!("{name}: the connection to the VMM has ended: {}", told(&error)),
    }
}

fn told(error: &Error) -> String {
    match error {
        Error::ReqHandlerError(error) => error.to_string(),
        Error::PartialMessage => "it ended half way through a message".into(),
        Error::InvalidMessage => "it sent a message that this version of vhost-user does not know".into(),
        error => error.to_string(),
    }
}
