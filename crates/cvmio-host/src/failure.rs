//! Failures, with the exit codes of `cvmio`.

use std::fmt;

const USAGE: u8 = 2;
const IO: u8 = 3;
const LOCKED: u8 = 10;

/// What went wrong, for the user, and the exit code that says so to a script.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Asked for what cannot be done; nothing was changed.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { code: USAGE, message: message.to_string() }
    }

    /// Something that this needs does not work.
    pub fn io(message: impl fmt::Display) -> Self {
        Self { code: IO, message: message.to_string() }
    }

    pub fn code(&self) -> u8 {
        self.code
    }
}

impl From<host::StartError> for Failure {
    fn from(error: host::StartError) -> Self {
        let code = match &error {
            host::StartError::Settings(_) | host::StartError::Core { .. } => USAGE,
            host::StartError::SocketInUse(_) => LOCKED,
            _ => IO,
        };
        Self { code, message: error.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
