//! What a VMM does to have its mapping of a region served: the API that it embeds, and what `libcvmio_scm.so` uses.
//!
//! ```no_run
//! # fn main() -> Result<(), scm::Error> {
//! # let (address, length) = (0x7000_0000_0000, 1 << 30);
//! // `address` is a shared mapping of the region's file, from its beginning on.
//! let attached = unsafe {
//!     scm::client::attach("/dev/shm/region".as_ref(), "/run/scm".as_ref(), address, length, 0)?
//! };
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

use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::Error;
use crate::protocol::{ClientMessage, Mapped, ServerMessage};
use crate::serve::lease::Lease;
use crate::uffd;

/// Between two looks for a server.
const PAUSE: Duration = Duration::from_millis(50);

/// A mapping that is served. Dropping it ends that: touches of pages that are not open then see ciphertext, so nobody may touch it any more.
#[derive(Debug)]
pub struct Attached(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    uffd: OwnedFd,
    mapped: Mapped,
    socket: PathBuf,
    /// Whether the mapping is gone; held while something is done to it.
    is_over: Mutex<bool>,
    /// The connection, to end it.
    stream: Mutex<Option<UnixStream>>,
}

/// Has a mapping of a region served from now on.
///
/// # Errors
/// [`Error::Usage`] if the process may not use userfaultfd, or the server refuses; [`Error::Io`] if there is no server or the memory is neither
/// shmem nor hugetlbfs.
///
/// # Safety
/// `length` bytes from `address` on are a shared mapping of the region's file from `offset` on, and stay it until the value is dropped.
pub unsafe fn attach(
    region: &Path,
    socket: &Path,
    address: u64,
    length: u64,
    offset: u64,
) -> Result<Attached, Error> {
    let file =
        File::open(region).map_err(|error| Error::io(format!("opening {}", region.display()), error))?;
    let uffd = uffd::open_minor()?;
    let mapped = Mapped { address, length, offset };
    let shared = Arc::new(Shared {
        uffd,
        mapped,
        socket: socket.into(),
        is_over: Mutex::new(false),
        stream: Mutex::default(),
    });
    // Neighbours must not come with a page, neither now nor when the kernel puts pages together later. A kernel without transparent huge pages
    // refuses the advice.
    let _ = shared.advise(address, length, libc::MADV_NOHUGEPAGE);
    uffd::register_minor(&shared.uffd, address, length)
        .map_err(|error| Error::io("registering the mapping with userfaultfd", error))?;
    shared.zap(address, length);
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
    let message = ClientMessage::Attach(shared.mapped).encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [shared.uffd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(reader.get_ref(), &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)
        .map_err(|errno| failed(errno.into()))?;
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).map_err(failed)?;
    match ServerMessage::decode(&line) {
        Ok(ServerMessage::Ok {}) => {}
        Ok(ServerMessage::Error(why)) => return Err(Error::Usage(format!("the server refuses: {why}"))),
        Ok(ServerMessage::Zap { .. }) | Err(_) => {
            return Err(Error::Usage(format!(
                "what answers on {} is no server of this version",
                shared.socket.display()
            )));
        }
    }
    *shared.stream() = Some(reader.get_ref().try_clone().map_err(failed)?);
    Ok(())
}

/// Ends a connection, and takes everything out of the page tables behind its end: the server has the userfaultfd, and may show pages, until it
/// has closed its end as well, also if it said what makes no sense. One that was killed has closed it.
fn leave(shared: &Shared, reader: &mut BufReader<UnixStream>) {
    let _ = reader.get_ref().shutdown(Shutdown::Write);
    // What it says until then is of no use any more. An error is an end, too.
    let _ = io::copy(reader, &mut io::sink());
    shared.zap_all();
}

/// Does what servers ask, one server after the other.
fn help(shared: &Shared, file: &File, mut reader: BufReader<UnixStream>) {
    loop {
        // It may have ended while there was no connection that could be shut down.
        if *shared.lock() {
            return;
        }
        listen(shared, &mut reader);
        // Nothing may be in the page tables when the next server recovers.
        leave(shared, &mut reader);
        drop(Lease::of_descriptor(file));
        reader = loop {
            if *shared.lock() {
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

fn listen(shared: &Shared, reader: &mut BufReader<UnixStream>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(count) if count > 0 => {}
            _ => return,
        }
        let Ok(ServerMessage::Zap { id, ranges }) = ServerMessage::decode(&line) else { return };
        for (address, len) in ranges {
            shared.zap(address, len);
        }
        let mut stream: &UnixStream = reader.get_ref();
        if stream.write_all(&ClientMessage::Zapped(id).encode()).is_err() {
            return;
        }
    }
}

impl Shared {
    /// Takes a range out of the page tables, as far as it is in the mapping.
    fn zap(&self, address: u64, len: u64) {
        let is_over = self.lock();
        let start = address.max(self.mapped.address);
        let end = address.saturating_add(len).min(self.mapped.address + self.mapped.length);
        if !*is_over && start < end {
            let _ = self.advise(start, end - start, libc::MADV_DONTNEED);
        }
    }

    /// Takes everything out of the page tables. Touches that a server had heard of, and not answered, happen again for the next one.
    fn zap_all(&self) {
        self.zap(self.mapped.address, self.mapped.length);
        let _ = uffd::wake(self.uffd.as_fd(), self.mapped.address, self.mapped.length);
    }

    fn advise(&self, address: u64, len: u64, advice: i32) -> std::io::Result<()> {
        let start = usize::try_from(address).map_err(std::io::Error::other)?;
        let len = usize::try_from(len).map_err(std::io::Error::other)?;
        // SAFETY: the range is in the mapping, which is there (`attach`'s contract, and `is_over`); it is shared, so its content stays.
        if unsafe { libc::madvise(std::ptr::without_provenance_mut(start), len, advice) } == 0 {
            return Ok(());
        }
        Err(std::io::Error::last_os_error())
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stream(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attached {
    /// Whether an address range has pages of the mapping.
    #[must_use]
    pub fn overlaps(&self, address: u64, len: u64) -> bool {
        let Mapped { address: ours, length, .. } = self.0.mapped;
        address < ours + length && ours < address.saturating_add(len)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.zap(self.0.mapped.address, self.0.mapped.length);
        *self.0.lock() = true;
        if let Some(stream) = self.0.stream().take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
