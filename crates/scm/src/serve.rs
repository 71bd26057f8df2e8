//! Pages for VMMs by userfaultfd: decrypted in place at the first touch, taken back when they were not touched for a while.
//!
//! | thread | what it does |
//! | --- | --- |
//! | the caller of [`Server::run`] | lets clients in |
//! | one for each client | reads what the client says, to its end |
//! | one for each client | reads faults, opens the page, lets the toucher go on, reads ahead (`ahead`) |
//! | [`Limits::threads`] less one for each client | the same for faults that arrive together |
//! | one | takes pages back |
//!
//! A page in use is *active*: it may be in the VMM's page tables. Taking it back goes in two steps, in batches. First the client takes it out
//! of its page tables (*zapped*): a touch from then on is a fault, which makes it active again, and costs no cipher. What stays untouched until
//! the next pass, and for [`Limits::hold`], is encrypted. So a touch at any moment either finds the page open or waits for its lock.
//!
//! Invariants:
//! * a page is encrypted in place only if it is zapped, and its lock is held from that look on;
//! * a page gets into page tables only under its lock, while it is open, and is active from then on;
//! * at most one VMM has the region mapped. It holds a lock on the region's file (`lease`) for as long as it may have pages in its page tables,
//!   also when the server is gone: nothing is recovered or encrypted under a VMM that still sees it.

mod ahead;
mod client;
mod firecracker;
pub(crate) mod lease;
mod taking;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::{Engine, Error, Mapping};
use client::Client;
use lease::Lease;

/// Fewer open pages would not do: one instruction may need its own page, the one that it reads and the one that it writes, and the next of each.
pub const LEAST_OPEN: u64 = 6;

/// How much may be open, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most pages that are open at a time. At least [`LEAST_OPEN`].
    pub open_pages: u64,
    /// After so long without a touch a page is taken back: between this and three times as much.
    pub idle: Duration,
    /// So long a request of a device, or of the kernel, into a page may take that was in page tables when it began: a page is encrypted only when it
    /// has been out of them for so long, also where touches wait for room.
    pub hold: Duration,
    /// Most pages that are opened ahead while touches are sequential; 0 is none.
    pub read_ahead: u64,
    /// Percent of a processor that taking pages back may use, 1 to 100. It may use more while touches wait for room.
    pub cpu_percent: u32,
    /// Threads that open pages.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            open_pages: LEAST_OPEN,
            idle: Duration::from_secs(1),
            hold: Duration::ZERO,
            read_ahead: 0,
            cpu_percent: 100,
            threads: 1,
        }
    }
}

/// What every thread of the server shares.
pub struct Server {
    engine: Arc<Engine>,
    mapping: Arc<Mapping>,
    limits: Limits,
    /// For each page: [`ABSENT`], [`ACTIVE`] or [`ZAPPED`].
    uses: Vec<AtomicU8>,
    /// Pages that became active, in that order.
    order: Mutex<std::collections::VecDeque<(u64, Instant)>>,
    /// Pages that are active or zapped.
    open: AtomicU64,
    client: Mutex<Option<Arc<Client>>>,
    /// Wakes those who wait for the client to be gone.
    vacated: Condvar,
    /// When the last client went.
    departed: Mutex<Option<Instant>>,
    /// Whether touches wait for room, and what wakes the thread that takes pages back then.
    wanted: Mutex<bool>,
    called: Condvar,
    /// Wakes those who wait for room.
    room: Mutex<()>,
    freed: Condvar,
    stopping: AtomicBool,
}

pub(crate) const ABSENT: u8 = 0;
pub(crate) const ACTIVE: u8 = 1;
pub(crate) const ZAPPED: u8 = 2;

/// How long a VMM may take at a clean stop, beside [`Limits::hold`].
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How often threads that wait look whether to stop.
const TICK: Duration = Duration::from_millis(100);

impl Server {
    /// A server for an engine whose pages are all encrypted.
    ///
    /// # Errors
    /// [`Error::Usage`] if the region lies where userfaultfd tells of no touches, or on huge pages that are larger than its own.
    pub fn new(engine: Arc<Engine>, mapping: Arc<Mapping>, limits: Limits) -> Result<Arc<Server>, Error> {
        Server::check_place(&mapping, engine.geometry().page_size())?;
        let pages = usize::try_from(engine.geometry().pages()).expect("64-bit, as seal demands");
        Ok(Arc::new(Server {
            engine,
            mapping,
            limits: Limits {
                open_pages: limits.open_pages.max(LEAST_OPEN),
                cpu_percent: limits.cpu_percent.clamp(1, 100),
                ..limits
            },
            uses: (0..pages).map(|_| AtomicU8::new(ABSENT)).collect(),
            order: Mutex::default(),
            open: AtomicU64::new(0),
            client: Mutex::default(),
            vacated: Condvar::new(),
            departed: Mutex::default(),
            wanted: Mutex::default(),
            called: Condvar::new(),
            room: Mutex::default(),
            freed: Condvar::new(),
            stopping: AtomicBool::new(false),
        }))
    }

    /// Whether a region that lies there, with pages of this size, can be served.
    ///
    /// # Errors
    /// [`Error::Usage`] as [`new`](Server::new).
    pub fn check_place(mapping: &Mapping, page_size: u64) -> Result<(), Error> {
        if !mapping.has_minor_faults() {
            return Err(Error::Usage(format!(
                "{}: userfaultfd tells of first touches on tmpfs and hugetlbfs only: put the region there, or serve it by FUSE",
                mapping.path().display()
            )));
        }
        if let Some(huge) = mapping.huge_page_size().filter(|huge| !page_size.is_multiple_of(*huge)) {
            return Err(Error::Usage(format!(
                "{}: a touch there is of a huge page of {huge} bytes, and pages of the region have {page_size}: neighbours would be exposed; \
                 create the region with pages of 2 MiB on huge pages of that size, or put it on tmpfs",
                mapping.path().display()
            )));
        }
        Ok(())
    }

    /// Waits until no VMM can have pages of the region in its page tables: before it is recovered.
    ///
    /// # Errors
    /// [`Error::Busy`] if one still has after `patience`.
    pub fn wait_for_vmm(mapping: &Mapping, patience: Duration) -> Result<(), Error> {
        Lease::exclusive(mapping.file(), mapping.path(), patience).map(drop)
    }

    /// Lets clients in until `stop` is set; then takes all pages back, and returns when they are encrypted. A VMM that is still there waits at
    /// its next touch, until there is a server again.
    ///
    /// # Errors
    /// [`Error::Io`] of the socket; [`Error::Medium`]; [`Error::Busy`] if a VMM keeps pages: they stay open.
    pub fn run(self: &Arc<Server>, listener: UnixListener, stop: &AtomicBool) -> Result<(), Error> {
        listener.set_nonblocking(true).map_err(|error| Error::io("the socket", error))?;
        let taker = {
            let server = Arc::clone(self);
            thread::spawn(move || server.take_back())
        };
        while !stop.load(Ordering::Relaxed) {
            if !readable(&listener, TICK).map_err(|error| Error::io("waiting for clients", error))? {
                continue;
            }
            if let Ok((stream, _)) = listener.accept() {
                let server = Arc::clone(self);
                thread::spawn(move || client::serve(&server, &stream));
            }
        }
        self.stopping.store(true, Ordering::Release);
        // A VMM that waits for its next server has the lease while it waits for an answer. So there is nobody whom it could ask.
        drop(listener);
        self.called.notify_all();
        self.freed.notify_all();
        // It has nothing to return, and a panic in it has been told.
        let _ = taker.join();
        let client = self.client().clone();
        if let Some(client) = client {
            client.let_go();
        }
        Server::wait_for_vmm(&self.mapping, STOP_PATIENCE + self.limits.hold).map_err(
            |error| match error {
                Error::Busy(why) => {
                    let open = self.engine.status().open;
                    Error::Busy(format!(
                        "{why}; {open} pages of the region stay open, in the clear, until it is recovered"
                    ))
                }
                error => error,
            },
        )?;
        self.wait_for_requests();
        for page in 0..self.engine.geometry().pages() {
            self.close(page, || true)?;
        }
        self.engine.stop()?;
        Ok(())
    }

    /// A VMM that died may have left requests under way.
    fn wait_for_requests(&self) {
        let departed = *self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(departed) = departed.filter(|_| self.engine.status().open > 0) {
            thread::sleep(self.limits.hold.saturating_sub(departed.elapsed()));
        }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What the kernel puts into page tables at once: a page of its own, or a huge one.
    fn unit(&self) -> u64 {
        self.mapping.huge_page_size().unwrap_or(4096)
    }

    fn client(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self) -> MutexGuard<'_, std::collections::VecDeque<(u64, Instant)>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used(&self, page: u64) -> &AtomicU8 {
        &self.uses[usize::try_from(page).expect("64-bit, as seal demands")]
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Whether a descriptor has something to read, or its other end is gone.
pub(crate) fn readable(descriptor: impl AsFd, limit: Duration) -> io::Result<bool> {
    let mut wanted = [PollFd::new(&descriptor, PollFlags::IN)];
    let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(&mut wanted, Some(&limit)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
