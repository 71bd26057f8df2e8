//! One client of a server: what it says, and its faults.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::ahead::Ahead;
use super::{ABSENT, ACTIVE, Server, TICK, firecracker, readable};
use crate::Error;
use crate::protocol::{self, ClientMessage, FileId, LIMIT, Mapped, ServerMessage};
use crate::uffd::{self, Event};

/// How long a client may take for its first message, or to take ranges out of its page tables.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it is looked for the next fault before the thread sleeps: to wake it takes longer than to open a page.
const SPIN: Duration = Duration::from_micros(50);

/// The steps of one fault in so many are timed.
const TIMED: u64 = 8;

/// A VMM that has the region mapped.
pub(super) struct Client {
    stream: UnixStream,
    uffd: OwnedFd,
    mapped: Mapped,
    /// The last answer, and who waits for the next one.
    answer: Mutex<Answer>,
    answered: Condvar,
    asked: AtomicU64,
    gone: AtomicBool,
    /// Held shared while a fault is served.
    serving: RwLock<()>,
    ahead: Mutex<Ahead>,
    /// Faults that arrived together with another one, for the other threads.
    waiting: Mutex<VecDeque<Touch>>,
    arrived: Condvar,
}

/// What a VMM said last of ranges that it was to take out of its page tables.
#[derive(Debug, Default)]
struct Answer {
    id: u64,
    /// It could not.
    is_kept: bool,
    /// Why not, the last time.
    why: String,
}

/// A touch that waits.
#[derive(Debug, Clone, Copy)]
struct Touch {
    address: u64,
    /// Whether the file has no memory there.
    is_missing: bool,
}

/// Serves a connection to its end.
pub(super) fn serve(server: &Arc<Server>, stream: &UnixStream) {
    let mut reader = Reader::new(stream);
    let answer = match reader.next(server) {
        Ok(Some(ClientMessage::Status)) => {
            serde_json::to_vec(&server.engine.status()).map_err(|error| error.to_string())
        }
        Ok(Some(ClientMessage::Region)) => send_region(server, stream).map(|()| Vec::new()),
        Ok(Some(ClientMessage::Attach(mapped, file))) => {
            attach(server, stream, &mut reader, mapped, file).map(|()| Vec::new())
        }
        Ok(Some(ClientMessage::Firecracker(mappings))) => match reader.descriptor.take() {
            Some(descriptor) => {
                firecracker::serve(server, stream, &descriptor, &mappings);
                Ok(Vec::new())
            }
            None => Err("the message came without a userfaultfd".into()),
        },
        Ok(Some(ClientMessage::Zapped(_) | ClientMessage::Kept(..))) => {
            Err("nothing was asked of this client".into())
        }
        Ok(None) => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let answer = answer.unwrap_or_else(|error| {
        eprintln!("a client was refused: {error}");
        ServerMessage::Error(error).encode()
    });
    // Who asks and does not wait for the answer does not get it.
    let mut stream = stream;
    let _ = stream.write_all(&answer);
}

/// Gives a VMM the region's file. The VMM may not be able to open it by itself, nor need it know where it is.
fn send_region(server: &Server, stream: &UnixStream) -> Result<(), String> {
    let file = server
        .mapping
        .reopen()
        .map_err(|error| format!("the region's file cannot be opened again: {error}"))?;
    let (length, huge_page) =
        (server.engine.geometry().data_len(), server.mapping.huge_page_size().unwrap_or(0));
    let message = ServerMessage::Region { length, huge_page }.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    // Who asks and does not wait for the answer does not get it.
    let _ = rustix::net::sendmsg(stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
    Ok(())
}

fn attach(
    server: &Arc<Server>,
    stream: &UnixStream,
    reader: &mut Reader<'_>,
    mapped: Mapped,
    file: FileId,
) -> Result<(), String> {
    let ours = server.mapping.file().metadata().map_err(|error| error.to_string())?;
    if (FileId { device: ours.dev(), inode: ours.ino() }) != file {
        return Err("its mapping is of another file than the region that is served here".into());
    }
    let uffd = reader.descriptor.take().ok_or("the message came without a userfaultfd")?;
    let stream = stream.try_clone().map_err(|error| error.to_string())?;
    let client = Arc::new(Client::new(stream, uffd, mapped, server.limits.read_ahead));
    take_place(server, &client)?;
    let begin = |work: fn(&Client, &Server)| {
        let (server, client) = (Arc::clone(server), Arc::clone(&client));
        thread::spawn(move || work(&client, &server))
    };
    let helpers = (1..server.limits.threads).map(|_| begin(Client::help));
    let threads: Vec<_> = helpers.chain([begin(Client::serve_faults)]).collect();
    loop {
        match reader.next(server) {
            Ok(Some(ClientMessage::Zapped(id))) => {
                client.heard(id, None);
                continue;
            }
            Ok(Some(ClientMessage::Kept(id, why))) => {
                let why = why.chars().filter(|letter| !letter.is_control()).take(200).collect();
                server.engine.stats().kept.fetch_add(1, Ordering::Relaxed);
                client.heard(id, Some(why));
                continue;
            }
            Ok(None) => {}
            Ok(Some(_)) => eprintln!("a VMM said what it must not say now, and is let go"),
            Err(error) => eprintln!("a VMM was not understood, and is let go: {error}"),
        }
        break;
    }
    client.gone.store(true, Ordering::Release);
    client.answered.notify_all();
    for thread in threads {
        // It has nothing to return, and a panic in it has been told.
        let _ = thread.join();
    }
    // Behind the last fault: the client takes everything out of its page tables when it hears of this, and gives its lease back.
    let _ = client.stream.shutdown(std::net::Shutdown::Both);
    *server.client() = None;
    *server.departed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    server.vacated.notify_all();
    Ok(())
}

/// Makes this client the one of the region, and tells it so. One that is leaving is waited for: a VMM may map the region again as soon as it has
/// let it go.
fn take_place(server: &Server, client: &Arc<Client>) -> Result<(), String> {
    let begun = Instant::now();
    let mut place = server.client();
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        match &*place {
            _ if server.is_stopping() => return Err("the server is stopping".into()),
            None => break,
            Some(other) if other.is_leaving() && !left.is_zero() => {
                place = server.vacated.wait_timeout(place, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            Some(_) => return Err("another VMM has this region: a region is for one VMM at a time".into()),
        }
    }
    // Before anybody finds it in its place: the thread that takes pages back may ask something of it at once.
    let hold_ms = u64::try_from(server.limits.hold.as_millis()).unwrap_or(u64::MAX);
    client.say(&ServerMessage::Ok { hold_ms }).map_err(|error| error.to_string())?;
    *place = Some(Arc::clone(client));
    Ok(())
}

impl Client {
    fn new(stream: UnixStream, uffd: OwnedFd, mapped: Mapped, read_ahead: u64) -> Client {
        Client {
            stream,
            uffd,
            mapped,
            answer: Mutex::default(),
            answered: Condvar::new(),
            asked: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            serving: RwLock::new(()),
            ahead: Mutex::new(Ahead::new(read_ahead)),
            waiting: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    /// Has pages taken out of the page tables. Whether they are.
    pub(super) fn zap(&self, pages: &[u64], size: u64) -> bool {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for page in pages {
            let Some(address) = self.address(*page, size) else { continue };
            match ranges.last_mut() {
                Some((start, len)) if *start + *len == address => *len += size,
                _ => ranges.push((address, size)),
            }
        }
        self.zap_ranges(ranges)
    }

    fn zap_ranges(&self, ranges: Vec<(u64, u64)>) -> bool {
        let id = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        if self.say(&ServerMessage::Zap { id, ranges }).is_err() {
            return false;
        }
        let begun = Instant::now();
        let mut answer = self.lock_answer();
        while answer.id < id {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            if left.is_zero() || self.gone.load(Ordering::Acquire) {
                return false;
            }
            answer = self.answered.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !answer.is_kept
    }

    /// The VMM has answered: the ranges are out, or `why` not.
    fn heard(&self, id: u64, why: Option<String>) {
        let mut answer = self.lock_answer();
        (answer.id, answer.is_kept) = (id, why.is_some());
        if let Some(why) = why.filter(|why| *why != answer.why) {
            eprintln!(
                "error: a VMM cannot take pages out of its page tables, so they stay open, in the clear: {why}"
            );
            answer.why = why;
        }
        self.answered.notify_all();
    }

    /// Whether its other end has hung up, so that it will be gone in a moment.
    fn is_leaving(&self) -> bool {
        let mut end = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        self.gone.load(Ordering::Acquire) || poll(&mut end, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Serves no more faults, and ends the connection: the VMM takes everything out of its page tables, and gives its lease back.
    pub(super) fn let_go(&self) {
        let _serving = self.serving.write().unwrap_or_else(PoisonError::into_inner);
        let _ = self.zap_ranges(vec![(self.mapped.address, self.mapped.length)]);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Reads faults and serves them, to the end of the client.
    fn serve_faults(&self, server: &Server) {
        let spin = if thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
            SPIN
        } else {
            Duration::ZERO
        };
        let mut events = Vec::new();
        let mut last: Option<Instant> = None;
        while !self.gone.load(Ordering::Acquire) && !server.is_stopping() {
            let is_hot = last.is_some_and(|last| last.elapsed() < spin);
            if !is_hot && !readable(&self.uffd, TICK).unwrap_or(false) {
                last = None;
                continue;
            }
            if let Err(error) = uffd::read(self.uffd.as_fd(), &mut events) {
                eprintln!("error: the userfaultfd of a VMM cannot be read: {error}");
                break;
            }
            if events.is_empty() {
                std::hint::spin_loop();
                continue;
            }
            let mut touched = events.drain(..).filter_map(|event| match event {
                Event::Fault { address, is_missing } => Some(Touch { address, is_missing }),
                _ => None,
            });
            let first = touched.next();
            let mut others = touched.peekable();
            if others.peek().is_some() {
                self.waiting().extend(others);
                self.arrived.notify_all();
            }
            let mut next = first;
            while let Some(touch) = next {
                self.serve_fault(server, touch);
                next = self.waiting().pop_front();
            }
            last = Some(Instant::now());
        }
        self.arrived.notify_all();
        for touch in self.waiting().drain(..) {
            self.put_back(server, touch.address);
        }
    }

    /// Has a touch happen again, for the next server.
    fn put_back(&self, server: &Server, address: u64) {
        let size = server.engine.geometry().page_size();
        let inside = address.saturating_sub(self.mapped.address);
        if let Some(address) = self.address((self.mapped.offset + inside) / size, size) {
            let _ = uffd::wake(self.uffd.as_fd(), address, size);
        }
    }

    /// Serves faults that arrived together with others, to the end of the client.
    fn help(&self, server: &Server) {
        let mut waiting = self.waiting();
        while !self.gone.load(Ordering::Acquire) && !server.is_stopping() {
            match waiting.pop_front() {
                Some(touch) => {
                    drop(waiting);
                    self.serve_fault(server, touch);
                    waiting = self.waiting();
                }
                None => {
                    waiting =
                        self.arrived.wait_timeout(waiting, TICK).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Touch>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_fault(&self, server: &Server, touch: Touch) {
        let address = touch.address;
        let _serving = self.serving.read().unwrap_or_else(PoisonError::into_inner);
        if server.is_stopping() {
            return self.put_back(server, address);
        }
        let began = Instant::now();
        let Mapped { address: first, length, offset } = self.mapped;
        let Some(inside) = address.checked_sub(first).filter(|inside| *inside < length) else { return };
        let page = (offset + inside) / server.engine.geometry().page_size();
        let faults = server.engine.stats().faults.fetch_add(1, Ordering::Relaxed);
        server.wait_for_room(PATIENCE + server.limits.hold);
        let shown = self.show(server, page, Some(touch), faults.is_multiple_of(TIMED));
        server.engine.stats().fault_latency.record(began.elapsed());
        match shown {
            Ok(()) => self.read_ahead(server, page),
            Err(error) => {
                server.engine.count_corrupt(&error);
                self.refuse(server, page, &error);
            }
        }
    }

    /// Opens a page, unless it is open, and puts it into the VMM's page tables: first where it was touched.
    fn show(&self, server: &Server, page: u64, touch: Option<Touch>, is_timed: bool) -> Result<(), Error> {
        let size = server.engine.geometry().page_size();
        let Some(address) = self.address(page, size) else { return Ok(()) };
        let Touch { address: touched, is_missing } = touch.unwrap_or(Touch { address, is_missing: false });
        loop {
            let put = || self.put(address..address + size, touched, server.unit());
            match server.open_and_put(page, is_timed, is_missing, put)? {
                Ok(()) => return Ok(()),
                // The VMM changes its mappings just now.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => thread::yield_now(),
                // What was there while it was open is gone from the file.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    return Err(Error::CorruptPage { page });
                }
                // It, or its mapping, is gone.
                Err(error) => {
                    if !self.gone.load(Ordering::Acquire) {
                        eprintln!("page {page} cannot be shown to its VMM: {error}");
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Puts an open page into the page tables. The unit that was touched comes first, and its toucher goes on. The rest follows as far as nothing of
    /// it is there already: what is left is put there when it is touched.
    fn put(&self, page: Range<u64>, touched: u64, unit: u64) -> io::Result<()> {
        let first = touched / unit * unit;
        uffd::resume(self.uffd.as_fd(), first, unit)?;
        for rest in [page.start..first, first + unit..page.end] {
            if !rest.is_empty() {
                let _ = uffd::resume(self.uffd.as_fd(), rest.start, rest.end - rest.start);
            }
        }
        Ok(())
    }

    /// Opens what a sequential reader will touch next. It stops where there is little room, and before a page that does not open: that one is
    /// told when it is touched.
    fn read_ahead(&self, server: &Server, page: u64) {
        let size = server.engine.geometry().page_size();
        for next in self.ahead.lock().unwrap_or_else(PoisonError::into_inner).touched(page) {
            let is_mapped = self.address(next, size).is_some();
            let is_new = is_mapped && server.used(next).load(Ordering::Acquire) == ABSENT;
            if !is_mapped || server.is_stopping() || server.has_little_room() {
                return;
            }
            if is_new && self.show(server, next, None, false).is_err() {
                return;
            }
            server.engine.stats().ahead.fetch_add(u64::from(is_new), Ordering::Relaxed);
        }
    }

    /// A touch that must not go on: it becomes a memory error of the VMM.
    fn refuse(&self, server: &Server, page: u64, error: &Error) {
        eprintln!("error: {error}");
        let size = server.engine.geometry().page_size();
        let Some(address) = self.address(page, size) else { return };
        if let Err(error) = uffd::poison(self.uffd.as_fd(), address, size) {
            eprintln!(
                "the VMM's touch of page {page} cannot be made a memory error ({error}), so it waits for good"
            );
        }
    }

    /// The address of a page that is in the mapping as a whole.
    fn address(&self, page: u64, size: u64) -> Option<u64> {
        let inside = (page * size).checked_sub(self.mapped.offset)?;
        (inside + size <= self.mapped.length).then_some(self.mapped.address + inside)
    }

    fn say(&self, message: &ServerMessage) -> io::Result<()> {
        (&self.stream).write_all(&message.encode())
    }

    fn lock_answer(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Opens a page unless it is open, and has `put` put it into page tables. The page is active behind that, and not before: who takes pages back
    /// may choose it as soon as it is, and must not be told that it is out of the page tables while `put` is still under way.
    pub(super) fn open_and_put<T>(
        &self,
        page: u64,
        is_timed: bool,
        is_missing: bool,
        put: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        self.engine.open_then(page, is_timed, is_missing, || {
            let done = put();
            self.note_use(page);
            done
        })
    }

    /// A page is in page tables; its lock is held.
    fn note_use(&self, page: u64) {
        let before = self.used(page).swap(ACTIVE, Ordering::AcqRel);
        if before == ABSENT {
            self.open.fetch_add(1, Ordering::AcqRel);
        }
        if before != ACTIVE {
            self.order().push_back((page, Instant::now()));
            self.call_for_room();
        }
    }

    /// Whether what is opened ahead would soon take the room of what is touched.
    fn has_little_room(&self) -> bool {
        self.open.load(Ordering::Acquire) * 4 >= self.limits.open_pages * 3
    }
}

/// Messages of a stream, one after the other.
struct Reader<'a> {
    stream: &'a UnixStream,
    bytes: Vec<u8>,
    descriptor: Option<OwnedFd>,
    /// Whether the first message is still to come.
    is_new: bool,
}

impl<'a> Reader<'a> {
    fn new(stream: &'a UnixStream) -> Reader<'a> {
        Reader { stream, bytes: Vec::new(), descriptor: None, is_new: true }
    }

    /// The next message, or `None` at the end.
    fn next(&mut self, server: &Server) -> Result<Option<ClientMessage>, String> {
        let begun = Instant::now();
        loop {
            let end = self.bytes.iter().position(|byte| *byte == b'\n');
            let whole = &self.bytes[..end.unwrap_or(self.bytes.len())];
            if !whole.is_empty() {
                // Firecracker's message has no line feed, but is whole when it is JSON.
                let decoded = protocol::decode(whole, server.engine.geometry());
                if let Some(message) = decoded? {
                    self.bytes.drain(..end.map_or(self.bytes.len(), |end| end + 1));
                    self.is_new = false;
                    return Ok(Some(message));
                }
                if end.is_some() || self.bytes.len() >= LIMIT {
                    return Err("the message is not whole".into());
                }
            } else if end.is_some() {
                self.bytes.drain(..1);
                continue;
            }
            if self.is_new && begun.elapsed() > PATIENCE {
                return Err("no message came".into());
            }
            if readable(self.stream, TICK).map_err(|error| error.to_string())? && !self.receive()? {
                return Ok(None);
            }
        }
    }

    /// Whether something came.
    fn receive(&mut self) -> Result<bool, String> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut data = [IoSliceMut::new(&mut bytes)];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(self.stream, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let count = match received {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(errno) => return Err(errno.to_string()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptor = descriptors.last().or(self.descriptor.take());
            }
        }
        self.bytes.extend_from_slice(&bytes[..count]);
        Ok(count > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;

    use super::super::taking::tests::server;
    use super::*;
    use crate::serve::Limits;

    /// A VMM that waits for its next server has touches that are served at once, so there may be pages to take back before its threads run.
    #[test]
    fn a_client_that_is_found_in_its_place_was_answered() {
        let server = server(Limits::default());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let uffd = std::fs::File::open("/dev/null").unwrap().into();
        let mapped = Mapped { address: 1 << 20, length: 8 * 4096, offset: 0 };
        let client = Arc::new(Client::new(ours, uffd, mapped, 0));
        theirs.set_nonblocking(true).unwrap();
        let mut heard = io::BufReader::new(theirs);
        let mut next = || {
            let mut line = Vec::new();
            heard.read_until(b'\n', &mut line).map(|_| ServerMessage::decode(&line).unwrap())
        };
        take_place(&server, &client).unwrap();
        assert_eq!(next().unwrap(), ServerMessage::Ok { hold_ms: 0 });
        thread::scope(|scope| {
            let zapping = scope.spawn(|| server.zap(&[3]));
            let asked = loop {
                match next() {
                    Ok(message) => break message,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            };
            assert_eq!(asked, ServerMessage::Zap { id: 1, ranges: vec![((1 << 20) + 3 * 4096, 4096)] });
            client.heard(1, None);
            assert!(zapping.join().unwrap());
        });
    }
}
