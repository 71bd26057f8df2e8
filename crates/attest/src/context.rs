//! What a verifier knows beside the policy.

use crate::snp::Family;
use crate::{Hex, ReportData};
use crate::{simulated, tdx};

/// SHA-256 of the public keys (`SubjectPublicKeyInfo`, DER) of AMD's root keys, from the certificates `ARK-Milan`, `ARK-Genoa`, `ARK-Turin`.
const AMD: [(Family, &str); 3] = [
    (Family::Milan, "9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9"),
    (Family::Genoa, "429a69c9422aa258ee4d8db5fcda9c6470ef15f8cd5a9cebd6cbc7d90b863831"),
    (Family::Turin, "4f125410563a2ab9a50356f9243f6fe0b6f73de98603f53f90339c70e9d7ad08"),
];

/// Keys at which trust begins.
#[derive(Debug, Clone)]
pub struct Roots {
    /// For each chip family, SHA-256 of its root's public key (`SubjectPublicKeyInfo`, DER).
    pub(crate) amd: Vec<(Family, Hex<32>)>,
    /// The certificate (DER) of Intel's root.
    pub(crate) intel: Vec<u8>,
    /// Roots of simulated platforms.
    pub(crate) simulated: Vec<simulated::RootKey>,
}

impl Roots {
    /// The manufacturers' roots.
    #[must_use]
    pub fn builtin() -> Self {
        let amd = AMD.iter().filter_map(|(family, digest)| Some((*family, Hex::parse(digest).ok()?)));
        Self { amd: amd.collect(), intel: tdx::INTEL_ROOT.to_vec(), simulated: Vec::new() }
    }

    /// No root at all.
    #[must_use]
    pub fn none() -> Self {
        Self { amd: Vec::new(), intel: Vec::new(), simulated: Vec::new() }
    }

    /// Adds a root of a chip family, by SHA-256 of its public key (`SubjectPublicKeyInfo`, DER). For chains of tests.
    #[must_use]
    pub fn with_amd(mut self, family: Family, digest: [u8; 32]) -> Self {
        self.amd.push((family, Hex(digest)));
        self
    }

    /// Puts another certificate (DER) in the place of Intel's root. For chains of tests.
    #[must_use]
    pub fn with_intel(mut self, certificate: Vec<u8>) -> Self {
        self.intel = certificate;
        self
    }

    /// Adds the root of a simulated platform. Evidence of it is refused even so, unless [`Context::allow_simulated`] is set.
    #[must_use]
    pub fn with_simulated(mut self, root: simulated::RootKey) -> Self {
        self.simulated.push(root);
        self
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_root_of_the_table_is_a_digest() {
        assert_eq!(Roots::builtin().amd.len(), AMD.len());
    }
}
