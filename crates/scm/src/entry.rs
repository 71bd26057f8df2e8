//! A table entry: what an encrypted page needs to be opened. Integers are little-endian.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 32 | salt of the epoch under whose key the page was sealed |
//! | 32 | 6 | nonce |
//! | 38 | 2 | flags: bit 0 `Unverified`; the others are zero |
//! | 40 | 16 | tag |
//! | 56 | 8 | zero |
//!
//! The salt is here, and not in a table of epochs, so that an entry is all that its page needs: no second structure has to be kept in step
//! with it through a crash.

use seal::{NONCE_LIMIT, SALT_SIZE, TAG_SIZE};

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 64;

/// Pages that are sealed within an epoch: their nonces are 0 to one less. Then the next epoch begins, with another salt.
pub const EPOCH_LIMIT: u64 = 1 << 36;

const _: () = assert!(EPOCH_LIMIT < NONCE_LIMIT);

const UNVERIFIED: u16 = 1;

/// How an encrypted page was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The epoch's salt.
    pub salt: [u8; SALT_SIZE],
    /// The nonce, below [`NONCE_LIMIT`].
    pub nonce: u64,
    /// Whether the page was open at a crash: it is whole, but its content is not vouched for.
    pub unverified: bool,
    /// The tag.
    pub tag: [u8; TAG_SIZE],
}

impl Entry {
    /// The entry as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        bytes[..32].copy_from_slice(&self.salt);
        bytes[32..40].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[38] = u8::from(self.unverified);
        bytes[40..56].copy_from_slice(&self.tag);
        bytes
    }

    /// The entry in these bytes, which anybody may have written; `None` if it is none.
    #[must_use]
    pub fn decode(bytes: &[u8; ENTRY_SIZE]) -> Option<Entry> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let flags = u16::from_le_bytes([bytes[38], bytes[39]]);
        if flags & !UNVERIFIED != 0 || word(56) != 0 || bytes == &[0; ENTRY_SIZE] {
            return None;
        }
        Some(Entry {
            salt: std::array::from_fn(|i| bytes[i]),
            nonce: word(32) & (NONCE_LIMIT - 1),
            unverified: flags & UNVERIFIED != 0,
            tag: std::array::from_fn(|i| bytes[40 + i]),
        })
    }

    /// The same page, not vouched for.
    #[must_use]
    pub(crate) fn as_unverified(self) -> Entry {
        Entry { unverified: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_go_there_and_back() {
        let entry = Entry { salt: [7; 32], nonce: NONCE_LIMIT - 1, unverified: true, tag: [9; 16] };
        let bytes = entry.encode();
        assert_eq!(Entry::decode(&bytes), Some(entry));
        assert_eq!(bytes[32..40], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0]);
        for at in [39, 56, 63] {
            let mut bytes = bytes;
            bytes[at] = 2;
            assert_eq!(Entry::decode(&bytes), None);
        }
        assert_eq!(Entry::decode(&[0; ENTRY_SIZE]), None);
    }
}
