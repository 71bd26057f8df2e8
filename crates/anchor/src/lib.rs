//! Trusted freshness: a small value outside the host's reach that moves only by compare-and-swap.
//!
//! [`open_address`] opens an anchor by its address; which kinds there are, the program registers ([`Schemes`]). [`FileAnchor`]
//! keeps the stamp in a file, [`MemoryAnchor`] in memory. [`Threaded`] runs
//! one that blocks on a thread of its own.
#![forbid(unsafe_code)]

mod address;
mod file;
mod health;
mod lock;
mod memory;
mod options;
mod scheme;
mod stamp;
mod threaded;
mod typed;

pub use address::Address;
pub use file::FileAnchor;
pub use health::{Away, Health, certificate_notice};
pub use lock::{Lock, lock_within};
pub use memory::MemoryAnchor;
pub use options::{OptionKey, Options};
pub use scheme::{
    Access, Created, Needs, Opening, Scheme, Schemes, check_address, create_address, install, open_address,
    open_address_read_only, schemes,
};
pub use stamp::{AUTHENTICATED_SIZE, MOVED_TO_SIZE, STAMP_VERSION, StampError};
pub use threaded::{BlockingAnchor, Failure, Limits, Threaded};
pub use typed::typed_options;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A future that an anchor returns; it may be sent between threads.
pub type AnchorFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Bytes of an encoded [`Stamp`].
pub const STAMP_SIZE: usize = 192;

/// Where a volume stands in its life, as the anchor knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Some session has claimed the volume and may be writing.
    Claimed,
    /// The last session detached cleanly.
    Released,
    /// The volume has moved to another anchor; this one must never be believed again.
    Terminal,
}

/// The state of a volume that the anchor vouches for. Format: `docs/disk-format.md`, "Stamp".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The volume's identity.
    pub volume: [u8; 16],
    /// Number of the last journal record that is anchored.
    pub generation: u64,
    /// Hash of the journal's chain up to and including that record.
    pub head: [u8; 32],
    /// The session that claimed the volume last.
    pub session: [u8; 16],
    /// How many times the volume was ever claimed.
    pub claims: u64,
    /// SHA-256 of the header and key-slot blocks that are in force.
    pub header_digest: [u8; 32],
    /// Claimed, released or terminal.
    pub state: State,
    /// In state terminal, where the volume went: see [`Stamp::moved_to`]. Else zeros.
    pub moved_to: [u8; MOVED_TO_SIZE],
    /// HMAC-SHA-256 over all of the above, under a key that only holders of the volume key have.
    pub mac: [u8; 32],
}

/// Why an anchor did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The stamp in the anchor is not the expected one; here is what it holds.
    Conflict(Option<Box<Stamp>>),
    /// This is no address of an anchor, or its options are not those of its scheme; nothing was looked at. Says what to write.
    Address(String),
    /// Nothing usable is at this address (missing, unreadable, not an anchor). Says what to do.
    Unusable(String),
    /// The anchor could not be reached or written. Whether it moved is unknown.
    Io(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Conflict(None) => {
                f.write_str("the anchor was never claimed, but a stamp was expected in it")
            }
            Error::Conflict(Some(held)) => write!(
                f,
                "the anchor holds another stamp than expected: generation {}, claim {}",
                held.generation, held.claims
            ),
            Error::Address(why) | Error::Unusable(why) => f.write_str(why),
            Error::Io(why) => write!(f, "the anchor could not be reached or written: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl error_kind::HasKind for Error {
    fn kind(&self) -> error_kind::Kind {
        match self {
            Error::Address(_) => error_kind::Kind::Usage,
            _ => error_kind::Kind::Anchor,
        }
    }
}

/// A place that keeps one stamp and moves it only by compare-and-swap.
pub trait Anchor: Send + Sync {
    /// The stamp, or `None` when the anchor was never claimed.
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>>;
    /// Replaces `expected` by `new`, durably, or fails with [`Error::Conflict`].
    /// After [`Error::Io`] the caller must read before it goes on: the anchor may have moved.
    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()>;
    /// The address, as in a policy: `file:/path`.
    fn address(&self) -> String;
    /// Resolves after this time, or when the next request comes. An anchor that is quick, or has no thread of its own that could wait,
    /// resolves at once.
    fn pause(&self, time: Duration) -> AnchorFuture<'_, ()> {
        let _ = time;
        Box::pin(std::future::ready(Ok(())))
    }
    /// How it is, as far as that is known without asking it.
    fn health(&self) -> Health {
        Health::default()
    }
}
