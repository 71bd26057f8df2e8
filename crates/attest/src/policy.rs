//! The evidence policy: which machines the owner trusts. Text in TOML; `docs/attestation.md` has each key, `policy.schema.json` its schema.

use serde::{Deserialize, Serialize};

use crate::rules::{MAX_POLICY, PolicyError};
use crate::{simulated, snp, tdx};

/// The version of the policy's format.
const VERSION: u32 = 1;

/// Which machines the owner trusts. A platform without a table of its own is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// Version of this format, 1.
    pub version: u32,
    /// AMD SEV-SNP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snp: Option<snp::Policy>,
    /// Intel TDX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tdx: Option<tdx::Policy>,
    /// Simulated platforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<simulated::Policy>,
}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// If it is no policy, or one that would accept any machine.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        if text.len() > MAX_POLICY {
            return Err(PolicyError::TooLong(text.len()));
        }
        let policy: Self = toml::from_str(text).map_err(|error| PolicyError::Syntax(Box::new(error)))?;
        if policy.version != VERSION {
            let message = format!("is {}, and version {VERSION} is understood", policy.version);
            return Err(PolicyError::value("version", message));
        }
        if let Some(snp) = &policy.snp {
            snp.check()?;
        }
        if let Some(tdx) = &policy.tdx {
            tdx.check()?;
        }
        if let Some(simulated) = &policy.simulated {
            simulated.check()?;
        }
        if policy.snp.is_none() && policy.tdx.is_none() && policy.simulated.is_none() {
            return Err(PolicyError::value("snp", "is missing, and so is every other platform's table"));
        }
        Ok(policy)
    }
}
