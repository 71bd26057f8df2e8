//! The driver's end of a queue.

use std::fmt;

use virtio_bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use crate::chain::Part;
use crate::rings::{Area, Rings, descriptor};

/// What a device said that can't be. Nothing that it says afterwards counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Its index moved by more than what is in flight, or back.
    Index {
        /// What it says now.
        index: u16,
        /// Where the driver is.
        at: u16,
        /// Chains in flight.
        in_flight: u16,
    },
    /// It completed a chain that is not in flight: one that was never sent, or has ended, or is of another queue.
    Id(u32),
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index { index, at, in_flight } => {
                write!(f, "the used index moved from {at} to {index} with {in_flight} requests in flight")
            }
            Self::Id(id) => write!(f, "id {id} was completed, and is not in flight"),
        }
    }
}

impl std::error::Error for Lie {}

/// The driver's end of a queue (invariants V1 to V5 of this crate).
#[derive(Debug)]
pub struct Driver<A> {
    rings: Rings<A>,
    /// Descriptors that no chain has.
    free: Vec<u16>,
    /// By head, the descriptors of a chain in flight; empty if there is none.
    chains: Box<[Vec<u16>]>,
    next_available: u16,
    published: u16,
    last_used: u16,
    in_flight: u16,
}

impl<A: Area> Driver<A> {
    /// The driver of rings that nobody has used, all zero.
    #[must_use]
    pub fn new(rings: Rings<A>) -> Self {
        let size = rings.size();
        Self {
            rings,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); size.into()].into(),
            next_available: 0,
            published: 0,
            last_used: 0,
            in_flight: 0,
        }
    }

    /// Makes a chain of `parts`, of which those to be read come first, and returns its head, by which it will be known. `None` while too few
    /// descriptors are free. The device learns of it by [`publish`](Self::publish).
    ///
    /// # Panics
    /// When there are no parts.
    pub fn push(&mut self, parts: &[Part]) -> Option<u16> {
        assert!(!parts.is_empty(), "a chain has parts");
        let rest = self.free.len().checked_sub(parts.len())?;
        let chain = self.free.split_off(rest);
        for (index, part) in parts.iter().enumerate() {
            let next = chain.get(index + 1).copied();
            let written = if part.is_writable { VRING_DESC_F_WRITE } else { 0 };
            let flags = written | next.map_or(0, |_| VRING_DESC_F_NEXT);
            let flags = u16::try_from(flags).unwrap_or(0);
            let bytes = descriptor(part.address, part.length, flags, next.unwrap_or(0));
            self.rings.set_descriptor(chain[index], &bytes);
        }
        let head = chain[0];
        self.chains[usize::from(head)] = chain;
        self.rings.set_available_entry(self.next_available, head);
        self.next_available = self.next_available.wrapping_add(1);
        self.in_flight += 1;
        Some(head)
    }

    /// Shows the device all chains. Says whether there was something new.
    pub fn publish(&mut self) -> bool {
        if self.published == self.next_available {
            return false;
        }
        self.rings.set_available_index(self.next_available);
        self.published = self.next_available;
        true
    }

    /// Whether the device wants to be notified of what was published.
    #[must_use]
    pub fn wants_kick(&self) -> bool {
        !self.rings.device_looks()
    }

    /// The next chain that the device has completed, if there is one. Its descriptors are free again.
    ///
    /// # Errors
    /// [`Lie`]: nothing may be believed of this device any more.
    pub fn pop(&mut self) -> Result<Option<u16>, Lie> {
        let index = self.rings.used_index();
        let ended = index.wrapping_sub(self.last_used);
        if ended == 0 {
            return Ok(None);
        }
        // Chains that were not published can't have ended.
        let shown = self.in_flight - self.next_available.wrapping_sub(self.published);
        if ended > shown {
            return Err(Lie::Index { index, at: self.last_used, in_flight: shown });
        }
        let id = self.rings.used_entry(self.last_used);
        let chain = usize::try_from(id).ok().and_then(|id| self.chains.get_mut(id)).map(std::mem::take);
        match chain {
            Some(chain) if !chain.is_empty() => {
                self.free.extend(chain.iter().rev());
                self.last_used = self.last_used.wrapping_add(1);
                self.in_flight -= 1;
                Ok(chain.first().copied())
            }
            _ => Err(Lie::Id(id)),
        }
    }

    /// Whether [`pop`](Self::pop) has something to say.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.rings.used_index() != self.last_used
    }

    /// Asks the device for no interrupts: the driver looks by itself.
    pub fn look(&self) {
        self.rings.set_driver_looks(true);
    }

    /// Asks the device for interrupts, and says whether the driver may sleep now. If not, something ended meanwhile, for which no interrupt
    /// may come.
    #[must_use]
    pub fn listen(&self) -> bool {
        self.rings.set_driver_looks(false);
        !self.has_more()
    }

    /// Chains that were pushed and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }
}
