//! What can go wrong, in kinds that a caller can tell apart.

use std::fmt;
use std::io;

use error_kind::{HasKind, Kind};
use seal::slot::SlotError;

use crate::medium::Fault;

/// Why something was not done. The message says what happened, to what, and what to do now.
#[derive(Debug)]
pub enum Error {
    /// What was asked makes no sense, or not here.
    Usage(String),
    /// Somebody else has the region.
    Busy(String),
    /// The system refused.
    Io {
        /// What was attempted, and on what.
        doing: String,
        /// What the system answered.
        source: io::Error,
    },
    /// A page is not what was sealed: it was changed or replayed on the medium.
    CorruptPage {
        /// The page's number.
        page: u64,
    },
    /// Something in the hidden part is not what was written there.
    CorruptRegion(String),
    /// The key does not open the region.
    Key(SlotError),
    /// The medium failed under the mapping.
    Medium(Fault),
    /// An earlier failure of the medium left the state unknown; nothing is done any more.
    Stopped,
}

impl Error {
    /// An answer of the system to `doing`.
    pub fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io { doing: doing.into(), source: source.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message) | Error::Busy(message) => f.write_str(message),
            Error::Io { doing, source } => write!(f, "{doing}: {source}"),
            Error::CorruptPage { page } => write!(
                f,
                "page {page} is corrupt: it was changed or replayed on the medium after it was encrypted; restore it from a \
                 backup"
            ),
            Error::CorruptRegion(what) => write!(
                f,
                "the region is corrupt: {what}; the medium was changed from outside, or is damaged: restore a backup"
            ),
            Error::Key(error) => error.fmt(f),
            Error::Medium(fault) => fault.fmt(f),
            Error::Stopped => f.write_str(
                "the medium failed before, so the state of the region is unknown: stop, mend the medium, and recover the region",
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Key(error) => Some(error),
            Error::Medium(fault) => Some(fault),
            _ => None,
        }
    }
}

impl HasKind for Error {
    fn kind(&self) -> Kind {
        match self {
            Error::Usage(_) => Kind::Usage,
            Error::Io { .. } | Error::Medium(_) | Error::Stopped => Kind::Io,
            Error::CorruptPage { .. } | Error::CorruptRegion(_) => Kind::Corrupt,
            Error::Busy(_) | Error::Key(_) => Kind::Locked,
        }
    }

    fn is_in_use(&self) -> bool {
        matches!(self, Error::Busy(_))
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Medium(fault)
    }
}

impl From<SlotError> for Error {
    fn from(error: SlotError) -> Error {
        Error::Key(error)
    }
}
