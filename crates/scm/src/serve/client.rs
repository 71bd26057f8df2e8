//! One client of a server: what it says, and its faults.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{ABSENT, ACTIVE, Server, TICK, firecracker, readable};
use crate::Error;
use crate::protocol::{self, ClientMessage, LIMIT, Mapped, ServerMessage};
use crate::uffd::{self, Event};

/// How long a client may take for its first message, or to take ranges out of its page tables.
const PATIENCE: Duration = Duration::from_secs(5);

/// A VMM that has the region mapped.
pub(super) struct Client {
    stream: UnixStream,
    uffd: OwnedFd,
    mapped: Mapped,
    /// The last answer, and who waits for the next one.
    zapped: Mutex<u64>,
    answered: Condvar,
    asked: AtomicU64,
    gone: AtomicBool,
    /// Held while faults are served.
    serving: Mutex<()>,
}

/// Serves a connection to its end.
pub(super) fn serve(server: &Arc<Server>, stream: &UnixStream) {
    let mut reader = Reader::new(stream);
    let answer = match reader.next(server) {
        Ok(Some(ClientMessage::Status)) => {
            serde_json::to_vec(&server.engine.status()).map_err(|error| error.to_string())
        }
        Ok(Some(ClientMessage::Attach(mapped))) => {
            attach(server, stream, &mut reader, mapped).map(|()| Vec::new())
        }
        Ok(Some(ClientMessage::Firecracker(mappings))) => match reader.descriptor.take() {
            Some(descriptor) => {
                firecracker::serve(server, stream, &descriptor, &mappings);
                Ok(Vec::new())
            }
            None => Err("the message came without a userfaultfd".into()),
        },
        Ok(Some(ClientMessage::Zapped(_))) => Err("nothing was asked of this client".into()),
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

fn attach(
    server: &Arc<Server>,
    stream: &UnixStream,
    reader: &mut Reader<'_>,
    mapped: Mapped,
) -> Result<(), String> {
    let uffd = reader.descriptor.take().ok_or("the message came without a userfaultfd")?;
    let stream = stream.try_clone().map_err(|error| error.to_string())?;
    let client = Arc::new(Client {
        stream,
        uffd,
        mapped,
        zapped: Mutex::new(0),
        answered: Condvar::new(),
        asked: AtomicU64::new(0),
        gone: AtomicBool::new(false),
        serving: Mutex::new(()),
    });
    {
        let mut place = server.client();
        if place.is_some() || server.is_stopping() {
            return Err("another VMM has this region: a region is for one VMM at a time".into());
        }
        *place = Some(Arc::clone(&client));
    }
    let faults = {
        let (server, client) = (Arc::clone(server), Arc::clone(&client));
        thread::spawn(move || client.serve_faults(&server))
    };
    let said = client.say(&ServerMessage::Ok {});
    while said.is_ok() {
        match reader.next(server) {
            Ok(Some(ClientMessage::Zapped(id))) => {
                *client.lock_zapped() = id;
                client.answered.notify_all();
            }
            Ok(None) => break,
            Ok(Some(_)) => eprintln!("a VMM said what it must not say now, and is let go"),
            Err(error) => eprintln!("a VMM was not understood, and is let go: {error}"),
        }
        if client.gone.load(Ordering::Acquire) {
            break;
        }
    }
    client.gone.store(true, Ordering::Release);
    client.answered.notify_all();
    let _ = client.stream.shutdown(std::net::Shutdown::Both);
    // It has nothing to return, and a panic in it has been told.
    let _ = faults.join();
    *server.client() = None;
    Ok(())
}

impl Client {
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
        let mut zapped = self.lock_zapped();
        while *zapped < id {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            if left.is_zero() || self.gone.load(Ordering::Acquire) {
                return false;
            }
            zapped = self.answered.wait_timeout(zapped, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Serves no more faults, and ends the connection: the VMM takes everything out of its page tables, and gives its lease back.
    pub(super) fn let_go(&self) {
        let _serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.zap_ranges(vec![(self.mapped.address, self.mapped.length)]);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn serve_faults(&self, server: &Server) {
        let mut events = Vec::new();
        while !self.gone.load(Ordering::Acquire) && !server.is_stopping() {
            if !readable(&self.uffd, TICK).unwrap_or(false) {
                continue;
            }
            let _serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
            if server.is_stopping() {
                break;
            }
            let arrived = Instant::now();
            if let Err(error) = uffd::read(self.uffd.as_fd(), &mut events) {
                eprintln!("error: the userfaultfd of a VMM cannot be read: {error}");
                return;
            }
            for event in events.drain(..) {
                if let Event::Fault(address) = event {
                    self.fault(server, address);
                    server.engine.stats().faults.fetch_add(1, Ordering::Relaxed);
                    server.engine.stats().fault_latency.record(arrived.elapsed());
                }
            }
        }
    }

    fn fault(&self, server: &Server, address: u64) {
        let Mapped { address: first, length, offset } = self.mapped;
        let size = server.engine.geometry().page_size();
        let Some(inside) = address.checked_sub(first).filter(|inside| *inside < length) else { return };
        let page = (offset + inside) / size;
        server.wait_for_room();
        let address = first + (page * size - offset);
        loop {
            let resumed = server.engine.while_locked(page, |is_open| {
                is_open.then(|| {
                    server.note_use(page);
                    uffd::resume(self.uffd.as_fd(), address, size)
                })
            });
            match resumed {
                Some(Ok(())) => return,
                // The VMM changes its mappings just now.
                Some(Err(error)) if error.raw_os_error() == Some(libc::EAGAIN) => thread::yield_now(),
                // It, or its mapping, is gone.
                Some(Err(error)) => {
                    if !self.gone.load(Ordering::Acquire) {
                        eprintln!("page {page} cannot be shown to its VMM: {error}");
                    }
                    return;
                }
                None => {
                    if let Err(error) = server.engine.open_page(page) {
                        return self.refuse(page, address, size, &error);
                    }
                }
            }
        }
    }

    /// A touch that must not go on: it becomes a memory error of the VMM.
    fn refuse(&self, page: u64, address: u64, size: u64, error: &Error) {
        eprintln!("error: {error}");
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

    fn lock_zapped(&self) -> MutexGuard<'_, u64> {
        self.zapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// A page gets into page tables; its lock is held.
    fn note_use(&self, page: u64) {
        let before = self.used(page).swap(ACTIVE, Ordering::AcqRel);
        if before == ABSENT {
            self.open.fetch_add(1, Ordering::AcqRel);
        }
        if before != ACTIVE {
            self.order().push_back((page, Instant::now()));
        }
    }

    /// Waits while as many pages are open as may be. A VMM that does not give pages back must not stop the others of its threads for ever.
    fn wait_for_room(&self) {
        let begun = Instant::now();
        while self.open.load(Ordering::Acquire) >= self.limits.open_pages
            && begun.elapsed() < PATIENCE
            && !self.is_stopping()
        {
            thread::sleep(Duration::from_micros(200));
        }
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
