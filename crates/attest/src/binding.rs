//! What report data stands for: a digest of named fields.

use std::fmt;

use aws_lc_rs::digest::{self, SHA512};

use crate::Hex;

/// Bytes of report data, in evidence of every platform.
pub const REPORT_DATA_SIZE: usize = 64;

/// The bytes that a guest has its chip sign together with its measurement.
pub type ReportData = Hex<REPORT_DATA_SIZE>;

/// Makes report data from what a guest wants vouched for: the verifier's nonce, and the keys that it made.
///
/// The result is SHA-512 over the purpose and the fields in their order, each as its length (8 bytes, little-endian) and its bytes, names
/// included. So no two different lists have the same report data, and evidence for one purpose is none for another.
#[derive(Clone)]
pub struct Binding {
    context: digest::Context,
}

impl Binding {
    /// Begins one; `purpose` names the protocol and its version, such as `cvmio job 1`.
    #[must_use]
    pub fn new(purpose: &str) -> Self {
        let mut binding = Self { context: digest::Context::new(&SHA512) };
        binding.put(b"cvmio attest binding 1");
        binding.put(purpose.as_bytes());
        binding
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, name: &str, value: &[u8]) -> Self {
        self.put(name.as_bytes());
        self.put(value);
        self
    }

    /// The report data of all fields so far.
    ///
    /// # Panics
    /// Never: SHA-512 has 64 bytes.
    #[must_use]
    pub fn report_data(self) -> ReportData {
        let digest = self.context.finish();
        Hex(digest.as_ref().try_into().expect("SHA-512 has 64 bytes"))
    }

    fn put(&mut self, bytes: &[u8]) {
        self.context.update(&(bytes.len() as u64).to_le_bytes());
        self.context.update(bytes);
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_purpose_name_value_or_cut_is_another_binding() {
        let data = |purpose: &str, fields: &[(&str, &[u8])]| {
            let all = fields.iter().fold(Binding::new(purpose), |all, (name, value)| all.field(name, value));
            all.report_data()
        };
        let base = data("job 1", &[("nonce", b"ab"), ("key", b"c")]);
        let others = [
            data("job 2", &[("nonce", b"ab"), ("key", b"c")]),
            data("job 1", &[("nonce", b"a"), ("key", b"bc")]),
            data("job 1", &[("nonce", b"ab"), ("kez", b"c")]),
            data("job 1", &[("key", b"c"), ("nonce", b"ab")]),
            data("job 1", &[("nonce", b"ab")]),
        ];
        assert!(others.iter().all(|other| *other != base));
        assert_eq!(base, data("job 1", &[("nonce", b"ab"), ("key", b"c")]));
    }
}
