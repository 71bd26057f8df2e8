//! Why a machine cannot be started.

use std::fmt;
use std::io;
use std::path::PathBuf;

use error_kind::{HasKind, Kind};

use crate::Unavailable;

/// Why a machine cannot be started.
#[derive(Debug)]
pub enum Error {
    /// This machine has no such guests.
    Unavailable(Unavailable),
    /// The firmware would not check the hashes of kernel, initramfs and command line.
    NoHashTable(PathBuf),
    /// A file is not there, or cannot be read.
    Missing(PathBuf, io::Error),
    /// QEMU cannot be started.
    Qemu(PathBuf, io::Error),
    /// A log cannot be written.
    Log(PathBuf, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(reason) => reason.fmt(f),
            Self::NoHashTable(path) => write!(
                f,
                "{}: this firmware has no table for the hashes of kernel, initramfs and command line, so evidence would say nothing \
                 about them; take an OVMF that was built as AmdSevX64",
                path.display()
            ),
            Self::Missing(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Qemu(path, error) => write!(
                f,
                "{} cannot be started: {error}; install QEMU (Debian's package qemu-system-x86), or name another",
                path.display()
            ),
            Self::Log(path, error) => write!(f, "{} cannot be written: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unavailable(_) | Self::NoHashTable(_) => None,
            Self::Missing(_, error) | Self::Qemu(_, error) | Self::Log(_, error) => Some(error),
        }
    }
}

impl HasKind for Error {
    fn kind(&self) -> Kind {
        match self {
            Self::Log(..) => Kind::Io,
            Self::Unavailable(_) | Self::NoHashTable(_) | Self::Missing(..) | Self::Qemu(..) => Kind::Usage,
        }
    }
}
