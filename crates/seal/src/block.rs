//! Sealing and opening blocks.

use std::fmt;

use memory::{Source, Target};

use crate::cipher::aegis::{Aegis128x2, Aegis256x2};
use crate::cipher::gcm::Gcm;
use crate::cipher::xts::{self, Xts};
use crate::stage::with_stage;
use crate::{Secret, TAG_SIZE};

/// Nonces are counters below this: a map entry has 48 bits for one.
pub const NONCE_LIMIT: u64 = 1 << 48;

/// Ciphertext, tag, associated data, nonce and key don't belong together. A flipped bit and a replayed
/// block look the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the block is corrupt: it was changed, replayed or moved after it was sealed")
    }
}

impl std::error::Error for Corrupt {}

/// A key for blocks, prepared once and shared by all threads.
pub struct BlockKey(Cipher);

enum Cipher {
    Gcm(Gcm),
    Aegis128x2(Aegis128x2),
    Aegis256x2(Aegis256x2),
    Xts(Box<Xts>),
    Gmac(Gcm),
    Plain,
}

impl BlockKey {
    pub(crate) fn gcm(key: &Secret<32>) -> BlockKey {
        BlockKey(Cipher::Gcm(Gcm::new(key)))
    }

    pub(crate) fn aegis128x2(key: Secret<16>) -> BlockKey {
        BlockKey(Cipher::Aegis128x2(Aegis128x2::new(key)))
    }

    pub(crate) fn aegis256x2(key: Secret<32>) -> BlockKey {
        BlockKey(Cipher::Aegis256x2(Aegis256x2::new(key)))
    }

    pub(crate) fn xts(key: &Secret<64>) -> BlockKey {
        BlockKey(Cipher::Xts(Box::new(Xts::new(key))))
    }

    pub(crate) fn gmac(key: &Secret<32>) -> BlockKey {
        BlockKey(Cipher::Gmac(Gcm::new(key)))
    }

    pub(crate) fn plain() -> BlockKey {
        BlockKey(Cipher::Plain)
    }

    /// Seals `plaintext` into `out` and returns the tag, which is all zero in modes without integrity.
    ///
    /// `nonce` is below [`NONCE_LIMIT`] and was never before used with this key. In modes without integrity
    /// `ad` has no effect.
    ///
    /// # Panics
    /// If the nonce is too large, the plaintext is empty (in XTS mode: not 16 bytes to 16 MiB), or `out`
    /// has another length.
    pub fn seal(&self, nonce: u64, ad: &[u8], plaintext: &[u8], out: &mut [u8]) -> [u8; TAG_SIZE] {
        self.check_arguments(nonce, plaintext.len());
        assert_eq!(plaintext.len(), out.len());
        match &self.0 {
            Cipher::Gcm(key) => key.seal(widen(nonce), ad, plaintext, out),
            Cipher::Aegis128x2(key) => key.seal(widen(nonce), ad, plaintext, out),
            Cipher::Aegis256x2(key) => key.seal(widen(nonce), ad, plaintext, out),
            Cipher::Xts(key) => {
                key.encrypt(widen(nonce), plaintext, out);
                [0; TAG_SIZE]
            }
            Cipher::Gmac(_) | Cipher::Plain => {
                out.copy_from_slice(plaintext);
                self.tag_plaintext(nonce, ad, plaintext)
            }
        }
    }

    /// Opens `ciphertext` into `out`.
    ///
    /// # Errors
    /// [`Corrupt`] if anything differs from what was sealed, as far as the mode can tell; `out` is all
    /// zero then. In modes without integrity, only the tag (not all zero), a nonce and a length that can't
    /// be are told.
    ///
    /// # Panics
    /// If `out` has another length than `ciphertext`.
    pub fn open(
        &self,
        nonce: u64,
        ad: &[u8],
        ciphertext: &[u8],
        tag: &[u8; TAG_SIZE],
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        assert_eq!(ciphertext.len(), out.len());
        let result = self.try_open(nonce, ad, ciphertext, tag, out);
        if result.is_err() {
            out.fill(0);
        }
        result
    }

    fn try_open(
        &self,
        nonce: u64,
        ad: &[u8],
        ciphertext: &[u8],
        tag: &[u8; TAG_SIZE],
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        if nonce >= NONCE_LIMIT || !self.takes(ciphertext.len()) {
            return Err(Corrupt);
        }
        match &self.0 {
            Cipher::Gcm(key) => key.open(widen(nonce), ad, ciphertext, tag, out),
            Cipher::Aegis128x2(key) => key.open(widen(nonce), ad, ciphertext, tag, out),
            Cipher::Aegis256x2(key) => key.open(widen(nonce), ad, ciphertext, tag, out),
            Cipher::Xts(_) if *tag != [0; TAG_SIZE] => Err(Corrupt),
            Cipher::Xts(key) => {
                key.decrypt(widen(nonce), ciphertext, out);
                Ok(())
            }
            Cipher::Gmac(_) | Cipher::Plain => {
                self.check_plaintext(nonce, ad, ciphertext, tag)?;
                out.copy_from_slice(ciphertext);
                Ok(())
            }
        }
    }

    /// As [`BlockKey::seal`], into part of a buffer, which another security domain may read and write at any time. This is how a volume
    /// seals what goes to its store.
    ///
    /// In shared memory, the block is sealed in a private buffer and then copied, so that neither can what is read back from `target` get
    /// into the tag, nor does `target` ever hold anything but ciphertext. `sealed` is shown the tag and the private copy of the sealed
    /// block, for a cache.
    ///
    /// # Panics
    /// As [`BlockKey::seal`].
    pub fn seal_into(
        &self,
        nonce: u64,
        ad: &[u8],
        plaintext: &[u8],
        target: Target<'_>,
        sealed: impl FnOnce(&[u8; TAG_SIZE], &[u8]),
    ) -> [u8; TAG_SIZE] {
        let mut shared = match target {
            Target::Private(out) => {
                let tag = self.seal(nonce, ad, plaintext, out);
                sealed(&tag, out);
                return tag;
            }
            Target::Shared(shared) => shared,
        };
        assert_eq!(plaintext.len(), shared.len());
        shared.prefetch();
        let publish = |tag, bytes: &[u8]| {
            shared.copy_from(bytes);
            sealed(&tag, bytes);
            tag
        };
        match &self.0 {
            Cipher::Gmac(_) | Cipher::Plain => publish(self.tag_plaintext(nonce, ad, plaintext), plaintext),
            _ => with_stage(plaintext.len(), |stage| publish(self.seal(nonce, ad, plaintext, stage), stage)),
        }
    }

    /// As [`BlockKey::open`], from part of a buffer, which another security domain may read and write at any time. This is how a volume
    /// opens what it has from its store.
    ///
    /// Every byte of shared memory is fetched once, into a private buffer, and only that is opened. `opened` is shown the private copy
    /// of the sealed block if it has opened, for a cache.
    ///
    /// # Errors
    /// As [`BlockKey::open`].
    ///
    /// # Panics
    /// As [`BlockKey::open`].
    pub fn open_from(
        &self,
        nonce: u64,
        ad: &[u8],
        source: Source<'_>,
        tag: &[u8; TAG_SIZE],
        out: &mut [u8],
        opened: impl FnOnce(&[u8]),
    ) -> Result<(), Corrupt> {
        let shared = match source {
            Source::Private(ciphertext) => {
                return self.open(nonce, ad, ciphertext, tag, out).map(|()| opened(ciphertext));
            }
            Source::Shared(shared) => shared,
        };
        assert_eq!(shared.len(), out.len());
        match &self.0 {
            Cipher::Gmac(_) | Cipher::Plain => {
                shared.copy_to(out);
                let result = self.check_plaintext(nonce, ad, out, tag);
                match result {
                    Ok(()) => opened(out),
                    Err(Corrupt) => out.fill(0),
                }
                result
            }
            _ => with_stage(out.len(), |stage| {
                shared.copy_to(stage);
                self.open(nonce, ad, stage, tag, out).map(|()| opened(stage))
            }),
        }
    }

    /// The tag of plaintext that stays plaintext.
    fn tag_plaintext(&self, nonce: u64, ad: &[u8], plaintext: &[u8]) -> [u8; TAG_SIZE] {
        self.check_arguments(nonce, plaintext.len());
        match &self.0 {
            Cipher::Gmac(key) => key.authenticate(widen(nonce), ad, plaintext),
            _ => [0; TAG_SIZE],
        }
    }

    /// Whether plaintext that stayed plaintext is what was sealed.
    fn check_plaintext(
        &self,
        nonce: u64,
        ad: &[u8],
        plaintext: &[u8],
        tag: &[u8; TAG_SIZE],
    ) -> Result<(), Corrupt> {
        match &self.0 {
            _ if nonce >= NONCE_LIMIT || plaintext.is_empty() => Err(Corrupt),
            Cipher::Gmac(key) => key.verify(widen(nonce), ad, plaintext, tag),
            _ if *tag != [0; TAG_SIZE] => Err(Corrupt),
            _ => Ok(()),
        }
    }

    /// What a caller of ours must never get wrong.
    fn check_arguments(&self, nonce: u64, len: usize) {
        assert!(nonce < NONCE_LIMIT, "the epoch's nonces are used up");
        assert!(self.takes(len), "{len} bytes can't be sealed");
    }

    fn takes(&self, len: usize) -> bool {
        match self.0 {
            Cipher::Xts(_) => (xts::MIN_SIZE..=xts::MAX_SIZE).contains(&len),
            _ => len != 0,
        }
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            Cipher::Gcm(_) => "aes-256-gcm",
            Cipher::Aegis128x2(_) => "aegis-128x2",
            Cipher::Aegis256x2(_) => "aegis-256x2",
            Cipher::Xts(_) => "aes-256-xts",
            Cipher::Gmac(_) => "aes-256-gmac",
            Cipher::Plain => "plain",
        };
        write!(f, "BlockKey({name})")
    }
}

/// The counter as a nonce or tweak of `N` bytes, little-endian.
fn widen<const N: usize>(nonce: u64) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    bytes
}
