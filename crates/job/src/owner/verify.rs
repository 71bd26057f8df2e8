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
mod tests {
    use std::path::PathBuf;

    use attest::Evidence;

    use super::*;
    use crate::manifest::SigningKey;
    use crate::manifest::tests::statement;

    /// A real report that is not for this exchange: its chain passes with what lies beside it only, and its report data never does.
    #[test]
    fn evidence_of_a_chip_is_judged_with_the_certificates_beside_it() {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/evidence/snp"));
        if !folder.is_dir() {
            println!("\nSKIPPED a real report: no folder `shared/evidence` lies beside the checkout");
            return;
        }
        let evidence = Evidence::Snp {
            report: fs::read(folder.join("genoa-report.bin")).unwrap(),
            certificates: vec![],
        };
        let mut exchange = statement(&SigningKey::generate().unwrap()).predicate.exchange;
        exchange.answer.evidence = serde_json::from_slice(evidence.to_json().as_bytes()).unwrap();
        let zeros = "00".repeat(48);
        let policy = format!(
            "version = 1\n[snp]\nfamilies = ['genoa']\nmeasurements = ['{zeros}']\nrevocation = 'when-given'\n"
        );
        let policy =
            format!("{policy}minimum-tcb.genoa = {{ bootloader = 0, tee = 0, snp = 0, microcode = 0 }}\n");
        let mut judge = Judge {
            policy: Policy::parse(&policy).unwrap(),
            roots: Roots::builtin(),
            beside: Beside::default(),
            allow_simulated: false,
            time: 1_795_737_600,
        };
        let without = judge.judge(&exchange).unwrap_err().to_string();
        assert!(without.contains("chain"), "{without}");
        for file in ["genoa-ask-ark-asvk.pem", "genoa-vcek.pem"] {
            let certificates = evidence_files::certificates(&folder.join(file)).unwrap();
            judge.beside.certificates.extend(certificates);
        }
        let with = judge.judge(&exchange).unwrap_err().to_string();
        assert!(!with.contains("chain") && with.contains("report-data"), "{with}");
    }
}
