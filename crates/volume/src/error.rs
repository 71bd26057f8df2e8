//! What can go wrong, in the kinds that a caller tells apart.

pub use error_kind::{Kind, Remedy};

/// A failure: its kind, what happened to what, and what to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
    blocks: Vec<u64>,
    cause: Option<Cause>,
    remedy: Option<Remedy>,
}

/// What another crate said.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    Store(Box<store::Error>),
    Anchor(Box<anchor::Error>),
}

/// Shorthand for this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure of this kind. The message says what happened, to what, and what to do.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), blocks: Vec::new(), cause: None, remedy: None }
    }

    /// The same, where asking otherwise may help.
    pub(crate) fn or(mut self, remedy: Remedy) -> Self {
        self.remedy = Some(remedy);
        self
    }

    /// What to ask for instead, where that may help.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        self.remedy
    }

    /// A logical block that did not verify.
    pub(crate) fn corrupt_block(logical: u64) -> Self {
        let message =
            format!("logical block {logical} is not what was written there; restore it from a backup");
        Self::corrupt_blocks(message, vec![logical])
    }

    /// Several logical blocks that did not verify.
    pub(crate) fn corrupt_blocks(message: impl Into<String>, blocks: Vec<u64>) -> Self {
        Self { blocks, ..Self::new(Kind::Corrupt, message) }
    }

    /// The same, with the name of the store that it is about.
    pub(crate) fn on(mut self, store: &str) -> Self {
        self.message = format!("{store}: {}", self.message);
        self
    }

    /// The same, with one more sentence.
    pub(crate) fn with_sentence(mut self, sentence: &str) -> Self {
        self.message = format!("{}. {sentence}", self.message);
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the store said, with the operation and its first block, where that is the cause.
    #[must_use]
    pub fn store(&self) -> Option<&store::Error> {
        match &self.cause {
            Some(Cause::Store(error)) => Some(error),
            _ => None,
        }
    }

    /// The operating system's error number (`EIO`, `ENOSPC`, ...), where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.store().and_then(|error| error.errno)
    }

    /// The logical blocks that are damaged, where they are known.
    #[must_use]
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Some(Cause::Store(error)) => Some(error.as_ref()),
            Some(Cause::Anchor(error)) => Some(error.as_ref()),
            None => None,
        }
    }
}

impl error_kind::HasKind for Error {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn remedy(&self) -> Option<Remedy> {
        self.remedy
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        let new = match (error.kind, error.operation) {
            (store::ErrorKind::NoSpace, "write") => {
                Self::new(Kind::NoSpace, format!("{error}; make room where it lies, and writes go on"))
            }
            (store::ErrorKind::NoSpace, "discard") => {
                Self::new(Kind::NoSpace, format!("{error}; it is asked again when it has more room"))
            }
            _ => Self::new(Kind::Io, error.to_string()),
        };
        Self { cause: Some(Cause::Store(Box::new(error))), ..new }
    }
}

impl From<crate::format::Malformed> for Error {
    fn from(error: crate::format::Malformed) -> Self {
        let advice = match error.field {
            "version" => {
                "use the program that made it; if that is this one, it was changed: restore it from a backup"
            }
            _ => "it was changed, or the disk has spoilt it: restore it from a backup",
        };
        Self::new(Kind::Corrupt, format!("{error}; {advice}"))
    }
}

impl From<anchor::Error> for Error {
    fn from(error: anchor::Error) -> Self {
        let new = match &error {
            anchor::Error::Conflict(_) => Self::new(
                Kind::Fenced,
                "another session has claimed this volume; this one has stopped writing. Detach it, and attach again only if the other session is gone",
            ),
            other => Self::new(error_kind::HasKind::kind(other), format!("{other}")),
        };
        Self { cause: Some(Cause::Anchor(Box::new(error))), ..new }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn what_others_said_is_kept() {
        let said = store::Error::from_errno(5, "read", "disk.img").at(7);
        let error = Error::from(said.clone()).on("ledger");
        assert_eq!((error.kind(), error.errno(), error.store()), (Kind::Io, Some(5), Some(&said)));
        assert_eq!(error.store().and_then(|error| error.block), Some(7));
        assert_eq!(error.source().map(ToString::to_string), Some(said.to_string()));

        let fenced = Error::from(anchor::Error::Conflict(None));
        assert!(fenced.kind() == Kind::Fenced && fenced.errno().is_none());
        assert!(fenced.source().is_some_and(|source| source.to_string().contains("never claimed")));
        assert!(Error::new(Kind::Usage, "no").source().is_none());
    }
}
