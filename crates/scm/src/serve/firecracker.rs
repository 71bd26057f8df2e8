//! Firecracker's page-fault handler: its guest memory is anonymous, and filled from the region at the first touch of each page. What the guest
//! writes stays there; the region is only read, and its pages stay encrypted.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use zeroize::Zeroizing;

use super::{Server, TICK};
use crate::protocol::{Filled, Mapped};
use crate::uffd::{self, Event};

/// The unit that is refused where nothing is known of an address.
const UNIT: u64 = 4096;

/// Guest memory, and which of its pages were removed since, so that they are zeros. A bit for each page, however often they are removed.
struct Memory<'a> {
    mappings: &'a [Filled],
    removed: Vec<Vec<u64>>,
}

/// A page of guest memory.
#[derive(Debug, Clone, Copy)]
struct Place {
    mapping: usize,
    page: u64,
    address: u64,
    unit: u64,
}

impl<'a> Memory<'a> {
    fn new(mappings: &'a [Filled]) -> Memory<'a> {
        let bits =
            |it: &Filled| vec![0; usize::try_from((it.mapped.length / it.unit).div_ceil(64)).unwrap_or(0)];
        Memory { mappings, removed: mappings.iter().map(bits).collect() }
    }

    /// The page that an address is in.
    fn place(&self, address: u64) -> Option<Place> {
        let covers =
            |it: &Filled| (it.mapped.address..it.mapped.address + it.mapped.length).contains(&address);
        let mapping = self.mappings.iter().position(covers)?;
        let Filled { mapped, unit } = self.mappings[mapping];
        let page = (address - mapped.address) / unit;
        Some(Place { mapping, page, address: mapped.address + page * unit, unit })
    }

    fn remove(&mut self, start: u64, end: u64) {
        for (Filled { mapped, unit }, bits) in self.mappings.iter().zip(&mut self.removed) {
            let Mapped { address, length, .. } = *mapped;
            let (first, last) = (start.max(address), end.min(address + length));
            if first < last {
                for page in (first - address) / unit..(last - address).div_ceil(*unit) {
                    bits[usize::try_from(page / 64).expect("64-bit, as seal demands")] |= 1 << (page % 64);
                }
            }
        }
    }

    fn is_removed(&self, place: Place) -> bool {
        let word =
            self.removed[place.mapping][usize::try_from(place.page / 64).expect("64-bit, as seal demands")];
        word >> (place.page % 64) & 1 == 1
    }
}

/// Serves faults until the connection ends.
pub(super) fn serve(server: &Server, stream: &UnixStream, uffd: &OwnedFd, mappings: &[Filled]) {
    let mut memory = Memory::new(mappings);
    let mut waiting: Vec<u64> = Vec::new();
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
                Event::Fault { address, .. } => waiting.push(address),
                Event::Removed(start, end) | Event::Unmapped(start, end) => memory.remove(start, end),
                Event::Other => {}
            }
        }
        waiting.retain(|address| {
            let filled = fill(server, uffd, &memory, *address);
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

fn fill(server: &Server, uffd: &OwnedFd, memory: &Memory<'_>, address: u64) -> std::io::Result<()> {
    let Some(place) = memory.place(address) else {
        return uffd::poison(uffd.as_fd(), address / UNIT * UNIT, UNIT);
    };
    match content(server, memory, place) {
        Some(content) => uffd::copy(uffd.as_fd(), place.address, &content),
        None => uffd::poison(uffd.as_fd(), place.address, place.unit),
    }
}

/// What a page of guest memory gets; `None`, told, if the region has nothing that is good.
fn content(server: &Server, memory: &Memory<'_>, place: Place) -> Option<Zeroizing<Vec<u8>>> {
    let mut content = Zeroizing::new(vec![0; usize::try_from(place.unit).ok()?]);
    if memory.is_removed(place) {
        return Some(content);
    }
    let size = server.engine.geometry().page_size();
    let mut offset = memory.mappings[place.mapping].mapped.offset + place.page * place.unit;
    let mut rest = &mut content[..];
    while !rest.is_empty() {
        let inside = offset % size;
        let len = rest.len().min(usize::try_from(size - inside).ok()?);
        let (part, behind) = rest.split_at_mut(len);
        if let Err(error) = server.engine.read(offset / size, usize::try_from(inside).ok()?, part) {
            eprintln!("error: {error}");
            return None;
        }
        (rest, offset) = (behind, offset + len as u64);
    }
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A balloon takes the same pages out again and again: what is remembered of them does not grow.
    #[test]
    fn removed_ranges_take_a_bit_for_each_page() {
        let mapped = Mapped { address: 1 << 21, length: 4 << 21, offset: 0 };
        let mappings = [
            Filled { mapped, unit: 2 << 20 },
            Filled { mapped: Mapped { address: 1 << 30, ..mapped }, unit: 4096 },
        ];
        let mut memory = Memory::new(&mappings);
        for _ in 0..1000 {
            memory.remove((1 << 30) + 4096, (1 << 30) + 3 * 4096);
            memory.remove(2 << 21, 3 << 21);
        }
        assert_eq!(memory.removed.iter().map(Vec::len).sum::<usize>(), 1 + 32);
        let removed =
            |address: u64| memory.place(address).map(|place| (place.address, memory.is_removed(place)));
        assert_eq!(removed((1 << 30) + 4095), Some((1 << 30, false)));
        assert_eq!(removed((1 << 30) + 3 * 4096 - 1), Some(((1 << 30) + 2 * 4096, true)));
        assert_eq!(removed((1 << 30) + 3 * 4096), Some(((1 << 30) + 3 * 4096, false)));
        assert_eq!(removed((3 << 21) - 8), Some((2 << 21, true)));
        assert_eq!(removed((5 << 21) - 8), Some((4 << 21, false)));
        assert_eq!(removed(5 << 21), None);
    }
}
