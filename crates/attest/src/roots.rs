//! Roots: the keys at which trust begins.

use std::fmt;

use crate::Hex;
use crate::family::Family;

/// Bytes of a simulated platform's public key.
pub(crate) const KEY_SIZE: usize = 97;
/// The certificate of Intel's root.
const INTEL: &[u8] = include_bytes!("tdx/intel-sgx-root.der");

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
    pub(crate) simulated: Vec<RootKey>,
}

impl Roots {
    /// The manufacturers' roots.
    #[must_use]
    pub fn builtin() -> Self {
        let amd = AMD.iter().filter_map(|(family, digest)| Some((*family, Hex::parse(digest).ok()?)));
        Self { amd: amd.collect(), intel: INTEL.to_vec(), simulated: Vec::new() }
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

    /// Adds the root of a simulated platform. Evidence of it is refused even so, unless
    /// [`Context::allow_simulated`](crate::Context::allow_simulated) is set.
    #[must_use]
    pub fn with_simulated(mut self, root: RootKey) -> Self {
        self.simulated.push(root);
        self
    }
}

/// The public key of a simulated platform's root.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RootKey(pub(crate) Hex<KEY_SIZE>);

impl RootKey {
    /// Reads one from 194 hexadecimal digits.
    ///
    /// # Errors
    /// A sentence, if it is anything else.
    pub fn parse(text: &str) -> Result<Self, String> {
        Hex::parse(text.trim()).map(Self)
    }
}

impl fmt::Display for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
