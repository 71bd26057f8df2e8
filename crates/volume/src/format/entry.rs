//! Entry: where a block is, and what opens it.

use super::{EPOCH_END, Malformed, NONCE_END};

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 32;
/// Physical blocks are below this.
pub const PHYSICAL_END: u64 = 1 << 40;

/// Where a sealed block stands, and under which key, nonce and tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Physical block, below 2^40; 0 only in [`Entry::ABSENT`].
    pub physical: u64,
    /// Key epoch, below 2^24. 0 where the block has a salt of its own.
    pub epoch: u32,
    /// Nonce under that epoch's key, below 2^48.
    pub nonce: u64,
    /// In inner bitmap nodes the free blocks below a leaf; 0 everywhere else.
    pub flags: u16,
    /// Authentication tag; zero when data integrity is off.
    pub tag: [u8; 16],
}

impl Entry {
    /// No block: reads as zeros.
    pub const ABSENT: Self = Self { physical: 0, epoch: 0, nonce: 0, flags: 0, tag: [0; 16] };

    /// Whether this is [`Entry::ABSENT`].
    pub fn is_absent(&self) -> bool {
        self.physical == 0
    }

    /// Lays the entry out.
    ///
    /// # Panics
    /// When a field exceeds its bits, or an absent entry says more than that: what `decode` would refuse, or
    /// not return as it was, is not written either.
    pub fn encode(&self) -> [u8; ENTRY_SIZE] {
        assert!(self.physical < PHYSICAL_END && self.epoch < EPOCH_END && self.nonce < NONCE_END);
        assert!(self.physical != 0 || *self == Self::ABSENT);
        let place = self.physical | u64::from(self.epoch) << 40;
        let nonce = self.nonce | u64::from(self.flags) << 48;
        let mut bytes = [0; ENTRY_SIZE];
        bytes[..8].copy_from_slice(&place.to_le_bytes());
        bytes[8..16].copy_from_slice(&nonce.to_le_bytes());
        bytes[16..].copy_from_slice(&self.tag);
        bytes
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// When physical block 0 comes with anything else that is not zero, or `bytes` are not 32.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (Some((place, rest)), ENTRY_SIZE) = (bytes.split_first_chunk::<8>(), bytes.len()) else {
            return Err(malformed("length", format!("{} bytes instead of {ENTRY_SIZE}", bytes.len())));
        };
        let (Some(nonce), Some(tag)) = (rest.first_chunk::<8>(), rest.last_chunk::<16>()) else {
            return Err(malformed("length", "too short".into()));
        };
        let (place, nonce) = (u64::from_le_bytes(*place), u64::from_le_bytes(*nonce));
        let entry = Self {
            physical: place & (PHYSICAL_END - 1),
            epoch: low_u32(place >> 40),
            nonce: nonce & (NONCE_END - 1),
            flags: low_u16(nonce >> 48),
            tag: *tag,
        };
        if entry.physical == 0 && entry != Self::ABSENT {
            return Err(malformed("physical block", "it is 0 in an entry that is not absent".into()));
        }
        Ok(entry)
    }
}

/// Reads entry `index` of a node page.
///
/// # Errors
/// When the entry is malformed or beyond the page.
pub fn entry_at(page: &[u8], index: usize) -> Result<Entry, Malformed> {
    let start = index.saturating_mul(ENTRY_SIZE);
    match page.get(start..start.saturating_add(ENTRY_SIZE)) {
        Some(bytes) => Entry::decode(bytes),
        None => Err(malformed("index", format!("a node has no entry {index}"))),
    }
}

/// Writes entry `index` of a node page.
///
/// # Panics
/// When the page has no such entry, or as [`Entry::encode`].
pub fn put_entry(page: &mut [u8], index: usize, entry: &Entry) {
    page[index * ENTRY_SIZE..][..ENTRY_SIZE].copy_from_slice(&entry.encode());
}

fn malformed(field: &'static str, message: String) -> Malformed {
    Malformed { what: "entry", field, message }
}

/// The low half of a number whose high half the caller has shifted out.
fn low_u32(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

fn low_u16(value: u64) -> u16 {
    u16::try_from(value & u64::from(u16::MAX)).unwrap_or(u16::MAX)
}
