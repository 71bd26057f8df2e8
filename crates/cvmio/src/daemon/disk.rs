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
use std::thread::JoinHandle;
use std::time::Duration;

use export::{Attend, Client, Device, Done, Found, Memory};
use rustix::io::Errno;
use store::{BLOCK_SIZE, Buffer, Pool};
use volume::format::protections::Freshness;
use volume::{Clock, Volume};

use super::latency::Latency;
use super::tamper::Tamper;
use crate::failure::Failure;
use crate::system::SystemClock;

/// Store operations that all queues together may have in flight, and how many each of them has at the least and at the most. Each has a
/// buffer of 128 KiB, in memory that stays resident (see docs/decisions/0028-memory-of-a-daemon.md).
const OPERATIONS: u32 = 128;
const DEPTHS: RangeInclusive<u32> = 16..=64;

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
            let serve = move || {
                LANE.set(Some(number.into()));
                queue::serve(&volume, depth, &sender, clock, tamper, pool);
            };
            let thread = std::thread::Builder::new().name(format!("queue-{number}")).spawn(serve);
            let thread = thread.map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
            threads.0.push(thread);
            let lane =
                receiver.recv().map_err(|_| Failure::internal("a queue thread ended before it began"))?;
            lanes.push(lane?);
        }
        let size = volume.blocks() * BLOCK_SIZE as u64;
        let transactions = volume.status().freshness == Freshness::Transaction.to_string();
        let size = Arc::new(AtomicU64::new(size));
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

    /// Requests that ended with an error.
    pub fn failed(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.failed.load(Ordering::Relaxed)).sum()
    }

    fn lane(&self) -> &Lane {
        &self.lanes[lane_of_this_thread() % self.lanes.len()]
    }

    fn push(&self, work: Work, done: Ending) {
        let mut inbox = self.lane().inbox();
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

thread_local! {
    static LANE: Cell<Option<usize>> = const { Cell::new(None) };
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
pub(super) mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use bytes::Bytes;
    use export::nbd::{self, wire};

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

    /// A client of an NBD server that has chosen its export.
    fn client(socket: &Path) -> UnixStream {
        let mut client = UnixStream::connect(socket).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // Fixed newstyle without zeros, and the default export.
        client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        client.read_exact(&mut [0; 18 + 10]).unwrap();
        client
    }

    fn send(client: &mut UnixStream, command: wire::Command, data: &[u8]) {
        let flags = wire::Flags::default();
        let request = wire::Request { flags, command, cookie: 1, offset: 0, length: 4096 };
        client.write_all(&request.encode()).unwrap();
        client.write_all(data).unwrap();
    }

    fn receive(client: &mut UnixStream, length: usize) -> Vec<u8> {
        let mut reply = vec![0; 16 + length];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "an error");
        reply.split_off(16)
    }

    #[test]
    fn a_client_that_comes_as_the_session_changes_is_served_in_the_next() {
        let bench = Bench::new();
        let session = Session::begin(bench.attach()).unwrap();
        let (disk, threads) = start(&session.volume);
        let (serving, served) = channel();
        let client: Client = Box::new(move |_| Box::pin(async move { serving.send(()).unwrap() }));
        let ((sender, next), (done, changed)) = (channel(), channel());
        {
            // The thread finds both at once.
            let mut inbox = disk.lanes[0].inbox();
            inbox.clients.push(client);
            inbox.change = Some(Change { done, next });
            inbox.waker.wake_by_ref();
        }
        changed.recv().unwrap().unwrap();
        sender.send(session.volume.clone()).unwrap();
        changed.recv().unwrap().unwrap();
        assert!(served.recv_timeout(Duration::from_secs(20)).is_ok(), "it was hung up on");
        disk.close();
        threads.join().unwrap();
        session.end().unwrap();
    }

    #[test]
    fn clients_are_served_by_the_queue_threads_and_stay_while_the_session_changes() {
        let (bench, directory) = (Bench::new(), tempfile::tempdir().unwrap());
        let first = Session::begin(bench.attach()).unwrap();
        let (disk, threads) = start(&first.volume);
        let socket = directory.path().join("nbd");
        let options = nbd::Options {
            name: "volume".into(),
            listen: nbd::Listen::Unix(socket.clone()),
            tls: None,
            read_only: false,
        };
        let server = nbd::Server::start(Arc::new(disk.clone()), &options).unwrap();
        // On each lane more than one, and most have nothing to ask for.
        let mut clients: Vec<_> = (0..5).map(|_| client(&socket)).collect();
        send(&mut clients[0], wire::Command::Write, &[1; BLOCK_SIZE]);
        receive(&mut clients[0], 0);
        let own = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
            std::fs::read_to_string(task.unwrap().path().join("comm"))
                .ok()
                .filter(|name| name == "nbd-replies\n")
        });
        assert_eq!(own.count(), 0, "no thread of a client's own takes its requests");
        let idle = disk.idle().unwrap();
        send(&mut clients[1], wire::Command::Read, &[]);
        first.end().unwrap();
        let second = Session::begin(bench.attach()).unwrap();
        idle.go_on(&second.volume).unwrap();
        assert!(receive(&mut clients[1], BLOCK_SIZE) == [1; BLOCK_SIZE]);
        for client in &mut clients {
            send(client, wire::Command::Read, &[]);
            assert!(receive(client, BLOCK_SIZE) == [1; BLOCK_SIZE]);
        }
        disk.close();
        threads.join().unwrap();
        let left = clients.iter_mut().map(|client| client.read(&mut [0]));
        assert!(left.into_iter().all(|read| matches!(read, Ok(0))), "nobody serves them any more");
        drop(server);
        second.end().unwrap();
    }
}
