//! A disk that the host serves by vhost-user-blk, whose virtqueue we drive ourselves.
//!
//! The virtqueue and all data lie in one *region* of memory that we make and share, so the host can write all of it at any moment. Buffers of a queue
//! are pieces of the region: a block is sealed into it and opened from a private copy, as everywhere where memory is shared ([`memory`]).
//! What the driver needs to know of its requests lies in private memory, and `virtqueue` believes nothing that it has not sent itself.
//!
//! Each request has a deadline. A host that does not answer in time, or that says what can't be, ends the *session*: all requests fail, those
//! under way and those to come, and nothing that it says afterwards counts. Whoever wants to go on connects anew.

mod queue;
mod region;

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::event::EventfdFlags;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{Error as Refused, VhostBackend, VringConfigData};
use virtqueue::block::{CONFIG_LENGTH, Config, features};
use virtqueue::{Driver, Rings};
use vmm_sys_util::eventfd::EventFd;

use crate::{BLOCK_SIZE, Error, ErrorKind, Queue, Store};
use queue::RingQueue;
use region::{Piece, Region};

/// The region's addresses, as the host names them.
const BASE: u64 = 0x1_0000_0000;
const SECTORS: u64 = 8;

/// How to use such a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingOptions {
    /// Most queues at a time.
    pub queues: u16,
    /// Bytes for data in the region, over all queues. Buffers that find no room there are private, and copied.
    pub region: usize,
    /// How long a request may take.
    pub deadline: Duration,
    /// For how long a queue looks at its ring before it sleeps.
    pub spin: Duration,
    /// Refuse writes.
    pub read_only: bool,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self {
            queues: 4,
            region: 32 << 20,
            deadline: Duration::from_secs(30),
            spin: Duration::from_micros(50),
            read_only: false,
        }
    }
}

/// A disk at a vhost-user-blk server.
#[derive(Debug, Clone)]
pub struct RingStore {
    inner: Arc<Inner>,
}

/// What the queues of a session share.
struct Inner {
    name: String,
    options: RingOptions,
    config: Config,
    can_discard: bool,
    region: Arc<Region>,
    control: Mutex<Control>,
    /// Why nothing counts any more.
    end: OnceLock<String>,
}

/// The control connection, and which queues are in use.
struct Control {
    frontend: Frontend,
    /// The same connection, to be cut.
    line: UnixStream,
    is_used: Vec<bool>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingStore").field("name", &self.name).field("end", &self.end).finish_non_exhaustive()
    }
}

impl RingStore {
    /// Connects to the server at `socket`.
    ///
    /// # Errors
    /// When nobody listens there, or it does not answer within the deadline, or serves something that is no disk or too small.
    pub fn connect(socket: &Path, options: RingOptions) -> Result<Self, Error> {
        let name = format!("vhost-user:{}", socket.display());
        let failed = |error: std::io::Error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let error = Error::from_errno(errno, "open", name.clone());
            Error { message: error.message.clone() + "; does a server listen there?", ..error }
        };
        let stream = UnixStream::connect(socket).map_err(failed)?;
        let line = stream.try_clone().map_err(failed)?;
        let region = Arc::new(Region::new(options.queues, options.region).map_err(failed)?);
        let agreed = within(&line, options.deadline, || agree(stream, &options, &region));
        let (frontend, config, offered) =
            agreed.map_err(|message| Error::new(ErrorKind::Io, "open", name.clone(), message))?;
        if config.sectors < SECTORS {
            let message = "the disk that is served there has less than one block of 4096 bytes";
            return Err(Error::new(ErrorKind::TooSmall, "open", name, message));
        }
        if offered & features::READ_ONLY != 0 && !options.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "open", name, "the host serves it for reading only"));
        }
        let queues = options.queues.min(config.queues.max(1));
        let control = Mutex::new(Control { frontend, line, is_used: vec![false; queues.into()] });
        let can_discard = offered & features::DISCARD != 0 && config.discard[0] > 0 && config.discard[1] > 0;
        let end = OnceLock::new();
        Ok(Self { inner: Arc::new(Inner { name, options, config, can_discard, region, control, end }) })
    }

    /// Why the session has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.inner.end.get().cloned()
    }
}

/// Does something with the server that may take so long, and cuts the connection then: a server that says nothing must not hold us up. `vhost`
/// tries again for ever when a read has timed out.
fn within<T>(line: &UnixStream, deadline: Duration, act: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        scope.spawn(move || {
            if is_done.recv_timeout(deadline) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = line.shutdown(Shutdown::Both);
            }
        });
        let result = act();
        drop(done);
        result
    })
}

/// Agrees with a server on how to go on. Returns the connection, what the disk is, and what the server offered.
fn agree(
    stream: UnixStream,
    options: &RingOptions,
    region: &Region,
) -> Result<(Frontend, Config, u64), String> {
    let refused = |error: Refused| format!("the server breaks off: {error}");
    let mut frontend = Frontend::from_stream(stream, options.queues.into());
    frontend.set_owner().map_err(refused)?;
    let offered = frontend.get_features().map_err(refused)?;
    let needed = features::VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    if offered & needed != needed {
        return Err(format!("the server offers features {offered:#x}, and {needed:#x} are needed"));
    }
    let wanted = needed | features::FLUSH | features::QUEUES | features::DISCARD | features::READ_ONLY;
    // A server that has no flush makes each write durable.
    frontend.set_features(offered & wanted).map_err(refused)?;
    let protocol = frontend.get_protocol_features().map_err(refused)?;
    let known = VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK;
    if !protocol.contains(VhostUserProtocolFeatures::CONFIG) {
        return Err("the server does not say how large its disk is (protocol feature CONFIG)".into());
    }
    frontend.set_protocol_features(protocol & known).map_err(refused)?;
    if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    let length = u32::try_from(CONFIG_LENGTH).unwrap_or(0);
    let asked = frontend.get_config(0, length, VhostUserConfigFlags::empty(), &[0; CONFIG_LENGTH]);
    let (_, bytes) = asked.map_err(refused)?;
    let mut config = Config::from_bytes(&bytes);
    if protocol.contains(VhostUserProtocolFeatures::MQ) {
        let most = frontend.get_queue_num().map_err(refused)?;
        config.queues = u16::try_from(most).unwrap_or(u16::MAX).max(1);
    } else {
        config.queues = 1;
    }
    frontend.set_mem_table(&[region.told(BASE)]).map_err(refused)?;
    Ok((frontend, config, offered))
}

impl Inner {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session. The first reason counts.
    fn end(&self, reason: &str) {
        let _ = self.end.set(reason.into());
    }

    fn blocks(&self) -> u64 {
        self.config.sectors / SECTORS
    }

    fn error(&self, kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Error {
        Error::new(kind, operation, self.name.clone(), message)
    }

    /// Starts a queue that nobody uses, with so many entries.
    fn start(&self, entries: u16) -> Result<Started, Error> {
        let mut control = self.control();
        let free = control.is_used.iter().position(|is_used| !is_used);
        let Some(index) = free else {
            let most = control.is_used.len();
            return Err(self.error(ErrorKind::InUse, "open", format!("its {most} queues are all in use")));
        };
        let system = |error: std::io::Error| self.error(ErrorKind::Io, "open", error.to_string());
        let event = || EventFd::new(EventfdFlags::NONBLOCK.bits().cast_signed()).map_err(system);
        let (kick, call) = (event()?, event()?);
        let places = self.region.clear(index);
        let told = places.map(|offset| BASE + u64::try_from(offset).unwrap_or(0));
        let [descriptors, available, used] = told;
        let rings = VringConfigData {
            queue_max_size: entries,
            queue_size: entries,
            flags: 0,
            desc_table_addr: descriptors,
            used_ring_addr: used,
            avail_ring_addr: available,
            log_addr: None,
        };
        let Control { frontend, line, .. } = &mut *control;
        let started = within(line, self.options.deadline, || {
            frontend.set_vring_num(index, entries)?;
            frontend.set_vring_base(index, 0)?;
            frontend.set_vring_addr(index, &rings)?;
            frontend.set_vring_call(index, &call)?;
            frontend.set_vring_kick(index, &kick)
        });
        let enabled = started
            .map_err(|error| error.to_string())
            .and_then(|()| frontend.set_vring_enable(index, true).map_err(|error| error.to_string()));
        enabled.map_err(|error| {
            self.error(ErrorKind::Io, "open", format!("the server refuses a queue: {error}"))
        })?;
        control.is_used[index] = true;
        let mut lengths = Rings::<Piece>::lengths(entries).into_iter();
        let mut pieces = places.into_iter().map(|at| self.region.piece(at, lengths.next().unwrap_or(0)));
        let mut piece = || pieces.next().unwrap_or_else(|| self.region.piece(0, 0));
        let rings = Rings::new(entries, piece(), piece(), piece());
        let rings = rings.map_err(|error| self.error(ErrorKind::Io, "open", error.to_string()))?;
        Ok(Started { index, driver: Driver::new(rings), kick, call })
    }

    /// Gives a queue back. The server has then ended what was under way.
    fn stop(&self, index: usize) {
        let mut control = self.control();
        let Control { frontend, line, .. } = &mut *control;
        let stopped = within(line, self.options.deadline, || {
            frontend.set_vring_enable(index, false).is_ok() && frontend.get_vring_base(index).is_ok()
        });
        if stopped {
            control.is_used[index] = false;
        } else {
            // Its memory may still be used, so the queue is never used again.
            self.end("the server does not stop a queue");
        }
    }
}

/// A queue of the server's that is ours.
struct Started {
    index: usize,
    driver: Driver<Piece>,
    kick: EventFd,
    call: EventFd,
}

impl Store for RingStore {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn name(&self) -> String {
        self.inner.name.clone()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        if let Some(reason) = self.inner.end.get() {
            return Err(self.inner.error(ErrorKind::Io, "open", reason.clone()));
        }
        Ok(Box::new(RingQueue::new(self.inner.clone(), depth)?))
    }
}

/// The address of such a disk: `vhost-user:` and a path.
#[must_use]
pub fn socket_of(address: &Path) -> Option<PathBuf> {
    let text = address.to_str()?.strip_prefix("vhost-user:")?;
    (!text.is_empty()).then(|| text.into())
}

const _: () = assert!(BLOCK_SIZE == 4096 && SECTORS * 512 == 4096, "a block is eight sectors");
