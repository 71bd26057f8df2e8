//! The service: connections of clients, each on a thread of its own, and the keeper behind them.

use crate::control;
use crate::error::Error;
use crate::keeper::{Job, Keeper, Report};
use crate::release::{self, Releasing};
use crate::tls::{Ending, Files, Live};
use anchor::Anchor;
use anchor_owner::wire::Position;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

mod connection;
pub(crate) mod seats;

use seats::Seats;

/// What limits strangers and clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections that have not shown a certificate yet.
    pub handshakes: usize,
    /// Connections of clients.
    pub connections: usize,
    /// Connections of one client.
    pub each: usize,
    /// From the connection to the end of the TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a message to its last; and for an answer to be taken.
    pub message: Duration,
    /// Between two messages.
    pub idle: Duration,
    /// From a request to its answer by the keeper; after it, the client is told "unavailable".
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            handshakes: 64,
            connections: 1024,
            each: 32,
            handshake: Duration::from_secs(10),
            message: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            answer: Duration::from_secs(10),
        }
    }
}

/// How a service is set up.
pub struct Setup {
    /// The state directory.
    pub directory: PathBuf,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Certificates and keys.
    pub tls: Files,
    /// The service's own anchor; without, its disk is trusted.
    pub own: Option<Arc<dyn Anchor>>,
    /// Limits.
    pub limits: Limits,
    /// Where lines for the owner go.
    pub report: Report,
}

/// Requests that wait for the keeper.
const QUEUE: usize = 2048;

/// A running service.
pub struct Service {
    address: SocketAddr,
    jobs: SyncSender<Job>,
    closing: Arc<AtomicBool>,
    give_up: Arc<AtomicBool>,
    keeper: JoinHandle<Result<(), Error>>,
    sentence: String,
    tls: Arc<Live>,
    /// Where it listens for guests.
    releasing: Mutex<Vec<SocketAddr>>,
}

/// What the threads of connections share.
struct Shared {
    jobs: SyncSender<Job>,
    position: Arc<Mutex<Position>>,
    limits: Limits,
    report: Report,
    handshakes: Arc<Seats<()>>,
    clients: Arc<Seats<[u8; 32]>>,
    connections: AtomicU64,
    closing: Arc<AtomicBool>,
    tls: Arc<Live>,
    ending: Ending,
}

impl Service {
    /// Opens and checks the database, takes the service's own anchor, and begins to serve.
    ///
    /// # Errors
    /// If one of these fails.
    pub fn start(setup: Setup) -> Result<Service, Error> {
        let tls = Arc::new(Live::open(setup.tls, Arc::clone(&setup.report))?);
        let mut keeper = Keeper::open(&setup.directory, setup.own, Arc::clone(&setup.report))?;
        let listener = TcpListener::bind(setup.listen)
            .map_err(|error| Error::Io("listen at", setup.listen.to_string().into(), error))?;
        let address = listener
            .local_addr()
            .map_err(|error| Error::Io("listen at", setup.listen.to_string().into(), error))?;
        let (jobs, queue) = sync_channel(QUEUE);
        let closing = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Shared {
            jobs: jobs.clone(),
            position: keeper.position(),
            limits: setup.limits,
            report: setup.report,
            handshakes: Arc::new(Seats::new(setup.limits.handshakes, setup.limits.handshakes)),
            clients: Arc::new(Seats::new(setup.limits.connections, setup.limits.each)),
            connections: AtomicU64::new(1),
            closing: Arc::clone(&closing),
            tls: Arc::clone(&tls),
            ending: Ending::default(),
        });
        control::listen(&setup.directory.join(crate::CONTROL), jobs.clone())?;
        let (give_up, sentence) = (keeper.stop_flag(), keeper.sentence());
        let keeper = spawn("keeper", move || keeper.run(&queue))?;
        spawn("accept", move || accept(&listener, &shared))?;
        Ok(Service { address, jobs, closing, give_up, keeper, sentence, tls, releasing: Mutex::default() })
    }

    /// Begins to release secrets to attested guests, too. Where it listens for them.
    ///
    /// # Errors
    /// If the catalogue, a policy or a secret in it cannot be used, or the address cannot be listened at.
    pub fn release(&self, releasing: Releasing) -> Result<SocketAddr, Error> {
        let address = release::serve(releasing, self.jobs.clone(), Arc::clone(&self.closing))?;
        self.releasing.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        Ok(address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it stands on, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// What is to be said of the service's certificates that end within 60 days.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        self.tls.notices()
    }

    /// Whether it has ended by itself, after an error.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.keeper.is_finished()
    }

    /// Ends the service: what was asked before is answered, the log is closed, the anchor released.
    ///
    /// # Errors
    /// The error that the keeper ended with.
    pub fn stop(self) -> Result<(), Error> {
        self.closing.store(true, Ordering::Relaxed);
        self.give_up.store(true, Ordering::Relaxed);
        // Wakes the threads that accept.
        let guests = self.releasing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for address in [self.address].into_iter().chain(guests) {
            drop(TcpStream::connect(address));
        }
        let (done, ended) = sync_channel(1);
        if self.jobs.send(Job::Stop(done)).is_ok() {
            let _ = ended.recv();
        }
        self.keeper.join().unwrap_or(Err(Error::Defect("the thread that keeps the stamps ended by a panic")))
    }
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map_err(|error| Error::Io("start the thread", name.into(), error))
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.closing.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // No descriptor is left, for example. Connections end by their time limits.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        // Strangers only ever take these seats; clients that have shown a certificate have others.
        let Some(seat) = shared.handshakes.take(()) else { continue };
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        let (config, shared) = (shared.tls.config(), Arc::clone(shared));
        // If there is no thread for it, the connection and its seat are dropped.
        let _ = spawn("client", move || connection::serve(stream, &config, &shared, number, seat));
    }
}
