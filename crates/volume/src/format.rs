//! The disk format, byte by byte: `docs/disk-format.md` is the specification, its sections are the modules here.
//!
//! Nothing in here seals, hashes or does I/O. Bytes become typed values in the `decode` functions and nowhere
//! else; they refuse what the specification does not allow, reserved bytes that are not zero included, and
//! return [`Malformed`] for any bytes whatever. The `encode` functions lay values out.

use std::fmt;

pub mod ad;
pub mod backup;
mod bytes;
pub mod entry;
pub mod header;
pub mod item;
pub mod probe;
pub mod protections;
pub mod record;
pub mod rekeying;
pub mod salts;
pub mod stream;
pub mod superblock;

/// Bytes in a block.
pub const BLOCK_SIZE: usize = memory::BLOCK_SIZE;
/// Epochs are numbered from 1 and below this.
pub const EPOCH_END: u32 = 1 << 24;
/// Nonces count from 0 and stay below this.
pub const NONCE_END: u64 = 1 << 48;

/// A whole block of private memory.
pub type Page = [u8; BLOCK_SIZE];

/// Bytes that are not what the specification calls for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The structure: `superblock`, `header`, ...
    pub what: &'static str,
    /// The field of it, as the specification names it.
    pub field: &'static str,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed {}: {}: {}", self.what, self.field, self.message)
    }
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests;
