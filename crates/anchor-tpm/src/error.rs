//! What can go wrong between an anchor and its TPM.

use std::fmt;
use std::io;
use std::path::PathBuf;

use anchor::Stamp;

use crate::wire::answer::Malformed;
use crate::wire::code::{Meaning, ResponseCode};

/// Why an anchor in a TPM did not do what was asked.
#[derive(Debug)]
pub enum Error {
    /// Nothing can be opened there.
    NoTpm {
        /// Where.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// The way to the TPM broke. Whether the command was executed is unknown.
    Lost {
        /// The operation that failed.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// What answers is no TPM 2.0.
    Nonsense(Malformed),
    /// The TPM refused a command.
    Refused {
        /// The operation that failed.
        doing: &'static str,
        /// What the TPM said.
        code: ResponseCode,
    },
    /// The proof of an answer is wrong: it was changed on its way, or comes from somebody else.
    Forged {
        /// The operation that failed.
        doing: &'static str,
    },
    /// The TPM has another endorsement key than the policy names.
    OtherTpm {
        /// Digest of the key that it has.
        found: String,
        /// Digest of the key that the policy names; `None` if it names none.
        expected: Option<String>,
    },
    /// The index is not what an anchor's is.
    Index {
        /// Its handle.
        index: u32,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The companion file cannot be read or written.
    File {
        /// Where it is.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The file with the index's secret cannot be read or written.
    SecretFile {
        /// Where it is.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The companion file does not have what the index's value stands for.
    Companion {
        /// Where it is.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// An option or a secret is not usable. Says what to write.
    Usage(String),
    /// The anchor holds another stamp than was expected.
    Conflict(Option<Box<Stamp>>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoTpm { place, source } => {
                write!(
                    f,
                    "no TPM can be reached at {place}: {source}; check the path, and that this user may open it"
                )
            }
            Error::Lost { doing, source } => write!(f, "the TPM was lost while {doing}: {source}"),
            Error::Nonsense(what) => write!(f, "what answers is no TPM 2.0: {what}; check the address"),
            Error::Refused { doing, code } => write!(f, "the TPM refused {doing}: {code}"),
            Error::Forged { doing } => write!(
                f,
                "the answer to {doing} is not proven: it was changed between the TPM and here, or something else than the TPM answered"
            ),
            Error::OtherTpm { found, expected: Some(expected) } => write!(
                f,
                "this is another TPM: its endorsement key is {found}, and the policy names {expected}; if the TPM was replaced, the anchor is lost, and the volume's owner sets a new one (reanchor, without the old one)"
            ),
            Error::OtherTpm { found, expected: None } => write!(
                f,
                "the policy does not name the TPM; the key of the one that answers is {found}. Compare it with what the TPM's maker or the cloud says, and name it in the anchor's options: endorsement-key={found}"
            ),
            Error::Index { index, what } => write!(f, "NV index 0x{index:08x}: {what}"),
            Error::File { path, doing, source } => {
                write!(f, "companion file {}: {doing}: {source}", path.display())
            }
            Error::SecretFile { path, doing, source } => {
                write!(f, "the file with the secret, {}: {doing}: {source}", path.display())
            }
            Error::Companion { path, what } => write!(f, "companion file {}: {what}", path.display()),
            Error::Usage(what) => f.write_str(what),
            Error::Conflict(held) => anchor::Error::Conflict(held.clone()).fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NoTpm { source, .. }
            | Error::Lost { source, .. }
            | Error::File { source, .. }
            | Error::SecretFile { source, .. } => Some(source),
            Error::Nonsense(source) => Some(source),
            _ => None,
        }
    }
}

/// What can help against an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Time: the same may work later.
    Wait,
    /// A person; the same may work when the machine is mended.
    Mend,
    /// Nothing: trying again gives the same.
    None,
}

impl Error {
    /// Whether it is worth trying again.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            Error::NoTpm { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => {
                    Remedy::Mend
                }
                _ => Remedy::Wait,
            },
            Error::Lost { .. } => Remedy::Wait,
            Error::File { source, .. } | Error::SecretFile { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Remedy::Mend,
                _ => Remedy::Wait,
            },
            Error::Refused { code, .. } => match code.meaning() {
                Meaning::NoSession | Meaning::Later | Meaning::Memory => Remedy::Wait,
                Meaning::Authorization | Meaning::NoHandle | Meaning::Defined | Meaning::NotUsable => {
                    Remedy::None
                }
                _ => Remedy::Mend,
            },
            Error::Nonsense(_) | Error::Forged { .. } => Remedy::Mend,
            Error::OtherTpm { .. }
            | Error::Index { .. }
            | Error::Companion { .. }
            | Error::Usage(_)
            | Error::Conflict(_) => Remedy::None,
        }
    }

    /// Whether the TPM refused with this meaning.
    pub(crate) fn means(&self, meaning: Meaning) -> bool {
        matches!(self, Error::Refused { code, .. } if code.meaning() == meaning)
    }
}

impl From<Error> for anchor::Error {
    fn from(error: Error) -> anchor::Error {
        match error {
            Error::Conflict(held) => anchor::Error::Conflict(held),
            error if error.remedy() == Remedy::Wait => anchor::Error::Io(error.to_string()),
            error => anchor::Error::Unusable(error.to_string()),
        }
    }
}
