//! Judges a quote: its own signatures over the bytes as they came, Intel's collateral, and the policy.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

use crate::certificate::Certificate;
use crate::findings::Findings;
use crate::reason::{Check, Platform};
use crate::rules::accepts;
use crate::{Context, Hex, pem};

use super::policy::ATTRIBUTES;
use super::quote::Quote;
use super::{Policy, Report, collateral, event_log};

/// Bits of the first byte of the attributes: the guest is under debug.
const UNDER_DEBUG: u64 = 0xff;
const SEPT_VE_DISABLE: &str = "sept-ve-disable";
const MIGRATABLE: &str = "migratable";

/// Judges a quote with its event log. What it claims is handed back if its bytes have the form of a quote.
pub(crate) fn judge(
    bytes: &[u8],
    log: Option<&[u8]>,
    policy: Option<&Policy>,
    context: &Context<'_>,
    findings: &mut Findings,
) -> Option<Report> {
    let quote = match Quote::parse(bytes) {
        Ok(quote) => quote,
        Err((check, detail)) => {
            findings.no(check, detail);
            return None;
        }
    };
    let before = findings.reasons.len();
    check_signatures(&quote, context, findings);
    let is_signed = findings.reasons.len() == before;
    let standing = match context.collateral {
        None => {
            findings
                .no(Check::Collateral, "none is there: without it nothing says that the platform is Intel's");
            None
        }
        // What is not signed by its own key needs no judgement of that key.
        Some(_) if !is_signed => None,
        Some(collateral) => {
            let standing = collateral::judge(bytes, collateral, &context.roots.intel, context.time);
            standing.map_err(|error| findings.no(Check::Collateral, error)).ok()
        }
    };
    findings.report_data(quote.report.report_data, context);
    let Some(policy) = policy else {
        findings.no(Check::Platform, format!("the policy has no table for {} machines", Platform::Tdx));
        return Some(quote.report);
    };
    if let Some(standing) = standing {
        check_standing(&standing, policy, findings);
    }
    check_guest(&quote.report, policy, findings);
    check_identity(&quote.report, policy, findings);
    check_registers(&quote.report, log, policy, findings);
    Some(quote.report)
}

/// The attestation key has signed the quote, the quoting enclave vouches for that key, and the PCK has signed the enclave's report.
fn check_signatures(quote: &Quote<'_>, context: &Context<'_>, findings: &mut Findings) {
    findings.require(quote.behind.iter().all(|byte| *byte == 0), Check::Reserved, || {
        format!("the {} bytes behind the quote are not zero", quote.behind.len())
    });
    findings.require(quote.is_of_intel(), Check::QuotingEnclave, || {
        format!("the vendor is {}, and not Intel", hex::encode(quote.vendor))
    });
    let key = [&[4][..], &quote.attestation_key].concat();
    let is_signed = |key: &[u8], message: &[u8], signature: &[u8]| {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(message, signature).is_ok()
    };
    findings.require(is_signed(&key, quote.signed, &quote.signature), Check::Signature, || {
        "it is not by the attestation key".to_string()
    });
    let vouched = digest(&SHA256, &[&quote.attestation_key[..], quote.qe_authentication].concat());
    // The report data of an enclave's report is its last 64 bytes.
    let (_, report_data) = quote.qe_report.split_at(320);
    let is_vouched =
        report_data[..32] == *vouched.as_ref() && report_data[32..].iter().all(|byte| *byte == 0);
    findings.require(is_vouched, Check::QuotingEnclave, || {
        "the quoting enclave's report does not name the attestation key".to_string()
    });
    match read_pck(quote.pck_chain, &context.roots.intel) {
        Ok(pck) => {
            let is_signed = is_signed(pck.key_bytes(), &quote.qe_report, &quote.qe_signature);
            findings.require(is_signed, Check::QuotingEnclave, || {
                "the quoting enclave's report is not signed by the PCK".to_string()
            });
        }
        Err((check, detail)) => findings.no(check, detail),
    }
}

/// The first certificate of the PCK chain. The chain's text has one form only, and ends with the root that is known, so no byte of it is free.
fn read_pck(chain: &[u8], root: &[u8]) -> Result<Certificate, (Check, String)> {
    let text =
        std::str::from_utf8(chain).map_err(|error| (Check::Chain, format!("the PCK chain: {error}")))?;
    let text = text.strip_suffix('\0').unwrap_or(text);
    let all = pem::certificates(text).filter(|all| pem::text(all) == *text);
    let all = all.ok_or_else(|| (Check::Chain, "the PCK chain is no plain PEM text".to_string()))?;
    let [leaf, _, last] = &all[..] else {
        return Err((Check::Chain, format!("the PCK chain has {} certificates, expected 3", all.len())));
    };
    if last != root {
        return Err((Check::Root, "the PCK chain does not end with Intel's root".to_string()));
    }
    Certificate::parse(leaf)
        .map_err(|error| (Check::Certificate, format!("the PCK's cannot be used: {error}")))
}

fn check_standing(standing: &collateral::Standing, policy: &Policy, findings: &mut Findings) {
    findings.require(policy.tcb_statuses.contains(&standing.status), Check::TcbStatus, || {
        format!("found {}, expected one of {}", standing.status, policy.tcb_statuses.join(", "))
    });
    let unknown =
        standing.advisories.iter().filter(|advisory| !policy.accepted_advisories.contains(advisory));
    let unknown: Vec<&str> = unknown.map(String::as_str).collect();
    findings.require(unknown.is_empty(), Check::Advisories, || {
        format!("{} apply, and the policy does not accept them", unknown.join(", "))
    });
    let fmspc = Hex(standing.fmspc);
    findings.require(accepts(policy.fmspcs.as_ref(), &fmspc), Check::Family, || {
        format!("found the FMSPC {fmspc}, which the policy does not name")
    });
    findings.require(!policy.refused_fmspcs.contains(&fmspc), Check::Family, || {
        format!("the policy refuses the FMSPC {fmspc}")
    });
}

fn check_guest(report: &Report, policy: &Policy, findings: &mut Findings) {
    let attributes = u64::from_le_bytes(report.td_attributes.0);
    findings.require(attributes & UNDER_DEBUG == 0, Check::Debug, || {
        format!("the attributes {attributes:#x} let the host read and write the guest's memory")
    });
    let has = |list: &[String], name: &str| list.iter().any(|one| one == name);
    let is_on = |name: &str| ATTRIBUTES.iter().any(|(known, bit)| *known == name && attributes & bit != 0);
    findings.require(
        has(&policy.attributes.require, MIGRATABLE) || !is_on(MIGRATABLE),
        Check::Migration,
        || format!("the attributes {attributes:#x} allow a migration"),
    );
    if let Some(complaint) = policy.attributes.complaint(attributes, &ATTRIBUTES) {
        findings.no(Check::TdAttributes, format!("{attributes:#x}: {complaint}"));
    }
    // Without it the host can inject exceptions by taking pages away.
    let may_be_off = has(&policy.attributes.refuse, SEPT_VE_DISABLE);
    findings.require(may_be_off || is_on(SEPT_VE_DISABLE), Check::TdAttributes, || {
        format!("{attributes:#x}: {SEPT_VE_DISABLE} is off")
    });
    let known = ATTRIBUTES.iter().fold(UNDER_DEBUG, |all, (_, bit)| all | bit);
    findings.require(attributes & !known == 0, Check::TdAttributes, || {
        format!("{attributes:#x} has bits without a meaning")
    });
    findings.require(accepts(policy.xfams.as_ref(), &report.xfam), Check::Xfam, || {
        format!("found {}, which the policy does not name", report.xfam)
    });
    if let Some(service) = report.mr_service_td {
        findings.require(service.is_zero(), Check::ServiceTd, || {
            format!("the service guests {service} are bound to this one")
        });
    }
}

fn check_identity(report: &Report, policy: &Policy, findings: &mut Findings) {
    findings.require(policy.measurements.contains(&report.mr_td), Check::Measurement, || {
        format!("found {}, which the policy does not name", report.mr_td)
    });
    findings.require(report.mr_signer_seam.is_zero(), Check::TdxModule, || {
        format!("the TDX module is signed by {}, and not by Intel", report.mr_signer_seam)
    });
    findings.require(report.seam_attributes.is_zero(), Check::TdxModule, || {
        format!("the TDX module has the attributes {}, expected none", report.seam_attributes)
    });
    findings.require(accepts(policy.tdx_modules.as_ref(), &report.mr_seam), Check::TdxModule, || {
        format!("found {}, which the policy does not name", report.mr_seam)
    });
    if let Some(minimum) = policy.minimum_tee_tcb_svn {
        let pairs = report.tee_tcb_svn.0.iter().zip(minimum.0);
        let low: Vec<usize> =
            pairs.enumerate().filter(|(_, (has, least))| *has < least).map(|(at, _)| at).collect();
        findings.require(low.is_empty(), Check::ReportedTcb, || {
            format!("found {}, at least {minimum} is expected; low are the bytes {low:?}", report.tee_tcb_svn)
        });
    }
    let others = [
        ("MRCONFIGID", Check::HostData, policy.config_ids.as_ref(), report.mr_config_id),
        ("MROWNER", Check::Owner, policy.owners.as_ref(), report.mr_owner),
        ("MROWNERCONFIG", Check::Owner, policy.owner_configs.as_ref(), report.mr_owner_config),
    ];
    for (name, check, list, value) in others {
        findings.require(accepts(list, &value), check, || {
            format!("found the {name} {value}, which the policy does not name")
        });
    }
}

/// Each register has an accepted value, or each event that led to it is accepted.
fn check_registers(report: &Report, log: Option<&[u8]>, policy: &Policy, findings: &mut Findings) {
    for (register, value) in report.rtmr.iter().enumerate() {
        let is_right = match policy.rtmr(register) {
            Some(list) => list.contains(value),
            // Judged by its events; and nothing of ours extends the last one.
            None => policy.events.is_some() || (register == 3 && value.is_zero()),
        };
        findings.require(is_right, Check::Rtmr, || {
            format!("found {value} in RTMR {register}, which the policy does not name")
        });
    }
    let Some(accepted) = &policy.events else { return };
    let Some(log) = log else {
        findings.no(Check::EventLog, "none is there, and the policy judges the events");
        return;
    };
    let events = match event_log::events(log) {
        Ok(events) => events,
        Err(error) => {
            findings.no(Check::EventLog, format!("it cannot be used: {error}"));
            return;
        }
    };
    for (register, value) in event_log::replay(&events).into_iter().enumerate() {
        findings.require(report.rtmr.get(register) == Some(&value), Check::EventLog, || {
            format!("it leads to {value} in RTMR {register}, and the quote has another")
        });
    }
    for (place, event) in events.iter().enumerate() {
        // A register whose value is named needs no judgement of what led to it.
        let is_named = policy.rtmr(event.register).is_some();
        let mut known = accepted.iter();
        let is_known = known.any(|one| one.register == event.register && one.digest == event.digest);
        findings.require(is_named || is_known, Check::EventLog, || {
            let (digest, register) = (event.digest, event.register);
            format!("event {place} ({event}, {digest} in RTMR {register}) is not among those that the policy accepts")
        });
    }
}
