//! What a verifier knows beside the policy.

use crate::ReportData;
use crate::roots::Roots;

/// Which report data the evidence must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// These bytes: the evidence answers this exchange.
    Exactly(ReportData),
    /// Any. Then the evidence may have been made at any time, for anybody; the verdict says so.
    Anything,
}

/// What a verifier knows beside the policy.
#[derive(Debug, Clone)]
pub struct Context<'a> {
    /// The time at which to judge validity, in seconds since 1970, UTC.
    pub time: u64,
    /// Where trust begins.
    pub roots: &'a Roots,
    /// Certificates (DER) beside those that come with the evidence, in any order. They are trusted only through a chain to a root.
    pub certificates: &'a [Vec<u8>],
    /// Certificate revocation lists (DER), in any order.
    pub revocation_lists: &'a [Vec<u8>],
    /// Intel's collateral for the platform of a TDX quote: the JSON document of its provisioning service's answers, with bytes as hexadecimal digits.
    pub collateral: Option<&'a [u8]>,
    /// Which report data the evidence must have.
    pub report_data: Expected,
    /// Whether evidence of a simulated platform may pass. It proves nothing about a chip.
    pub allow_simulated: bool,
}

impl<'a> Context<'a> {
    /// A context without certificates and revocation lists, which refuses simulated evidence.
    #[must_use]
    pub fn new(time: u64, roots: &'a Roots, report_data: Expected) -> Self {
        Self {
            time,
            roots,
            certificates: &[],
            revocation_lists: &[],
            collateral: None,
            report_data,
            allow_simulated: false,
        }
    }
}
