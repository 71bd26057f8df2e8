//! Why something was not measured.

use std::fmt;

use cli::failure::Failure;
use cli::interrupt::Interrupted;

use crate::visible::visible;

/// What kind of failure it is, as a session tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Asked for what cannot be done; nothing was changed.
    Usage,
    /// A program or the system failed.
    Io,
    /// A signal asked for the end.
    Interrupted,
}

/// A failure, in words for the user.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// With [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Asked for what cannot be done.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, message: message.into(), source: None }
    }

    /// Something does not work.
    pub fn io(message: impl Into<String>) -> Self {
        Self { kind: Kind::Io, message: message.into(), source: None }
    }

    /// The same, with what caused it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&visible(&self.message))?;
        match &self.source {
            Some(source) => write!(f, ": {}", visible(&source.to_string())),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl error_kind::HasKind for Error {
    fn kind(&self) -> error_kind::Kind {
        match self.kind {
            Kind::Usage => error_kind::Kind::Usage,
            // Something was measured and something was not: that is no mistake in the command, of which nothing was done.
            Kind::Io | Kind::Interrupted => error_kind::Kind::Io,
        }
    }
}

impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Self {
        Self { kind: Kind::Interrupted, message: interrupted.to_string(), source: None }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = match failure.code() {
            _ if failure.is_usage() => Kind::Usage,
            code if code == Failure::from(Interrupted).code() => Kind::Interrupted,
            _ => Kind::Io,
        };
        Self { kind, message: failure.to_string(), source: None }
    }
}

/// Names the thing that an operation failed on.
pub trait Context<T> {
    /// As [`Error::io`], with the error as its source.
    ///
    /// # Errors
    /// The error, with its context.
    fn doing(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Context<T> for std::result::Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error::io(what.to_string()).because(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_run_is_no_mistake_of_its_command() {
        let code = |error: Error| Failure::from(error).code();
        assert_eq!(code(Error::from(Interrupted)), code(Error::io("x")));
        assert_ne!(code(Error::from(Interrupted)), code(Error::usage("x")));
    }

    #[test]
    fn a_message_steers_no_terminal() {
        let source = std::io::Error::other("\u{1b}[2J");
        assert_eq!(Error::usage("a\u{7}").because(source).to_string(), "a\\u{7}: \\u{1b}[2J");
    }
}
