//! What keeps the service from doing its work.

use crate::log::Fault;
use error_kind::{HasKind, Kind};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use tls_files::FileError;

/// What keeps the service from doing its work.
#[derive(Debug)]
pub enum Error {
    /// Asked for what can't be done; nothing was changed.
    Usage(String),
    /// The state directory is used by another process.
    InUse(PathBuf),
    /// The database can't be read or written.
    Database(PathBuf, Box<redb::Error>),
    /// The audit log, or the table that follows from it, is not as the service wrote it.
    Fault(Fault),
    /// An operation of the system failed: what it was, on what, and why.
    Io(&'static str, PathBuf, io::Error),
    /// A certificate or a key can't be used.
    Files(FileError),
    /// TLS can't be set up.
    Tls(String),
    /// A certificate can't be made.
    Certificate(rcgen::Error),
    /// The service's own anchor does not answer, or can't be used.
    Root(anchor::Error),
    /// The service's own anchor vouches for more than the database has, or for something else.
    RolledBack(Fault),
    /// The service's own anchor was taken by another process: a second service on a copy of the database.
    Fenced(String),
}

impl Error {
    /// The error for a failure of the database at `path`.
    pub(crate) fn database(path: &Path, error: redb::Error) -> Error {
        match error {
            redb::Error::DatabaseAlreadyOpen => Error::InUse(path.to_owned()),
            error => Error::Database(path.to_owned(), Box::new(error)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(why) => f.write_str(why),
            Error::InUse(path) => write!(f, "{} is in use by another cvmio-owner", path.display()),
            Error::Database(path, error) => write!(f, "the database {}: {error}", path.display()),
            Error::Fault(fault) => fault.fmt(f),
            Error::Io(what, path, error) => write!(f, "can't {what} {}: {error}", path.display()),
            Error::Files(error) => error.fmt(f),
            Error::Tls(why) => write!(f, "TLS can't be set up: {why}"),
            Error::Certificate(error) => write!(f, "a certificate can't be made: {error}"),
            Error::Root(error) => write!(f, "the service's own anchor: {error}"),
            Error::RolledBack(fault) => write!(
                f,
                "the database was put back: the service's own anchor vouches for another log. {fault}. Restore the newest database, or make a new one and reanchor the volumes"
            ),
            Error::Fenced(why) => write!(
                f,
                "another service has taken the service's own anchor, so this one stops ({why}); run only one service on one database"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Database(_, error) => Some(error),
            Error::Fault(fault) | Error::RolledBack(fault) => Some(fault),
            Error::Io(_, _, error) => Some(error),
            Error::Files(error) => Some(error),
            Error::Certificate(error) => Some(error),
            Error::Root(error) => Some(error),
            _ => None,
        }
    }
}

impl HasKind for Error {
    fn kind(&self) -> Kind {
        match self {
            Error::Usage(_) | Error::InUse(_) | Error::Files(_) | Error::Tls(_) => Kind::Usage,
            Error::Database(..) | Error::Io(..) | Error::Certificate(_) => Kind::Io,
            Error::Fault(_) => Kind::Corrupt,
            Error::RolledBack(_) => Kind::Stale,
            Error::Fenced(_) => Kind::Fenced,
            Error::Root(_) => Kind::Anchor,
        }
    }

    fn is_in_use(&self) -> bool {
        matches!(self, Error::InUse(_))
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Error {
        Error::Files(error)
    }
}
