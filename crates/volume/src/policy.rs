//! Attach policy: what the owner knows about the volume, and the disk cannot talk anyone out of.
//!
//! Text in TOML; `docs/disk-format.md`, section "Attach policy".

use std::fmt;

use anchor::Options;
use serde::{Deserialize, Serialize};

use crate::format::BLOCK_SIZE;
use crate::format::header::Header;
use crate::format::protections::{Freshness, SuiteCode, check_protections, on_off};

#[cfg(test)]
mod tests;

/// The version of the policy's format.
pub const VERSION: u32 = 1;
/// Most bytes of a policy.
pub const MAX_SIZE: usize = 64 * 1024;
/// Where the header has grown and the policy has not.
const CUT_SHORT: &str =
    ". If the volume was about to grow, that was cut short: do it again, with `cvmio volume grow`";
/// Most bytes of an anchor's address.
pub const MAX_ANCHOR: usize = 4096;

/// The attach policy of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// Version of this format, 1.
    pub version: u32,
    /// Volume id; 32 hex digits.
    #[serde(with = "hex::serde")]
    pub volume: [u8; 16],
    /// Cipher of data blocks.
    pub suite: SuiteCode,
    /// Whether the host must not be able to read the data.
    pub confidentiality: bool,
    /// Whether the host must not be able to change the data unnoticed.
    pub integrity: bool,
    /// The weakest freshness level that is accepted.
    pub freshness: Freshness,
    /// Logical size in bytes.
    pub size: u64,
    /// Address of the anchor; `None` only with freshness `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<String>,
    /// Whether to create the volume where the store is blank and the anchor was never claimed.
    #[serde(default)]
    pub format_if_blank: bool,
    /// What the anchor needs beside its address, handed on as it is; its kind says what that may be.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    pub anchor_options: Options,
}

/// Why a text is no policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyError {
    /// It is longer than [`MAX_SIZE`].
    TooLong {
        /// How long it is, in bytes.
        bytes: usize,
    },
    /// It is not TOML, or a key is missing, unknown or of the wrong type. Says where.
    Syntax(String),
    /// A value is not allowed.
    Value {
        /// The key.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

impl error_kind::HasKind for PolicyError {
    fn kind(&self) -> error_kind::Kind {
        error_kind::Kind::Policy
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "the policy has {bytes} bytes, and at most {MAX_SIZE} are read")
            }
            Self::Syntax(message) => write!(f, "the policy cannot be read: {}", message.trim_end()),
            Self::Value { field, message } => write!(f, "the policy's `{field}` is not allowed: {message}"),
        }
    }
}

impl std::error::Error for PolicyError {}

/// The disk claims something that the policy does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// The policy's key.
    pub field: &'static str,
    /// What the policy says.
    pub policy: String,
    /// What the disk claims.
    pub disk: String,
    /// What may be behind it, in addition.
    pub hint: &'static str,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the policy says {} = {}, but the disk claims {}; nothing was written. Attach the disk that the \
             policy is for, or ask the volume's owner for a policy that allows this one{}",
            self.field, self.policy, self.disk, self.hint
        )
    }
}

impl std::error::Error for Contradiction {}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// When it is too long, not of the documented form, or not consistent in itself.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        if text.len() > MAX_SIZE {
            return Err(PolicyError::TooLong { bytes: text.len() });
        }
        let policy: Self = toml::from_str(text).map_err(|error| PolicyError::Syntax(error.to_string()))?;
        policy.validate()?;
        Ok(policy)
    }

    /// Writes the policy as text.
    ///
    /// # Errors
    /// When it is one that [`parse`](Self::parse) would refuse.
    pub fn to_toml(&self) -> Result<String, PolicyError> {
        self.validate()?;
        let text = toml::to_string(self).map_err(|error| PolicyError::Syntax(error.to_string()))?;
        if text.len() > MAX_SIZE { Err(PolicyError::TooLong { bytes: text.len() }) } else { Ok(text) }
    }

    fn validate(&self) -> Result<(), PolicyError> {
        let value = |field, message: String| Err(PolicyError::Value { field, message });
        if self.version != VERSION {
            return value("version", format!("it is {}, and this program knows {VERSION}", self.version));
        }
        check_protections(self.suite, self.confidentiality, self.integrity, self.freshness)
            .or_else(|(field, message)| value(field, message))?;
        if self.size == 0 || !self.size.is_multiple_of(BLOCK_SIZE as u64) || i64::try_from(self.size).is_err()
        {
            return value(
                "size",
                format!("{} bytes is not a whole number of blocks of {BLOCK_SIZE}", self.size),
            );
        }
        if self.anchor.is_none() && !self.anchor_options.is_empty() {
            return value("anchor-options", "there is no anchor".into());
        }
        match &self.anchor {
            None if self.freshness != Freshness::Off => {
                value("anchor", format!("freshness `{}` needs one: `anchor = \"file:/...\"`", self.freshness))
            }
            Some(anchor) if anchor.is_empty() || anchor.len() > MAX_ANCHOR => {
                value("anchor", format!("an address has 1 to {MAX_ANCHOR} bytes"))
            }
            Some(anchor) if anchor.chars().any(char::is_control) => {
                value("anchor", "an address has no control characters".into())
            }
            _ => Ok(()),
        }
    }

    /// Compares a header, field by field, with what the owner said. Call it before anything is written.
    ///
    /// Identity, suite and size must be equal; protections and freshness may be stronger than demanded.
    ///
    /// # Errors
    /// Names the first field on which they do not agree.
    pub fn check_header(&self, header: &Header) -> Result<(), Contradiction> {
        let require = |holds: bool, field, policy: &dyn fmt::Display, disk: &dyn fmt::Display| {
            if holds {
                Ok(())
            } else {
                let (policy, disk) = (policy.to_string(), disk.to_string());
                Err(Contradiction { field, policy, disk, hint: "" })
            }
        };
        let ids = (hex::encode(self.volume), hex::encode(header.volume));
        require(self.volume == header.volume, "volume", &ids.0, &ids.1)?;
        require(self.suite == header.suite, "suite", &self.suite, &header.suite)?;
        let size = header.geometry.logical_bytes();
        let cut_short = size > self.size && header.geometry.growths() > 0;
        require(self.size == size, "size", &self.size, &size)
            .map_err(|error| Contradiction { hint: if cut_short { CUT_SHORT } else { "" }, ..error })?;
        for (field, least, claim) in [
            ("confidentiality", self.confidentiality, header.confidentiality),
            ("integrity", self.integrity, header.integrity),
        ] {
            require(claim >= least, field, &on_off(least), &on_off(claim))?;
        }
        require(header.freshness >= self.freshness, "freshness", &self.freshness, &header.freshness)?;
        let anchored = self.anchor.is_some() || header.freshness == Freshness::Off;
        require(
            anchored,
            "anchor",
            &"(none)",
            &format_args!("freshness {}, which needs one", header.freshness),
        )
    }
}
