//! A volume as the device that a front end shows: requests go to queue threads, which run them to completion.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use export::{Device, Done, Found};
use rustix::io::Errno;
use slab::Slab;
use store::BLOCK_SIZE;
use volume::format::protections::Freshness;
use volume::{Clock, Completion, Queue, Volume};

use super::events::{self, Sign};
use super::latency::{Kind, Latency};
use super::pool::Pool;
use super::tamper::Tamper;
use crate::failure::Failure;
use crate::system::SystemClock;

/// Store operations that a queue may have in flight.
const DEPTH: u32 = 256;
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
}

/// The way to one queue thread.
struct Lane {
    inbox: Mutex<Inbox>,
    waker: Waker,
    latency: Latency,
    /// Requests that ended with an error.
    failed: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    tasks: Vec<Task>,
    closed: bool,
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
        let mut lanes = Vec::new();
        let mut threads = Threads(Vec::new());
        for number in 0..count {
            let (sender, receiver) = channel();
            let volume = volume.clone();
            let tamper = Arc::clone(tamper);
            let serve = move || serve(&volume, &sender, clock, tamper);
            let thread = std::thread::Builder::new().name(format!("queue-{number}")).spawn(serve);
            let thread = thread.map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
            threads.0.push(thread);
            let lane =
                receiver.recv().map_err(|_| Failure::internal("a queue thread ended before it began"))?;
            lanes.push(lane?);
        }
        let size = volume.blocks() * BLOCK_SIZE as u64;
        let transactions = volume.status().freshness == Freshness::Transaction.to_string();
        Ok((Self { size, transactions, clock, lanes: lanes.into() }, threads))
    }

    /// Whether the next session has all that was flushed in this one, however this one ends.
    pub fn keeps_what_is_flushed(&self) -> bool {
        !self.transactions
    }

    /// Ends the transaction, and calls `done` when all is durable and anchored.
    pub fn commit(&self, done: Done) {
        self.push(Work::Commit, Ending::Bytes(done));
    }

    /// Takes no more requests; the threads end when those in flight have ended.
    pub fn close(&self) {
        for lane in self.lanes.iter() {
            lane.inbox().closed = true;
            lane.waker.wake_by_ref();
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
            drop(inbox);
            lane.waker.wake_by_ref();
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
    started: &Sender<Result<Arc<Lane>, Failure>>,
    clock: SystemClock,
    tamper: Arc<Tamper>,
) {
    let queue = match volume.queue(DEPTH) {
        Ok(queue) => queue,
        Err(error) => return drop(started.send(Err(error.into()))),
    };
    let lane = Arc::new(Lane {
        inbox: Mutex::default(),
        waker: queue.waker(),
        latency: Latency::new(),
        failed: AtomicU64::new(0),
    });
    let _closing = Closing(Arc::clone(&lane));
    let _ = started.send(Ok(Arc::clone(&lane)));
    Server { queue, lane, clock, tamper, waiting: Slab::new(), pool: Pool::default() }.run();
}

/// However the thread ends, whoever waits for it gets an error and not silence.
struct Closing(Arc<Lane>);

impl Drop for Closing {
    fn drop(&mut self) {
        let tasks = {
            let mut inbox = self.0.inbox();
            inbox.closed = true;
            std::mem::take(&mut inbox.tasks)
        };
        tasks.into_iter().for_each(|task| task.done.fail(Errno::SHUTDOWN));
    }
}

struct Server {
    queue: Queue,
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
    fn run(mut self) {
        let mut tasks = Vec::new();
        let mut completions = Vec::new();
        loop {
            let closed = {
                let mut inbox = self.lane.inbox();
                std::mem::swap(&mut inbox.tasks, &mut tasks);
                inbox.closed
            };
            tasks.drain(..).for_each(|task| self.begin(task));
            if closed && self.queue.pending() == 0 {
                return;
            }
            self.queue.wait(Some(NAP), &mut completions);
            export::together(|| completions.drain(..).for_each(|completion| self.end(completion)));
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
                let buffer =
                    self.pool.take(usize::try_from(blocks(u64::from(length))?).map_err(|_| Errno::INVAL)?);
                (Kind::Read, volume::Request::Read { block: blocks(offset)?, buffer })
            }
            export::Request::Write { offset, data, fua } => {
                let count = usize::try_from(blocks(data.len() as u64)?).map_err(|_| Errno::INVAL)?;
                let mut buffer = self.pool.take(count);
                buffer.copy_from(0, &data);
                (Kind::Write, volume::Request::Write { block: blocks(offset)?, buffer, fua })
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
        let bytes = match (&completion.result, kind, &completion.buffer) {
            (Err(error), ..) => Err(errno(error)),
            (Ok(()), Kind::Read, Some(buffer)) => buffer.private().map(<[u8]>::to_vec).ok_or(Errno::IO),
            (Ok(()), Kind::Read, None) => Err(Errno::IO),
            (Ok(()), ..) => Ok(Vec::new()),
        };
        if let Some(buffer) = completion.buffer {
            self.pool.put(buffer);
        }
        done(bytes);
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
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_pass() {
        assert_eq!(blocks(8192), Ok(2));
        assert_eq!(blocks(8191), Err(Errno::INVAL));
    }
}
