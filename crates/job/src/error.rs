//! Failures of a job.

use std::fmt;
use std::path::Path;

use error_kind::{HasKind, Kind};

/// Why a job cannot go on. The message says what happened, to what, and what to do.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What may fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// One of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same, which says first what it is about.
    #[must_use]
    pub fn about(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Asked for what cannot be done; nothing was changed.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, message: message.into(), source: None }
    }

    /// Something that this needs does not work.
    pub fn io(message: impl Into<String>) -> Self {
        Self { kind: Kind::Io, message: message.into(), source: None }
    }

    /// The other side says what it must not.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self { kind: Kind::Corrupt, message: message.into(), source: None }
    }

    /// Evidence, a signature or a digest does not say what the owner's policy asks for.
    pub fn refused(message: impl Into<String>) -> Self {
        Self { kind: Kind::Policy, message: message.into(), source: None }
    }

    /// Something has no room.
    pub fn no_space(message: impl Into<String>) -> Self {
        Self { kind: Kind::NoSpace, message: message.into(), source: None }
    }

    /// The same, because of this.
    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// What failed with a file.
    pub(crate) fn file(path: &Path, error: std::io::Error) -> Self {
        Self::io(format!("{}: {error}", path.display())).because(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

impl HasKind for Error {
    fn kind(&self) -> Kind {
        self.kind
    }
}

impl From<vm::Error> for Error {
    fn from(error: vm::Error) -> Self {
        Self { kind: error.kind(), message: error.to_string(), source: Some(Box::new(error)) }
    }
}

/// Says about which file an operation was.
pub(crate) trait Context<T> {
    /// The same, with the path.
    fn of(self, path: impl AsRef<Path>) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn of(self, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|error| Error::file(path.as_ref(), error))
    }
}
