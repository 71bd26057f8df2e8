//! What a store says when it fails.

use std::fmt;
use std::io;

/// An operation that the host failed, with what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What sort of failure it is, to decide by.
    pub kind: ErrorKind,
    /// What was attempted: `read`, `write`, `flush`, `discard`, `open`.
    pub operation: &'static str,
    /// The store, as the user named it.
    pub store: String,
    /// First block of the operation, where it has one.
    pub block: Option<u64>,
    /// The operating system's error number (`EIO`, `ENOSPC`, ...), where there is one.
    pub errno: Option<i32>,
    /// What happened, in words, and what to do about it.
    pub message: String,
}

/// The sorts of failure that a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is nothing under this name.
    NotFound,
    /// Something is there already that was to be created.
    Exists,
    /// Somebody else has the device or image open, or it is mounted.
    InUse,
    /// The name is that of a directory.
    Directory,
    /// The thing cannot do what is asked, such as direct I/O.
    Unsupported,
    /// This user may not.
    PermissionDenied,
    /// The store was opened for reading only.
    ReadOnly,
    /// There is not even one block.
    TooSmall,
    /// The operation reaches beyond the end, or over no block at all.
    OutOfRange,
    /// The medium under the store is full.
    NoSpace,
    /// The kernel forbids a facility that is needed, such as `io_uring`.
    Forbidden,
    /// The host or its disk failed; the state of what was asked is unknown.
    Io,
}

impl Error {
    /// An error of `kind` without block and error number.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        operation: &'static str,
        store: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let (store, message) = (store.into(), message.into());
        Self { kind, operation, store, block: None, errno: None, message }
    }

    /// What the operating system said, in its words, with the kind that follows from it.
    #[must_use]
    pub fn from_errno(errno: i32, operation: &'static str, store: impl Into<String>) -> Self {
        let message = io::Error::from_raw_os_error(errno).to_string();
        // A write behind a limit on the size of files (`ulimit -f`): no room that is given back makes it succeed, so nobody may wait for some.
        let kind = if errno == libc::EFBIG && operation == "write" { ErrorKind::Io } else { kind_of(errno) };
        Self { errno: Some(errno), ..Self::new(kind, operation, store, message) }
    }

    /// The same, with the first block of the operation.
    #[must_use]
    pub fn at(self, block: u64) -> Self {
        Self { block: Some(block), ..self }
    }

    /// An operation on `blocks` blocks from `block` on that a store of `size` blocks cannot have.
    #[must_use]
    pub fn out_of_range(operation: &'static str, store: String, block: u64, blocks: u64, size: u64) -> Self {
        let message = format!("{blocks} blocks from here on are not inside its {size} blocks");
        Self::new(ErrorKind::OutOfRange, operation, store, message).at(block)
    }
}

fn kind_of(errno: i32) -> ErrorKind {
    match errno {
        libc::ENOENT | libc::ENXIO | libc::ENODEV | libc::ENOTDIR => ErrorKind::NotFound,
        libc::EEXIST => ErrorKind::Exists,
        libc::EBUSY | libc::ETXTBSY => ErrorKind::InUse,
        libc::EISDIR => ErrorKind::Directory,
        libc::EOPNOTSUPP => ErrorKind::Unsupported,
        libc::EPERM | libc::EACCES => ErrorKind::PermissionDenied,
        libc::EROFS => ErrorKind::ReadOnly,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} failed", self.store, self.operation)?;
        if let Some(block) = self.block {
            write!(f, " at block {block}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Error {}

impl error_kind::HasKind for Error {
    fn kind(&self) -> error_kind::Kind {
        match self.kind {
            ErrorKind::NotFound
            | ErrorKind::Exists
            | ErrorKind::InUse
            | ErrorKind::Directory
            | ErrorKind::Unsupported
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnly
            | ErrorKind::TooSmall => error_kind::Kind::Usage,
            ErrorKind::OutOfRange | ErrorKind::NoSpace | ErrorKind::Forbidden | ErrorKind::Io => {
                error_kind::Kind::Io
            }
        }
    }

    fn is_in_use(&self) -> bool {
        self.kind == ErrorKind::InUse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_where_and_why() {
        let error = Error::from_errno(libc::ENOSPC, "write", "disk.img").at(7);
        assert_eq!(error.kind, ErrorKind::NoSpace);
        assert_eq!(Error::from_errno(libc::EFBIG, "write", "disk.img").kind, ErrorKind::Io);
        assert_eq!(Error::from_errno(libc::EFBIG, "open", "disk.img").kind, ErrorKind::NoSpace);
        assert_eq!(
            error.to_string(),
            "disk.img: write failed at block 7: No space left on device (os error 28)"
        );
    }
}
