//! A worker's progress field, in the paper's format, and the log beside it. Integers are little-endian.
//!
//! The progress field is one word, the paper's "cryptographic state field" (section 6.3, figure 7):
//!
//! | bits | content |
//! | --- | --- |
//! | 63 to 12 | page number |
//! | 11 to 3 | zero |
//! | 2 | direction: 1 the page is being encrypted, 0 decrypted |
//! | 1 | crypto-finish: the page holds the result |
//! | 0 | copy-finish: the buffer holds the page's ciphertext, and the log is whole |
//!
//! Zero is "none": the worker has nothing under way.
//!
//! The worker block of 4096 bytes:
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 8 | progress field |
//! | 64 | 64 | the page's entry before, or zero if it was open |
//! | 128 | 64 | its entry after, or zero if it will be open |
//! | 192 | 32 | MAC of session, worker, page and both entries; zero in direction 0, where recovery needs none |
//!
//! Everything else is zero.

use crate::entry::{ENTRY_SIZE, Entry};
use crate::geometry::MAX_PAGES;

/// Where a worker's log begins in its block.
pub(crate) const LOG_AT: u64 = 64;
/// Bytes of the log.
pub const LOG_SIZE: usize = 160;
const COPY_FINISH: u64 = 1;
const CRYPTO_FINISH: u64 = 2;
const ENCRYPT: u64 = 4;

/// What a worker is doing to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// It becomes, or stays, encrypted.
    Encrypt,
    /// It becomes open.
    Decrypt,
}

/// How far a worker is with a page whose copy is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The page.
    pub page: u64,
    /// What is done to it.
    pub direction: Direction,
    /// Whether the page holds the result.
    pub crypto_finish: bool,
}

impl Progress {
    /// The field's value.
    #[must_use]
    pub fn encode(self) -> u64 {
        let direction = if self.direction == Direction::Encrypt { ENCRYPT } else { 0 };
        let crypto = if self.crypto_finish { CRYPTO_FINISH } else { 0 };
        self.page << 12 | direction | crypto | COPY_FINISH
    }

    /// What a field says, which anybody may have written: `Ok(None)` for nothing under way.
    ///
    /// # Errors
    /// If no worker ever stores such a value.
    pub fn decode(word: u64) -> Result<Option<Progress>, String> {
        if word == 0 {
            return Ok(None);
        }
        let page = word >> 12;
        if word & 0xff8 != 0 || word & COPY_FINISH == 0 || page >= MAX_PAGES {
            return Err(format!("a progress field has the value {word:#x}, which no worker writes"));
        }
        let direction = if word & ENCRYPT != 0 { Direction::Encrypt } else { Direction::Decrypt };
        Ok(Some(Progress { page, direction, crypto_finish: word & CRYPTO_FINISH != 0 }))
    }
}

/// A page's state: how it was sealed, or `None` if it is open.
pub(crate) type State = Option<Entry>;

/// What a worker's log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// The page's state before.
    pub old: Option<Entry>,
    /// Its state after.
    pub new: Option<Entry>,
    /// The MAC, checked by whoever has the key.
    pub mac: [u8; 32],
}

impl Log {
    /// The log as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LOG_SIZE] {
        let mut bytes = [0; LOG_SIZE];
        bytes[..64].copy_from_slice(&encode_state(&self.old));
        bytes[64..128].copy_from_slice(&encode_state(&self.new));
        bytes[128..].copy_from_slice(&self.mac);
        bytes
    }

    /// The log in these bytes, which anybody may have written.
    ///
    /// # Errors
    /// If an entry is neither zero nor one that this version writes.
    pub fn decode(bytes: &[u8; LOG_SIZE]) -> Result<Log, String> {
        Ok(Log {
            old: decode_state(&std::array::from_fn(|i| bytes[i]))?,
            new: decode_state(&std::array::from_fn(|i| bytes[64 + i]))?,
            mac: std::array::from_fn(|i| bytes[128 + i]),
        })
    }
}

pub(crate) fn encode_state(state: &State) -> [u8; ENTRY_SIZE] {
    state.as_ref().map_or([0; ENTRY_SIZE], Entry::encode)
}

fn decode_state(bytes: &[u8; ENTRY_SIZE]) -> Result<State, String> {
    if bytes == &[0; ENTRY_SIZE] {
        return Ok(None);
    }
    let entry = Entry::decode(bytes).ok_or("a worker's log has an entry that no worker writes")?;
    Ok(Some(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_the_papers() {
        let progress = Progress { page: 3, direction: Direction::Encrypt, crypto_finish: false };
        assert_eq!(progress.encode(), 0x3005);
        assert_eq!(Progress { crypto_finish: true, ..progress }.encode(), 0x3007);
        assert_eq!(Progress { direction: Direction::Decrypt, ..progress }.encode(), 0x3001);
        for word in [0x3001, 0x3003, 0x3005, 0x3007] {
            assert_eq!(Progress::decode(word).unwrap().unwrap().encode(), word);
        }
        assert_eq!(Progress::decode(0), Ok(None));
        for bad in [0x3000, 0x3002, 0x3004, 0x3009, 0x3801, u64::MAX] {
            assert!(Progress::decode(bad).is_err(), "{bad:#x}");
        }
    }
}
