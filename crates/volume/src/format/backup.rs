//! Header backup: one copy of header and key slots, in a file of its owner's.

use super::bytes::{Reader, Writer};
use super::{BLOCK_SIZE, Malformed};

/// First bytes of a header backup.
pub const MAGIC: &[u8; 8] = b"cvmioHB1";
/// The version of a header backup.
pub const VERSION: u32 = 1;
/// Bytes of a header backup.
pub const SIZE: usize = 3 * BLOCK_SIZE;

const WHAT: &str = "header backup";
const RESERVED: usize = 4048;

/// A header backup, taken apart. What the pair says is for the header's and the key slots' decoders, whether anybody vouches for it for the
/// anchor and the header's MAC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderBackup {
    /// SHA-256 of the pair, as in a stamp.
    pub digest: [u8; 32],
    /// The header's block and the key slots' block.
    pub pair: Box<[u8; 2 * BLOCK_SIZE]>,
}

impl HeaderBackup {
    /// Lays the backup out.
    #[must_use]
    pub fn encode(&self) -> [u8; SIZE] {
        Writer::<SIZE>::new()
            .put(MAGIC)
            .put(&VERSION.to_le_bytes())
            .skip(4)
            .put(&self.digest)
            .skip(RESERVED)
            .put(self.pair.as_slice())
            .end()
    }

    /// Reads a backup.
    ///
    /// # Errors
    /// When `bytes` are not [`SIZE`] bytes, or not of the documented form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(WHAT, bytes);
        reader.magic(MAGIC)?;
        reader.version(VERSION)?;
        reader.zeros(4, "reserved")?;
        let digest = reader.array("digest")?;
        reader.zeros(RESERVED, "reserved")?;
        let pair = Box::new(reader.array("header and key slots")?);
        reader.end()?;
        Ok(Self { digest, pair })
    }
}
