//! A chain of descriptors, copied out once and checked (virtio 1.x, section 2.7.5).

use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use crate::device::Breach;
use crate::rings::{Area, Rings};

/// Most parts of a chain, which is also what one `preadv(2)` takes. A driver that keeps to what a device says of its segments stays far below.
pub const CHAIN_LIMIT: usize = 1024;

const DESCRIPTOR: u64 = 16;

/// A piece of the driver's memory, by the driver's addresses. Whether there is memory is not known yet, but `address + length` does not overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Whether the device is to write it; else it is to read it.
    pub is_writable: bool,
}

/// The driver's memory outside of the rings.
pub trait Guest {
    /// Copies bytes out, each loaded once. False if there is no such memory.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// A descriptor as it was at the moment when it was copied out.
#[derive(Debug, Clone, Copy)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u32,
    next: u16,
}

impl Descriptor {
    fn new(bytes: &[u8; 16]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = *bytes;
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]).into(),
            next: u16::from_le_bytes([n0, n1]),
        }
    }

    fn has(self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// Where the descriptors of a chain are read from.
enum Table {
    Rings,
    /// One outside of the rings: its address, and its number of entries.
    Indirect(u64, u32),
}

/// Fills `parts` with the chain that begins at `head`, in its order. Empty parts are left out.
pub(crate) fn walk<A: Area>(
    rings: &Rings<A>,
    guest: &impl Guest,
    head: u16,
    parts: &mut Vec<Part>,
) -> Result<(), Breach> {
    parts.clear();
    let (mut table, mut at) = (Table::Rings, head);
    for _ in 0..=CHAIN_LIMIT {
        let descriptor = fetch(rings, guest, &table, at)?;
        if descriptor.has(VRING_DESC_F_INDIRECT) {
            if matches!(table, Table::Indirect(..)) || descriptor.has(VRING_DESC_F_NEXT) {
                return Err(Breach::Nested);
            }
            table = indirect(descriptor)?;
            at = 0;
            continue;
        }
        add(descriptor, parts)?;
        if !descriptor.has(VRING_DESC_F_NEXT) {
            return Ok(());
        }
        at = descriptor.next;
    }
    Err(Breach::Endless)
}

fn fetch<A: Area>(
    rings: &Rings<A>,
    guest: &impl Guest,
    table: &Table,
    at: u16,
) -> Result<Descriptor, Breach> {
    match *table {
        Table::Rings if at < rings.size() => Ok(Descriptor::new(&rings.descriptor(at))),
        Table::Indirect(address, entries) if u32::from(at) < entries => {
            let mut bytes = [0; 16];
            // `indirect` has seen to it that this does not overflow.
            match guest.read(address + DESCRIPTOR * u64::from(at), &mut bytes) {
                true => Ok(Descriptor::new(&bytes)),
                false => Err(Breach::NoMemory(address)),
            }
        }
        _ => Err(Breach::Next(at)),
    }
}

fn indirect(descriptor: Descriptor) -> Result<Table, Breach> {
    let entries = descriptor.length / 16;
    if entries == 0 || !descriptor.length.is_multiple_of(16) {
        return Err(Breach::TableLength(descriptor.length));
    }
    if descriptor.address.checked_add(descriptor.length.into()).is_none() {
        return Err(Breach::Overflow);
    }
    Ok(Table::Indirect(descriptor.address, entries))
}

fn add(descriptor: Descriptor, parts: &mut Vec<Part>) -> Result<(), Breach> {
    let Descriptor { address, length, .. } = descriptor;
    let is_writable = descriptor.has(VRING_DESC_F_WRITE);
    if address.checked_add(length.into()).is_none() {
        return Err(Breach::Overflow);
    }
    if !is_writable && parts.last().is_some_and(|last| last.is_writable) {
        return Err(Breach::Order);
    }
    if length > 0 {
        if parts.len() == CHAIN_LIMIT {
            return Err(Breach::Endless);
        }
        parts.push(Part { address, length, is_writable });
    }
    Ok(())
}
