//! A queue thread: runs requests to completion, and serves clients beside them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use export::{Attendance, Wish};
use rustix::io::Errno;
use slab::Slab;
use store::{BLOCK_SIZE, Pool};
use volume::{Clock, Completion, Queue, Volume};

use super::{Change, Ending, HOME, Inbox, LOOKS_NEXT, Lane, Plain, Task, Work};
use crate::events;
use crate::latency::{Kind, Latency};
use crate::polling::Polling;
use crate::sign::Sign;
use crate::system::SystemClock;
use crate::tamper::Tamper;
use cli::failure::Failure;

/// How long a queue thread sleeps at most: a backstop, since every submission wakes it.
const NAP: Duration = Duration::from_secs(1);

/// Failed requests that a queue thread tells the log about; more are only counted.
const COMPLAINTS: u64 = 100;

/// What a queue thread is given.
pub(super) struct Setup {
    pub(super) depth: u32,
    pub(super) clock: SystemClock,
    pub(super) tamper: Arc<Tamper>,
    pub(super) pool: Pool,
    pub(super) polling: Polling,
}

impl Setup {
    fn queue(&self, volume: &Volume) -> volume::Result<Queue> {
        let mut queue = volume.queue(self.depth)?;
        queue.spin(self.polling.spinner());
        Ok(queue)
    }
}

/// Serves until the disk is closed. `started` hears of the way to this thread, or why there is none.
pub(super) fn serve(volume: &Volume, setup: Setup, started: &Sender<Result<Arc<Lane>, Failure>>) {
    let queue = match setup.queue(volume) {
        Ok(queue) => queue,
        Err(error) => return drop(started.send(Err(error.into()))),
    };
    let inbox =
        Inbox { tasks: Vec::new(), clients: Vec::new(), closed: false, change: None, waker: queue.waker() };
    let lane = Arc::new(Lane {
        inbox: Mutex::new(inbox),
        latency: Latency::new(),
        failed: AtomicU64::new(0),
        hand_overs: AtomicU64::new(0),
        load: AtomicU64::new(0),
    });
    HOME.set(Arc::as_ptr(&lane));
    let _closing = Closing(Arc::clone(&lane));
    let _ = started.send(Ok(Arc::clone(&lane)));
    let (waiting, attendance) = (Slab::new(), Attendance::default());
    let mut server = Server { queue, lane, setup, waiting, attendance };
    while let Some(change) = server.run() {
        match server.change(change) {
            Some(next) => server = next,
            None => return,
        }
    }
}

/// However the thread ends, what waits for it gets an error and not silence.
struct Closing(Arc<Lane>);

impl Drop for Closing {
    fn drop(&mut self) {
        let (tasks, clients) = {
            let mut inbox = self.0.inbox();
            inbox.closed = true;
            inbox.change = None;
            (std::mem::take(&mut inbox.tasks), std::mem::take(&mut inbox.clients))
        };
        drop(clients);
        tasks.into_iter().for_each(|task| task.done.fail(Errno::SHUTDOWN));
    }
}

struct Server {
    queue: Queue,
    lane: Arc<Lane>,
    setup: Setup,
    waiting: Slab<Waiting>,
    attendance: Attendance,
}

/// Does what is followed by a look into the inbox: what this thread brings itself needs no wake-up then.
fn before_looking(work: impl FnOnce()) {
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            LOOKS_NEXT.set(false);
        }
    }
    LOOKS_NEXT.set(true);
    let _ended = Ended;
    export::together(work);
}

/// What waits for a completion.
enum Waiting {
    /// A request that the volume has.
    Request { kind: Kind, done: Ending, since: Duration, bytes: u64 },
    /// A client that has nothing to ask for yet.
    Client(Wish),
}

impl Server {
    /// Serves until the disk is closed, or its session changes; then nothing is under way.
    fn run(&mut self) -> Option<Change> {
        let mut tasks = Vec::new();
        let mut clients = Vec::new();
        let mut completions = Vec::new();
        loop {
            {
                let mut inbox = self.lane.inbox();
                let idle = self.queue.pending() == 0;
                if inbox.change.is_none() {
                    std::mem::swap(&mut inbox.tasks, &mut tasks);
                } else if idle {
                    // Who has just come stays in the inbox, for the next session.
                    return inbox.change.take();
                }
                clients.append(&mut inbox.clients);
                if idle && inbox.closed && tasks.is_empty() {
                    return None;
                }
            }
            if !clients.is_empty() {
                // They may ask at once, and the inbox was looked into already.
                clients.drain(..).for_each(|client| self.attendance.admit(client));
                export::together(|| self.attend());
            }
            tasks.drain(..).for_each(|task| self.begin(task));
            self.queue.wait(Some(NAP), &mut completions);
            before_looking(|| {
                // They are told of together, so this is when all of them ended.
                let now = self.setup.clock.now();
                completions.drain(..).for_each(|completion| self.end(completion, now));
                self.attend();
            });
        }
    }

    /// Lets go of the session, and goes on with the next one, if there is one.
    fn change(self, Change { done, next }: Change) -> Option<Self> {
        let Self { queue, lane, setup, mut waiting, attendance } = self;
        drop(queue);
        // No request is under way, and who is not watched any more asks again.
        waiting.drain().for_each(|waiting| waiting.seen(Ok(())));
        let _ = done.send(Ok(()));
        match setup.queue(&next.recv().ok()?) {
            Ok(queue) => {
                lane.inbox().waker = queue.waker();
                let _ = done.send(Ok(()));
                Some(Self { queue, lane, setup, waiting, attendance })
            }
            Err(error) => {
                let _ = done.send(Err(error.into()));
                None
            }
        }
    }

    fn begin(&mut self, task: Task) {
        let Task { work, done, since } = task;
        let bytes = work.bytes();
        match self.translate(work) {
            Ok((kind, request)) => {
                let token = self.waiting.insert(Waiting::Request { kind, done, since, bytes });
                self.queue.submit(token as u64, request);
            }
            Err(errno) => {
                self.lane.load.fetch_sub(bytes, Ordering::Relaxed);
                done.fail(errno);
            }
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
        self.setup.tamper.admit(&request)?;
        Ok(match request {
            export::Request::Read { offset, length } => {
                let count = usize::try_from(blocks(u64::from(length))?).map_err(|_| Errno::INVAL)?;
                let buffer = self.setup.pool.buffer(count);
                (Kind::Read, volume::Request::Read { block: blocks(offset)?, buffer })
            }
            export::Request::Write { offset, data, fua } => {
                (Kind::Write, volume::Request::Write { block: blocks(offset)?, data, fua })
            }
            export::Request::Flush => (Kind::Flush, volume::Request::Flush),
            export::Request::Discard { offset, length } => {
                (Kind::Discard, volume::Request::Discard { block: blocks(offset)?, blocks: blocks(length)? })
            }
            export::Request::WriteZeroes { offset, length } => {
                (Kind::Discard, volume::Request::Zero { block: blocks(offset)?, blocks: blocks(length)? })
            }
        })
    }

    /// Moves clients on, and has the queue watch for what they wait for.
    fn attend(&mut self) {
        let mut wishes = Vec::new();
        self.attendance.run(&self.queue.waker(), &mut wishes);
        for wish in wishes {
            let descriptor = Arc::clone(&wish.descriptor);
            let place = self.waiting.vacant_entry();
            if self.queue.watch(place.key() as u64, descriptor) {
                place.insert(Waiting::Client(wish));
            } else {
                Waiting::Client(wish).seen(Err(Errno::NOTSUP));
            }
        }
    }

    fn complain(&self, kind: Kind, error: &volume::Error) {
        Sign::of(error.kind()).iter().for_each(|tamper| events::note(*tamper, 1));
        match self.lane.failed.fetch_add(1, Ordering::Relaxed) {
            before if before < COMPLAINTS => events::request_failed(kind.name(), error),
            COMPLAINTS => events::tell("more requests fail; see the count in the status"),
            _ => {}
        }
    }

    fn end(&mut self, completion: Completion, now: Duration) {
        let waiting = usize::try_from(completion.token).ok().and_then(|token| self.waiting.try_remove(token));
        let (kind, done, since) = match waiting {
            Some(Waiting::Request { kind, done, since, bytes }) => {
                self.lane.load.fetch_sub(bytes, Ordering::Relaxed);
                (kind, done, since)
            }
            Some(client) => return client.seen(completion.result.map_err(|error| errno(&error))),
            None => return,
        };
        self.lane.latency.record(kind, now.saturating_sub(since));
        if let Err(error) = &completion.result {
            self.complain(kind, error);
            self.setup.tamper.note(kind.name(), error);
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

impl Waiting {
    /// Tells a client what became of its wish.
    fn seen(self, seen: Result<(), Errno>) {
        if let Self::Client(wish) = self {
            // Nobody listens when the client is gone.
            let _ = wish.seen.send(seen);
        }
    }
}

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
