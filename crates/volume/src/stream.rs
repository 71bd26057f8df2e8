//! Streams: the content of a volume, sealed for a place that nobody trusts, and for a pipe.
//!
//! A stream is sealed under a key of its own, in chunks of up to a MiB that are numbered, and of which the last says that it is (STREAM: Hoang,
//! Reyhanitabar, Rogaway, Vizár, "Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", CRYPTO 2015). So no chunk can be
//! changed, left out, moved, or taken from another stream, and an end is told from a cut. `docs/stream-format.md` has the bytes.
//!
//! Invariants:
//! 1. No byte of a chunk is handed out before the chunk has opened, and a stream has ended only when its last chunk has.
//! 2. A (key, nonce) pair never repeats: an export that goes on begins a leg with a fresh salt, whatever was written of the chunk that it was
//!    cut in.
//! 3. An import makes the volume equal to the stream. What is there already is compared, not believed, so it may be cut anywhere and done again,
//!    also when it had ended.

mod chain;
mod export;
mod import;
mod read;
mod write;

use std::sync::atomic::AtomicU64;

pub use import::Imported;
pub use read::{StreamReader, Tail};
pub use write::StreamWriter;

/// Chunks that are read or written at the same time; so many MiB of memory, of an import twice.
const CHUNKS_AT_ONCE: usize = 4;
/// Blocks whose allocation is looked up at a time.
const WINDOW: u64 = 1 << 15;

/// How far an export or import has come; shared with whoever shows it.
#[derive(Debug, Default)]
pub struct StreamProgress {
    /// Blocks of data so far.
    pub blocks: AtomicU64,
    /// Bytes of the stream so far.
    pub bytes: AtomicU64,
}
