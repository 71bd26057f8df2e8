//! Addresses of anchors, as they stand in an attach policy: `SCHEME:REST`.

use crate::Error;
use std::fmt;
use std::path::Path;

/// Where an anchor lives: the name of a scheme, and what that scheme reads. Parsing checks the form only; whether
/// the rest means something is the scheme's to say ([`Scheme::check`](crate::Scheme)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    text: String,
    colon: usize,
}

impl Address {
    /// Reads an address. `None` if it has no scheme in front.
    #[must_use]
    pub fn parse(text: &str) -> Option<Address> {
        let colon = text.find(':')?;
        Some(Address { text: text.to_owned(), colon })
    }

    /// The address of a [`FileAnchor`](crate::FileAnchor).
    #[must_use]
    pub fn file(path: &Path) -> Address {
        Address { text: format!("file:{}", path.display()), colon: "file".len() }
    }

    /// What stands before the first colon.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.text[..self.colon]
    }

    /// What stands behind it.
    #[must_use]
    pub fn rest(&self) -> &str {
        &self.text[self.colon + 1..]
    }

    /// An [`Error::Unusable`] about this address.
    #[must_use]
    pub fn unusable(&self, why: impl fmt::Display) -> Error {
        Error::Unusable(format!("anchor {self}: {why}"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
