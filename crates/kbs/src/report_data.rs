//! What a guest has its chip sign: the hash of the canonical JSON (RFC 8785) of nonce, key and additional evidence.

use std::fmt;

use attest::{Hex, ReportData};
use aws_lc_rs::digest::{self, SHA256, SHA384, SHA512};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::{PublicKey, RuntimeData};

/// The hash that a broker may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// 32 bytes.
    Sha256,
    /// 48 bytes; used unless the broker says otherwise.
    Sha384,
    /// 64 bytes.
    Sha512,
}

impl Hash {
    /// The hash that a challenge chooses.
    ///
    /// # Errors
    /// A sentence, if it is not known.
    pub fn chosen(extra_params: &Value) -> Result<Self, String> {
        let Some(name) = extra_params.get("selected-hash-algorithm") else { return Ok(Self::Sha384) };
        match name.as_str().map(str::to_ascii_lowercase).as_deref() {
            Some("sha256") => Ok(Self::Sha256),
            Some("sha384") => Ok(Self::Sha384),
            Some("sha512") => Ok(Self::Sha512),
            _ => Err(format!("it chooses the hash {name}, which is not known")),
        }
    }
}

/// The fields stand in the order of canonical JSON.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Bound<'a> {
    additional_evidence: &'a str,
    nonce: &'a str,
    tee_pubkey: &'a PublicKey,
}

/// The report data: the hash, and zeros up to 64 bytes.
///
/// # Panics
/// Never: its fields are text.
#[must_use]
pub fn report_data(runtime_data: &RuntimeData, additional_evidence: &str, hash: Hash) -> ReportData {
    let RuntimeData { nonce, tee_pubkey } = runtime_data;
    let bound = Bound { additional_evidence, nonce, tee_pubkey };
    // With names in order, no numbers and no blanks, what serde_json writes is canonical: it escapes what RFC 8785 does, as that does.
    let text = serde_json::to_vec(&bound).expect("text can be written");
    let algorithm = match hash {
        Hash::Sha256 => &SHA256,
        Hash::Sha384 => &SHA384,
        Hash::Sha512 => &SHA512,
    };
    let digest = digest::digest(algorithm, &text);
    let mut all = [0; 64];
    all[..digest.as_ref().len()].copy_from_slice(digest.as_ref());
    Hex(all)
}

/// The certificate by which a server has shown who it is, as its SHA-256 (as `tls-server-end-point` of RFC 5929). A guest that binds it into its
/// evidence makes that evidence worthless to whoever relays it from another connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TlsKey([u8; 32]);

#[derive(Serialize, Deserialize)]
struct Additional {
    #[serde(rename = "cvmio-tls")]
    tls: Tls,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Tls {
    server_end_point: String,
}

impl TlsKey {
    /// Of this certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(seal::sha256(&[certificate.as_ref()]))
    }

    /// As the additional evidence that a guest sends and binds.
    ///
    /// # Panics
    /// Never: its fields are text.
    #[must_use]
    pub fn to_additional(self) -> String {
        let tls = Tls { server_end_point: hex::encode(self.0) };
        serde_json::to_string(&Additional { tls }).expect("text can be written")
    }

    /// The certificate that additional evidence names; `None` if it is something else.
    #[must_use]
    pub fn from_additional(text: &str) -> Option<Self> {
        let additional: Additional = serde_json::from_str(text).ok()?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(additional.tls.server_end_point, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Computed by a program of some lines over Python's json (keys sorted, no blanks) and hashlib.
    #[test]
    fn report_data_agrees_with_another_program() {
        let tee_pubkey = PublicKey::new(&[[1; 32], [2; 32]]);
        let runtime_data = RuntimeData { nonce: "bm9uY2U=/\"\u{e9}\n".into(), tee_pubkey };
        let found = report_data(&runtime_data, "{\"a\":1}", Hash::Sha384).to_string();
        assert_eq!(found, PYTHON);
        let plain = RuntimeData { nonce: "bm9uY2U=".into(), ..runtime_data };
        assert_ne!(report_data(&plain, "", Hash::Sha384), report_data(&plain, "{}", Hash::Sha384));
        assert!(report_data(&plain, "", Hash::Sha256).to_string().ends_with(&"0".repeat(64)));
    }

    const PYTHON: &str = "9f4846c058bfdc83a6cc3951bd08081c10397c7685918007225301b381db6f5a9e5382620283e4a9f51b5c3b187b943800000000000000000000000000000000";

    #[test]
    fn the_hash_is_the_brokers_choice_of_three() {
        assert_eq!(Hash::chosen(&json!("")), Ok(Hash::Sha384));
        assert_eq!(Hash::chosen(&json!({ "selected-hash-algorithm": "SHA512" })), Ok(Hash::Sha512));
        assert_eq!(Hash::chosen(&json!({ "selected-hash-algorithm": "sha256" })), Ok(Hash::Sha256));
        assert!(Hash::chosen(&json!({ "selected-hash-algorithm": "sm3" })).unwrap_err().contains("sm3"));
        assert!(Hash::chosen(&json!({ "selected-hash-algorithm": 5 })).is_err());
    }

    #[test]
    fn a_bound_certificate_comes_back() {
        let key = TlsKey::of(&CertificateDer::from(vec![1, 2, 3]));
        assert_eq!(TlsKey::from_additional(&key.to_additional()), Some(key));
        assert_eq!(TlsKey::from_additional(""), None);
        assert_eq!(TlsKey::from_additional("{}"), None);
        assert_eq!(TlsKey::from_additional(r#"{"cvmio-tls":{"server-end-point":"00"}}"#), None);
    }
}
