//! What can go wrong, in the kinds that a caller tells apart.

/// The kind of a failure. Each has an exit code of the command line and an error number of the front ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The caller asked for something that cannot be done; nothing was changed.
    Usage,
    /// The host failed an operation, or is out of something.
    Io,
    /// A block, node or record is not what was written: changed, swapped or replayed.
    Corrupt,
    /// The image is older than what the anchor vouches for.
    Stale,
    /// The image has a history of its own beside the anchored one.
    Forked,
    /// Another session has claimed the volume since.
    Fenced,
    /// The anchor could not be reached, or holds nothing usable.
    Anchor,
    /// No free space is left for new data.
    NoSpace,
    /// The credential opens no key slot.
    Locked,
    /// The disk says something else than the policy.
    Policy,
}

/// A failure: its kind, what happened to what, and what to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
    blocks: Vec<u64>,
}

/// Shorthand for this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure of this kind. The message says what happened, to what, and what to do.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), blocks: Vec::new() }
    }

    /// A logical block that did not verify.
    pub(crate) fn corrupt_block(logical: u64) -> Self {
        Self {
            kind: Kind::Corrupt,
            message: format!(
                "logical block {logical} is not what was written there; restore it from a backup"
            ),
            blocks: vec![logical],
        }
    }

    /// Several logical blocks that did not verify.
    pub(crate) fn corrupt_blocks(message: impl Into<String>, blocks: Vec<u64>) -> Self {
        Self { kind: Kind::Corrupt, message: message.into(), blocks }
    }

    /// The same, with the name of the store that it is about.
    pub(crate) fn on(mut self, store: &str) -> Self {
        self.message = format!("{store}: {}", self.message);
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
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

impl std::error::Error for Error {}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        if error.kind == store::ErrorKind::NoSpace && error.operation == "write" {
            return Self::new(Kind::NoSpace, format!("{error}; make room where it lies, and writes go on"));
        }
        Self::new(Kind::Io, error.to_string())
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
        match error {
            anchor::Error::Conflict(_) => Self::new(
                Kind::Fenced,
                "another session has claimed this volume; this one has stopped writing. Detach it, and attach again only if the other session is gone",
            ),
            other => Self::new(Kind::Anchor, format!("{other}")),
        }
    }
}
