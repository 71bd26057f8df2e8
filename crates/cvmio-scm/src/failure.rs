//! Failures, with the exit codes of `cvmio`.

use std::fmt;

const USAGE: u8 = 2;
const IO: u8 = 3;
const CORRUPT: u8 = 4;
const LOCKED: u8 = 10;

/// What went wrong, for the user, and the exit code that says so to a script.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Asked for what cannot be done; nothing was changed.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure { code: USAGE, message: message.to_string() }
    }

    /// Something that this needs does not work.
    pub fn io(message: impl fmt::Display) -> Failure {
        Failure { code: IO, message: message.to_string() }
    }

    /// Pages or the hidden part are not what was written.
    pub fn corrupt(message: impl fmt::Display) -> Failure {
        Failure { code: CORRUPT, message: message.to_string() }
    }

    /// The same failure in other words.
    pub fn with_message(self, message: String) -> Failure {
        Failure { message, ..self }
    }

    pub fn code(&self) -> u8 {
        self.code
    }
}

impl From<scm::Error> for Failure {
    fn from(error: scm::Error) -> Failure {
        let code = match &error {
            scm::Error::Usage(_) => USAGE,
            scm::Error::Io { .. } | scm::Error::Medium(_) | scm::Error::Stopped => IO,
            scm::Error::CorruptPage { .. } | scm::Error::CorruptRegion(_) => CORRUPT,
            scm::Error::Busy(_) | scm::Error::Key(_) => LOCKED,
        };
        Failure { code, message: error.to_string() }
    }
}

impl From<export::Error> for Failure {
    fn from(error: export::Error) -> Failure {
        match error {
            export::Error::Usage(message) => Failure::usage(message),
            export::Error::Busy(message) => Failure { code: LOCKED, message },
            error @ export::Error::Exposed(_) => Failure::usage(error),
            error @ export::Error::System { .. } => Failure::io(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
