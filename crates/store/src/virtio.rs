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
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{Error as Refused, VhostBackend, VringConfigData};
use virtqueue::block::{CONFIG_LENGTH, Config, features};
use virtqueue::{Driver, Rings};
use vmm_sys_util::eventfd::EventFd;

use crate::patience::{GIVEN_UP, Silences};
use crate::{BLOCK_SIZE, Error, ErrorKind, Queue, Store};
use queue::RingQueue;
use region::{Piece, Region};

/// Why a session ends whose server has closed the connection.
const GONE: &str = "the server is gone";
/// How long a server may take for its first answer. One that serves somebody else answers when that one has gone.
const ANSWER: Duration = Duration::from_secs(3);

/// The region's addresses, as the host names them.
const BASE: u64 = 0x1_0000_0000;
const SECTORS: u64 = 8;

/// How to use such a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingOptions {
    /// Most queues at a time; and no more than the server has.
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
            queues: 64,
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
    /// The connection, to be looked at and to be cut.
    line: UnixStream,
    control: Mutex<Control>,
    /// Why nothing counts any more.
    end: OnceLock<String>,
    silences: Silences,
}

/// The control connection, and which queues are in use.
struct Control {
    frontend: Frontend,
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
            let kind = match error.kind() {
                std::io::ErrorKind::InvalidInput => ErrorKind::Unsupported,
                _ => Error::from_errno(error.raw_os_error().unwrap_or(libc::EIO), "open", "").kind,
            };
            Error::new(kind, "open", name.clone(), format!("{error}; does a server listen there?"))
        };
        let line = UnixStream::connect(socket).map_err(failed)?;
        let stream = line.try_clone().map_err(failed)?;
        let region = Arc::new(Region::new(options.queues, options.region).map_err(failed)?);
        let broken = |message: String| Error::new(ErrorKind::Io, "open", name.clone(), message);
        let mut frontend = Frontend::from_stream(stream, options.queues.into());
        let answer = ANSWER.min(options.deadline);
        let greeted = within(&line, answer, || frontend.set_owner().and_then(|()| frontend.get_features()));
        let offered = greeted.map_err(|cut| match cut {
            Cut::Late => {
                let seconds = answer.as_secs_f32();
                let message = format!(
                    "a server listens there and has not answered in {seconds} s; it serves one user at a time: is the disk in use?"
                );
                Error::new(ErrorKind::InUse, "open", name.clone(), message)
            }
            Cut::Failed(error) => broken(breaks_off(&error)),
        })?;
        let agreed = within(&line, options.deadline, || agree(&mut frontend, &region, offered));
        let config = agreed.map_err(|cut| match cut {
            Cut::Late => {
                broken(format!("the server has not answered in {} s", options.deadline.as_secs_f32()))
            }
            Cut::Failed(message) => broken(message),
        })?;
        if config.sectors < SECTORS {
            let message = "the disk that is served there has less than one block of 4096 bytes";
            return Err(Error::new(ErrorKind::TooSmall, "open", name, message));
        }
        if offered & features::READ_ONLY != 0 && !options.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "open", name, "the host serves it for reading only"));
        }
        let queues = options.queues.min(config.queues.max(1));
        let control = Mutex::new(Control { frontend, is_used: vec![false; queues.into()] });
        let can_discard = offered & features::DISCARD != 0 && config.discard[0] > 0 && config.discard[1] > 0;
        let end = OnceLock::new();
        Ok(Self {
            inner: Arc::new(Inner {
                name,
                options,
                config,
                can_discard,
                region,
                line,
                control,
                end,
                silences: Silences::default(),
            }),
        })
    }
}

/// Why a server did not do something.
enum Cut<E> {
    Late,
    Failed(E),
}

/// Does something with the server that may take so long, and cuts the connection then: a server that says nothing must not hold us up. `vhost`
/// tries again for ever when a read has timed out.
fn within<T, E>(
    line: &UnixStream,
    deadline: Duration,
    act: impl FnOnce() -> Result<T, E>,
) -> Result<T, Cut<E>> {
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let watch = scope.spawn(move || {
            let is_late = is_done.recv_timeout(deadline) == Err(mpsc::RecvTimeoutError::Timeout);
            if is_late {
                let _ = line.shutdown(Shutdown::Both);
            }
            is_late
        });
        let result = act();
        drop(done);
        let is_late = watch.join().unwrap_or(false);
        result.map_err(|error| if is_late { Cut::Late } else { Cut::Failed(error) })
    })
}

fn breaks_off(error: &Refused) -> String {
    format!("the server breaks off: {error}")
}

/// Agrees with a server on how to go on. Says what the disk is.
fn agree(frontend: &mut Frontend, region: &Region, offered: u64) -> Result<Config, String> {
    let refused = |error: Refused| breaks_off(&error);
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
    Ok(config)
}

impl Inner {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session. The first reason counts.
    fn end(&self, reason: &str) {
        let _ = self.end.set(reason.into());
    }

    /// Whether the other end of the connection is closed.
    fn is_server_gone(&self) -> bool {
        let mut line = [PollFd::new(&self.line, PollFlags::RDHUP)];
        let looked = poll(&mut line, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        looked.is_ok_and(|found| found > 0)
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
            let message = format!("its {most} queues are all in use; have the server give more");
            return Err(self.error(ErrorKind::InUse, "open", message));
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
        let frontend = &mut control.frontend;
        let started = within(&self.line, self.options.deadline, || {
            frontend.set_vring_num(index, entries)?;
            frontend.set_vring_base(index, 0)?;
            frontend.set_vring_addr(index, &rings)?;
            frontend.set_vring_call(index, &call)?;
            frontend.set_vring_kick(index, &kick)?;
            frontend.set_vring_enable(index, true)
        });
        started.map_err(|cut| {
            let message = match cut {
                Cut::Late => "the server does not start a queue".into(),
                Cut::Failed(_) if self.is_server_gone() => GONE.into(),
                Cut::Failed(error) => format!("the server refuses a queue: {error}"),
            };
            // What it has of the queue by now nobody knows.
            self.end(&message);
            self.error(ErrorKind::Io, "open", message)
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
        let frontend = &mut control.frontend;
        let stopped = within(&self.line, self.options.deadline, || {
            frontend.set_vring_enable(index, false)?;
            frontend.get_vring_base(index)
        });
        match stopped {
            Ok(_) => control.is_used[index] = false,
            // Its memory may still be used, so the queue is never used again.
            Err(Cut::Failed(_)) if self.is_server_gone() => self.end(GONE),
            Err(_) => self.end("the server does not stop a queue"),
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

    fn rest(&self) -> Result<Vec<u8>, Error> {
        match self.inner.config.sectors % SECTORS {
            0 => Ok(Vec::new()),
            sectors => {
                let message = format!(
                    "{sectors} sectors lie behind its last block of 4096 bytes, and a virtqueue cannot be asked for these alone: \
                     have the server give a whole number of blocks"
                );
                Err(self.inner.error(ErrorKind::Unsupported, "read the end", message))
            }
        }
    }

    fn ended(&self) -> Option<String> {
        self.inner.end.get().cloned()
    }

    fn silent_for(&self) -> Option<Duration> {
        self.inner.silences.longest()
    }

    fn give_up(&self) {
        self.inner.end(GIVEN_UP);
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        if let Some(reason) = self.inner.end.get() {
            return Err(self.inner.error(ErrorKind::Io, "open", reason.clone()));
        }
        Ok(Box::new(RingQueue::new(self.inner.clone(), depth)?))
    }
}

const _: () = assert!(BLOCK_SIZE == 4096 && SECTORS * 512 == 4096, "a block is eight sectors");
