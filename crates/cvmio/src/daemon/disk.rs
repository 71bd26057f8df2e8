//! A volume as the device that a front end shows: requests go to queue threads, which run them to completion.
//!
//! The session behind it may change under its users: the queue threads end what they have begun, let go of the old session, and go on
//! with the new one; what was asked for meanwhile waits.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use export::{Device, Done, Found, Memory};
use rustix::io::Errno;
use slab::Slab;
use store::{BLOCK_SIZE, Buffer, Pool};
use volume::format::protections::Freshness;
use volume::{Clock, Completion, Queue, Volume};

use super::events::{self, Sign};
use super::latency::{Kind, Latency};
use super::tamper::Tamper;
use crate::failure::Failure;
use crate::system::SystemClock;

/// Store operations that all queues together may have in flight, and how many each of them has at the least and at the most. Each has a
/// buffer of 128 KiB, in memory that stays resident (see docs/decisions/0028-memory-of-a-daemon.md).
const OPERATIONS: u32 = 128;
const DEPTHS: RangeInclusive<u32> = 16..=64;

/// Blocks that the memory for plaintext has address space for: 32 MiB. It takes as much memory as was ever in flight.
const POOL_BLOCKS: usize = 8192;

/// How long a queue thread sleeps at most: a backstop, since every submission wakes it.
const NAP: Duration = Duration::from_secs(1);

/// The volume as a device. Clones share it.
#[derive(Clone)]
pub struct Disk {
    size: u64,
    /// At freshness `transaction` a flush is not the last word.
    transactions: bool,
    clock: SystemClock,
    lanes: Arc<[Arc<Lane>]>,
    pool: Pool,
}

/// The way to one queue thread.
struct Lane {
    inbox: Mutex<Inbox>,
    latency: Latency,
    /// Requests that ended with an error.
    failed: AtomicU64,
}

struct Inbox {
    tasks: Vec<Task>,
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
pub struct Threads(Vec<JoinHandle<()>>);

impl Disk {
    /// Starts `count` queue threads for `volume`.
    ///
    /// # Errors
    /// When the store or the system refuses another queue or thread.
    pub fn start(
        volume: &Volume,
        count: u8,
        clock: SystemClock,
        tamper: &Arc<Tamper>,
    ) -> Result<(Self, Threads), Failure> {
        let pool = Pool::new(POOL_BLOCKS);
        let pool = pool.map_err(|error| Failure::io(format!("no memory for requests: {error}")))?;
        let depth = (OPERATIONS / u32::from(count.max(1))).clamp(*DEPTHS.start(), *DEPTHS.end());
        let mut lanes = Vec::new();
        let mut threads = Threads(Vec::new());
        for number in 0..count {
            let (sender, receiver) = channel();
            let volume = volume.clone();
            let (tamper, pool) = (Arc::clone(tamper), pool.clone());
            let serve = move || serve(&volume, depth, &sender, clock, tamper, pool);
            let thread = std::thread::Builder::new().name(format!("queue-{number}")).spawn(serve);
            let thread = thread.map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
            threads.0.push(thread);
            let lane =
                receiver.recv().map_err(|_| Failure::internal("a queue thread ended before it began"))?;
            lanes.push(lane?);
        }
        let size = volume.blocks() * BLOCK_SIZE as u64;
        let transactions = volume.status().freshness == Freshness::Transaction.to_string();
        Ok((Self { size, transactions, clock, lanes: lanes.into(), pool }, threads))
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

    /// Requests that ended with an error.
    pub fn failed(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.failed.load(Ordering::Relaxed)).sum()
    }

    fn push(&self, work: Work, done: Ending) {
        let lane = &self.lanes[lane_of_this_thread() % self.lanes.len()];
        let mut inbox = lane.inbox();
        if inbox.closed {
            drop(inbox);
            return done.fail(Errno::SHUTDOWN);
        }
        inbox.tasks.push(Task { work, done, since: self.clock.now() });
        // Who finds more than one has been woken for the first.
        if inbox.tasks.len() == 1 {
            let waker = inbox.waker.clone();
            drop(inbox);
            waker.wake();
        }
    }
}

impl Lane {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        self.size
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
}

impl Threads {
    /// Waits for the threads of a disk that was closed.
    ///
    /// # Errors
    /// When one ended by a defect.
    pub fn join(self) -> Result<(), Failure> {
        let ends: Vec<_> = self.0.into_iter().map(JoinHandle::join).collect();
        match ends.into_iter().all(|end| end.is_ok()) {
            true => Ok(()),
            false => Err(Failure::internal("a queue thread ended by a defect; see the log, and report it")),
        }
    }
}

/// Threads are spread over the lanes in turn, and each stays on its lane: neighbours in one stream go to one queue, which can merge them.
fn lane_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    MINE.with(|mine| {
        mine.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            mine.set(Some(number));
            number
        })
    })
}

/// A queue thread.
fn serve(
    volume: &Volume,
    depth: u32,
    started: &Sender<Result<Arc<Lane>, Failure>>,
    clock: SystemClock,
    tamper: Arc<Tamper>,
    pool: Pool,
) {
    let queue = match volume.queue(depth) {
        Ok(queue) => queue,
        Err(error) => return drop(started.send(Err(error.into()))),
    };
    let inbox = Inbox { tasks: Vec::new(), closed: false, change: None, waker: queue.waker() };
    let lane =
        Arc::new(Lane { inbox: Mutex::new(inbox), latency: Latency::new(), failed: AtomicU64::new(0) });
    let _closing = Closing(Arc::clone(&lane));
    let _ = started.send(Ok(Arc::clone(&lane)));
    let mut server = Server { queue, depth, lane, clock, tamper, waiting: Slab::new(), pool };
    while let Some(change) = server.run() {
        match server.change(change) {
            Some(next) => server = next,
            None => return,
        }
    }
}

/// However the thread ends, whoever waits for it gets an error and not silence.
struct Closing(Arc<Lane>);

impl Drop for Closing {
    fn drop(&mut self) {
        let tasks = {
            let mut inbox = self.0.inbox();
            inbox.closed = true;
            inbox.change = None;
            std::mem::take(&mut inbox.tasks)
        };
        tasks.into_iter().for_each(|task| task.done.fail(Errno::SHUTDOWN));
    }
}

struct Server {
    queue: Queue,
    depth: u32,
    lane: Arc<Lane>,
    clock: SystemClock,
    tamper: Arc<Tamper>,
    waiting: Slab<Waiting>,
    pool: Pool,
}

/// A request that the volume has.
struct Waiting {
    kind: Kind,
    done: Ending,
    since: Duration,
}

impl Server {
    /// Serves until the disk is closed, or its session changes; then nothing is under way.
    fn run(&mut self) -> Option<Change> {
        let mut tasks = Vec::new();
        let mut completions = Vec::new();
        loop {
            {
                let mut inbox = self.lane.inbox();
                let idle = self.queue.pending() == 0;
                if inbox.change.is_none() {
                    std::mem::swap(&mut inbox.tasks, &mut tasks);
                } else if idle {
                    return inbox.change.take();
                }
                if idle && inbox.closed && tasks.is_empty() {
                    return None;
                }
            }
            tasks.drain(..).for_each(|task| self.begin(task));
            self.queue.wait(Some(NAP), &mut completions);
            export::together(|| completions.drain(..).for_each(|completion| self.end(completion)));
        }
    }

    /// Lets go of the session, and goes on with the next one, if there is one.
    fn change(self, Change { done, next }: Change) -> Option<Self> {
        let Self { queue, depth, lane, clock, tamper, waiting, pool } = self;
        drop(queue);
        let _ = done.send(Ok(()));
        match next.recv().ok()?.queue(depth) {
            Ok(queue) => {
                lane.inbox().waker = queue.waker();
                let _ = done.send(Ok(()));
                Some(Self { queue, depth, lane, clock, tamper, waiting, pool })
            }
            Err(error) => {
                let _ = done.send(Err(error.into()));
                None
            }
        }
    }

    fn begin(&mut self, task: Task) {
        let Task { work, done, since } = task;
        match self.translate(work) {
            Ok((kind, request)) => {
                let token = self.waiting.insert(Waiting { kind, done, since });
                self.queue.submit(token as u64, request);
            }
            Err(errno) => done.fail(errno),
        }
    }

    /// The volume's request for a front end's, which promises whole blocks.
    fn translate(&mut self, work: Work) -> Result<(Kind, volume::Request), Errno> {
        let request = match work {
            Work::Commit => return Ok((Kind::Commit, volume::Request::Commit)),
            Work::Allocation { offset, length } => {
                let request = volume::Request::Allocation { block: blocks(offset)?, blocks: blocks(length)? };
                return Ok((Kind::Allocation, request));
            }
            Work::Device(request) => request,
        };
        self.tamper.admit(&request)?;
        Ok(match request {
            export::Request::Read { offset, length } => {
                let count = usize::try_from(blocks(u64::from(length))?).map_err(|_| Errno::INVAL)?;
                let buffer = self.pool.buffer(count);
                (Kind::Read, volume::Request::Read { block: blocks(offset)?, buffer })
            }
            export::Request::Write { offset, data, fua } => {
                (Kind::Write, volume::Request::Write { block: blocks(offset)?, data, fua })
            }
            export::Request::Flush => (Kind::Flush, volume::Request::Flush),
            // An absent block reads as zeros; its space comes from the same reserve again when it is written.
            export::Request::Discard { offset, length } | export::Request::WriteZeroes { offset, length } => {
                (Kind::Discard, volume::Request::Discard { block: blocks(offset)?, blocks: blocks(length)? })
            }
        })
    }

    fn complain(&self, kind: Kind, error: &volume::Error) {
        Sign::of(error.kind()).iter().for_each(|tamper| events::note(*tamper, 1));
        match self.lane.failed.fetch_add(1, Ordering::Relaxed) {
            before if before < COMPLAINTS => events::request_failed(kind.name(), error),
            COMPLAINTS => events::tell("more requests fail; see the count in the status"),
            _ => {}
        }
    }

    fn end(&mut self, completion: Completion) {
        let Some(Waiting { kind, done, since }) =
            usize::try_from(completion.token).ok().and_then(|token| self.waiting.try_remove(token))
        else {
            return;
        };
        self.lane.latency.record(kind, self.clock.now().saturating_sub(since));
        if let Err(error) = &completion.result {
            self.complain(kind, error);
            self.tamper.note(kind.name(), error);
        }
        let done = match done {
            Ending::Bytes(done) => done,
            Ending::Extents(found) => {
                let extents = completion.extents.into_iter().map(in_bytes).collect();
                return found(completion.result.map(|()| extents).map_err(|error| errno(&error)));
            }
        };
        done(match (completion.result, kind, completion.buffer) {
            (Err(error), ..) => Err(errno(&error)),
            (Ok(()), Kind::Read, Some(buffer)) => {
                Ok(Bytes::from_owner(Plain { bytes: buffer.len(), buffer }))
            }
            (Ok(()), Kind::Read, None) => Err(Errno::IO),
            (Ok(()), ..) => Ok(Bytes::new()),
        });
    }
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

/// Failed requests that a queue thread tells the log about; more are only counted.
const COMPLAINTS: u64 = 100;

/// Blocks in so many bytes.
fn blocks(bytes: u64) -> Result<u64, Errno> {
    let block = BLOCK_SIZE as u64;
    if bytes.is_multiple_of(block) { Ok(bytes / block) } else { Err(Errno::INVAL) }
}

fn in_bytes(extent: volume::Extent) -> export::Extent {
    export::Extent { length: extent.blocks * BLOCK_SIZE as u64, allocated: extent.allocated }
}

/// What the front end says for a failure.
fn errno(error: &volume::Error) -> Errno {
    match error.kind() {
        volume::Kind::NoSpace => Errno::NOSPC,
        volume::Kind::Usage => Errno::INVAL,
        _ => Errno::IO,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tamper::{OnTamper, Orders};
    use super::*;
    use crate::session::Session;
    use crate::testing::Bench;

    const BLOCK: u64 = BLOCK_SIZE as u64;

    fn start(volume: &Volume) -> (Disk, Threads) {
        let orders = Orders { on: OnTamper::Continue, hook: None };
        let tamper = Arc::new(Tamper::new(&orders, "disk", "memory").unwrap());
        Disk::start(volume, 2, SystemClock::new(), &tamper).unwrap()
    }

    pub(in crate::daemon) fn ask(disk: &Disk, request: export::Request) -> Receiver<Result<Bytes, Errno>> {
        let (sender, receiver) = channel();
        disk.submit(request, Box::new(move |result| drop(sender.send(result))));
        receiver
    }

    pub(in crate::daemon) fn write(block: u64, byte: u8) -> export::Request {
        export::Request::Write { offset: block * BLOCK, data: vec![byte; BLOCK_SIZE].into(), fua: false }
    }

    fn read(disk: &Disk, block: u64) -> Bytes {
        let request = export::Request::Read { offset: block * BLOCK, length: 4096 };
        ask(disk, request).recv().unwrap().unwrap()
    }

    #[test]
    fn requests_wait_for_the_next_session() {
        let bench = Bench::new();
        let first = Session::begin(bench.attach()).unwrap();
        let (disk, threads) = start(&first.volume);
        ask(&disk, write(0, 1)).recv().unwrap().unwrap();
        let idle = disk.idle().unwrap();
        // On each lane one, and more than one.
        let waiting: Vec<_> = std::thread::scope(|scope| {
            let users: Vec<_> = (1..7)
                .map(|block| {
                    scope.spawn({
                        let disk = &disk;
                        move || ask(disk, write(block, 2))
                    })
                })
                .collect();
            users.into_iter().map(|user| user.join().unwrap()).collect()
        });
        first.end().unwrap();
        assert!(waiting.iter().all(|done| done.try_recv().is_err()), "nothing is lost, and nothing is done");
        let second = Session::begin(bench.attach()).unwrap();
        idle.go_on(&second.volume).unwrap();
        waiting.iter().for_each(|done| drop(done.recv().unwrap().unwrap()));
        assert!(
            read(&disk, 0) == vec![1; BLOCK_SIZE]
                && (1..7).all(|block| read(&disk, block) == vec![2; BLOCK_SIZE])
        );
        disk.close();
        threads.join().unwrap();
        second.end().unwrap();
    }

    #[test]
    fn without_a_next_session_requests_fail() {
        let bench = Bench::new();
        for refused in [true, false] {
            let session = Session::begin(bench.attach()).unwrap();
            let (disk, threads) = start(&session.volume);
            let idle = disk.idle().unwrap();
            let waiting = ask(&disk, write(0, 1));
            bench.trouble.queues.store(if refused { 0 } else { u64::MAX }, Ordering::SeqCst);
            match refused {
                true => assert!(idle.go_on(&session.volume).unwrap_err().to_string().contains("queue")),
                false => drop(idle),
            }
            bench.trouble.queues.store(u64::MAX, Ordering::SeqCst);
            assert_eq!(waiting.recv().unwrap(), Err(Errno::SHUTDOWN));
            assert_eq!(ask(&disk, write(0, 1)).recv().unwrap(), Err(Errno::SHUTDOWN));
            assert!(disk.idle().is_err(), "its threads have ended");
            disk.close();
            threads.join().unwrap();
            session.end().unwrap();
        }
    }

    #[test]
    fn data_goes_through_the_pool_and_back() {
        let bench = Bench::new();
        let session = Session::begin(bench.attach()).unwrap();
        let (disk, threads) = start(&session.volume);
        let mut memory = disk.memory(2 * BLOCK_SIZE);
        memory.as_mut().fill(7);
        let address = memory.as_ref().as_ptr();
        let request = export::Request::Write { offset: 0, data: memory.freeze(), fua: false };
        ask(&disk, request).recv().unwrap().unwrap();
        let found = ask(&disk, export::Request::Read { offset: 0, length: 8192 }).recv().unwrap().unwrap();
        assert!(found == vec![7; 2 * BLOCK_SIZE]);
        assert_eq!(found.as_ptr(), address, "what the write had was free again");
        assert_ne!(disk.memory(BLOCK_SIZE).as_ref().as_ptr(), address, "the reader has it still");
        assert_eq!(disk.memory(100).as_ref().len(), 100);
        disk.close();
        threads.join().unwrap();
        session.end().unwrap();
    }

    #[test]
    fn only_whole_blocks_pass() {
        assert_eq!(blocks(8192), Ok(2));
        assert_eq!(blocks(8191), Err(Errno::INVAL));
    }
}
