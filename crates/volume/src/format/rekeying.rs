//! What the header says while a volume changes its key: the old key, and where its reach ends.

use super::bytes::{Reader, Writer};
use super::{EPOCH_END, Malformed};

/// Bytes of this part of the header.
pub const REKEYING_SIZE: usize = 304;

const WHAT: &str = "header";
const RESERVED: usize = 184;

/// A change of key that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rekeying {
    /// The first epoch under the new volume key, from 1: what an earlier one sealed opens under the old key, and nothing else does.
    pub boundary: u32,
    /// SHA-256 of the one superblock under the old key that counts: the block of the store, as it was when the change began.
    pub superblock: [u8; 32],
    /// Salt of the key that seals the old volume key.
    pub salt: [u8; 32],
    /// The old volume key, sealed under the new one.
    pub sealed: [u8; 32],
    /// Tag of that.
    pub tag: [u8; 16],
}

impl Rekeying {
    /// Lays it out; all zeros where there is none.
    pub fn encode(rekeying: Option<&Self>) -> [u8; REKEYING_SIZE] {
        let Some(it) = rekeying else { return [0; REKEYING_SIZE] };
        Writer::<REKEYING_SIZE>::new()
            .put(&[1, 0, 0, 0])
            .put(&it.boundary.to_le_bytes())
            .put(&it.superblock)
            .put(&it.salt)
            .put(&it.sealed)
            .put(&it.tag)
            .skip(RESERVED)
            .end()
    }

    /// Reads it; `None` if no change of key is under way.
    ///
    /// # Errors
    /// When a field is out of bounds.
    pub fn decode(bytes: &[u8; REKEYING_SIZE]) -> Result<Option<Self>, Malformed> {
        let mut reader = Reader::new(WHAT, bytes);
        match reader.u8("re-keying")? {
            0 => {
                reader.zeros(REKEYING_SIZE - 1, "re-keying")?;
                return Ok(None);
            }
            1 => reader.zeros(3, "reserved")?,
            code => return Err(reader.malformed("re-keying", format!("{code} has no meaning"))),
        }
        let boundary = reader.u32("boundary epoch")?;
        if boundary == 0 || boundary >= EPOCH_END {
            return Err(reader.malformed("boundary epoch", format!("there is no epoch {boundary}")));
        }
        let it = Self {
            boundary,
            superblock: reader.array("old superblock")?,
            salt: reader.array("old key")?,
            sealed: reader.array("old key")?,
            tag: reader.array("old key")?,
        };
        reader.zeros(RESERVED, "reserved")?;
        reader.end()?;
        Ok(Some(it))
    }

    /// Associated data of the sealed key: whose it is, and how far it reaches.
    pub fn associated_data(&self, volume: &[u8; 16]) -> [u8; 52] {
        Writer::<52>::new().put(volume).put(&self.boundary.to_le_bytes()).put(&self.superblock).end()
    }
}
