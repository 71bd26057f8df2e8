//! AEAD suites, key derivation, nonces and key slots: the only crate that touches a cipher.
//!
//! * [`VolumeKey`] is the one secret of a volume; everything else is derived from it.
//! * [`EpochKeys`] are the keys of one epoch: a (key, nonce) pair never repeats, since each epoch has a
//!   fresh random salt and counts its nonces.
//! * [`BlockKey`] seals and opens blocks, also into and from buffers that the host can change meanwhile
//!   ([`BlockKey::seal_into`], [`BlockKey::open_from`]).
//! * [`slot::KeySlots`] wraps the volume key for passphrases, key files and secrets that an owner's service releases.
//! * [`jwe`] seals a secret for the holder of one key pair.
//! * [`tpm`] has the keys of a session with a TPM.
//! * [`hygiene`] keeps secrets out of swap and core dumps.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("seal needs a 64-bit target");

mod block;
mod cipher;
mod heap;
pub mod hygiene;
pub mod jwe;
mod kdf;
mod key;
mod locked;
mod random;
mod secret;
pub mod slot;
mod stage;
mod suite;
pub mod tpm;

pub use block::{BlockKey, Corrupt, NONCE_LIMIT};
pub use kdf::{MacKey, sha256};
pub use key::{EpochKeys, VolumeKey};
pub use random::{Random, SystemRandom};
pub use secret::{Secret, SecretBytes};
pub use suite::{DataMode, Error, Suite};

/// Bytes of a block's authentication tag, in every suite.
pub const TAG_SIZE: usize = 16;
/// Bytes of a volume key.
pub const KEY_SIZE: usize = 32;
/// Bytes of the random salt that begins an epoch.
pub const SALT_SIZE: usize = 32;
