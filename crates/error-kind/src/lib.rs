//! The kinds of failures that users and scripts tell apart, and how an error of a library says which it is.
//!
//! A library implements [`HasKind`] for its error. The programs turn any such error into words and an exit code (`cli::failure`), so neither
//! knows the other.
#![forbid(unsafe_code)]

use std::fmt::Display;

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
    /// This program is wrong: report it. What was flushed before is safe.
    Defect,
}

/// What a caller may ask for instead, of what the library offers. The message says it in words; a program adds how one asks it for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// A volume that takes space as it is written to.
    ThinVolume,
    /// Go on in spite of what was found.
    Force,
    /// See which states there are.
    Survey,
    /// A connection that is encrypted, with certificates for both sides.
    Certificates,
}

/// An error that says what kind of failure it is.
pub trait HasKind: Display {
    /// The kind.
    fn kind(&self) -> Kind;

    /// What to ask for instead, where that may help.
    fn remedy(&self) -> Option<Remedy> {
        None
    }

    /// Whether somebody else has the thing open.
    fn is_in_use(&self) -> bool {
        false
    }
}
