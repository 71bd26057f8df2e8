//! What a volume protects, how strongly, and with which cipher: named alike in header, policy and on the
//! command line.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A word that is none of those which are known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: String,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no {} `{}`; choose one of {}", self.kind, self.name.escape_debug(), self.known)
    }
}

impl std::error::Error for UnknownName {}

/// An enum of which each variant has a number on the disk and a name for people.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident: $kind:literal $(, derive($($trait:ident),*))? {
        $($(#[$variant_doc:meta])* $variant:ident = $code:literal $name:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize $($(, $trait)*)?)]
        #[serde(into = "&'static str", try_from = "String")]
        pub enum $type {
            $($(#[$variant_doc])* $variant = $code,)*
        }

        impl $type {
            /// All there are, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The number on the disk.
            pub fn code(self) -> u8 {
                match self { $(Self::$variant => $code,)* }
            }

            /// What a number on the disk means.
            pub fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// The name in a policy and on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|known| known.name() == name).ok_or_else(|| UnknownName {
                    kind: $kind,
                    name: name.into(),
                    known: Self::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", "),
                })
            }
        }

        impl From<$type> for &'static str {
            fn from(value: $type) -> Self {
                value.name()
            }
        }

        impl TryFrom<String> for $type {
            type Error = UnknownName;

            fn try_from(name: String) -> Result<Self, UnknownName> {
                name.parse()
            }
        }
    };
}

named! {
    /// The cipher of data blocks.
    SuiteCode: "suite" {
        /// AES-256 in Galois/counter mode.
        Aes256Gcm = 1 "aes-256-gcm",
        /// AEGIS-128X2.
        Aegis128x2 = 2 "aegis-128x2",
        /// AEGIS-256X2.
        Aegis256x2 = 3 "aegis-256x2",
        /// AES-256-XTS: confidentiality without integrity.
        Aes256Xts = 4 "aes-256-xts",
    }
}

named! {
    /// When the anchor moves; ordered by strength.
    Freshness: "freshness level", derive(PartialOrd, Ord) {
        /// Never: integrity within a session, nothing across restarts.
        Off = 0 "off",
        /// When the owner commits; recovery lands exactly there.
        Transaction = 1 "transaction",
        /// In the background, within bounds of time, commits and bytes.
        Interval = 2 "interval",
        /// Before a flush or a FUA write completes.
        Strict = 3 "strict",
        /// Before any write completes.
        Write = 4 "write",
    }
}

named! {
    /// How much of the promised space there is from the start.
    Provision: "provision" {
        /// What the store happens to have.
        Thin = 0 "thin",
        /// All of it: an overwrite never runs out of space.
        Full = 1 "full",
    }
}

impl SuiteCode {
    /// What seals with it.
    #[must_use]
    pub fn suite(self) -> seal::Suite {
        match self {
            Self::Aes256Gcm => seal::Suite::Aes256Gcm,
            Self::Aegis128x2 => seal::Suite::Aegis128x2,
            Self::Aegis256x2 => seal::Suite::Aegis256x2,
            Self::Aes256Xts => seal::Suite::Aes256Xts,
        }
    }
}

/// Checks that protections, freshness and suite go together; `Err` names the field that does not fit, and why.
///
/// # Errors
/// Freshness needs integrity. `aes-256-xts` is for confidentiality without integrity, and nothing else is.
pub fn check_protections(
    suite: SuiteCode,
    confidentiality: bool,
    integrity: bool,
    freshness: Freshness,
) -> Result<(), (&'static str, String)> {
    if freshness != Freshness::Off && !integrity {
        return Err((
            "freshness",
            format!("`{freshness}` needs integrity: without it nothing says what is old"),
        ));
    }
    let unauthenticated = confidentiality && !integrity;
    if unauthenticated != (suite == SuiteCode::Aes256Xts) {
        let message = match unauthenticated {
            true => format!(
                "with confidentiality and without integrity it must be aes-256-xts, and it is {suite}"
            ),
            false => format!(
                "{suite} is for confidentiality without integrity; with confidentiality {} and integrity {} choose aes-256-gcm or an AEGIS suite",
                on_off(confidentiality),
                on_off(integrity)
            ),
        };
        return Err(("suite", message));
    }
    if integrity && !confidentiality && suite != SuiteCode::Aes256Gcm {
        return Err(("suite", format!("it is {suite}, and must be aes-256-gcm with confidentiality off")));
    }
    Ok(())
}

pub(crate) fn on_off(protected: bool) -> &'static str {
    if protected { "on" } else { "off" }
}
