//! Persistent memory behind one trait: the engine's stores, write-backs and fences.
//!
//! What survives a crash: a word that was stored, written back and fenced, in that order. Of every other word that was stored since, any one
//! of its values may survive, each word by itself. Nothing wider than a word of eight bytes is written atomically. The engine relies on
//! nothing else, so the same code runs on real memory ([`Mapping`](crate::Mapping)) and under the crash model of the tests.

use std::fmt;
use std::io;

/// Memory that keeps its content.
///
/// Offsets of words are multiples of eight. Every range lies inside [`len`](Medium::len).
pub trait Medium: Send + Sync {
    /// Bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Fault`]; what is in `out` then is not from the medium.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Fault>;

    /// Stores bytes, in words of eight and in any order.
    ///
    /// # Errors
    /// [`Fault`]: any of the words may have been stored.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Loads one word, little-endian.
    ///
    /// # Errors
    /// [`Fault`].
    fn load(&self, at: u64) -> Result<u64, Fault>;

    /// Stores one word, atomically.
    ///
    /// # Errors
    /// [`Fault`].
    fn store(&self, at: u64, word: u64) -> Result<(), Fault>;

    /// Begins to write the cache lines of a range back.
    ///
    /// # Errors
    /// [`Fault`].
    fn write_back(&self, at: u64, len: u64) -> Result<(), Fault>;

    /// Returns when all that this thread has written back before is persistent.
    ///
    /// # Errors
    /// [`Fault`].
    fn fence(&self) -> Result<(), Fault>;
}

/// The medium failed; what it holds is unknown.
#[derive(Debug)]
pub enum Fault {
    /// The mapping has no memory behind it any more: the file was cut short, or the medium failed (SIGBUS).
    Lost {
        /// The first byte of the page that failed.
        offset: u64,
    },
    /// The system could not write a range back.
    Sync(io::Error),
    /// The crash model of the tests ended the run here.
    Crash,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Lost { offset } => write!(
                f,
                "the region's memory is gone at offset {offset}: its file was cut short, or the medium failed there; serving has stopped \
                 and nothing more is written: mend or restore the file, then recover the region"
            ),
            Fault::Sync(error) => {
                write!(f, "the region cannot be written back: {error}; serving has stopped")
            }
            Fault::Crash => f.write_str("crash"),
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Fault::Sync(error) => Some(error),
            _ => None,
        }
    }
}
