//! Each field of a report, a certificate and a list, changed on a chain that is right otherwise, has its own reason.

use attest::snp::{Family, FirmwareVersion, Revocation, SigningKey, Tcb};
use attest::{Check, Expected, Hex, Roots};

use crate::chain::{ARC, Case, TIME, authority_key, revocation_list, root_key};
use crate::checks;
use crate::der::{extension, number, sequence, tlv};

/// What says no when a case is changed so.
fn wrong(change: impl FnOnce(&mut Case)) -> Vec<Check> {
    let mut case = Case::new();
    change(&mut case);
    checks(&case.verdict())
}

#[test]
fn what_is_right_passes() {
    assert_eq!(Case::new().verdict().reasons(), []);
    assert_eq!(Case::vlek().verdict().reasons(), []);
    assert_eq!(Case::turin().verdict().reasons(), []);
    for version in 2..=5_u32 {
        let mut case = Case::new();
        case.put(0, &version.to_le_bytes());
        if version == 2 {
            case.put(0x188, &[0; 3]);
        }
        assert_eq!(case.verdict().reasons(), [], "version {version}");
    }
}

#[test]
fn form_and_version() {
    let case = Case::new();
    let report = case.signed_report();
    for size in [0, 1, 1183, 1185, 4096] {
        let mut cut = report.clone();
        cut.resize(size, 0);
        let verdict = case.judge(cut, case.certificates());
        assert_eq!(checks(&verdict), [Check::Format], "{size} bytes");
        assert!(verdict.claimed().is_none() && verdict.accepted().is_err());
    }
    for version in [0_u32, 1, 6, u32::MAX] {
        assert_eq!(wrong(|case| _ = case.put(0, &version.to_le_bytes())), [Check::Version]);
    }
    assert_eq!(wrong(|case| _ = case.put(0x34, &[2])), [Check::SignatureAlgorithm]);
}

#[test]
fn bytes_without_a_meaning() {
    for at in [0x4c, 0x4f, 0x18b, 0x19f, 0x1eb, 0x1ef, 0x1f8, 0x29f] {
        assert_eq!(wrong(|case| _ = case.put(at, &[1])), [Check::Reserved], "byte {at:#x}");
    }
    assert_eq!(wrong(|case| _ = case.put(0x48, &[0x20])), [Check::Reserved]);
    // Version 2 does not know the processor, and version 5 knows the mitigations.
    assert_eq!(wrong(|case| _ = case.put(0, &[2])), [Check::Reserved]);
    assert_eq!(wrong(|case| _ = case.put(0, &[5]).put(0x1f8, &[1])), []);
    assert_eq!(wrong(|case| _ = case.put(0, &[5]).put(0x208, &[1])), [Check::Reserved]);
    let case = Case::new();
    for at in [0x2a0 + 48, 0x2a0 + 71, 0x2a0 + 72 + 48, 0x2a0 + 144, 0x49f] {
        let mut report = case.signed_report();
        report[at] = 1;
        assert_eq!(checks(&case.judge(report, case.certificates())), [Check::Reserved], "byte {at:#x}");
    }
}

#[test]
fn signature_and_key() {
    let case = Case::new();
    let mut report = case.signed_report();
    report[0x2a0] ^= 1;
    assert_eq!(checks(&case.judge(report, case.certificates())), [Check::Signature]);
    assert_eq!(wrong(|case| _ = case.put(0x48, &[4])), [Check::SigningKey]);
    assert_eq!(wrong(|case| _ = case.put(0x48, &[8])), [Check::SigningKey]);
    assert_eq!(wrong(|case| _ = case.put(0x48, &[7 << 2])), [Check::SigningKey]);
    assert_eq!(wrong(|case| _ = case.put(0x48, &[2])), [Check::SigningKey]);
    let mut vlek = Case::vlek();
    vlek.snp().signing_keys = vec![SigningKey::Vcek];
    assert_eq!(checks(&vlek.verdict()), [Check::SigningKey]);
    let mut vlek = Case::vlek();
    vlek.snp().csp_ids = Some(vec!["CN=another".to_string()]);
    assert_eq!(checks(&vlek.verdict()), [Check::Csp]);
}

#[test]
fn chains() {
    let case = Case::new();
    let without = |place: usize| {
        let mut certificates = case.certificates();
        certificates.remove(place);
        checks(&case.judge(case.signed_report(), certificates))
    };
    assert_eq!(without(0), [Check::Chain]);
    assert_eq!(without(1), [Check::Chain]);
    assert_eq!(without(2), [Check::Chain]);
    // The order does not count, and certificates of others do no harm.
    let mut certificates = case.certificates();
    certificates.reverse();
    certificates.extend(Case::turin().certificates());
    assert_eq!(case.judge(case.signed_report(), certificates).reasons(), []);
    // Signed by another key than the issuer's, and by one that is no authority's.
    let certificates =
        vec![case.leaf.sign(root_key()), case.authority.sign(root_key()), case.root.sign(root_key())];
    assert_eq!(checks(&case.judge(case.signed_report(), certificates)), [Check::Chain]);
    let no_authority = |case: &mut Case| case.authority.extensions.clear();
    assert_eq!(wrong(no_authority), [Check::Chain]);
    let signs_no_certificates = |case: &mut Case| {
        _ = case.authority.extensions.pop();
        case.authority.extensions.push(extension("2.5.29.15", true, &tlv(0x03, &[1, 0x02])));
    };
    assert_eq!(wrong(signs_no_certificates), [Check::Chain]);
    // Names of another family.
    let renamed = |case: &mut Case| {
        case.leaf.issuer = "SEV-Milan".to_string();
        case.authority.subject = "SEV-Milan".to_string();
    };
    assert_eq!(wrong(renamed), [Check::Chain]);
}

#[test]
fn roots() {
    let case = Case::new();
    let (report, certificates) = (case.signed_report(), case.certificates());
    for roots in [Roots::none(), Roots::builtin(), Roots::none().with_amd(Family::Genoa, [1; 32])] {
        let mut context = attest::Context::new(TIME, &roots, case.report_data);
        context.revocation_lists = &case.lists;
        let evidence = attest::Evidence::Snp { report: report.clone(), certificates: certificates.clone() };
        let verdict = attest::verify(&evidence, &case.policy, &context);
        assert_eq!(verdict.reasons()[0].check, Check::Root, "{:?}", verdict.reasons());
    }
    // A certificate with the root's key that the root has not signed.
    let mut certificates = case.certificates();
    certificates[2] = case.root.sign(authority_key());
    let found = checks(&case.judge(case.signed_report(), certificates));
    assert!(found.contains(&Check::Chain) || found.contains(&Check::Root), "{found:?}");
}

#[test]
fn validity() {
    for time in [0, 1_577_836_799, 2_300_000_000, u64::MAX] {
        let found = wrong(|case| case.time = time);
        assert!(found.contains(&Check::Validity), "at {time}: {found:?}");
    }
    let late = |change: fn(&mut Case)| wrong(change);
    assert_eq!(late(|case| case.leaf.until = "20251231000000Z".to_string()), [Check::Validity]);
    assert_eq!(late(|case| case.authority.until = "20251231000000Z".to_string()), [Check::Validity]);
    assert_eq!(late(|case| case.root.until = "20251231000000Z".to_string()), [Check::Validity]);
    assert_eq!(late(|case| case.leaf.from = "20260102000000Z".to_string()), [Check::Validity]);
}

#[test]
fn revocation() {
    let list = |until: &str, revoked: &[u64]| vec![revocation_list("ARK-Genoa", root_key(), until, revoked)];
    let until = "20260601000000Z";
    assert_eq!(wrong(|case| case.lists = list(until, &[0x1_0001])), [Check::Revocation]);
    assert_eq!(wrong(|case| case.lists = list(until, &[0x1_0000])), [Check::Revocation]);
    assert_eq!(wrong(|case| case.lists = list(until, &[77])), []);
    assert_eq!(wrong(|case| case.lists = list("20251201000000Z", &[])), [Check::Revocation]);
    assert_eq!(wrong(|case| case.lists.clear()), [Check::Revocation]);
    assert_eq!(wrong(|case| case.lists = vec![vec![0x30, 0]]), [Check::Revocation]);
    let forged = || vec![revocation_list("ARK-Genoa", authority_key(), until, &[])];
    assert_eq!(wrong(|case| case.lists = forged()), [Check::Revocation]);
    // A list that is out of date still names what was revoked.
    let old = |case: &mut Case| {
        case.snp().revocation = Revocation::WhenGiven;
        case.lists = list("20251201000000Z", &[0x1_0001]);
    };
    assert_eq!(wrong(old), [Check::Revocation]);
    // The authority's list may name a chip's key, where a maker numbers them.
    let chip = |case: &mut Case| {
        case.leaf.serial = 5;
        case.lists.push(revocation_list("SEV-Genoa", authority_key(), until, &[5]));
    };
    assert_eq!(wrong(chip), [Check::Revocation]);
    // It does not stand in for the root's.
    let only_authority =
        |case: &mut Case| case.lists = vec![revocation_list("SEV-Genoa", authority_key(), until, &[])];
    assert_eq!(wrong(only_authority), [Check::Revocation]);
}

#[test]
fn the_certificate_of_the_key() {
    for id in ["2", "3.1", "3.2", "3.3", "3.8", "4"] {
        let found = wrong(|case| _ = case.leaf.without(&format!("{ARC}.{id}")));
        assert_eq!(found, [Check::Certificate], "without {id}");
    }
    for id in ["3.1", "3.2", "3.3", "3.8"] {
        assert_eq!(wrong(|case| _ = case.leaf.with(id, &number(99))), [Check::PatchLevels], "{id}");
        assert_eq!(wrong(|case| _ = case.leaf.with(id, &number(300))), [Check::Certificate], "{id}");
        assert_eq!(wrong(|case| _ = case.leaf.with(id, b"?")), [Check::Certificate], "{id}");
    }
    let mut turin = Case::turin();
    turin.leaf.with("3.9", &number(0));
    assert_eq!(checks(&turin.verdict()), [Check::PatchLevels]);
    turin.leaf.without(&format!("{ARC}.3.9"));
    assert_eq!(checks(&turin.verdict()), [Check::Certificate]);
    assert_eq!(wrong(|case| _ = case.leaf.with("2", &tlv(0x16, b"Milan-B0"))), [Check::Product]);
    let twice = |case: &mut Case| {
        let again = case.leaf.extensions[0].clone();
        case.leaf.extensions.push(again);
    };
    assert_eq!(wrong(twice), [Check::Certificate, Check::Chain]);
    let critical = |case: &mut Case| case.leaf.extensions.push(extension("1.2.3.4", true, b""));
    assert_eq!(wrong(critical), [Check::Certificate, Check::Chain]);
    let authority = |case: &mut Case| {
        let of_authority = case.authority.extensions.clone();
        case.leaf.extensions.extend(of_authority);
    };
    assert_eq!(wrong(authority), [Check::Certificate]);
}

#[test]
fn chip_and_product() {
    assert_eq!(wrong(|case| _ = case.put(0x1a0, &[8])), [Check::ChipId]);
    assert_eq!(wrong(|case| _ = case.put(0x1a0, &[0; 64])), [Check::ChipId]);
    assert_eq!(wrong(|case| _ = case.leaf.with("4", &[7; 32])), [Check::ChipId]);
    let mut turin = Case::turin();
    turin.put(0x1a8, &[1]);
    assert_eq!(checks(&turin.verdict()), [Check::ChipId]);
    assert_eq!(wrong(|case| case.snp().chip_ids = Some(vec![Hex([8; 64])])), [Check::ChipId]);
    assert_eq!(wrong(|case| case.snp().refused_chip_ids = vec![Hex([7; 64])]), [Check::ChipId]);
    let mut masked = Case::vlek();
    masked.snp().chip_ids = Some(vec![Hex([7; 64])]);
    assert_eq!(checks(&masked.verdict()), [Check::ChipId]);
    assert_eq!(wrong(|case| _ = case.put(0x188, &[0x19, 0x01])), [Check::Product]);
    assert_eq!(wrong(|case| _ = case.put(0x188, &[0x17, 0x01])), [Check::Family]);
    let refused = |case: &mut Case| case.snp().families = vec![Family::Milan];
    assert_eq!(wrong(refused), [Check::Family]);
}

#[test]
fn the_guest() {
    let policy = |bits: u64| wrong(|case| _ = case.put(0x08, &(0x3_001f | bits).to_le_bytes()));
    assert_eq!(policy(1 << 19), [Check::Debug]);
    assert_eq!(policy(1 << 18), [Check::Migration]);
    assert_eq!(policy(1 << 26), [Check::GuestPolicy]);
    assert_eq!(wrong(|case| _ = case.put(0x08, &0x1_001f_u64.to_le_bytes())), [Check::GuestPolicy]);
    assert_eq!(wrong(|case| _ = case.put(0x160, &[1])), [Check::Migration]);
    for vmpl in [1_u32, 3, u32::MAX] {
        assert_eq!(wrong(|case| _ = case.put(0x30, &vmpl.to_le_bytes())), [Check::Vmpl]);
    }
    let require = |name: &str| {
        let name = name.to_string();
        wrong(|case| case.snp().guest_policy.require = vec![name])
    };
    for name in
        ["single-socket", "cxl", "aes-256-xts", "rapl-disabled", "ciphertext-hiding", "page-swap-disabled"]
    {
        assert_eq!(require(name), [Check::GuestPolicy], "{name}");
    }
    assert_eq!(require("smt"), []);
    let refuse = |case: &mut Case| case.snp().guest_policy.refuse = vec!["smt".to_string()];
    assert_eq!(wrong(refuse), [Check::GuestPolicy]);
    let agent = |case: &mut Case| {
        case.put(0x08, &0x7_001f_u64.to_le_bytes()).put(0x160, &[1]);
        case.snp().guest_policy.require = vec!["migration-agent".to_string()];
    };
    assert_eq!(wrong(agent), []);
    assert_eq!(wrong(|case| case.snp().minimum_abi = Some((0, 32))), [Check::GuestPolicy]);
    assert_eq!(wrong(|case| case.snp().minimum_abi = Some((0, 31))), []);
}

#[test]
fn what_runs() {
    assert_eq!(wrong(|case| _ = case.put(0x90, &[6])), [Check::Measurement]);
    assert_eq!(wrong(|case| _ = case.put(0x50, &[6])), [Check::ReportData]);
    assert_eq!(wrong(|case| case.report_data = Expected::Anything), []);
    assert_eq!(wrong(|case| case.snp().host_data = Some(vec![Hex([4; 32])])), [Check::HostData]);
    assert_eq!(wrong(|case| case.snp().host_data = Some(vec![Hex([3; 32])])), []);
    assert_eq!(wrong(|case| case.snp().family_ids = Some(vec![Hex([4; 16])])), [Check::FamilyId]);
    assert_eq!(wrong(|case| case.snp().image_ids = Some(vec![Hex([4; 16])])), [Check::ImageId]);
    assert_eq!(wrong(|case| case.snp().id_keys = Some(vec![Hex([4; 48])])), [Check::IdKey]);
    assert_eq!(wrong(|case| case.snp().author_keys = Some(vec![Hex([4; 48])])), [Check::AuthorKey]);
    assert_eq!(wrong(|case| case.snp().author_keys = Some(vec![Hex([0; 48])])), [Check::AuthorKey]);
    assert_eq!(wrong(|case| _ = case.put(0x110, &[4])), [Check::AuthorKey]);
    let author = |case: &mut Case| {
        case.put(0x110, &[4; 48]).put(0x48, &[1]);
        case.snp().author_keys = Some(vec![Hex([4; 48])]);
    };
    assert_eq!(wrong(author), []);
    assert_eq!(wrong(|case| case.snp().minimum_guest_svn = 3), [Check::GuestSvn]);
}

#[test]
fn the_machine() {
    let require = |name: &str| {
        let name = name.to_string();
        wrong(|case| case.snp().platform_info.require = vec![name])
    };
    for name in ["tsme", "rapl-disabled", "ciphertext-hiding", "tio"] {
        assert_eq!(require(name), [Check::PlatformInfo], "{name}");
    }
    for name in ["smt", "ecc", "alias-check-complete"] {
        assert_eq!(require(name), [], "{name}");
    }
    let refuse = |case: &mut Case| case.snp().platform_info.refuse = vec!["smt".to_string()];
    assert_eq!(wrong(refuse), [Check::PlatformInfo]);
    let newer = FirmwareVersion { major: 1, minor: 55, build: 23 };
    assert_eq!(wrong(|case| case.snp().minimum_firmware = Some(newer)), [Check::Firmware]);
    assert_eq!(wrong(|case| case.snp().mitigations = Some(1)), [Check::Mitigations]);
    let in_force = |case: &mut Case| {
        case.put(0, &[5]).put(0x1f8, &[3]).put(0x200, &[3]);
        case.snp().mitigations = Some(1);
    };
    assert_eq!(wrong(in_force), []);
    let at_launch_only = |case: &mut Case| {
        case.put(0, &[5]).put(0x1f8, &[3]);
        case.snp().mitigations = Some(1);
    };
    assert_eq!(wrong(at_launch_only), [Check::Mitigations]);
}

#[test]
fn tcb_versions() {
    let all = [
        (0x180, Check::ReportedTcb),
        (0x1e0, Check::CommittedTcb),
        (0x38, Check::CurrentTcb),
        (0x1f0, Check::LaunchTcb),
    ];
    for (at, check) in all {
        for (part, low) in [(0, 8), (1, 0), (6, 19), (7, 69)] {
            let found = wrong(|case| _ = case.put(at + part, &[low]));
            assert_eq!(found[0], check, "{found:?}");
            // The reported one is bound to the certificate too.
            assert_eq!(found.contains(&Check::PatchLevels), at == 0x180, "{found:?}");
        }
        let found = wrong(|case| _ = case.put(at + 3, &[1]));
        assert_eq!(found, [check], "a byte that no part uses");
    }
    let family_without_minimum = |case: &mut Case| {
        case.snp().minimum_tcb.clear();
        case.snp().minimum_tcb.insert(Family::Milan, Tcb::default());
    };
    assert!(!wrong(family_without_minimum).is_empty());
}

#[test]
fn all_reasons_are_listed_and_each_names_what_was_found() {
    let mut case = Case::new();
    case.put(0x90, &[6]).put(0x30, &[1]).put(0x50, &[6]);
    let verdict = case.verdict();
    assert_eq!(checks(&verdict), [Check::ReportData, Check::Vmpl, Check::Measurement]);
    let refusal = verdict.accepted().unwrap_err().to_string();
    assert!(refusal.starts_with("the snp evidence is refused: report-data: found 06"), "{refusal}");
    assert!(refusal.ends_with("(and 2 more)"), "{refusal}");
    // A point of another curve, or none at all, is no key.
    let mut case = Case::new();
    case.leaf.key =
        sequence(&[sequence(&[crate::der::oid("1.2.840.10045.2.1")]), crate::der::bits(&[4; 97])]);
    assert_eq!(checks(&case.verdict()), [Check::Signature]);
}
