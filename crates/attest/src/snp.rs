//! AMD SEV-SNP: reports of versions 2 to 5, chains of VCEK and VLEK, and their policy.
//!
//! Sources: AMD, "SEV Secure Nested Paging Firmware ABI Specification", publication 56860, table "ATTESTATION_REPORT Structure"; AMD, "Versioned
//! Chip Endorsement Key (VCEK) Certificate and KDS Interface Specification", publication 57230.

mod chain;
mod check;
pub mod measure;
mod policy;
mod report;
mod table;
mod tcb;

pub use crate::family::Family;
pub use policy::{Policy, Revocation};
pub use report::{FirmwareVersion, GuestPolicy, REPORT_SIZE, Report, SigningKey};
pub use table::{TableError, certificates};
pub use tcb::Tcb;

use crate::Context;
use crate::findings::Findings;
use crate::reason::{Check, Platform};

/// Judges a report. What it claims is handed back if its bytes have the form of a report.
pub(crate) fn judge(
    bytes: &[u8],
    certificates: &[Vec<u8>],
    policy: Option<&Policy>,
    context: &Context<'_>,
    findings: &mut Findings,
) -> Option<Report> {
    let report = match Report::parse(bytes) {
        Ok(report) => report,
        Err((check, detail)) => {
            findings.no(check, detail);
            return None;
        }
    };
    let revocation = policy.map_or(Revocation::Required, |policy| policy.revocation);
    let signer = chain::judge(bytes, &report, certificates, revocation, context, findings);
    findings.report_data(report.report_data, context);
    match policy {
        Some(policy) => check::judge(&report, signer.as_ref(), policy, findings),
        None => {
            findings.no(Check::Platform, format!("the policy has no table for {} machines", Platform::Snp));
        }
    }
    Some(report)
}

/// How a host's table names a certificate (DER): `VCEK`, `VLEK`, `ASK` (ASVK too) or `ARK`; `Empty` if it is none of these.
#[must_use]
pub fn certificate_kind(der: &[u8]) -> &'static str {
    let name = crate::certificate::Certificate::parse(der).map(|certificate| certificate.common_name());
    match name.as_deref().unwrap_or_default() {
        "SEV-VCEK" => "VCEK",
        "SEV-VLEK" => "VLEK",
        name if name.starts_with("ARK-") => "ARK",
        name if name.starts_with("SEV-") => "ASK",
        _ => "Empty",
    }
}
