//! Addresses of anchors, as they stand in an attach policy.

use crate::{Anchor, Error, FileAnchor};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Every scheme that this build can open, with its form; for error messages.
const KNOWN: &str = "file:/absolute/path";

/// Where an anchor lives.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// `file:/path`: a [`FileAnchor`] at this absolute path.
    File(PathBuf),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(Error::Unusable(format!("anchor address {text:?} names no scheme: write {KNOWN}")));
        };
        match scheme {
            "file" if rest.contains('\0') => {
                Err(Error::Unusable(format!("anchor address {text:?} has a NUL byte in its path")))
            }
            // What a relative path means depends on who attaches from where; a policy must not.
            "file" if !Path::new(rest).is_absolute() => Err(Error::Unusable(format!(
                "anchor address {text:?} has a relative path: write the whole path, file:/..."
            ))),
            "file" => Ok(Address::File(PathBuf::from(rest))),
            other => Err(Error::Unusable(format!(
                "anchor address {text:?} has an unknown scheme {other:?}; known are: {KNOWN}"
            ))),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Opens the anchor at an address such as `file:/path`.
///
/// # Errors
/// [`Error::Unusable`] for an address that can't be read, or with nothing usable behind it.
pub fn open_address(address: &str) -> Result<Arc<dyn Anchor>, Error> {
    match address.parse()? {
        Address::File(path) => Ok(Arc::new(FileAnchor::open(&path)?)),
    }
}

/// The same for reading only: the anchor never moves through it.
///
/// # Errors
/// As [`open_address`].
pub fn open_address_read_only(address: &str) -> Result<Arc<dyn Anchor>, Error> {
    match address.parse()? {
        Address::File(path) => Ok(Arc::new(FileAnchor::open_read_only(&path)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(text: &str) -> String {
        match text.parse::<Address>() {
            Err(Error::Unusable(why)) => why,
            other => panic!("{text:?} gave {other:?}"),
        }
    }

    #[test]
    fn addresses_are_read_and_written() {
        let address: Address = "file:/var/lib/cvmio/a:b".parse().unwrap();
        assert_eq!(address, Address::File("/var/lib/cvmio/a:b".into()));
        assert_eq!(address.to_string(), "file:/var/lib/cvmio/a:b");
    }

    #[test]
    fn refusals_say_what_to_write() {
        assert!(refusal("/var/anchor").contains("names no scheme: write file:/"));
        assert!(refusal("").contains("names no scheme"));
        assert!(refusal("file:anchor").contains("relative path"));
        assert!(refusal("file:").contains("relative path"));
        assert!(refusal("file:/a\0b").contains("NUL"));
        let unknown = refusal("ftp:/x");
        assert!(unknown.contains("\"ftp\"") && unknown.contains("known are: file:"), "{unknown}");
    }

    #[test]
    fn an_address_opens_its_anchor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("anchor");
        let address = format!("file:{}", path.display());
        assert!(matches!(open_address(&address), Err(Error::Unusable(_))));
        FileAnchor::create(&path).unwrap();
        assert_eq!(open_address(&address).unwrap().address(), address);
    }

    proptest! {
        #[test]
        fn what_parses_prints_the_same(text in "(file|FILE|f)?:?/?\\PC{0,12}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string(), text);
            }
        }
    }
}
