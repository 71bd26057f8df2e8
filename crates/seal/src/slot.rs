//! Key slots: the volume key, wrapped once for each credential that may open the volume.
//!
//! The area is one block of 16 slots with 256 bytes each; the format of a slot is in `codec`.
//!
//! A passphrase goes through Argon2id (RFC 9106), a key file through HKDF-SHA-256, both with the slot's
//! random salt, and give the key-encryption key. So does a secret that an owner's service releases to an attested guest, with the volume's id
//! and the slot's index beside the salt: one secret for two volumes gives two keys. HKDF makes of that a wrapping key for AES-256-GCM and a
//! commitment that is stored in the slot: AES-GCM alone does not commit to its key, so that one crafted
//! slot could open under many passphrases. Volume id, slot index and everything else in the slot are
//! associated data.
//!
//! The bytes come from the host. Its costs for Argon2id are checked against [`SlotLimits`] before use.

mod area;
mod codec;
mod error;
mod wrap;

pub use area::{KeySlots, SlotInfo};
pub use codec::Kind;
pub use error::{Cost, SlotError};

use crate::SecretBytes;

/// Slots in the area.
pub const SLOT_COUNT: usize = 16;
/// Bytes of a slot.
pub const SLOT_SIZE: usize = 256;
/// Bytes of the area.
pub const AREA_SIZE: usize = SLOT_COUNT * SLOT_SIZE;
/// Most bytes of a label.
pub const LABEL_SIZE: usize = 64;
/// Fewest bytes of a key file: it is not stretched, so it must not be guessable.
pub const MIN_KEY_FILE_SIZE: usize = 32;

/// What opens a slot.
#[derive(Debug)]
pub enum Credential {
    /// Something a human remembers. Stretched by Argon2id.
    Passphrase(SecretBytes),
    /// The content of a file of random bytes, at least [`MIN_KEY_FILE_SIZE`].
    KeyFile(SecretBytes),
    /// What an owner's service released to this guest, at least [`MIN_KEY_FILE_SIZE`] bytes.
    Released(SecretBytes),
}

impl Credential {
    /// The bytes themselves, whatever they open.
    #[must_use]
    pub fn secret(&self) -> &SecretBytes {
        match self {
            Credential::Passphrase(secret) | Credential::KeyFile(secret) | Credential::Released(secret) => {
                secret
            }
        }
    }
}

/// The costs of Argon2id, RFC 9106.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argon2Params {
    /// Memory in KiB; at least 8 for each lane.
    pub memory_kib: u32,
    /// Passes over the memory; at least 1.
    pub passes: u32,
    /// Lanes; at least 1. They are computed one after the other.
    pub lanes: u32,
}

impl Default for Argon2Params {
    /// 256 MiB, 3 passes, 4 lanes.
    fn default() -> Self {
        Argon2Params { memory_kib: 256 << 10, passes: 3, lanes: 4 }
    }
}

/// The most that a slot may cost. What a slot asks for is the host's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLimits {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Default for SlotLimits {
    /// 4 GiB, 64 passes, 16 lanes.
    fn default() -> Self {
        SlotLimits { memory_kib: 4 << 20, passes: 64, lanes: 16 }
    }
}
