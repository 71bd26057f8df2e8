//! Why nothing was released.

use std::fmt;
use std::io;

use error_kind::{HasKind, Kind};

/// Why nothing was released.
#[derive(Debug)]
pub enum Error {
    /// The address is none; what is wrong with it.
    Address(String),
    /// The key broker cannot be reached, or the connection broke.
    Away(String, io::Error),
    /// TLS was refused, by one side or the other.
    Tls(String, rustls::Error),
    /// The key broker says no: to which step, the HTTP status, and its words.
    Refused {
        /// The step.
        step: &'static str,
        /// The HTTP status.
        status: u16,
        /// The problem's name, where it says one.
        problem: String,
        /// Its words.
        detail: String,
    },
    /// What came is no message of the protocol: at which step, and what is wrong with it.
    Malformed(&'static str, String),
    /// What came was not encrypted for this guest, or was changed on the way.
    NotForUs,
    /// The evidence cannot be sent by this protocol; why.
    Evidence(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(why) => f.write_str(why),
            Self::Away(broker, error) => {
                write!(f, "the key broker {broker} does not answer: {error}; nothing was released")
            }
            Self::Tls(broker, error) => {
                write!(f, "the key broker {broker} is not trusted, or does not speak TLS 1.3: {error}; nothing was released")
            }
            Self::Refused { step, status, problem, detail } => {
                write!(f, "the key broker refused the {step} (HTTP {status}")?;
                if !problem.is_empty() {
                    write!(f, ", {problem}")?;
                }
                write!(f, "): {detail}")
            }
            Self::Malformed(step, why) => {
                write!(f, "the key broker's answer to the {step} is none of KBS {}: {why}", crate::VERSION)
            }
            Self::NotForUs => f.write_str(
                "what the key broker released was not encrypted for this guest's key, or was changed on the way",
            ),
            Self::Evidence(why) => write!(f, "this evidence cannot be sent to a key broker: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Away(_, error) => Some(error),
            Self::Tls(_, error) => Some(error),
            _ => None,
        }
    }
}

impl HasKind for Error {
    fn kind(&self) -> Kind {
        match self {
            Self::Address(_) => Kind::Usage,
            Self::Away(..) | Self::Tls(..) | Self::Malformed(..) | Self::Evidence(_) => Kind::Io,
            Self::Refused { .. } => Kind::Policy,
            Self::NotForUs => Kind::Corrupt,
        }
    }
}
