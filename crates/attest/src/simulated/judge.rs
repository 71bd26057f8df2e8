//! The side that judges evidence of a simulated platform.

use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::findings::Findings;
use crate::reason::Check;
use crate::rules::{PolicyError, accepts, not_empty};
use crate::{Context, Hex, ReportData};

use super::{
    DEBUG, KEY_SIZE, LAUNCH_LABEL, LAUNCH_MAGIC, LAUNCH_SIGNED, LAUNCH_SIZE, REPORT_LABEL, REPORT_SIGNED,
    REPORT_SIZE, VERSION, message,
};

/// Which simulated machines pass, where they are allowed at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// Accepted measurements.
    pub measurements: Vec<Hex<48>>,
    /// The least version of what stands for firmware.
    #[serde(default)]
    pub minimum_tcb: u64,
    /// Accepted host data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_data: Option<Vec<Hex<32>>>,
    /// Accepted machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_ids: Option<Vec<Hex<32>>>,
}

impl Policy {
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        not_empty(&self.measurements, "simulated.measurements")?;
        if let Some(list) = &self.host_data {
            not_empty(list, "simulated.host-data")?;
        }
        self.machine_ids.as_ref().map_or(Ok(()), |list| not_empty(list, "simulated.machine-ids"))
    }
}

/// What a report of a simulated platform says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// What the guest boots.
    pub measurement: Hex<48>,
    /// Data of the launcher's choice.
    pub host_data: Hex<32>,
    /// The machine's number.
    pub machine_id: Hex<32>,
    /// The version of what stands for firmware.
    pub tcb: u64,
    /// Whether the host may read the guest's memory.
    pub is_debug: bool,
    /// What the guest had signed.
    pub report_data: ReportData,
    #[serde(skip)]
    guest_key: Hex<KEY_SIZE>,
}

impl Report {
    fn parse(bytes: &[u8; REPORT_SIZE]) -> Result<Self, (Check, String)> {
        let mut rest = &bytes[..];
        if take::<8>(&mut rest) != *LAUNCH_MAGIC {
            return Err((
                Check::Format,
                "it does not begin as a report of a simulated platform does".to_string(),
            ));
        }
        let version = u32::from_le_bytes(take(&mut rest));
        if version != VERSION {
            return Err((Check::Version, format!("version {version}; version {VERSION} is understood")));
        }
        let flags = u32::from_le_bytes(take(&mut rest));
        if flags & !DEBUG != 0 {
            return Err((Check::Reserved, format!("the flags are {flags:#x}, and bit 0 is known")));
        }
        Ok(Self {
            measurement: Hex(take(&mut rest)),
            host_data: Hex(take(&mut rest)),
            machine_id: Hex(take(&mut rest)),
            tcb: u64::from_le_bytes(take(&mut rest)),
            is_debug: flags & DEBUG != 0,
            guest_key: Hex(take(&mut rest)),
            report_data: {
                rest = &bytes[LAUNCH_SIZE..];
                Hex(take(&mut rest))
            },
        })
    }
}

/// The next `N` bytes of a report, whose size has been checked; zeros behind its end.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let Some((field, behind)) = rest.split_first_chunk::<N>() else { return [0; N] };
    *rest = behind;
    *field
}

/// Judges a report. What it claims is handed back if its bytes have the form of one.
pub(crate) fn judge(
    bytes: &[u8],
    policy: Option<&Policy>,
    context: &Context<'_>,
    findings: &mut Findings,
) -> Option<Report> {
    findings.require(context.allow_simulated, Check::Simulated, || {
        "evidence of a simulated platform proves nothing, and is accepted only where that is asked for by name".to_string()
    });
    let Ok(exact) = <&[u8; REPORT_SIZE]>::try_from(bytes) else {
        findings.no(Check::Format, format!("{} bytes, and a report has {REPORT_SIZE}", bytes.len()));
        return None;
    };
    let report = match Report::parse(exact) {
        Ok(report) => report,
        Err((check, detail)) => {
            findings.no(check, detail);
            return None;
        }
    };
    let is_signed = |key: &[u8], label, signed: &[u8], signature: &[u8]| {
        UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, key)
            .verify(&message(label, signed), signature)
            .is_ok()
    };
    let (launch, signature) = exact[..LAUNCH_SIZE].split_at(LAUNCH_SIGNED);
    let mut roots = context.roots.simulated.iter();
    let is_rooted = roots.any(|root| is_signed(&root.0.0, LAUNCH_LABEL, launch, signature));
    findings.require(is_rooted, Check::Root, || {
        format!("none of the {} known roots has signed the launch", context.roots.simulated.len())
    });
    let (signed, signature) = exact.split_at(REPORT_SIGNED);
    findings.require(
        is_signed(&report.guest_key.0, REPORT_LABEL, signed, signature),
        Check::Signature,
        || "it is not by the key that the launch gave to the guest".to_string(),
    );
    findings.report_data(report.report_data, context);
    match policy {
        Some(policy) => check(&report, policy, findings),
        None => findings.no(Check::Platform, "the policy has no table for simulated machines"),
    }
    Some(report)
}

fn check(report: &Report, policy: &Policy, findings: &mut Findings) {
    findings.require(!report.is_debug, Check::Debug, || {
        "the host may read and write the guest's memory".to_string()
    });
    findings.require(policy.measurements.contains(&report.measurement), Check::Measurement, || {
        format!("found {}, which the policy does not name", report.measurement)
    });
    findings.require(accepts(policy.host_data.as_ref(), &report.host_data), Check::HostData, || {
        format!("found {}, which the policy does not name", report.host_data)
    });
    findings.require(accepts(policy.machine_ids.as_ref(), &report.machine_id), Check::ChipId, || {
        format!("found {}, which the policy does not name", report.machine_id)
    });
    findings.require(report.tcb >= policy.minimum_tcb, Check::ReportedTcb, || {
        format!("found {}, at least {} is expected", report.tcb, policy.minimum_tcb)
    });
}
