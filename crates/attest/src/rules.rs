//! Parts that the policies of all platforms share: errors, and lists of values that are accepted.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most bytes of a policy.
pub const MAX_POLICY: usize = 256 * 1024;

/// Why a text is no evidence policy.
#[derive(Debug)]
pub enum PolicyError {
    /// It is longer than [`MAX_POLICY`]; its size in bytes.
    TooLong(usize),
    /// It is not TOML, or a key is missing, unknown or of the wrong type. Says where.
    Syntax(Box<toml::de::Error>),
    /// A value is not allowed.
    Value {
        /// The key, with its table.
        key: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

impl PolicyError {
    pub(crate) fn value(key: &'static str, message: impl Into<String>) -> Self {
        Self::Value { key, message: message.into() }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(size) => {
                write!(f, "the evidence policy has {size} bytes, and at most {MAX_POLICY} are read")
            }
            Self::Syntax(error) => write!(f, "this is no evidence policy: {}", error.to_string().trim_end()),
            Self::Value { key, message } => write!(f, "the evidence policy's `{key}` {message}"),
        }
    }
}

impl std::error::Error for PolicyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Syntax(error) => Some(error),
            Self::TooLong(_) | Self::Value { .. } => None,
        }
    }
}

/// Names of features that must be on, and of those that must be off.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Features {
    /// Must be on.
    #[serde(default)]
    pub require: Vec<String>,
    /// Must be off.
    #[serde(default)]
    pub refuse: Vec<String>,
}

impl Features {
    pub(crate) fn check(&self, known: &[(&str, u64)], key: &'static str) -> Result<(), PolicyError> {
        for name in self.require.iter().chain(&self.refuse) {
            if !known.iter().any(|(known, _)| known == name) {
                let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                let message = format!("names {name:?}; known are {}", names.join(", "));
                return Err(PolicyError::value(key, message));
            }
        }
        match self.require.iter().find(|name| self.refuse.contains(name)) {
            Some(name) => Err(PolicyError::value(key, format!("requires {name:?} and refuses it"))),
            None => Ok(()),
        }
    }

    /// What is wrong with `bits`, in words.
    pub(crate) fn complaint(&self, bits: u64, known: &[(&str, u64)]) -> Option<String> {
        let mask = |name: &String| known.iter().find(|(known, _)| known == name).map_or(0, |(_, mask)| *mask);
        let off =
            self.require.iter().filter(|name| bits & mask(name) == 0).map(|name| format!("{name} is off"));
        let on = self.refuse.iter().filter(|name| bits & mask(name) != 0).map(|name| format!("{name} is on"));
        let all: Vec<String> = off.chain(on).collect();
        if all.is_empty() { None } else { Some(all.join(", ")) }
    }
}

/// A list that says which values are accepted, if it is there at all, must name one.
pub(crate) fn not_empty<T>(list: &[T], key: &'static str) -> Result<(), PolicyError> {
    if list.is_empty() {
        Err(PolicyError::value(key, "names nothing, so nothing could pass"))
    } else {
        Ok(())
    }
}

/// Whether a value is among those that a list names; a list that is not there names all.
pub(crate) fn accepts<T: PartialEq>(list: Option<&Vec<T>>, value: &T) -> bool {
    list.is_none_or(|list| list.contains(value))
}
