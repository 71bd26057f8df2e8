//! Judging evidence by the owner's policy, of a guest that runs and of one whose manifest is all that is left.

use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use attest::simulated::{Root, SimulatedError};
use attest::{Claims, Context, Expected, Policy, Roots};
use evidence_files::Beside;

use super::state::Place;
use crate::challenge::Exchange;
use crate::error::{Context as _, Error, Result};
use crate::manifest::{Resource, Statement};
use crate::tree::digest_of;

/// By what evidence is judged.
#[derive(Debug, Clone)]
pub struct Judge {
    /// The owner's policy.
    pub policy: Policy,
    /// Where trust begins.
    pub roots: Roots,
    /// Certificates, revocation lists and collateral that do not come with the evidence.
    pub beside: Beside,
    /// Whether a simulated platform's evidence may pass.
    pub allow_simulated: bool,
    /// The time at which to judge, in seconds since 1970.
    pub time: u64,
}

/// Seconds since 1970, by this machine's clock.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The root of this machine's simulated platform. It is made when it is first asked for.
///
/// # Errors
/// If it can be neither read nor made.
pub fn simulated_root() -> Result<Root> {
    let failed = |error: SimulatedError| Error::io(error.to_string()).because(error);
    let directory = Place::all()?;
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).of(&directory)?;
    let path = directory.with_file_name("simulated-root");
    if let Ok(bytes) = fs::read(&path) {
        return Root::read(&bytes).map_err(failed);
    }
    let root = Root::generate().map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(&directory).of(&directory)?;
    file.write_all(root.document()).of(&path)?;
    match file.persist_noclobber(&path) {
        Ok(_) => Ok(root),
        // Another job was faster.
        Err(_) => Root::read(&fs::read(&path).of(&path)?).map_err(failed),
    }
}

impl Judge {
    /// Judges an exchange: its evidence, and whether that vouches for the keys in it.
    ///
    /// # Errors
    /// If it does not pass; with each reason.
    pub fn judge(&self, exchange: &Exchange) -> Result<Claims> {
        exchange.check()?;
        let mut context = Context::new(self.time, &self.roots, Expected::Exactly(exchange.report_data()));
        context.allow_simulated = self.allow_simulated;
        let verdict = self.beside.judge(&exchange.evidence()?, &self.policy, &context);
        verdict.accepted().map_err(|refusal| {
            let reasons: Vec<String> = refusal.reasons.iter().map(ToString::to_string).collect();
            Error::refused(format!("the {} evidence is refused: {}", refusal.platform, reasons.join("; ")))
                .because(refusal)
        })
    }
}

/// What a manifest proves once it has passed.
#[derive(Debug)]
pub struct Verified {
    /// The statement.
    pub statement: Statement,
    /// What its evidence proves about the guest.
    pub claims: Claims,
    /// Files that were compared.
    pub compared: usize,
}

/// Verifies a manifest: its signature, its evidence, and the files that are there against their digests.
///
/// # Errors
/// If something of it does not pass, or a file is missing or differs.
pub fn verify(manifest: &[u8], judge: &Judge, base: &Path) -> Result<Verified> {
    let statement = Statement::open(manifest)?;
    let claims = judge.judge(&statement.predicate.exchange)?;
    for file in &statement.subject {
        compare(file, base)?;
    }
    Ok(Verified { compared: statement.subject.len(), statement, claims })
}

fn compare(file: &Resource, base: &Path) -> Result<()> {
    let path = base.join(&file.name);
    let found = fs::File::open(&path).and_then(digest_of).of(&path)?;
    if file.sha256() == Some(found.digits().as_str()) {
        return Ok(());
    }
    Err(Error::refused(format!(
        "{} is not the file that the job has left: its digest is {found}",
        path.display()
    )))
}

#[cfg(test)]
mod tests;
