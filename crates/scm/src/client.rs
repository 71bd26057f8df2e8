//! What a VMM does to have its mapping of a region served: the API that it embeds, and what `libcvmio_scm.so` uses. `docs/scm-protocol.md` has the
//! same for somebody who writes a client of their own.
//!
//! ```no_run
//! # fn main() -> Result<(), scm::Error> {
//! let region = scm::client::Region::ask("/run/scm".as_ref())?;
//! # let (address, length) = (0x7000_0000_0000, region.length());
//! // `address` is a shared mapping of `region.file()`, from its beginning on.
//! let attached = unsafe { region.attach(address, length, 0)? };
//! // The guest may run; the mapping is taken away only behind this:
//! drop(attached);
//! # Ok(()) }
//! ```
//!
//! A thread of the client takes ranges out of the page tables when the server asks. If the server goes away, it takes out the whole mapping, so
//! that the guest waits at its next touch, gives the lease back, and asks for the next server until there is one.
//!
//! A server is gone when its end of the connection is closed, and may show pages until then. A page that it shows after the client has taken
//! everything out would stay in the page tables while it, or the next server, encrypts that page. So a client that does not understand its
//! server closes its own end first, and waits for the server's.
//!
//! Invariants:
//! * no answer says that a range is out of the page tables unless the kernel has taken it out;
//! * the lease is given back only when the whole mapping is out of them, and has been for as long as the server asked for (`hold_ms`): requests
//!   of other devices may be under way into its pages until then.

mod pages;

use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::Error;
use crate::protocol::{ClientMessage, FileId, LIMIT, Mapped, ServerMessage};
use crate::serve::lease::Lease;
use crate::uffd;
use pages::Pages;

/// Between two looks for a server, and two attempts to take pages out.
const PAUSE: Duration = Duration::from_millis(50);

/// A region that is served, with its file.
#[derive(Debug)]
pub struct Region {
    file: File,
    socket: PathBuf,
    length: u64,
    huge_page: Option<u64>,
}

/// A mapping that is served. Dropping it ends that: touches of pages that are not open then see ciphertext, so nobody may touch it any more.
#[derive(Debug)]
pub struct Attached(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    uffd: OwnedFd,
    pages: Pages,
    file: FileId,
    socket: PathBuf,
    /// The connection, to end it.
    stream: Mutex<Option<UnixStream>>,
    /// How long the lease is kept behind the moment at which everything was taken out.
    hold: Mutex<Duration>,
}

impl Region {
    /// Asks the server on a socket for its region.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no server, [`Error::Usage`] if it is one of another version, or one that gives no mappings.
    pub fn ask(socket: &Path) -> Result<Region, Error> {
        // It will be looked for again, and the process may have changed its directory until then.
        let socket =
            std::path::absolute(socket).map_err(|error| Error::io("the current directory", error))?;
        let failed = |error| Error::io(format!("the server on {}", socket.display()), error);
        let stream = UnixStream::connect(&socket).map_err(failed)?;
        (&stream).write_all(&ClientMessage::Region.encode()).map_err(failed)?;
        let (line, file) = receive(&stream).map_err(failed)?;
        match (answer(&socket, &line)?, file) {
            (ServerMessage::Region { length, huge_page }, Some(file)) => {
                let huge_page = (huge_page > 0).then_some(huge_page);
                Ok(Region { file: file.into(), socket, length, huge_page })
            }
            _ => Err(no_server(&socket)),
        }
    }

    /// Bytes of data.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of the huge pages that the file lies on, if it does.
    #[must_use]
    pub fn huge_page(&self) -> Option<u64> {
        self.huge_page
    }

    /// The file, to be mapped. What is behind [`length`](Region::length) is none of the VMM's.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Has a mapping of the file served from now on.
    ///
    /// # Errors
    /// [`Error::Usage`] if the process may not use userfaultfd, or the server refuses; [`Error::Io`] if there is no server, or the kernel does not
    /// take the mapping out of the page tables.
    ///
    /// # Safety
    /// `length` bytes from `address` on are a shared mapping of [`file`](Region::file) from `offset` on, and stay it until the value is dropped.
    pub unsafe fn attach(&self, address: u64, length: u64, offset: u64) -> Result<Attached, Error> {
        let file = self.file.try_clone().map_err(|error| Error::io("the region's file", error))?;
        let found = file.metadata().map_err(|error| Error::io("the region's file", error))?;
        let mapped = Mapped { address, length, offset };
        let shared = Arc::new(Shared {
            uffd: uffd::open_minor()?,
            // SAFETY: the caller's.
            pages: unsafe { Pages::new(mapped) },
            file: FileId { device: found.dev(), inode: found.ino() },
            socket: self.socket.clone(),
            stream: Mutex::default(),
            hold: Mutex::default(),
        });
        shared.pages.prepare()?;
        uffd::register(&shared.uffd, address, length)
            .map_err(|error| Error::io("registering the mapping with userfaultfd", error))?;
        shared
            .pages
            .take_out_all()
            .map_err(|error| Error::io("taking the mapping out of the page tables", error))?;
        let lease = Lease::shared(&file).map_err(|error| Error::io("locking the region", error))?;
        let stream = connect(&shared)?;
        drop_later(lease);
        let server = Arc::clone(&shared);
        let helper = thread::Builder::new().name("cvmio-scm".into()).spawn(move || {
            block_signals();
            help(&server, &file, stream);
        });
        helper.map_err(|error| Error::io("starting a thread", error))?;
        Ok(Attached(shared))
    }
}

/// What a server answers, in one line, and the descriptor that comes with it.
fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (mut line, mut descriptor) = (Vec::new(), None);
    while !line.ends_with(b"\n") && line.len() < LIMIT {
        let mut bytes = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut data = [io::IoSliceMut::new(&mut bytes)];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(stream, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptor = descriptors.last().or(descriptor);
            }
        }
        if received.bytes == 0 {
            break;
        }
        line.extend_from_slice(&bytes[..received.bytes]);
    }
    Ok((line, descriptor))
}

/// What a server says in a line; an error if it refuses.
fn answer(socket: &Path, line: &[u8]) -> Result<ServerMessage, Error> {
    match ServerMessage::decode(line) {
        Ok(ServerMessage::Error(why)) => Err(Error::Usage(format!("the server refuses: {why}"))),
        Ok(message) => Ok(message),
        Err(_) => Err(no_server(socket)),
    }
}

fn no_server(socket: &Path) -> Error {
    Error::Usage(format!(
        "what answers on {} is no server of this version that gives mappings",
        socket.display()
    ))
}

/// The lease goes on with the file that the helper has.
fn drop_later(lease: Lease<'_>) {
    std::mem::forget(lease);
}

/// A VMM's signals are for its own threads.
fn block_signals() {
    // SAFETY: the set is written by sigfillset before it is read; only this thread's mask changes.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Says hello to the server, and hands the userfaultfd over. If it comes to nothing, nothing is in the page tables: a server may have served
/// touches before it could answer.
fn connect(shared: &Shared) -> Result<BufReader<UnixStream>, Error> {
    let failed = |error| Error::io(format!("the server on {}", shared.socket.display()), error);
    let stream = UnixStream::connect(&shared.socket).map_err(failed)?;
    let mut reader = BufReader::new(stream);
    match hand_over(shared, &mut reader) {
        Ok(()) => Ok(reader),
        Err(error) => {
            leave(shared, &mut reader);
            Err(error)
        }
    }
}

fn hand_over(shared: &Shared, reader: &mut BufReader<UnixStream>) -> Result<(), Error> {
    let failed = |error| Error::io(format!("the server on {}", shared.socket.display()), error);
    let message = ClientMessage::Attach(shared.pages.mapped(), shared.file).encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [shared.uffd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(reader.get_ref(), &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)
        .map_err(|errno| failed(errno.into()))?;
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).map_err(failed)?;
    let ServerMessage::Ok { hold_ms } = answer(&shared.socket, &line)? else {
        return Err(no_server(&shared.socket));
    };
    *lock(&shared.hold) = Duration::from_millis(hold_ms);
    *lock(&shared.stream) = Some(reader.get_ref().try_clone().map_err(failed)?);
    Ok(())
}

/// Ends a connection, and takes everything out of the page tables behind its end: the server has the userfaultfd, and may show pages, until it
/// has closed its end as well, also if it said what makes no sense. One that was killed has closed it. Returns when it is out, however long that
/// takes: until then the caller has the lease.
fn leave(shared: &Shared, reader: &mut BufReader<UnixStream>) {
    let _ = reader.get_ref().shutdown(Shutdown::Write);
    // What it says until then is of no use any more. An error is an end, too.
    let _ = io::copy(reader, &mut io::sink());
    while let Err(error) = shared.pages.take_out_all() {
        shared.pages.tell(&error);
        thread::sleep(PAUSE);
    }
    // Touches that the server had heard of, and not answered, happen again for the next one.
    let Mapped { address, length, .. } = shared.pages.mapped();
    let _ = uffd::wake(shared.uffd.as_fd(), address, length);
}

/// Does what servers ask, one server after the other.
fn help(shared: &Shared, file: &File, mut reader: BufReader<UnixStream>) {
    loop {
        // It may have ended while there was no connection that could be shut down.
        if shared.pages.is_over() {
            return;
        }
        listen(shared, &mut reader);
        // Nothing may be in the page tables when the next server recovers, and no request of another device under way.
        leave(shared, &mut reader);
        hold(shared);
        drop(Lease::of_descriptor(file));
        reader = loop {
            if shared.pages.is_over() {
                return;
            }
            thread::sleep(PAUSE);
            // First the lease, so that no server recovers once this one has said yes.
            let Ok(lease) = Lease::shared(file) else { continue };
            match connect(shared) {
                Ok(reader) => {
                    drop_later(lease);
                    break reader;
                }
                Err(_) => drop(lease),
            }
        };
    }
}

/// Keeps the lease for as long as requests of other devices into the pages that were shown may take.
fn hold(shared: &Shared) {
    let (begun, hold) = (Instant::now(), *lock(&shared.hold));
    while begun.elapsed() < hold && !shared.pages.is_over() {
        thread::sleep(PAUSE.min(hold));
    }
}

fn listen(shared: &Shared, reader: &mut BufReader<UnixStream>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(count) if count > 0 => {}
            _ => return,
        }
        let Ok(ServerMessage::Zap { id, ranges }) = ServerMessage::decode(&line) else { return };
        let taken = ranges.iter().try_for_each(|(address, len)| shared.pages.take_out(*address, *len));
        let answer = match taken {
            Ok(()) => ClientMessage::Zapped(id),
            Err(error) => {
                shared.pages.tell(&error);
                ClientMessage::Kept(id, error.to_string())
            }
        };
        let mut stream: &UnixStream = reader.get_ref();
        if stream.write_all(&answer.encode()).is_err() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Attached {
    /// Whether an address range has pages of the mapping.
    #[must_use]
    pub fn overlaps(&self, address: u64, len: u64) -> bool {
        let Mapped { address: ours, length, .. } = self.0.pages.mapped();
        address < ours + length && ours < address.saturating_add(len)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.pages.end();
        if let Some(stream) = lock(&self.0.stream).take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
