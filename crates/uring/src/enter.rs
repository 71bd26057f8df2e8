//! Entering a ring, and why the kernel may not let us.

use std::error::Error;
use std::fmt;
use std::io;

/// The kernel has not done what the ring was entered for. Requests that it has not taken stay in the ring.
#[derive(Debug)]
pub struct EnterError(io::Error);

impl EnterError {
    pub(crate) fn new(error: io::Error) -> Self {
        Self(error)
    }

    /// Whether it may be otherwise in a moment: the kernel is short of memory, or has no room for completions. It is for good otherwise, as
    /// where a sandbox forbids the call.
    #[must_use]
    pub fn passes(&self) -> bool {
        matches!(self.0.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
    }

    /// The error number.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.0.raw_os_error().unwrap_or(libc::EIO)
    }

    /// Whether the call is forbidden to this process.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.errno(), libc::EPERM | libc::EACCES | libc::ENOSYS)
    }
}

impl fmt::Display for EnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_forbidden() {
            true => write!(
                f,
                "the kernel refuses io_uring_enter ({}): allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of \
                 this container or service",
                self.0
            ),
            false => write!(f, "the kernel refuses io_uring_enter: {}", self.0),
        }
    }
}

impl Error for EnterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

impl From<EnterError> for io::Error {
    fn from(error: EnterError) -> Self {
        error.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_forbidden_does_not_pass_and_a_want_of_memory_does() {
        let error = |errno| EnterError::new(io::Error::from_raw_os_error(errno));
        for errno in [libc::EPERM, libc::ENOSYS] {
            let error = error(errno);
            assert!(
                !error.passes() && error.is_forbidden() && error.to_string().contains("seccomp"),
                "{error}"
            );
        }
        assert!(error(libc::EAGAIN).passes() && error(libc::ENOMEM).passes());
        assert!(!error(libc::EBADF).passes() && !error(libc::EBADF).is_forbidden());
    }
}
