//! One request: a header to be read, data, and a byte to be written. A driver may cut them into descriptors as it likes (section 2.7.4).

use virtio_bindings::virtio_blk as numbers;

use crate::chain::{Guest, Part};
use crate::device::Breach;

/// Bytes of a request's header: its kind `u32`, reserved `u32`, sector `u64`.
pub const HEADER_LENGTH: usize = 16;
const SEGMENT: usize = 16;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Data into the driver's memory.
    Read,
    /// Data from there.
    Write,
    /// Make what was completed durable.
    Flush,
    /// The content of ranges no longer matters.
    Discard,
    /// Ranges are to be zero.
    WriteZeroes,
    /// What the disk is called.
    Id,
    /// Something that this code does not know.
    Other(u32),
}

const KINDS: [(Kind, u32); 6] = [
    (Kind::Read, numbers::VIRTIO_BLK_T_IN),
    (Kind::Write, numbers::VIRTIO_BLK_T_OUT),
    (Kind::Flush, numbers::VIRTIO_BLK_T_FLUSH),
    (Kind::Discard, numbers::VIRTIO_BLK_T_DISCARD),
    (Kind::WriteZeroes, numbers::VIRTIO_BLK_T_WRITE_ZEROES),
    (Kind::Id, numbers::VIRTIO_BLK_T_GET_ID),
];

impl Kind {
    fn from_number(number: u32) -> Self {
        KINDS.into_iter().find(|(_, known)| *known == number).map_or(Self::Other(number), |(kind, _)| kind)
    }

    fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            kind => KINDS.into_iter().find(|(known, _)| *known == kind).map_or(0, |(_, number)| number),
        }
    }
}

/// A request, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub kind: Kind,
    /// Where the data begins on the disk.
    pub sector: u64,
    /// Bytes of data.
    pub length: u64,
    /// Where the status goes, in the driver's memory.
    pub status: u64,
}

/// Takes a chain apart. What stays in `parts` is the data, in order: what is to be written, or for a request that sends something, to be read.
///
/// # Errors
/// [`Breach`], when it has no header or no room for a status: then nobody can be told how it ended.
pub fn parse(guest: &impl Guest, parts: &mut Vec<Part>) -> Result<Request, Breach> {
    let to_read = parts.iter().take_while(|part| !part.is_writable).count();
    let mut header = [0; HEADER_LENGTH];
    let used = take(guest, &mut parts[..to_read], &mut header)?;
    let status = match parts[to_read..].last_mut() {
        Some(last) => {
            last.length -= 1;
            last.address + u64::from(last.length)
        }
        None => return Err(Breach::Request),
    };
    let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = header;
    let kind = Kind::from_number(u32::from_le_bytes([k0, k1, k2, k3]));
    match kind {
        Kind::Write | Kind::Discard | Kind::WriteZeroes => parts.truncate(to_read),
        _ => drop(parts.drain(..to_read)),
    }
    // What the header has taken, or the status, is empty now.
    debug_assert!(used <= to_read);
    parts.retain(|part| part.length > 0);
    let length = parts.iter().map(|part| u64::from(part.length)).sum();
    Ok(Request { kind, sector: u64::from_le_bytes(sector), length, status })
}

/// Copies the first bytes of `parts` out and cuts them off there. Returns how many parts it has touched.
fn take(guest: &impl Guest, parts: &mut [Part], into: &mut [u8]) -> Result<usize, Breach> {
    let mut rest = into;
    for (index, part) in parts.iter_mut().enumerate() {
        if rest.is_empty() {
            return Ok(index);
        }
        let length = usize::try_from(part.length).unwrap_or(usize::MAX).min(rest.len());
        let (now, then) = rest.split_at_mut(length);
        if !guest.read(part.address, now) {
            return Err(Breach::NoMemory(part.address));
        }
        let cut = u32::try_from(length).unwrap_or(part.length);
        part.address += u64::from(cut);
        part.length -= cut;
        rest = then;
    }
    if rest.is_empty() { Ok(parts.len()) } else { Err(Breach::Request) }
}

/// A range of a discard or of write zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First sector.
    pub sector: u64,
    /// How many.
    pub sectors: u32,
    /// Whether its space may be given back.
    pub unmap: bool,
}

/// The ranges of a discard or of write zeroes, whose data is in `parts`. `None` if it is no whole number of them, more than `most`, has flags that
/// are not known, or is nowhere.
#[must_use]
pub fn segments(guest: &impl Guest, parts: &mut [Part], most: usize) -> Option<Vec<Segment>> {
    let length: u64 = parts.iter().map(|part| u64::from(part.length)).sum();
    let length = usize::try_from(length).ok()?;
    if length == 0 || !length.is_multiple_of(SEGMENT) || length / SEGMENT > most {
        return None;
    }
    let mut bytes = vec![0; length];
    take(guest, parts, &mut bytes).ok()?;
    let segment = |bytes: &[u8]| {
        let sector = u64::from_le_bytes(bytes[..8].try_into().ok()?);
        let sectors = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        let flags = u32::from_le_bytes(bytes[12..16].try_into().ok()?);
        let known = flags & !numbers::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP == 0;
        known.then_some(Segment { sector, sectors, unmap: flags != 0 })
    };
    bytes.chunks_exact(SEGMENT).map(segment).collect()
}

/// The bytes of a header, for a driver.
#[must_use]
pub fn header(kind: Kind, sector: u64) -> [u8; HEADER_LENGTH] {
    let mut bytes = [0; HEADER_LENGTH];
    bytes[..4].copy_from_slice(&kind.number().to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}
