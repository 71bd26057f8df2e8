//! Why a device could not be shown or taken away.

use error_kind::{HasKind, Kind, Remedy};
use rustix::io::Errno;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

/// Why a device could not be shown or taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// What was asked makes no sense, or not here. Says what to do.
    Usage(String),
    /// Something is in use that must not be. Says by what.
    Busy(String),
    /// All that goes through this address could be read and changed on its way, and connections come from anywhere.
    Exposed(SocketAddr),
    /// The operating system refused.
    System {
        /// What was attempted, and on what.
        doing: String,
        /// What the system answered.
        errno: Errno,
    },
}

impl Error {
    pub(crate) fn system(doing: impl Into<String>, errno: Errno) -> Error {
        Error::System { doing: doing.into(), errno }
    }

    /// For errors that come from the standard library.
    pub(crate) fn io(doing: impl Into<String>, error: &std::io::Error) -> Error {
        Error::system(doing, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    /// "`doing` `path`", refused with `errno`.
    pub(crate) fn at(doing: &str, path: &Path, errno: Errno) -> Error {
        Error::system(format!("{doing} {}", path.display()), errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(why) | Error::Busy(why) => f.write_str(why),
            Error::Exposed(address) => write!(
                f,
                "the host sees and can change all that goes through {address}, and can connect to it: listen on 127.0.0.1 or on a unix socket, or \
                 use TLS with certificates for both sides"
            ),
            Error::System { doing, errno } => write!(f, "{doing}: {errno}"),
        }
    }
}

impl std::error::Error for Error {}

impl HasKind for Error {
    fn kind(&self) -> Kind {
        match self {
            Error::Usage(_) | Error::Busy(_) | Error::Exposed(_) => Kind::Usage,
            Error::System { .. } => Kind::Io,
        }
    }

    fn remedy(&self) -> Option<Remedy> {
        matches!(self, Error::Exposed(_)).then_some(Remedy::Certificates)
    }
}
