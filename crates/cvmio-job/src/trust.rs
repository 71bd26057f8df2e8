//! The owner's evidence policy, and where trust begins.

use std::fs;

use attest::simulated::RootKey;
use attest::{Policy, Roots};
use cli::failure::Failure;
use evidence_files::Beside;
use job::owner::{Judge, now, simulated_root};

use crate::arguments::Trust;

/// The policy of a file, if one was named.
pub fn policy(trust: &Trust) -> Result<Option<Policy>, Failure> {
    let Some(path) = &trust.policy else { return Ok(None) };
    let text =
        fs::read_to_string(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    Policy::parse(&text).map(Some).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Certificates, revocation lists and collateral from a directory of `cvmio attest fetch`, if one was named.
pub fn beside(trust: &Trust) -> Result<Beside, Failure> {
    trust.cache.as_ref().map_or(Ok(Beside::default()), |cache| Beside::read(cache))
}

/// By what a manifest is judged.
pub fn judge(trust: &Trust) -> Result<Judge, Failure> {
    let policy = policy(trust)?.ok_or_else(|| {
        Failure::usage("an evidence policy is missing (--policy): it names the measurements of the guests that you trust")
    })?;
    let mut roots = Roots::builtin();
    if trust.allow_simulated {
        let root = match &trust.simulated_root {
            Some(text) => RootKey::parse(text).map_err(Failure::usage)?,
            None => simulated_root()?.key().map_err(|error| Failure::io(error.to_string()))?,
        };
        roots = roots.with_simulated(root);
    }
    Ok(Judge { policy, roots, beside: beside(trust)?, allow_simulated: trust.allow_simulated, time: now() })
}
