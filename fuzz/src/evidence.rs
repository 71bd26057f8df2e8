//! Evidence of confidential VMs, and what comes with it.

use attest::snp::measure::{Firmware, KernelHashes, Launch, Vmm, launch_measurement};
use attest::{Context, Evidence, Expected, Policy, Roots, snp, tdx, verify};

/// A policy with a table for each platform, so that every check is reached.
const POLICY: &str = "version = 1\n[snp]\nfamilies = ['milan', 'genoa', 'turin']\nmeasurements = ['M']\n\
    minimum-tcb.milan = { bootloader = 1, tee = 1, snp = 1, microcode = 1 }\n\
    minimum-tcb.genoa = { bootloader = 1, tee = 1, snp = 1, microcode = 1 }\n\
    minimum-tcb.turin = { bootloader = 1, tee = 1, snp = 1, microcode = 1 }\n\
    [tdx]\nmeasurements = ['M']\nevents = []\n[simulated]\nmeasurements = ['M']\n";

/// No evidence may pass where no root is known.
fn judge(evidence: &Evidence) {
    let policy = Policy::parse(&POLICY.replace('M', &"00".repeat(48))).expect("the policy is one");
    let roots = Roots::none();
    let mut context = Context::new(1, &roots, Expected::Anything);
    context.allow_simulated = true;
    context.collateral = Some(b"{}");
    let verdict = verify(evidence, &policy, &context);
    assert!(!verdict.reasons().is_empty());
    assert!(verdict.accepted().is_err());
}

/// Any bytes as an evidence document: refused, or read the same again; and refused by the verifier.
pub fn evidence(bytes: &[u8]) {
    if let Ok(evidence) = Evidence::parse(bytes) {
        assert_eq!(Evidence::parse(evidence.to_json().as_bytes()).expect("it was written by us"), evidence);
        judge(&evidence);
    }
}

/// Any bytes as an SNP report.
pub fn snp(bytes: &[u8]) {
    let mut report = bytes.to_vec();
    report.resize(snp::REPORT_SIZE, 0);
    judge(&Evidence::Snp { report, certificates: Vec::new() });
    judge(&Evidence::Snp { report: bytes.to_vec(), certificates: vec![bytes.to_vec()] });
}

/// Any bytes as a TDX quote.
pub fn quote(bytes: &[u8]) {
    judge(&Evidence::Tdx { quote: bytes.to_vec(), event_log: None });
}

/// Any bytes as an event log.
pub fn event_log(bytes: &[u8]) {
    if let Ok(events) = tdx::events(bytes) {
        for event in &events {
            assert!(event.register < 4);
            assert!(!event.to_string().chars().any(char::is_control));
        }
        let registers = tdx::replay(&events);
        assert!(registers.iter().enumerate().all(|(number, value)| {
            value.is_zero() || events.iter().any(|event| event.register == number)
        }));
    }
}

/// Any bytes as a certificate table of a host.
pub fn certificates(bytes: &[u8]) {
    if let Ok(certificates) = snp::certificates(bytes) {
        assert!(certificates.iter().map(Vec::len).sum::<usize>() <= 32 * bytes.len());
    }
}

/// Any text as an evidence policy: refused, or one that names what it accepts.
pub fn evidence_policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(policy) = Policy::parse(text) {
        assert!(
            policy.snp.as_ref().is_none_or(|snp| !snp.measurements.is_empty() && !snp.families.is_empty())
        );
        assert!(policy.tdx.as_ref().is_none_or(|tdx| !tdx.measurements.is_empty()));
    }
}

/// Any bytes as an image of firmware: refused, or measured.
pub fn firmware(bytes: &[u8]) {
    let Ok(firmware) = Firmware::parse(bytes) else { return };
    // Sections may be large; what a user waits for is bounded elsewhere.
    if firmware.pages() > 1024 {
        return;
    }
    let kernel = firmware.has_kernel_hashes().then(|| KernelHashes::new(b"k", b"i", "c"));
    let launch =
        Launch { firmware: &firmware, kernel, vcpus: 2, processor: 1, guest_features: 1, vmm: Vmm::Qemu };
    _ = launch_measurement(&launch);
}
