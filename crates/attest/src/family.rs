//! Families of chips: each has a root of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A family of chips with one root key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// EPYC 7003.
    Milan,
    /// EPYC 9004, 8004 (Bergamo and Siena share Genoa's root).
    Genoa,
    /// EPYC 9005.
    Turin,
}

impl Family {
    /// As AMD's certificates write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Milan => "Milan",
            Self::Genoa => "Genoa",
            Self::Turin => "Turin",
        }
    }

    /// The family of a processor by what CPUID says: family and model, both with their extended parts.
    #[must_use]
    pub fn of_processor(family: u8, model: u8) -> Option<Self> {
        match (family, model) {
            (0x19, 0x00..=0x0f) => Some(Self::Milan),
            (0x19, 0x10..=0x1f | 0xa0..=0xaf) => Some(Self::Genoa),
            (0x1a, 0x00..=0x1f) => Some(Self::Turin),
            _ => None,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
