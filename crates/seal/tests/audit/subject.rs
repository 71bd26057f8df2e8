//! What is audited: ways to seal a block into memory that the host can write, and to open one from there.

use memory::Buffer;
use seal::{BlockKey, DataMode, Suite, VolumeKey};

use crate::openssl::OpenSsl;
use crate::page::Block;

/// Associated data, as long as a data block's.
const AD: [u8; 24] = [9; 24];

/// What is done with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Seal,
    Open,
}

/// One way to seal and open, to and from the beginning of a block of memory that the host can write.
pub trait Subject {
    /// Seals to the beginning of `out`.
    fn seal(&self, plaintext: &[u8], out: &mut Buffer) -> [u8; 16];

    /// Opens as many bytes as `out` has from the beginning of `source`. Whether it opened.
    fn open(&self, source: &Buffer, tag: &[u8; 16], out: &mut [u8]) -> bool;
}

/// A suite and the mode that is audited with it; each gives a cipher of its own.
pub const CIPHERS: [(&str, Suite, DataMode); 6] = [
    ("aes-256-gcm", Suite::Aes256Gcm, DataMode::Aead),
    ("aegis-128x2", Suite::Aegis128x2, DataMode::Aead),
    ("aegis-256x2", Suite::Aegis256x2, DataMode::Aead),
    ("aes-256-gmac", Suite::Aes256Gcm, DataMode::Gmac),
    ("aes-256-xts", Suite::Aes256Xts, DataMode::Xts),
    ("plain", Suite::Aes256Gcm, DataMode::Plain),
];

/// The name of the control.
pub const OPENSSL: &str = "openssl aes-256-gcm";

/// The subject of this name: a cipher with `staged` or `unstaged` before it, [`OPENSSL`], or one of the self-checks.
///
/// # Errors
/// If it is not to be had on this machine.
pub fn subject(name: &str) -> Result<Box<dyn Subject>, String> {
    if name == OPENSSL {
        return Ok(Box::new(OpenSsl::load()?));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(check) = crate::selfcheck::subject(name) {
        return Ok(check);
    }
    let (way, cipher) = name.split_once(' ').expect("a way and a cipher");
    let found = CIPHERS.into_iter().find(|(name, ..)| *name == cipher);
    let (_, suite, mode) = found.unwrap_or_else(|| panic!("no subject is called {name}"));
    let key = VolumeKey::from_bytes([3; 32]).epoch(mode, suite, &[4; 32]).data;
    match way {
        "staged" => Ok(Box::new(Staged(key))),
        "unstaged" => Ok(Box::new(Unstaged(key))),
        _ => panic!("no subject is called {name}"),
    }
}

/// The plaintext of every experiment.
pub fn plaintext() -> Block {
    std::array::from_fn(|i| u8::try_from(i % 251).expect("below 251"))
}

/// The functions by which a volume seals into its store's buffers and opens from them (`volume/src/request.rs`, `read.rs`), with a cache
/// that takes the sealed block.
struct Staged(BlockKey);

/// Stands for the volume's cache of sealed blocks.
fn keep(sealed: &[u8]) {
    std::hint::black_box(sealed.to_vec());
}

impl Subject for Staged {
    fn seal(&self, plaintext: &[u8], out: &mut Buffer) -> [u8; 16] {
        self.0.seal_into(1, &AD, plaintext, out.target(0..plaintext.len()), |_, sealed| keep(sealed))
    }

    fn open(&self, source: &Buffer, tag: &[u8; 16], out: &mut [u8]) -> bool {
        self.0.open_from(1, &AD, source.source(0..out.len()), tag, out, keep).is_ok()
    }
}

/// The ciphers alone. Only to be stepped through, where nobody else writes the memory: it forms references.
struct Unstaged(BlockKey);

impl Subject for Unstaged {
    fn seal(&self, plaintext: &[u8], out: &mut Buffer) -> [u8; 16] {
        assert!(plaintext.len() <= out.len());
        // SAFETY: inside the buffer, which is ours alone and which nobody else writes (see above).
        self.0.seal(1, &AD, plaintext, unsafe {
            std::slice::from_raw_parts_mut(out.as_mut_ptr(), plaintext.len())
        })
    }

    fn open(&self, source: &Buffer, tag: &[u8; 16], out: &mut [u8]) -> bool {
        assert!(out.len() <= source.len());
        // SAFETY: as above.
        self.0
            .open(1, &AD, unsafe { std::slice::from_raw_parts(source.as_ptr(), out.len()) }, tag, out)
            .is_ok()
    }
}

impl Subject for OpenSsl {
    fn seal(&self, plaintext: &[u8], out: &mut Buffer) -> [u8; 16] {
        assert!(plaintext.len() <= out.len());
        // SAFETY: as many bytes are valid, and no reference covers them if they are shared.
        unsafe { OpenSsl::seal(self, plaintext, out.as_mut_ptr()) }
    }

    fn open(&self, source: &Buffer, tag: &[u8; 16], out: &mut [u8]) -> bool {
        assert!(out.len() <= source.len());
        // SAFETY: as above.
        unsafe { OpenSsl::open(self, source.as_ptr(), tag, out) }
    }
}
