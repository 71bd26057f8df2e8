//! Every bit of evidence is covered by a signature, or must have one value.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::chain::Case;
use crate::real::Real;

/// Flips each bit in turn, on two threads; the places (byte, bit) of those that `passes` lets through.
pub fn passing(bytes: &[u8], passes: impl Fn(Vec<u8>) -> bool + Sync) -> Vec<(usize, u8)> {
    let next = AtomicUsize::new(0);
    let part = || {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= bytes.len() {
                return found;
            }
            for bit in 0..8 {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 1 << bit;
                if passes(flipped) {
                    found.push((at, bit));
                }
            }
        }
    };
    thread::scope(|scope| {
        let other = scope.spawn(part);
        let mut all = part();
        all.extend(other.join().unwrap());
        all
    })
}

#[test]
fn no_bit_of_a_real_report_can_be_flipped() {
    let all = [
        ("milan-report.hex", "milan-vcek.der", "milan"),
        ("milan-v3-report.bin", "milan-v3-vcek.pem", "milan"),
        ("genoa-report.bin", "genoa-vcek.pem", "genoa"),
    ];
    for (report, leaf, family) in all {
        let Some(real) = Real::read(report, leaf, family) else { return };
        let verify = |report: Vec<u8>| {
            // A policy that names what the flipped report says: only signature and form are left to say no.
            let measurement = attest::Hex(report[0x90..0xc0].try_into().unwrap());
            let mut other = Real::new(report, real.certificates.clone(), family);
            other.snp().measurements = vec![measurement];
            other.snp().vmpl = vec![0, u32::from_le_bytes(other.report[0x30..0x34].try_into().unwrap())];
            other.verdict().reasons().is_empty()
        };
        assert!(verify(real.report.clone()), "{report}");
        assert_eq!(passing(&real.report, verify), [], "{report}");
    }
}

#[test]
fn no_bit_of_a_synthetic_report_of_any_version_can_be_flipped() {
    for (version, processor) in [(2_u32, [0; 3]), (5, [0x19, 0x11, 1])] {
        let mut case = Case::new();
        case.put(0, &version.to_le_bytes()).put(0x188, &processor);
        let (report, certificates) = (case.signed_report(), case.certificates());
        let verify = |report| case.judge(report, certificates.clone()).reasons().is_empty();
        assert!(verify(report.clone()));
        assert_eq!(passing(&report, verify), [], "version {version}");
    }
}

#[test]
fn no_bit_of_a_certificate_can_be_flipped() {
    let case = Case::new();
    let (report, certificates) = (case.signed_report(), case.certificates());
    for place in 0..certificates.len() {
        let verify = |flipped| {
            let mut all = certificates.clone();
            all[place] = flipped;
            case.judge(report.clone(), all).reasons().is_empty()
        };
        assert_eq!(passing(&certificates[place], verify), [], "certificate {place}");
    }
}
