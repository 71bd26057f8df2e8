//! Evidence of real chips, in the folder `evidence` of what lies beside the checkout, with the verdict that each file must get.

use std::fs;
use std::path::PathBuf;

use attest::snp::{Family, Revocation, SigningKey, Tcb};
use attest::{Check, Claims, Context, Evidence, Expected, Hex, Policy, Roots, Verdict, pem, snp, verify};

use crate::checks;

/// A moment at which all chains of the files are valid, but the VLEK's: 2026-11-27.
const TIME: u64 = 1_795_737_600;
/// A moment at which the VLEK is: 2025-06-01.
const VLEK_TIME: u64 = 1_748_736_000;

/// The folder, or nothing and a line that says so.
pub fn folder(test: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/evidence"));
    if folder.join("README.txt").exists() {
        return Some(folder);
    }
    println!("\nSKIPPED {test}: no folder `shared/evidence` lies beside the checkout");
    None
}

pub struct Real {
    pub report: Vec<u8>,
    pub certificates: Vec<Vec<u8>>,
    pub policy: Policy,
    pub time: u64,
}

impl Real {
    /// A report with its certificates, and the policy that accepts just this machine.
    pub fn read(report: &str, leaf: &str, family: &str) -> Option<Self> {
        let folder = folder(report)?.join("snp");
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        let report = match report.strip_suffix(".hex") {
            Some(_) => hex::decode(String::from_utf8(read(report)).unwrap().trim()).unwrap(),
            None => read(report),
        };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let mut certificates = pem::certificates(&text(read(&format!("{family}-ask-ark-asvk.pem")))).unwrap();
        if leaf.ends_with(".pem") {
            certificates.extend(pem::certificates(&text(read(leaf))).unwrap());
        } else {
            certificates.push(read(leaf));
        }
        Some(Self::new(report, certificates, family))
    }

    pub fn new(report: Vec<u8>, certificates: Vec<Vec<u8>>, family: &str) -> Self {
        let measurement = hex::encode(&report[0x90..0xc0]);
        let policy = format!(
            "version = 1\n[snp]\nfamilies = ['{family}']\nmeasurements = ['{measurement}']\nrevocation = 'when-given'\n\
             minimum-tcb.{family} = {{ bootloader = 0, tee = 0, snp = 0, microcode = 0 }}\n"
        );
        Self { report, certificates, policy: Policy::parse(&policy).unwrap(), time: TIME }
    }

    pub fn snp(&mut self) -> &mut snp::Policy {
        self.policy.snp.as_mut().unwrap()
    }

    pub fn verdict(&self) -> Verdict {
        let roots = Roots::builtin();
        let context = Context::new(self.time, &roots, Expected::Anything);
        let evidence = Evidence::Snp { report: self.report.clone(), certificates: self.certificates.clone() };
        verify(&evidence, &self.policy, &context)
    }
}

#[test]
fn reports_of_milan_and_genoa_verify() {
    let all = [
        ("milan-report.hex", "milan-vcek.der", "milan", Family::Milan),
        ("milan-v3-report.bin", "milan-v3-vcek.pem", "milan", Family::Milan),
        ("genoa-report.bin", "genoa-vcek.pem", "genoa", Family::Genoa),
    ];
    for (report, leaf, name, family) in all {
        let Some(real) = Real::read(report, leaf, name) else { return };
        let verdict = real.verdict();
        assert_eq!(verdict.reasons(), [], "{report}");
        assert!(verdict.notes()[0].contains("report data was not compared"));
        let Claims::Snp(claims) = verdict.accepted().unwrap() else { panic!("{report} is SNP evidence") };
        assert!(claims.family().is_none_or(|found| found == family), "{report}");
        assert_eq!(claims.vmpl, 0, "{report}");
    }
}

#[test]
fn a_report_of_a_guest_that_can_be_debugged_is_refused_for_that_alone() {
    let Some(real) = Real::read("milan-debug-report.bin", "milan-debug-vcek.der", "milan") else { return };
    assert_eq!(checks(&real.verdict()), [Check::Debug]);
}

#[test]
fn firmware_that_is_out_of_date_is_refused() {
    let Some(mut real) = Real::read("milan-v3-report.bin", "milan-v3-vcek.pem", "milan") else { return };
    let up_to_date = Tcb { fmc: 0, bootloader: 4, tee: 0, snp: 27, microcode: 219 };
    real.snp().minimum_tcb.insert(Family::Milan, up_to_date);
    let found = checks(&real.verdict());
    assert_eq!(found.first(), Some(&Check::ReportedTcb), "{found:?}");
    assert!(found.contains(&Check::CommittedTcb), "{found:?}");
}

#[test]
fn a_report_by_a_vlek_is_refused_for_its_level_and_its_time_and_passes_where_both_are_right() {
    let Some(mut real) = Real::read("vlek-report.bin", "vlek.der", "milan") else { return };
    assert_eq!(checks(&real.verdict()), [Check::Validity, Check::SigningKey, Check::Vmpl]);
    real.snp().signing_keys = vec![SigningKey::Vlek];
    assert_eq!(checks(&real.verdict()), [Check::Validity, Check::Vmpl]);
    real.time = VLEK_TIME;
    assert_eq!(checks(&real.verdict()), [Check::Vmpl]);
    real.snp().vmpl = vec![1];
    assert_eq!(real.verdict().reasons(), []);
    real.snp().csp_ids = Some(vec!["CN=elsewhere".to_string()]);
    assert_eq!(checks(&real.verdict()), [Check::Csp]);
}

#[test]
fn certificates_of_other_chips_are_refused() {
    let Some(mut real) = Real::read("milan-report.hex", "milan-vcek-invalid.der", "milan") else { return };
    let found = checks(&real.verdict());
    assert_eq!(found.first(), Some(&Check::Signature), "{found:?}");
    let other = Real::read("milan-report.hex", "milan-debug-vcek.der", "milan").unwrap();
    let found = checks(&other.verdict());
    assert!(found.starts_with(&[Check::Signature]) && found.contains(&Check::ChipId), "{found:?}");
    // The right one beside the wrong one is found.
    real.certificates.extend(Real::read("milan-report.hex", "milan-vcek.der", "milan").unwrap().certificates);
    assert_eq!(real.verdict().reasons(), []);
}

#[test]
fn the_chain_of_a_turin_chip_verifies() {
    // No report of one is public, so one of another chip stands in for it: what is left must be the report's.
    let Some(mut real) = Real::read("genoa-report.bin", "turin-vcek.der", "turin") else { return };
    real.snp().families = vec![Family::Turin, Family::Genoa];
    let found = checks(&real.verdict());
    let of_chain = [Check::Chain, Check::Root, Check::Validity, Check::Certificate, Check::Revocation];
    assert!(!of_chain.iter().any(|check| found.contains(check)), "{found:?}");
    assert!(found.contains(&Check::Signature) && found.contains(&Check::Product), "{found:?}");
}

#[test]
fn the_answer_of_a_kernel_with_its_certificate_table_verifies() {
    let Some(folder) = folder("genoa-configfs-tsm.json") else { return };
    let text = fs::read_to_string(folder.join("snp/genoa-configfs-tsm.json")).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let field = |name: &str| {
        let text: String = answer[name].as_str().unwrap().to_string();
        use base64ct::Encoding as _;
        base64ct::Base64::decode_vec(&text)
            .unwrap_or_else(|_| base64ct::Base64UrlUnpadded::decode_vec(&text).unwrap())
    };
    let table = field("auxblob");
    assert_eq!(table, fs::read(folder.join("snp/genoa-auxblob.bin")).unwrap());
    let certificates = snp::certificates(&table).unwrap();
    assert_eq!(certificates.len(), 3);
    let real = Real::new(field("outblob"), certificates, "genoa");
    assert_eq!(real.verdict().reasons(), []);
}

#[test]
fn a_policy_without_a_revocation_list_refuses_and_one_without_the_family_too() {
    let Some(mut real) = Real::read("milan-report.hex", "milan-vcek.der", "milan") else { return };
    real.snp().revocation = Revocation::Required;
    assert_eq!(checks(&real.verdict()), [Check::Revocation]);
    real.snp().revocation = Revocation::WhenGiven;
    real.snp().families = vec![Family::Genoa];
    assert_eq!(checks(&real.verdict()), [Check::Family]);
    real.snp().families = vec![Family::Milan];
    real.snp().measurements = vec![Hex([1; 48])];
    assert_eq!(checks(&real.verdict()), [Check::Measurement]);
    real.policy.snp = None;
    let found = checks(&real.verdict());
    assert!(found.contains(&Check::Platform), "{found:?}");
}
