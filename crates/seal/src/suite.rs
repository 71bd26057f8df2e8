//! Cipher suites, and how data blocks are protected with them.

use std::fmt;
use std::str::FromStr;

/// The cipher of a volume. The discriminants are the codes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-256 in Galois/Counter Mode, NIST SP 800-38D.
    Aes256Gcm = 1,
    /// AEGIS-128X2 (128-bit key), draft-irtf-cfrg-aegis-aead.
    Aegis128x2 = 2,
    /// AEGIS-256X2 (256-bit key), draft-irtf-cfrg-aegis-aead.
    Aegis256x2 = 3,
    /// AES-256 in XTS mode, IEEE 1619: encrypts, but authenticates nothing. For data only; what must be
    /// authenticated is sealed with AES-256-GCM.
    Aes256Xts = 4,
}

/// A suite or a mode that does not exist. The message says what does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// No suite has this name.
    UnknownSuite(String),
    /// No suite has this code on disk.
    UnknownSuiteCode(u8),
    /// `aes-256-xts` was asked for integrity.
    XtsAuthenticatesNothing,
    /// Confidentiality without integrity was asked of an AEAD suite.
    ConfidentialityNeedsXts(Suite),
    /// Integrity without confidentiality was asked of a suite that has no plain MAC here.
    IntegrityNeedsGcm(Suite),
    /// Neither was asked for, of `aes-256-xts`.
    PlainNeedsAead,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::UnknownSuite(name) => {
                write!(f, "there is no cipher suite `{name}`; choose one of ")?;
                for (i, suite) in Suite::ALL.into_iter().enumerate() {
                    write!(f, "{}`{suite}`", if i == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Error::UnknownSuiteCode(code) => write!(
                f,
                "cipher suite code {code} is unknown: the volume is damaged, or a newer version made it"
            ),
            Error::XtsAuthenticatesNothing => write!(
                f,
                "`aes-256-xts` authenticates nothing: switch integrity off, or choose `aes-256-gcm`, \
                 `aegis-128x2` or `aegis-256x2`"
            ),
            Error::ConfidentialityNeedsXts(suite) => write!(
                f,
                "`{suite}` without integrity is not offered: choose `aes-256-xts`, or leave integrity on"
            ),
            Error::IntegrityNeedsGcm(suite) => write!(
                f,
                "`{suite}` can't protect integrity alone: choose `aes-256-gcm`, or leave confidentiality on"
            ),
            Error::PlainNeedsAead => write!(
                f,
                "with neither confidentiality nor integrity of data there is nothing for `aes-256-xts` to \
                 encrypt: choose the suite that seals the metadata, `aes-256-gcm`, `aegis-128x2` or \
                 `aegis-256x2`"
            ),
        }
    }
}

impl std::error::Error for Error {}

impl Suite {
    /// Every suite.
    pub const ALL: [Suite; 4] = [Suite::Aes256Gcm, Suite::Aegis128x2, Suite::Aegis256x2, Suite::Aes256Xts];

    /// The name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes256Gcm => "aes-256-gcm",
            Suite::Aegis128x2 => "aegis-128x2",
            Suite::Aegis256x2 => "aegis-256x2",
            Suite::Aes256Xts => "aes-256-xts",
        }
    }

    /// The code on disk.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The suite with this code on disk.
    ///
    /// # Errors
    /// [`Error::UnknownSuiteCode`].
    pub fn from_code(code: u8) -> Result<Suite, Error> {
        Suite::ALL.into_iter().find(|suite| suite.code() == code).ok_or(Error::UnknownSuiteCode(code))
    }
}

impl TryFrom<u8> for Suite {
    type Error = Error;

    fn try_from(code: u8) -> Result<Suite, Error> {
        Suite::from_code(code)
    }
}

impl From<Suite> for u8 {
    fn from(suite: Suite) -> u8 {
        suite.code()
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Suite {
    type Err = Error;

    fn from_str(name: &str) -> Result<Suite, Error> {
        Suite::ALL
            .into_iter()
            .find(|suite| suite.name() == name)
            .ok_or_else(|| Error::UnknownSuite(name.to_owned()))
    }
}

/// How data blocks are protected. Metadata is authenticated in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataMode {
    /// Confidentiality and integrity: sealed with the suite, an AEAD.
    Aead,
    /// Confidentiality only: AES-256-XTS, the tag is all zero.
    Xts,
    /// Integrity only: plaintext with an AES-256-GMAC tag.
    Gmac,
    /// Neither: plaintext, the tag is all zero.
    Plain,
}

impl DataMode {
    /// The mode that gives just these guarantees with `suite`.
    ///
    /// # Errors
    /// If the suite can't; the message says what to choose instead.
    pub fn new(suite: Suite, confidentiality: bool, integrity: bool) -> Result<DataMode, Error> {
        match (confidentiality, integrity, suite) {
            (true, true, Suite::Aes256Xts) | (false, true, Suite::Aes256Xts) => {
                Err(Error::XtsAuthenticatesNothing)
            }
            (true, true, _) => Ok(DataMode::Aead),
            (true, false, Suite::Aes256Xts) => Ok(DataMode::Xts),
            (true, false, _) => Err(Error::ConfidentialityNeedsXts(suite)),
            (false, true, Suite::Aes256Gcm) => Ok(DataMode::Gmac),
            (false, true, _) => Err(Error::IntegrityNeedsGcm(suite)),
            (false, false, Suite::Aes256Xts) => Err(Error::PlainNeedsAead),
            (false, false, _) => Ok(DataMode::Plain),
        }
    }

    /// Whether the host can't read data.
    pub const fn confidentiality(self) -> bool {
        matches!(self, DataMode::Aead | DataMode::Xts)
    }

    /// Whether changed data is found out.
    pub const fn integrity(self) -> bool {
        matches!(self, DataMode::Aead | DataMode::Gmac)
    }

    /// Part of the label that a data key is derived with.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            DataMode::Aead => "aead",
            DataMode::Xts => "xts",
            DataMode::Gmac => "gmac",
            DataMode::Plain => "plain",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_go_there_and_back() {
        for suite in Suite::ALL {
            assert_eq!(suite.to_string().parse(), Ok(suite));
            assert_eq!(Suite::from_code(suite.code()), Ok(suite));
        }
        assert_eq!(Suite::ALL.map(Suite::code), [1, 2, 3, 4]);
        assert_eq!(Suite::from_code(0), Err(Error::UnknownSuiteCode(0)));
        assert_eq!(Suite::from_code(5), Err(Error::UnknownSuiteCode(5)));
        let error = "rot13".parse::<Suite>().unwrap_err();
        assert!(error.to_string().contains("`aegis-256x2`"), "{error}");
    }

    #[test]
    fn every_mode_gives_what_was_asked_or_is_refused() {
        let mut refused = 0;
        for suite in Suite::ALL {
            for (confidentiality, integrity) in [(false, false), (false, true), (true, false), (true, true)] {
                match DataMode::new(suite, confidentiality, integrity) {
                    Ok(mode) => {
                        assert_eq!(mode.confidentiality(), confidentiality);
                        assert_eq!(mode.integrity(), integrity);
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("choose"), "no way out named: {error}");
                    }
                }
            }
        }
        assert_eq!(refused, 8);
        assert_eq!(DataMode::new(Suite::Aes256Gcm, true, true), Ok(DataMode::Aead));
        assert_eq!(DataMode::new(Suite::Aes256Xts, true, false), Ok(DataMode::Xts));
        assert_eq!(DataMode::new(Suite::Aes256Gcm, false, true), Ok(DataMode::Gmac));
        assert_eq!(DataMode::new(Suite::Aegis128x2, false, false), Ok(DataMode::Plain));
    }
}
