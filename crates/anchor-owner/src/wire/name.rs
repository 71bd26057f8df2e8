//! Names of volumes at the service.

use std::fmt;

/// Bytes of a name, zero-padded, in a message and in the audit log.
pub const NAME_SIZE: usize = 64;

/// The name of a volume at the service: 1 to 64 of `a-z`, `0-9`, `.`, `_` and `-`, beginning with a letter or a digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Why a text is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameError {
    /// It is empty.
    Empty,
    /// It is longer than [`NAME_SIZE`].
    Long,
    /// It has another character, or begins with `.`, `_` or `-`.
    Character,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameError::Empty => f.write_str("a name has at least one character"),
            NameError::Long => write!(f, "a name has at most {NAME_SIZE} characters"),
            NameError::Character => f.write_str(
                "a name has small letters, digits, '.', '_' and '-' only, and begins with a letter or a digit",
            ),
        }
    }
}

impl std::error::Error for NameError {}

impl Name {
    /// The name that `text` is.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn new(text: &str) -> Result<Name, NameError> {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let Some(first) = text.bytes().next() else { return Err(NameError::Empty) };
        if text.len() > NAME_SIZE {
            return Err(NameError::Long);
        }
        let fits = alphanumeric(first)
            && text.bytes().all(|byte| alphanumeric(byte) || matches!(byte, b'.' | b'_' | b'-'));
        if !fits {
            return Err(NameError::Character);
        }
        Ok(Name(text.to_owned()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name, zero-padded.
    #[must_use]
    pub fn padded(&self) -> [u8; NAME_SIZE] {
        let mut out = [0; NAME_SIZE];
        out[..self.0.len()].copy_from_slice(self.0.as_bytes());
        out
    }

    /// Reads what [`Name::padded`] wrote.
    ///
    /// # Errors
    /// See [`NameError`]; a zero within the name is a character that it can't have.
    pub fn from_padded(bytes: &[u8; NAME_SIZE]) -> Result<Name, NameError> {
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| NameError::Character)?;
        Name::new(text)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
