//! A slot of an anchor file, little-endian:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `cvmioAF1` |
//! | 8 | 8 | sequence number; the slot's index is its lowest bit |
//! | 16 | 1 | 0 never claimed, 1 holds a stamp |
//! | 17 | 7 | zero |
//! | 24 | 192 | the stamp, or zero |
//! | 216 | 292 | zero |
//! | 508 | 4 | CRC-32 (IEEE) of bytes 0 to 507 |
//! | 512 | 3584 | not used |
//!
//! All of it fits one 512-byte sector, which devices write whole; the checksum is for those that
//! don't. It is no protection from anyone: that is the stamp's MAC.

use crate::stamp::array;
use crate::{STAMP_SIZE, Stamp, StampError};

/// Bytes of a slot: a page, so that no two slots share a sector of any device.
pub(super) const SLOT_SIZE: usize = 4096;

/// Bytes of an anchor file: two slots.
pub(super) const FILE_SIZE: usize = 2 * SLOT_SIZE;

const MAGIC: &[u8; 8] = b"cvmioAF1";
const RECORD: usize = 512;
const CHECKSUM: usize = RECORD - 4;
const STAMP: usize = 24;

/// What one slot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) sequence: u64,
    pub(super) stamp: Option<Stamp>,
}

/// Why a slot says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotError {
    /// No slot of an anchor begins like this.
    Foreign,
    /// The checksum does not match: the write was torn, or the medium is damaged.
    Torn,
    /// The checksum matches, but this program can't read what it covers. Never to be taken for a
    /// torn write: the other slot is older.
    Unknown,
    /// The same, for the stamp inside.
    Stamp(StampError),
}

impl Record {
    pub(super) fn index(&self) -> usize {
        usize::from(self.sequence % 2 == 1)
    }

    pub(super) fn encode(&self) -> [u8; SLOT_SIZE] {
        let mut slot = [0; SLOT_SIZE];
        slot[0..8].copy_from_slice(MAGIC);
        slot[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        if let Some(stamp) = &self.stamp {
            slot[16] = 1;
            slot[STAMP..STAMP + STAMP_SIZE].copy_from_slice(&stamp.encode());
        }
        let checksum = crc32fast::hash(&slot[..CHECKSUM]);
        slot[CHECKSUM..RECORD].copy_from_slice(&checksum.to_le_bytes());
        slot
    }

    /// Reads the slot with this index.
    pub(super) fn decode(slot: &[u8; SLOT_SIZE], index: usize) -> Result<Record, SlotError> {
        if array::<8>(slot, 0) != *MAGIC {
            return Err(SlotError::Foreign);
        }
        if crc32fast::hash(&slot[..CHECKSUM]) != u32::from_le_bytes(array(slot, CHECKSUM)) {
            return Err(SlotError::Torn);
        }
        let sequence = u64::from_le_bytes(array(slot, 8));
        let stamp = match slot[16] {
            0 => None,
            1 => Some(Stamp::decode(&slot[STAMP..STAMP + STAMP_SIZE]).map_err(SlotError::Stamp)?),
            _ => return Err(SlotError::Unknown),
        };
        let record = Record { sequence, stamp };
        let canonical = record.encode();
        if record.index() != index || slot[..RECORD] != canonical[..RECORD] {
            return Err(SlotError::Unknown);
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::tests::sample;
    use proptest::prelude::*;

    fn reseal(slot: &mut [u8; SLOT_SIZE]) {
        let checksum = crc32fast::hash(&slot[..CHECKSUM]);
        slot[CHECKSUM..RECORD].copy_from_slice(&checksum.to_le_bytes());
    }

    #[test]
    fn golden_slot() {
        let slot = Record { sequence: 0x0201, stamp: Some(sample(1)) }.encode();
        assert_eq!(&slot[..24], b"cvmioAF1\x01\x02\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
        assert_eq!(slot[24..216], sample(1).encode());
        assert!(slot[216..508].iter().chain(&slot[512..]).all(|&byte| byte == 0));
        // Computed by another program (zlib's crc32), so that the polynomial is pinned.
        assert_eq!(slot[508..512], 0xb0c1534f_u32.to_le_bytes());
    }

    #[test]
    fn a_whole_slot_that_is_not_understood_is_not_taken_for_a_torn_one() {
        let good = Record { sequence: 2, stamp: Some(sample(1)) }.encode();
        let with = |offset: usize, byte: u8| {
            let mut slot = good;
            slot[offset] = byte;
            reseal(&mut slot);
            Record::decode(&slot, 0)
        };
        assert_eq!(with(STAMP + 8, 2), Err(SlotError::Stamp(StampError::Version(2))));
        assert_eq!(with(16, 2), Err(SlotError::Unknown));
        assert_eq!(with(16, 0), Err(SlotError::Unknown), "a stamp in an empty slot");
        assert_eq!(with(17, 1), Err(SlotError::Unknown));
        assert_eq!(with(300, 1), Err(SlotError::Unknown));
        assert_eq!(with(0, b'X'), Err(SlotError::Foreign));
        assert_eq!(Record::decode(&good, 1), Err(SlotError::Unknown), "a slot in the other's place");
    }

    #[test]
    fn a_flipped_bit_anywhere_is_seen() {
        let good = Record { sequence: 2, stamp: Some(sample(1)) }.encode();
        for bit in 0..RECORD * 8 {
            let mut slot = good;
            slot[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(&slot, 0).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_accepts_only_canonical_bytes(
            sequence in any::<u64>(),
            claimed in any::<bool>(),
            changes in prop::collection::vec((0..RECORD, any::<u8>()), 0..4),
            seal in any::<bool>(),
            index in 0..2_usize,
        ) {
            let mut slot = Record { sequence, stamp: claimed.then(|| sample(1)) }.encode();
            for (offset, byte) in changes {
                slot[offset] = byte;
            }
            if seal {
                reseal(&mut slot);
            }
            if let Ok(record) = Record::decode(&slot, index) {
                prop_assert!(record.encode() == slot);
                prop_assert_eq!(record.index(), index);
            }
        }
    }
}
