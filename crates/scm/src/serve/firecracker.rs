//! Firecracker's page-fault handler: its guest memory is anonymous, and filled from the region at the first touch of each page. What the guest
//! writes stays there; the region is only read, and its pages stay encrypted.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};

use super::{Server, TICK};
use crate::protocol::Mapped;
use crate::uffd::{self, Event};

/// The unit that is filled; also a part of a larger page.
const UNIT: u64 = 4096;

/// Serves faults until the connection ends.
pub(super) fn serve(server: &Server, stream: &UnixStream, uffd: &OwnedFd, mappings: &[Mapped]) {
    let mut waiting: Vec<u64> = Vec::new();
    let mut removed: Vec<(u64, u64)> = Vec::new();
    let mut events = Vec::new();
    while !server.is_stopping() {
        let mut wanted = [PollFd::new(uffd, PollFlags::IN), PollFd::new(stream, PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        match poll(&mut wanted, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !wanted[1].revents().is_empty() {
            return;
        }
        let arrived = Instant::now();
        if uffd::read(uffd.as_fd(), &mut events).is_err() {
            return;
        }
        for event in events.drain(..) {
            match event {
                Event::Fault(address) => waiting.push(address / UNIT * UNIT),
                Event::Removed(start, end) | Event::Unmapped(start, end) => removed.push((start, end)),
                Event::Other => {}
            }
        }
        waiting.retain(|address| {
            let is_removed = removed.iter().any(|(start, end)| (*start..*end).contains(address));
            let filled = if is_removed {
                uffd::zero(uffd.as_fd(), *address, UNIT)
            } else {
                match content(server, mappings, *address) {
                    Some(content) => uffd::copy(uffd.as_fd(), *address, &content),
                    None => uffd::poison(uffd.as_fd(), *address, UNIT),
                }
            };
            // A range is being removed: its event is read first, and then this fault comes again.
            let again = filled.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN));
            if !again {
                server.engine.stats().faults.fetch_add(1, Ordering::Relaxed);
                server.engine.stats().fault_latency.record(arrived.elapsed());
            }
            again
        });
    }
}

/// What the region has for an address; `None`, told, if it has nothing that is good.
fn content(server: &Server, mappings: &[Mapped], address: u64) -> Option<Vec<u8>> {
    let mapped = mappings.iter().find(|it| (it.address..it.address + it.length).contains(&address))?;
    let offset = mapped.offset + (address - mapped.address);
    let size = server.engine.geometry().page_size();
    let mut content = vec![0; usize::try_from(UNIT).ok()?];
    let inside = usize::try_from(offset % size).ok()?;
    match server.engine.read(offset / size, inside, &mut content) {
        Ok(()) => Some(content),
        Err(error) => {
            eprintln!("error: {error}");
            None
        }
    }
}
