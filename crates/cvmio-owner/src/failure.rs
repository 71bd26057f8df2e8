//! Failures of the command line, each with its exit code: those of `cvmio`.

use owner::Error;
use std::fmt;

/// What went wrong, in words for people.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Asked for what can't be done; nothing was changed.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure { code: 2, message: message.to_string() }
    }

    /// A file can't be read or written.
    pub fn io(message: impl fmt::Display) -> Failure {
        Failure { code: 3, message: message.to_string() }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::Defect(_) => 1,
            Error::Usage(_) | Error::InUse(_) | Error::Files(_) | Error::Tls(_) | Error::Exposed(..) => 2,
            Error::Database(..) | Error::Io(..) | Error::Certificate(_) => 3,
            Error::Fault(_) | Error::Damaged(..) => 4,
            Error::RolledBack(_) => 5,
            Error::Fenced(_) => 7,
            Error::Root(_) => 8,
        };
        Failure { code, message: error.to_string() }
    }
}
