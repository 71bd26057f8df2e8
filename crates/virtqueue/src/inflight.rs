//! The log of what is in flight, by which a device that was killed is followed by one that loses nothing and repeats nothing that ended (the
//! vhost-user specification, "Inflight I/O tracking", split virtqueues).
//!
//! For each queue: features `u64`, version `u16`, number of descriptors `u16`, head of the last batch `u16`, used index `u16`, and for each
//! descriptor `inflight` `u8`, five bytes of padding, `next` `u16`, `counter` `u64`. All little-endian. The VMM keeps this memory while no
//! device is there, so it can also write it, and what is found in it is checked as anything else.

use crate::device::Breach;
use crate::rings::Area;

const HEADER: usize = 16;
const ENTRY: usize = 16;
/// Queues begin at multiples of so many bytes, so that two of them share no cache line.
pub const ALIGNMENT: usize = 64;

const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const LAST_BATCH: usize = 12;
const USED: usize = 14;
/// Within an entry.
const NEXT: usize = 6;
const COUNTER: usize = 8;
/// The only version there is. Memory that nobody has used says 0.
const THIS_VERSION: u16 = 1;

/// Bytes of the log of a queue with `size` entries.
#[must_use]
pub const fn length(size: u16) -> usize {
    (HEADER + ENTRY * size as usize).next_multiple_of(ALIGNMENT)
}

/// The log of one queue.
#[derive(Debug)]
pub struct Log<A> {
    memory: A,
    /// Number of the next chain that is taken.
    counter: u64,
    /// Completed and not published, in the order of their completion.
    batch: Vec<u16>,
    last: u16,
}

impl<A: Area> Log<A> {
    /// A log in `memory`, of [`length`] bytes; whatever is in it counts.
    #[must_use]
    pub fn new(memory: A) -> Self {
        Self { memory, counter: 0, batch: Vec::new(), last: 0 }
    }

    fn entry(head: u16) -> usize {
        HEADER + ENTRY * usize::from(head)
    }

    fn get(&self, offset: usize) -> u16 {
        u16::from_le(self.memory.load(offset))
    }

    fn set(&self, offset: usize, value: u16) {
        self.memory.store(offset, value.to_le());
    }

    /// Puts in order what a device before left, and says which chains it had taken and not completed, in the order in which it took them.
    pub(crate) fn recover(&mut self, size: u16, used: u16) -> Result<Vec<u16>, Breach> {
        if self.memory.size() < length(size) {
            return Err(Breach::Log);
        }
        let is_unused = (0..size).all(|head| !self.is_in_flight(head));
        if self.get(VERSION) == 0 || is_unused && self.get(VERSION) == THIS_VERSION {
            // The queue may have begun anew, and have another size. The version comes last, so that one that was cut off here is begun again.
            self.set(DESCRIPTORS, size);
            self.set(LAST_BATCH, 0);
            self.set(USED, used);
            self.set(VERSION, THIS_VERSION);
        }
        if self.get(VERSION) != THIS_VERSION || self.get(DESCRIPTORS) != size {
            return Err(Breach::Log);
        }
        self.settle(size, used)?;
        let mut left = Vec::new();
        for head in 0..size {
            if self.is_in_flight(head) {
                let mut counter = [0; 8];
                self.memory.read(Self::entry(head) + COUNTER, &mut counter);
                left.push((u64::from_le_bytes(counter), head));
            }
        }
        left.sort_unstable();
        self.counter = left.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(left.into_iter().map(|(_, head)| head).collect())
    }

    /// A device that was killed behind the index and before the log leaves a last batch that is completed, and not marked so.
    fn settle(&mut self, size: u16, used: u16) -> Result<(), Breach> {
        let batch = used.wrapping_sub(self.get(USED));
        if batch > size {
            return Err(Breach::Log);
        }
        let mut head = self.get(LAST_BATCH);
        for _ in 0..batch {
            if head >= size {
                return Err(Breach::Log);
            }
            self.set_in_flight(head, false);
            head = self.get(Self::entry(head) + NEXT);
        }
        self.set(USED, used);
        self.last = self.get(LAST_BATCH);
        if self.last >= size { Err(Breach::Log) } else { Ok(()) }
    }

    fn is_in_flight(&self, head: u16) -> bool {
        let mut byte = [0];
        self.memory.read(Self::entry(head), &mut byte);
        byte != [0]
    }

    fn set_in_flight(&self, head: u16, is: bool) {
        // The byte behind it is padding. One store of both is ordered among the others.
        self.set(Self::entry(head), u16::from(is));
    }

    /// A chain was taken from the available ring.
    pub(crate) fn took(&mut self, head: u16) {
        self.memory.write(Self::entry(head) + COUNTER, &self.counter.to_le_bytes());
        self.counter = self.counter.wrapping_add(1);
        self.set_in_flight(head, true);
    }

    /// A chain is about to be in the used ring.
    pub(crate) fn completing(&mut self, head: u16) {
        self.set(Self::entry(head) + NEXT, self.last);
        self.set(LAST_BATCH, head);
        self.last = head;
        self.batch.push(head);
    }

    /// The used index covers what was completed.
    pub(crate) fn completed(&mut self, used: u16) {
        for head in std::mem::take(&mut self.batch) {
            self.set_in_flight(head, false);
        }
        self.set(USED, used);
    }
}
