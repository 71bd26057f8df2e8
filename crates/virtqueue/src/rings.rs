//! The shared memory of a queue, and what lies where in it (virtio 1.x, sections 2.7.5 to 2.7.8).

use std::fmt;

use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};

/// A piece of memory that another security domain can read and write at any moment. Offsets are in bytes.
///
/// Implementations access it by single loads and stores. They may panic when an offset lies outside; [`Rings::new`] makes sure that none does.
pub trait Area {
    /// Its size in bytes.
    fn size(&self) -> usize;
    /// One load of two bytes, at an even offset, with acquire ordering.
    fn load(&self, offset: usize) -> u16;
    /// One store of two bytes, at an even offset, with release ordering.
    fn store(&self, offset: usize, value: u16);
    /// Copies bytes out, each loaded once. The other side may change them meanwhile.
    fn read(&self, offset: usize, into: &mut [u8]);
    /// Copies bytes in, each stored once.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// A sequentially consistent fence: stores before it are seen by whoever is seen not to have done theirs behind it.
    fn fence(&self);
}

/// Most entries of a queue.
const MOST: u16 = 32_768;
/// Where the rings' indices and entries begin. The flags are at 0.
const INDEX: usize = 2;
const ENTRIES: usize = 4;
const DESCRIPTOR: usize = 16;
const USED_ENTRY: usize = 8;

/// The memory of one queue.
#[derive(Debug)]
pub struct Rings<A> {
    size: u16,
    descriptors: A,
    available: A,
    used: A,
}

/// Memory that can't be a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadRings {
    /// The number of entries is no power of two between 2 and 32,768.
    Size(u16),
    /// One of the three pieces is smaller than so many entries need.
    Short,
}

impl fmt::Display for BadRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => {
                write!(f, "a queue of {size} entries: it must be a power of two from 2 to {MOST}")
            }
            Self::Short => f.write_str("the memory of a queue ends before its last entry"),
        }
    }
}

impl std::error::Error for BadRings {}

/// Whether a queue may have so many entries.
#[must_use]
pub fn is_size(size: u16) -> bool {
    size.is_power_of_two() && (2..=MOST).contains(&size)
}

impl<A> Rings<A> {
    /// Bytes of the table of descriptors, of the available ring and of the used ring, for `size` entries. The fields for `EVENT_IDX`, which is
    /// not used here, belong to them.
    #[must_use]
    pub const fn lengths(size: u16) -> [usize; 3] {
        let size = size as usize;
        [DESCRIPTOR * size, ENTRIES + 2 * size + 2, ENTRIES + USED_ENTRY * size + 2]
    }
}

impl<A: Area> Rings<A> {
    /// Puts a queue together.
    ///
    /// # Errors
    /// [`BadRings`], when the size is not allowed or a piece is too small.
    pub fn new(size: u16, descriptors: A, available: A, used: A) -> Result<Self, BadRings> {
        if !is_size(size) {
            return Err(BadRings::Size(size));
        }
        let needed = Self::lengths(size);
        let there = [descriptors.size(), available.size(), used.size()];
        if needed.iter().zip(there).any(|(needed, there)| *needed > there) {
            return Err(BadRings::Short);
        }
        Ok(Self { size, descriptors, available, used })
    }

    /// How many entries it has.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    fn slot(&self, position: u16) -> usize {
        usize::from(position & (self.size - 1))
    }

    pub(crate) fn available_index(&self) -> u16 {
        u16::from_le(self.available.load(INDEX))
    }

    pub(crate) fn set_available_index(&self, index: u16) {
        self.available.store(INDEX, index.to_le());
    }

    pub(crate) fn available_entry(&self, position: u16) -> u16 {
        u16::from_le(self.available.load(ENTRIES + 2 * self.slot(position)))
    }

    pub(crate) fn set_available_entry(&self, position: u16, head: u16) {
        self.available.store(ENTRIES + 2 * self.slot(position), head.to_le());
    }

    pub(crate) fn used_index(&self) -> u16 {
        u16::from_le(self.used.load(INDEX))
    }

    pub(crate) fn set_used_index(&self, index: u16) {
        self.used.store(INDEX, index.to_le());
    }

    /// The id of an entry; the length is not looked at.
    pub(crate) fn used_entry(&self, position: u16) -> u32 {
        let mut id = [0; 4];
        self.used.read(ENTRIES + USED_ENTRY * self.slot(position), &mut id);
        u32::from_le_bytes(id)
    }

    pub(crate) fn set_used_entry(&self, position: u16, head: u16, length: u32) {
        let mut entry = [0; USED_ENTRY];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&length.to_le_bytes());
        self.used.write(ENTRIES + USED_ENTRY * self.slot(position), &entry);
    }

    pub(crate) fn descriptor(&self, index: u16) -> [u8; DESCRIPTOR] {
        let mut bytes = [0; DESCRIPTOR];
        self.descriptors.read(DESCRIPTOR * usize::from(index), &mut bytes);
        bytes
    }

    pub(crate) fn set_descriptor(&self, index: u16, bytes: &[u8; DESCRIPTOR]) {
        self.descriptors.write(DESCRIPTOR * usize::from(index), bytes);
    }

    /// Whether the driver wants no interrupts. Looks after all stores before it.
    pub(crate) fn driver_looks(&self) -> bool {
        self.available.fence();
        u32::from(u16::from_le(self.available.load(0))) & VRING_AVAIL_F_NO_INTERRUPT != 0
    }

    pub(crate) fn set_driver_looks(&self, looks: bool) {
        self.available.store(0, flag(looks, VRING_AVAIL_F_NO_INTERRUPT));
        self.available.fence();
    }

    /// Whether the device wants no notifications. Looks after all stores before it.
    pub(crate) fn device_looks(&self) -> bool {
        self.used.fence();
        u32::from(u16::from_le(self.used.load(0))) & VRING_USED_F_NO_NOTIFY != 0
    }

    pub(crate) fn set_device_looks(&self, looks: bool) {
        self.used.store(0, flag(looks, VRING_USED_F_NO_NOTIFY));
        self.used.fence();
    }
}

fn flag(set: bool, flag: u32) -> u16 {
    let bits = if set { flag & 0xffff } else { 0 };
    u16::try_from(bits).unwrap_or(0).to_le()
}

/// The bytes of a descriptor: where, how long, its flags, and the next one.
pub(crate) fn descriptor(address: u64, length: u32, flags: u16, next: u16) -> [u8; DESCRIPTOR] {
    let mut bytes = [0; DESCRIPTOR];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
