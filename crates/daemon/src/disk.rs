//! A volume as the device that a front end shows: requests go to queue threads, which run them to completion.
//!
//! The session behind it may change under its users: the queue threads end what they have begun, let go of the old session, and go on
//! with the new one; what was asked for meanwhile waits.

mod queue;

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use export::{Attend, Client, Device, Done, Found, Memory};
use rustix::io::Errno;
use store::{BLOCK_SIZE, Buffer, Pool};
use volume::format::protections::Freshness;
use volume::{Clock, Volume};

use super::latency::Latency;
use super::polling::{self, Polling};
use super::tamper::Tamper;
use crate::system::SystemClock;
use crate::thread::Thread;
use cli::failure::Failure;

/// Store operations that all queues together may have in flight, and how many each of them has at the least and at the most. Each has a
/// buffer of 128 KiB, in memory that stays resident (see docs/decisions/0028-memory-of-a-daemon.md).
const OPERATIONS: u32 = 128;
const DEPTHS: RangeInclusive<u32> = 16..=64;

/// With so many bytes under way a queue thread is busy for longer than it takes to wake another: 512 KiB take it some 150 us.
const MUCH: u64 = 512 << 10;

/// Blocks that the memory for plaintext has address space for: 32 MiB. It takes as much memory as was ever in flight.
const POOL_BLOCKS: usize = 8192;

/// The volume as a device. Clones share it.
#[derive(Clone)]
pub struct Disk {
    /// Bytes; more when the volume has grown.
    size: Arc<AtomicU64>,
    /// At freshness `transaction` a flush is not the last word.
    transactions: bool,
    clock: SystemClock,
    lanes: Arc<[Arc<Lane>]>,
    pool: Pool,
    polling: Polling,
}

/// The queue threads of a disk.
#[derive(Debug, Clone)]
pub struct Queues {
    /// How many.
    pub count: u8,
    /// How they wait.
    pub polling: Polling,
}

/// The way to one queue thread.
struct Lane {
    inbox: Mutex<Inbox>,
    latency: Latency,
    /// Requests that ended with an error.
    failed: AtomicU64,
    /// Requests that another thread has brought.
    hand_overs: AtomicU64,
    /// Bytes of reads and writes that have not ended.
    load: AtomicU64,
}

struct Inbox {
    tasks: Vec<Task>,
    /// Clients that the thread is to serve from now on.
    clients: Vec<Client>,
    closed: bool,
    /// The thread is to let go of its session.
    change: Option<Change>,
    /// The thread's, in its session.
    waker: Waker,
}

/// What a queue thread is told of a change of session.
struct Change {
    /// It has let go of the old one, and later: it has begun with the new one, or why not.
    done: Sender<Outcome>,
    /// The new one.
    next: Receiver<Volume>,
}

type Outcome = Result<(), Failure>;

/// A disk without a session. Dropped, it fails whatever is asked of it.
pub struct Idle(Vec<(Sender<Volume>, Receiver<Outcome>)>);

impl Idle {
    /// Goes on with a new session of the same volume.
    ///
    /// # Errors
    /// When the store refuses a queue; what would go through that queue fails from then on.
    pub fn go_on(self, volume: &Volume) -> Result<(), Failure> {
        let begun: Vec<_> = self
            .0
            .into_iter()
            .map(|(next, done)| {
                let _ = next.send(volume.clone());
                done.recv().unwrap_or_else(|_| Err(Failure::internal("a queue thread has ended")))
            })
            .collect();
        begun.into_iter().collect()
    }
}

/// A request, with what is to happen at its end.
struct Task {
    work: Work,
    done: Ending,
    /// When it was submitted.
    since: Duration,
}

enum Work {
    Device(export::Request),
    /// Bytes, which are whole blocks.
    Allocation {
        offset: u64,
        length: u64,
    },
    Commit,
}

/// What is to happen at a request's end.
enum Ending {
    Bytes(Done),
    Extents(Found),
}

impl Ending {
    fn fail(self, errno: Errno) {
        match self {
            Self::Bytes(done) => done(Err(errno)),
            Self::Extents(found) => found(Err(errno)),
        }
    }
}

/// The threads behind a [`Disk`].
pub struct Threads(Vec<Thread<()>>);

impl Disk {
    /// Starts queue threads for `volume`.
    ///
    /// # Errors
    /// When the store or the system refuses another queue or thread.
    pub fn start(
        volume: &Volume,
        queues: Queues,
        clock: SystemClock,
        tamper: &Arc<Tamper>,
    ) -> Result<(Self, Threads), Failure> {
        let Queues { count, polling } = queues;
        let pool = Pool::new(POOL_BLOCKS);
        let pool = pool.map_err(|error| Failure::io(format!("no memory for requests: {error}")))?;
        let depth = (OPERATIONS / u32::from(count.max(1))).clamp(*DEPTHS.start(), *DEPTHS.end());
        let mut lanes = Vec::new();
        let mut threads = Threads(Vec::new());
        for number in 0..count {
            let (sender, receiver) = channel();
            let volume = volume.clone();
            let (tamper, pool, polling) = (Arc::clone(tamper), pool.clone(), polling.clone());
            let serve = move || {
                LANE.set(Some(number.into()));
                let setup = queue::Setup { depth, clock, tamper, pool, polling };
                queue::serve(&volume, setup, &sender);
            };
            let thread = Thread::start(format!("queue-{number}"), serve);
            let thread = thread.map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
            threads.0.push(thread);
            let lane =
                receiver.recv().map_err(|_| Failure::internal("a queue thread ended before it began"))?;
            lanes.push(lane?);
        }
        let size = volume.blocks() * BLOCK_SIZE as u64;
        let transactions = volume.status().freshness == Freshness::Transaction.to_string();
        let size = Arc::new(AtomicU64::new(size));
        Ok((Self { size, transactions, clock, lanes: lanes.into(), pool, polling }, threads))
    }

    /// Whether the next session has all that was flushed in this one, however this one ends.
    pub fn keeps_what_is_flushed(&self) -> bool {
        !self.transactions
    }

    /// Ends the transaction, and calls `done` when all is durable and anchored.
    pub fn commit(&self, done: Done) {
        self.push(Work::Commit, Ending::Bytes(done));
    }

    /// Lets what has begun end, and the threads let go of their session. Requests wait from now on.
    ///
    /// # Errors
    /// When a thread has ended.
    pub fn idle(&self) -> Result<Idle, Failure> {
        let changing: Vec<_> = self
            .lanes
            .iter()
            .map(|lane| {
                let ((sender, next), (done, receiver)) = (channel(), channel());
                let mut inbox = lane.inbox();
                // A thread that has ended would never answer.
                inbox.change = (!inbox.closed).then_some(Change { done, next });
                inbox.waker.wake_by_ref();
                (sender, receiver)
            })
            .collect();
        for (_, done) in &changing {
            done.recv().map_err(|_| Failure::usage("the volume is being put away"))??;
        }
        Ok(Idle(changing))
    }

    /// Takes the size of the session that it has now, which may be larger than before.
    pub fn take_size(&self, volume: &Volume) {
        self.size.store(volume.blocks() * BLOCK_SIZE as u64, Ordering::SeqCst);
    }

    /// Takes no more requests; the threads end when those in flight have ended.
    pub fn close(&self) {
        for lane in self.lanes.iter() {
            let mut inbox = lane.inbox();
            inbox.closed = true;
            inbox.waker.wake_by_ref();
        }
    }

    /// The times of each queue thread.
    pub fn latencies(&self) -> impl Iterator<Item = &Latency> {
        self.lanes.iter().map(|lane| &lane.latency)
    }

    /// How the queue threads have waited.
    pub fn polling(&self) -> polling::Standing {
        self.polling.standing()
    }

    /// Requests that another thread than the one that served them has brought.
    pub fn hand_overs(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.hand_overs.load(Ordering::Relaxed)).sum()
    }

    /// Requests that ended with an error.
    pub fn failed(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.failed.load(Ordering::Relaxed)).sum()
    }

    fn lane(&self) -> &Arc<Lane> {
        &self.lanes[lane_of_this_thread() % self.lanes.len()]
    }

    /// The lane for a request of so many bytes. A queue thread with much to seal and open lets another one help.
    fn lane_for(&self, bytes: u64) -> &Arc<Lane> {
        let lane = self.lane();
        let load = lane.load();
        if load < MUCH || bytes == 0 || HOME.get() != Arc::as_ptr(lane) {
            return lane;
        }
        let idlest = self.lanes.iter().min_by_key(|lane| lane.load()).unwrap_or(lane);
        if idlest.load() < load / 2 { idlest } else { lane }
    }

    fn push(&self, work: Work, done: Ending) {
        let bytes = work.bytes();
        let lane = self.lane_for(bytes);
        let is_own = HOME.get() == Arc::as_ptr(lane);
        if !is_own {
            lane.hand_overs.fetch_add(1, Ordering::Relaxed);
        }
        let mut inbox = lane.inbox();
        if inbox.closed {
            drop(inbox);
            return done.fail(Errno::SHUTDOWN);
        }
        lane.load.fetch_add(bytes, Ordering::Relaxed);
        inbox.tasks.push(Task { work, done, since: self.clock.now() });
        // Only the first task needs a wake-up, and none that the lane's own thread brings.
        if inbox.tasks.len() == 1 && !(is_own && LOOKS_NEXT.get()) {
            let waker = inbox.waker.clone();
            drop(inbox);
            waker.wake();
        }
    }
}

impl Work {
    /// Bytes that are sealed or opened for it.
    fn bytes(&self) -> u64 {
        match self {
            Self::Device(export::Request::Read { length, .. }) => u64::from(*length),
            Self::Device(export::Request::Write { data, .. }) => data.len() as u64,
            _ => 0,
        }
    }
}

impl Lane {
    fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn memory(&self, bytes: usize) -> Memory {
        Memory::new(Plain { buffer: self.pool.buffer(bytes.div_ceil(BLOCK_SIZE)), bytes })
    }

    fn submit(&self, request: export::Request, done: Done) {
        self.push(Work::Device(request), Ending::Bytes(done));
    }

    fn allocated(&self, offset: u64, length: u64, found: Found) {
        self.push(Work::Allocation { offset, length }, Ending::Extents(found));
    }

    fn attendant(&self) -> Option<&dyn Attend> {
        Some(self)
    }
}

impl Attend for Disk {
    fn attend(&self, client: Client) {
        let mut inbox = self.lane().inbox();
        if !inbox.closed {
            inbox.clients.push(client);
            inbox.waker.wake_by_ref();
        }
    }
}

impl Threads {
    /// Whether all of them have ended.
    pub fn have_ended(&self) -> bool {
        self.0.iter().all(Thread::has_ended)
    }

    /// Waits for the threads of a disk that was closed.
    ///
    /// # Errors
    /// When one ended by a defect.
    pub fn join(self) -> Result<(), Failure> {
        let ends: Vec<_> = self.0.into_iter().map(Thread::end).collect();
        match ends.into_iter().all(|end| end.is_ok()) {
            true => Ok(()),
            false => Err(Failure::internal("a queue thread ended by a defect; see the log, and report it")),
        }
    }
}

thread_local! {
    static LANE: Cell<Option<usize>> = const { Cell::new(None) };
    /// The lane whose thread this is.
    static HOME: Cell<*const Lane> = const { Cell::new(std::ptr::null()) };
    /// Whether that thread will look into its inbox before it sleeps.
    static LOOKS_NEXT: Cell<bool> = const { Cell::new(false) };
}

/// Threads are spread over the lanes in turn, and each stays on its lane: neighbours in one stream go to one queue, which can merge them. A
/// queue thread has its own.
fn lane_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    LANE.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        LANE.set(Some(number));
        number
    })
}

/// The first bytes of a pool's buffer. A pool's memory is private.
struct Plain {
    buffer: Buffer,
    bytes: usize,
}

impl AsRef<[u8]> for Plain {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.private().unwrap_or_default()[..self.bytes]
    }
}

impl AsMut<[u8]> for Plain {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.private_mut().unwrap_or_default()[..self.bytes]
    }
}

#[cfg(test)]
pub(super) mod tests;
