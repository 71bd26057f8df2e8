//! The device's end of a queue.

use std::fmt;

use crate::chain::{self, Guest, Part};
use crate::inflight::Log;
use crate::rings::{Area, Rings};

/// What a driver did that no driver may do. Its queue is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breach {
    /// Its index is further ahead than the queue has room for.
    Index {
        /// What it says now.
        index: u16,
        /// Where the device is.
        at: u16,
    },
    /// A head that is outside of the table.
    Head(u16),
    /// A head whose chain is in flight.
    Twice(u16),
    /// A chain that goes on outside of its table.
    Next(u16),
    /// A chain with too many parts, or one that goes in a circle.
    Endless,
    /// An indirect table inside of another, or one with a next descriptor.
    Nested,
    /// An indirect table that is empty, or no whole number of descriptors.
    TableLength(u32),
    /// A range that goes around the end of all addresses.
    Overflow,
    /// Something to be read behind something to be written.
    Order,
    /// An address where the driver has no memory, of something without which the request can't be answered.
    NoMemory(u64),
    /// A chain in which a request has no header, or no room for its status.
    Request,
    /// A log of what is in flight that contradicts itself or the rings.
    Log,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index { index, at } => write!(f, "its index jumps from {at} to {index}"),
            Self::Head(head) => {
                write!(f, "it makes descriptor {head} available, which is outside of the queue")
            }
            Self::Twice(head) => {
                write!(f, "it makes descriptor {head} available again while that is in flight")
            }
            Self::Next(next) => {
                write!(f, "a chain goes on at descriptor {next}, which is outside of its table")
            }
            Self::Endless => write!(f, "a chain has more than {} parts", chain::CHAIN_LIMIT),
            Self::Nested => f.write_str("an indirect table inside of another, or with a next descriptor"),
            Self::TableLength(length) => write!(f, "an indirect table of {length} bytes"),
            Self::Overflow => f.write_str("a range goes around the end of all addresses"),
            Self::Order => f.write_str("a chain has something to be read behind something to be written"),
            Self::NoMemory(address) => write!(f, "it has no memory at {address:#x}"),
            Self::Request => f.write_str("a request without a header, or without room for its status"),
            Self::Log => f.write_str("the log of what is in flight contradicts the rings"),
        }
    }
}

impl std::error::Error for Breach {}

/// The device's end of a queue (invariants D1 to D8 of this crate).
#[derive(Debug)]
pub struct Device<A> {
    rings: Rings<A>,
    log: Option<Log<A>>,
    next_available: u16,
    /// Where the next used entry goes. What lies between it and `published` is stored, but not covered by the index.
    next_used: u16,
    published: u16,
    is_in_flight: Box<[bool]>,
    in_flight: u16,
    /// Chains that a device before this one had taken and not completed, the last first.
    left: Vec<u16>,
}

impl<A: Area> Device<A> {
    /// A device that goes on where the rings are: `next_available` is what the other side of the control connection says (the "base" of
    /// vhost-user). A log with chains in it knows better: those were taken, and come first from [`pop`](Self::pop).
    ///
    /// # Errors
    /// [`Breach::Log`] when the log contradicts the rings.
    pub fn new(rings: Rings<A>, next_available: u16, log: Option<Log<A>>) -> Result<Self, Breach> {
        let size = rings.size();
        let used = rings.used_index();
        let mut device = Self {
            is_in_flight: vec![false; size.into()].into(),
            rings,
            log,
            next_available,
            next_used: used,
            published: used,
            in_flight: 0,
            left: Vec::new(),
        };
        if let Some(log) = &mut device.log {
            let left = log.recover(size, used)?;
            let count = u16::try_from(left.len()).map_err(|_| Breach::Log)?;
            if count > 0 {
                device.next_available = used.wrapping_add(count);
            }
            device.left = left;
            device.left.reverse();
        }
        Ok(device)
    }

    /// The next chain of the driver, if there is one: its head, and its parts in `parts`. The head is in flight until
    /// [`complete`](Self::complete).
    ///
    /// # Errors
    /// [`Breach`]: the queue is over.
    pub fn pop(&mut self, guest: &impl Guest, parts: &mut Vec<Part>) -> Result<Option<u16>, Breach> {
        if let Some(head) = self.left.pop() {
            // It is in the log already.
            self.take(head)?;
            chain::walk(&self.rings, guest, head, parts)?;
            return Ok(Some(head));
        }
        let index = self.rings.available_index();
        let waiting = index.wrapping_sub(self.next_available);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.rings.size() - self.in_flight {
            return Err(Breach::Index { index, at: self.next_available });
        }
        let head = self.rings.available_entry(self.next_available);
        self.take(head)?;
        if let Some(log) = &mut self.log {
            log.took(head);
        }
        self.next_available = self.next_available.wrapping_add(1);
        chain::walk(&self.rings, guest, head, parts)?;
        Ok(Some(head))
    }

    fn take(&mut self, head: u16) -> Result<(), Breach> {
        let is_in_flight = self.is_in_flight.get_mut(usize::from(head)).ok_or(Breach::Head(head))?;
        if std::mem::replace(is_in_flight, true) {
            return Err(Breach::Twice(head));
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Whether [`pop`](Self::pop) has something to say.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.left.is_empty() || self.rings.available_index() != self.next_available
    }

    /// The chain has ended, and so many bytes of it were written. The driver learns of it by [`publish`](Self::publish).
    ///
    /// # Panics
    /// When the chain is not in flight.
    pub fn complete(&mut self, head: u16, written: u32) {
        let is_in_flight = std::mem::replace(&mut self.is_in_flight[usize::from(head)], false);
        assert!(is_in_flight, "a chain is completed once");
        self.in_flight -= 1;
        if let Some(log) = &mut self.log {
            log.completing(head);
        }
        self.rings.set_used_entry(self.next_used, head, written);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Shows the driver all that was completed. Says whether there was something new.
    pub fn publish(&mut self) -> bool {
        if self.published == self.next_used {
            return false;
        }
        self.rings.set_used_index(self.next_used);
        self.published = self.next_used;
        if let Some(log) = &mut self.log {
            log.completed(self.next_used);
        }
        true
    }

    /// Whether the driver wants to be interrupted for what was published.
    #[must_use]
    pub fn wants_interrupt(&self) -> bool {
        !self.rings.driver_looks()
    }

    /// Asks the driver for no notifications: the device looks by itself.
    pub fn look(&self) {
        self.rings.set_device_looks(true);
    }

    /// Asks the driver for notifications, and says whether the device may sleep now. If not, something came meanwhile, for which no
    /// notification may come.
    #[must_use]
    pub fn listen(&self) -> bool {
        self.rings.set_device_looks(false);
        !self.has_more()
    }

    /// Chains of a device before this one, from the log, that were not popped again yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Chains that were popped and not completed.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Where the device is in the available ring: the "base" that vhost-user hands on. Chains that a device before this one had taken, and that
    /// were not popped again, count as not taken only by the log.
    #[must_use]
    pub fn next_available(&self) -> u16 {
        self.next_available
    }
}
