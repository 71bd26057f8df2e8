//! Why the service did not do what was asked.

use crate::tls;
use crate::wire::{Position, Refusal, Text, WireError};
use anchor::Stamp;
use std::fmt;
use std::io;
use tls_files::FileError;

/// Why the service did not do what was asked. Each variant begins with the address of the service, where it has one.
#[derive(Debug)]
pub enum Error {
    /// Another stamp is held than was expected.
    Conflict(Option<Box<Stamp>>),
    /// A file with a certificate or a key can't be used.
    Files(FileError),
    /// The certificate and the key don't go together, or can't be used.
    Credentials(rustls::Error),
    /// Nothing answers at the address.
    Unreachable(String, io::Error),
    /// The connection broke while an answer was due. A move may have been done.
    Lost(String, io::Error),
    /// No secure connection could be agreed on.
    Tls(String, rustls::Error),
    /// The server speaks TLS, but not this protocol.
    NotOwner(String),
    /// The answer can't be read.
    Nonsense(String, WireError),
    /// The answer belongs to another question.
    OtherQuestion(String),
    /// The service refuses.
    Refused(String, Refusal, Text),
    /// The service can't answer now. A move may have been done.
    Unavailable(String, Text),
    /// The service's log ended further on before: its database was put back, or exchanged.
    RolledBack(String, Box<(Position, Position)>),
    /// No randomness for a nonce.
    Random,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Conflict(None) => f.write_str("the owner's service holds no stamp, but one was expected"),
            Error::Conflict(Some(held)) => write!(
                f,
                "the owner's service holds another stamp than expected: generation {}, claim {}",
                held.generation, held.claims
            ),
            Error::Files(error) => write!(f, "the credentials for the owner's service: {error}"),
            Error::Credentials(error) => {
                write!(f, "cert-file and key-file are no certificate with its key: {error}")
            }
            Error::Unreachable(at, error) => {
                write!(f, "the owner's service at {at} can't be reached: {error}")
            }
            Error::Lost(at, error) => {
                write!(f, "the connection to the owner's service at {at} broke before the answer: {error}")
            }
            Error::Tls(at, error) => {
                write!(
                    f,
                    "no secure connection to the owner's service at {at}: {} ({error})",
                    tls::meaning(error)
                )
            }
            Error::NotOwner(at) => {
                write!(
                    f,
                    "the server at {at} speaks TLS, but it is no cvmio-owner of this version; check host and port"
                )
            }
            Error::Nonsense(at, error) => write!(f, "the server at {at} answers nonsense: {error}"),
            Error::OtherQuestion(at) => {
                write!(f, "the server at {at} answers another question than was asked")
            }
            Error::Refused(at, refusal, text) => refused(f, at, *refusal, text),
            Error::Unavailable(at, text) => write!(f, "the owner's service at {at} can't answer now: {text}"),
            Error::RolledBack(at, positions) => rolled_back(f, at, &positions.0, &positions.1),
            Error::Random => f.write_str("the system gives no random bytes"),
        }
    }
}

fn refused(f: &mut fmt::Formatter<'_>, at: &str, refusal: Refusal, text: &Text) -> fmt::Result {
    let what = match refusal {
        Refusal::NotAllowed => {
            "has no such volume for this client; its owner must run `cvmio-owner volume add` or `allow`"
        }
        Refusal::Retired => "has retired this volume: its stamp does not move any more",
        Refusal::Superseded => "refused an old request, since this client has asked on a newer connection",
        Refusal::OtherVolume => "holds the stamp of another volume under this name; use another name",
        Refusal::BadRequest => "can't read the request; are client and service of the same version?",
    };
    write!(f, "the owner's service at {at} {what} ({text})")
}

fn rolled_back(f: &mut fmt::Formatter<'_>, at: &str, was: &Position, now: &Position) -> fmt::Result {
    if was.database != now.database {
        return write!(
            f,
            "the owner's service at {at} has another database than before; its disk was exchanged"
        );
    }
    write!(
        f,
        "the database of the owner's service at {at} was put back: its log had {} entries, and now it has {}{}",
        was.number,
        now.number,
        if was.number == now.number { " others" } else { "" }
    )
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Files(error) => Some(error),
            Error::Credentials(error) | Error::Tls(_, error) => Some(error),
            Error::Unreachable(_, error) | Error::Lost(_, error) => Some(error),
            Error::Nonsense(_, error) => Some(error),
            _ => None,
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Error {
        Error::Files(error)
    }
}
