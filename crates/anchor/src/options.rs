//! What an anchor needs beside its address.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use zeroize::Zeroizing;

/// The policy's table `[anchor-options]`: names and texts, which only the address' scheme understands. Values may be
/// secret: they are wiped from memory when they are dropped, and `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(BTreeMap<String, Zeroizing<String>>);

/// One option that a scheme knows.
#[derive(Debug, Clone, Copy)]
pub struct OptionKey {
    /// Its name in the policy.
    pub name: &'static str,
    /// Whether its value is a secret, which makes the whole policy one.
    pub secret: bool,
    /// What it is for, in a few words.
    pub about: &'static str,
}

impl Options {
    /// The value of an option.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.as_str())
    }

    /// Sets an option.
    pub fn insert(&mut self, name: String, value: String) {
        self.0.insert(name, Zeroizing::new(value));
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Options {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(options: T) -> Options {
        Options(options.into_iter().map(|(name, value)| (name, Zeroizing::new(value))).collect())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Options, D::Error> {
        BTreeMap::<String, String>::deserialize(deserializer).map(Options::from_iter)
    }
}
