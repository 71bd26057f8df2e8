//! What a report says, against its signer's certificate and against the policy.

use crate::Hex;
use crate::findings::Findings;
use crate::reason::Check;
use crate::rules::accepts;

use super::chain::Signer;
use super::report::{GuestPolicy, PLATFORM_INFO};
use super::{Family, Policy, Report, SigningKey, Tcb};

/// Judges what a report says. Without a signer that can be read, what depends on it is refused by reasons that were found before.
pub(crate) fn judge(report: &Report, signer: Option<&Signer>, policy: &Policy, findings: &mut Findings) {
    check_key(report, signer, policy, findings);
    let family = check_family(report, signer, policy, findings);
    check_chip(report, signer, policy, findings);
    check_guest(report, policy, findings);
    check_identity(report, policy, findings);
    check_platform(report, policy, findings);
    if let Some(family) = family {
        check_tcb(report, signer, family, policy, findings);
    }
}

fn check_key(report: &Report, signer: Option<&Signer>, policy: &Policy, findings: &mut Findings) {
    let kind = report.signing_key;
    findings.require(policy.signing_keys.contains(&kind), Check::SigningKey, || {
        format!("the report is signed by a {kind}, which the policy does not accept")
    });
    findings.require(kind == SigningKey::Vlek || !report.is_chip_key_masked, Check::SigningKey, || {
        "the report is signed by the chip's own key, and says that the key is masked".to_string()
    });
    if let Some(csp) = signer.and_then(|signer| signer.csp.as_ref()) {
        findings.require(accepts(policy.csp_ids.as_ref(), csp), Check::Csp, || {
            format!("found {csp:?}, which the policy does not name")
        });
    }
}

/// The family, if root, report and certificate agree about it and the policy accepts it.
fn check_family(
    report: &Report,
    signer: Option<&Signer>,
    policy: &Policy,
    findings: &mut Findings,
) -> Option<Family> {
    let by_root = signer.and_then(|signer| signer.family);
    let by_report = report.family();
    if let Some([family, model, stepping]) = report.processor {
        findings.require(by_report.is_some(), Check::Family, || {
            format!("the processor {family:#x}, {model:#x}, {stepping:#x} is of no family that is known")
        });
    }
    if let (Some(root), Some(report)) = (by_root, by_report) {
        findings.require(root == report, Check::Product, || {
            format!("the report is of a {report} processor, and its key is signed by the root of {root}")
        });
    }
    if let (Some(root), Some(signer)) = (by_root, signer) {
        let product = &signer.product;
        // AMD appends a stepping to some names, as in `Milan-B0`.
        let name = product.split('-').next().unwrap_or_default();
        findings.require(name == root.name(), Check::Product, || {
            format!("the certificate is of {product:?}, and signed by the root of {root}")
        });
    }
    let family = by_root.or(by_report);
    match family {
        Some(family) => findings.require(policy.families.contains(&family), Check::Family, || {
            format!("the chip is a {family}, which the policy does not accept")
        }),
        None => findings.no(Check::Family, "neither root nor report tell the family"),
    }
    family
}

fn check_chip(report: &Report, signer: Option<&Signer>, policy: &Policy, findings: &mut Findings) {
    let chip = report.chip_id;
    if let Some(hardware_id) = signer.and_then(|signer| signer.hardware_id.as_ref()) {
        // Turin's ids have 8 bytes, and zeros behind them in a report.
        let mut expected = Hex([0; 64]);
        let has_size = matches!(hardware_id.len(), 8 | 64);
        if let (true, Some(place)) = (has_size, expected.0.get_mut(..hardware_id.len())) {
            place.copy_from_slice(hardware_id);
        }
        let is_right = has_size && !chip.is_zero() && chip == expected;
        findings.require(is_right, Check::ChipId, || {
            if chip.is_zero() {
                "the report hides its chip's id, and its key is the chip's own".to_string()
            } else {
                format!("found {chip}, and the certificate is of {}", hex::encode(hardware_id))
            }
        });
    }
    findings.require(accepts(policy.chip_ids.as_ref(), &chip), Check::ChipId, || {
        format!("found {chip}, which the policy does not name")
    });
    findings.require(!policy.refused_chip_ids.contains(&chip), Check::ChipId, || {
        format!("the policy refuses the chip {chip}")
    });
}

fn check_guest(report: &Report, policy: &Policy, findings: &mut Findings) {
    let guest = report.guest_policy;
    findings.require(guest.0 & GuestPolicy::DEBUG == 0, Check::Debug, || {
        format!("the guest's policy {:#x} lets the host read and write its memory", guest.0)
    });
    let may_migrate = policy.guest_policy.require.iter().any(|name| name == "migration-agent");
    let has_agent = guest.0 & GuestPolicy::MIGRATION_AGENT != 0;
    findings.require(may_migrate || !has_agent, Check::Migration, || {
        format!("the guest's policy {:#x} allows a migration agent", guest.0)
    });
    // Without an agent the number is all ones.
    let is_bound = report.report_id_ma.0.iter().any(|byte| *byte != 0xff);
    findings.require(may_migrate || !is_bound, Check::Migration, || {
        format!("the guest belongs to the migration agent {}", report.report_id_ma)
    });
    findings.require(policy.vmpl.contains(&report.vmpl), Check::Vmpl, || {
        format!("level {} asked for the report, expected one of {:?}", report.vmpl, policy.vmpl)
    });
    if let Some(complaint) = policy.guest_policy.complaint(guest.0, &GuestPolicy::FEATURES) {
        findings.no(Check::GuestPolicy, format!("{:#x}: {complaint}", guest.0));
    }
    if let Some(minimum) = policy.minimum_abi {
        findings.require(guest.abi() >= minimum, Check::GuestPolicy, || {
            let (abi, minimum) = (guest.abi(), minimum);
            format!("ABI version {}.{}, at least {}.{} is expected", abi.0, abi.1, minimum.0, minimum.1)
        });
    }
}

fn check_identity(report: &Report, policy: &Policy, findings: &mut Findings) {
    let measurement = report.measurement;
    findings.require(policy.measurements.contains(&measurement), Check::Measurement, || {
        format!("found {measurement}, which the policy does not name")
    });
    findings.require(accepts(policy.host_data.as_ref(), &report.host_data), Check::HostData, || {
        format!("found {}, which the policy does not name", report.host_data)
    });
    findings.require(accepts(policy.family_ids.as_ref(), &report.family_id), Check::FamilyId, || {
        format!("found {}, which the policy does not name", report.family_id)
    });
    findings.require(accepts(policy.image_ids.as_ref(), &report.image_id), Check::ImageId, || {
        format!("found {}, which the policy does not name", report.image_id)
    });
    findings.require(accepts(policy.id_keys.as_ref(), &report.id_key_digest), Check::IdKey, || {
        format!("found {}, which the policy does not name", report.id_key_digest)
    });
    let author = report.author_key_digest;
    findings.require(report.has_author_key || author.is_zero(), Check::AuthorKey, || {
        format!("found {author}, and the report says that there is none")
    });
    let is_named = accepts(policy.author_keys.as_ref(), &author);
    let is_there = report.has_author_key || policy.author_keys.is_none();
    findings.require(is_named && is_there, Check::AuthorKey, || {
        format!("found {author}, which the policy does not name")
    });
    findings.require(report.guest_svn >= policy.minimum_guest_svn, Check::GuestSvn, || {
        format!("found {}, at least {} is expected", report.guest_svn, policy.minimum_guest_svn)
    });
}

fn check_platform(report: &Report, policy: &Policy, findings: &mut Findings) {
    if let Some(complaint) = policy.platform_info.complaint(report.platform_info, &PLATFORM_INFO) {
        findings.no(Check::PlatformInfo, format!("{:#x}: {complaint}", report.platform_info));
    }
    if let Some(minimum) = policy.minimum_firmware {
        let both = [("current", report.current_firmware), ("committed", report.committed_firmware)];
        for (name, version) in both {
            findings.require(version >= minimum, Check::Firmware, || {
                format!("the {name} firmware is {version}, at least {minimum} is expected")
            });
        }
    }
    if let Some(mask) = policy.mitigations {
        for (name, bits) in [("launch", report.launch_mitigations), ("now", report.current_mitigations)] {
            findings.require(
                bits.is_some_and(|bits| bits & mask == mask),
                Check::Mitigations,
                || match bits {
                    Some(bits) => format!("at {name} found {bits:#x}, and each bit of {mask:#x} is expected"),
                    None => format!("a report of version {} does not tell them", report.version),
                },
            );
        }
    }
}

fn check_tcb(
    report: &Report,
    signer: Option<&Signer>,
    family: Family,
    policy: &Policy,
    findings: &mut Findings,
) {
    let minimum = policy.minimum_tcb.get(&family);
    let all = [
        (Check::ReportedTcb, report.reported_tcb),
        (Check::CommittedTcb, report.committed_tcb),
        (Check::CurrentTcb, report.current_tcb),
        (Check::LaunchTcb, report.launch_tcb),
    ];
    for (check, bytes) in all {
        findings.require(Tcb::is_clean(bytes.0, family), check, || {
            format!("{bytes} has bytes that {family} has no meaning for")
        });
        match minimum {
            Some(minimum) => {
                if let Some(shortfall) = Tcb::read(bytes.0, family).shortfall(*minimum) {
                    findings.no(check, shortfall);
                }
            }
            None => findings.no(check, format!("the policy names no least patch levels of {family}")),
        }
    }
    if let Some(signer) = signer {
        let reported = Tcb::read(report.reported_tcb.0, family);
        findings.require(reported == signer.levels, Check::PatchLevels, || {
            format!("the report says {reported}, and the certificate is for {}", signer.levels)
        });
    }
}
