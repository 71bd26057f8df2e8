//! Evidence of real chips, synthetic chains for every branch, and evidence with each bit flipped.

mod chain;
mod der;
mod fields;
mod flips;
mod measure;
mod policy;
mod real;
mod simulated;
mod table;
mod tdx;

use attest::Check;

/// The checks that said no, in their order, each once.
fn checks(verdict: &attest::Verdict) -> Vec<Check> {
    let mut all: Vec<Check> = verdict.reasons().iter().map(|reason| reason.check).collect();
    all.dedup();
    all
}
