//! The header: what a region is, and which session has it. Integers are little-endian.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 8 | `cvmioscm` |
//! | 8 | 4 | version: 2; 1 is read, and becomes 2 when the region is opened |
//! | 12 | 1 | cipher suite, as in `seal` |
//! | 13 | 3 | zero |
//! | 16 | 16 | region id, random |
//! | 32 | 8 | page size in bytes |
//! | 40 | 8 | pages |
//! | 48 | 4 | workers |
//! | 52 | 4 | zero |
//! | 56 | 8 | length of the file in bytes |
//! | 64 | 8 | generation: the valid copy with the larger one counts |
//! | 72 | 32 | session id, random: the logs of workers and, from version 2 on, the roots belong to it |
//! | 104 | 32 | SHA-256 of the key slots |
//! | 136 | 32 | HMAC-SHA-256 of bytes 0 to 135, with a key derived from the region's |
//! | 168 | 3928 | zero |
//!
//! There are two copies, and a new header goes to the one that is not in force, and to the other one when a root belongs to its session.
//! Nothing of a header is used before its MAC was checked, but what its key slots need (the id), and the shape for a `status` without a key,
//! which says that it is unchecked.

use seal::slot::AREA_SIZE;
use seal::{Suite, sha256};

use crate::Error;
use crate::geometry::Geometry;

/// Bytes of a header.
pub const HEADER_SIZE: usize = 4096;
/// What of it is signed.
pub(crate) const SIGNED: usize = 136;
const MAGIC: &[u8; 8] = b"cvmioscm";
/// What is written.
pub(crate) const VERSION: u32 = 2;

/// A header as it was read. Only a checked MAC proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The format's version.
    pub version: u32,
    /// The cipher suite.
    pub suite: Suite,
    /// The region's id.
    pub id: [u8; 16],
    /// The region's shape.
    pub geometry: Geometry,
    /// Which header this is.
    pub generation: u64,
    /// The session that wrote it.
    pub session: [u8; 32],
    /// SHA-256 of the key slots.
    pub slots_digest: [u8; 32],
}

impl Header {
    /// The header as bytes, with this MAC.
    #[must_use]
    pub fn encode(&self, mac: &[u8; 32]) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[..SIGNED].copy_from_slice(&self.signed());
        bytes[SIGNED..SIGNED + 32].copy_from_slice(mac);
        bytes
    }

    /// What the MAC is computed of.
    #[must_use]
    pub fn signed(&self) -> [u8; SIGNED] {
        let mut bytes = [0; SIGNED];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, MAGIC);
        put(8, &self.version.to_le_bytes());
        put(12, &[self.suite.code()]);
        put(16, &self.id);
        put(32, &self.geometry.page_size().to_le_bytes());
        put(40, &self.geometry.pages().to_le_bytes());
        put(48, &self.geometry.workers().to_le_bytes());
        put(56, &self.geometry.file_len().to_le_bytes());
        put(64, &self.generation.to_le_bytes());
        put(72, &self.session);
        put(104, &self.slots_digest);
        bytes
    }

    /// The header in these bytes, which anybody may have written, with its MAC. `Ok(None)` if there is none.
    ///
    /// # Errors
    /// [`Error::Usage`] for another version, [`Error::CorruptRegion`] if it is none that this version writes.
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Option<(Header, [u8; 32])>, Error> {
        if &bytes[..8] != MAGIC {
            return Ok(None);
        }
        let corrupt = |what: &str| Error::CorruptRegion(format!("its header {what}"));
        let version = u32::from_le_bytes(get(bytes, 8));
        if !(1..=VERSION).contains(&version) {
            return Err(Error::Usage(format!(
                "the region has format version {version}, and this program knows version {VERSION} and those before: use the program that made \
                 it"
            )));
        }
        let zeros = [&bytes[13..16], &bytes[52..56], &bytes[SIGNED + 32..]];
        if zeros.iter().any(|part| part.iter().any(|byte| *byte != 0)) {
            return Err(corrupt("has bytes where zeros must be"));
        }
        let suite = Suite::from_code(bytes[12]).map_err(|error| corrupt(&error.to_string()))?;
        if suite == Suite::Aes256Xts {
            return Err(corrupt("names a suite without authentication"));
        }
        let number = |at| u64::from_le_bytes(get(bytes, at));
        let workers = u32::from_le_bytes(get(bytes, 48));
        let geometry = Geometry::claimed(number(32), number(40), workers, number(56));
        let header = Header {
            version,
            suite,
            id: get(bytes, 16),
            geometry: geometry.map_err(Error::CorruptRegion)?,
            generation: number(64),
            session: get(bytes, 72),
            slots_digest: get(bytes, 104),
        };
        Ok(Some((header, get(bytes, SIGNED))))
    }

    /// The session to which the roots belong; `None` in a region of version 1, where they belong to none.
    pub(crate) fn roots_session(&self) -> Option<&[u8; 32]> {
        (self.version > 1).then_some(&self.session)
    }

    /// Whether these are the key slots that the header was made with.
    pub(crate) fn has_slots(&self, slots: &[u8; AREA_SIZE]) -> bool {
        sha256(&[slots]) == self.slots_digest
    }
}

fn get<const N: usize>(bytes: &[u8; HEADER_SIZE], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_go_there_and_back_and_damage_is_refused() {
        let header = Header {
            version: VERSION,
            suite: Suite::Aes256Gcm,
            id: [1; 16],
            geometry: Geometry::new(4096, 10, 2, 4096).unwrap(),
            generation: 7,
            session: [2; 32],
            slots_digest: [3; 32],
        };
        let bytes = header.encode(&[4; 32]);
        assert_eq!(Header::decode(&bytes).unwrap(), Some((header, [4; 32])));
        let damaged = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            Header::decode(&bytes)
        };
        assert!(matches!(damaged(0, 0), Ok(None)));
        assert!(
            matches!(damaged(8, 0), Err(Error::Usage(_))) && matches!(damaged(8, 3), Err(Error::Usage(_)))
        );
        for (at, value) in
            [(12, 4), (12, 9), (13, 1), (33, 3), (48, 0), (53, 1), (57, 0), (168, 1), (4095, 1)]
        {
            assert!(matches!(damaged(at, value), Err(Error::CorruptRegion(_))), "{at}");
        }
    }
}
