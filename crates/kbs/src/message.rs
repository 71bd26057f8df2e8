//! The messages, as JSON.

use std::fmt;

use attest::Platform;
use base64ct::{Base64UrlUnpadded, Encoding};
use seal::jwe::{ALGORITHM, Point};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A kind of machine that evidence can be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tee {
    /// AMD SEV-SNP.
    Snp,
    /// Intel TDX.
    Tdx,
    /// A simulated platform of this project (`attest::simulated`). Other brokers do not know it.
    CvmioSimulated,
}

impl From<Platform> for Tee {
    fn from(platform: Platform) -> Self {
        match platform {
            Platform::Snp => Self::Snp,
            Platform::Tdx => Self::Tdx,
            Platform::Simulated => Self::CvmioSimulated,
        }
    }
}

impl fmt::Display for Tee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Snp => "snp",
            Self::Tdx => "tdx",
            Self::CvmioSimulated => "cvmio-simulated",
        })
    }
}

/// The first message of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Request {
    /// The protocol's version.
    pub version: String,
    /// The kind of machine.
    pub tee: Tee,
    /// An object, or an empty string.
    #[serde(default)]
    pub extra_params: Value,
}

/// The broker's challenge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Challenge {
    /// Text that the evidence must be bound to.
    pub nonce: String,
    /// An object, or an empty string.
    #[serde(default)]
    pub extra_params: Value,
}

/// A public key on P-256 as a JSON Web Key (RFC 7517). Its fields stand in the order of canonical JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicKey {
    alg: String,
    crv: String,
    kty: String,
    x: String,
    y: String,
}

impl PublicKey {
    /// The key with this point.
    #[must_use]
    pub fn new(point: &Point) -> Self {
        Self {
            alg: ALGORITHM.into(),
            crv: "P-256".into(),
            kty: "EC".into(),
            x: Base64UrlUnpadded::encode_string(&point[0]),
            y: Base64UrlUnpadded::encode_string(&point[1]),
        }
    }

    /// Its point, which may yet lie beside the curve.
    ///
    /// # Errors
    /// A sentence, if it is a key of another kind.
    pub fn point(&self) -> Result<Point, String> {
        if (self.kty.as_str(), self.crv.as_str(), self.alg.as_str()) != ("EC", "P-256", ALGORITHM) {
            return Err(format!("the guest's key is no EC key on P-256 for {ALGORITHM}"));
        }
        Ok([coordinate(&self.x)?, coordinate(&self.y)?])
    }
}

/// A coordinate of P-256.
pub(crate) fn coordinate(text: &str) -> Result<[u8; 32], String> {
    let bytes = Base64UrlUnpadded::decode_vec(text).ok();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| "a coordinate has 32 bytes as base64url".into())
}

/// What the evidence is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RuntimeData {
    /// The challenge's nonce.
    pub nonce: String,
    /// The guest's key, made for this session.
    pub tee_pubkey: PublicKey,
}

/// Evidence of the machine, and of devices beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompositeEvidence {
    /// The machine's, in a form that its kind gives it.
    pub primary_evidence: Value,
    /// A JSON object as text, or nothing. It is bound into the primary evidence.
    #[serde(default)]
    pub additional_evidence: String,
}

/// The guest's answer to the challenge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Attestation {
    /// Not used here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_data: Option<Value>,
    /// What the evidence is bound to.
    pub runtime_data: RuntimeData,
    /// The evidence.
    pub tee_evidence: CompositeEvidence,
}

/// The broker's answer to evidence that it accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// A token for asking without the cookie.
    pub token: String,
}

/// The broker's answer to what it refuses (RFC 7807).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URL whose last part is the problem's name.
    #[serde(rename = "type")]
    pub kind: String,
    /// In words.
    pub detail: String,
}

/// What each problem's URL begins with.
const PROBLEMS: &str = "https://github.com/confidential-containers/kbs/errors/";

impl Problem {
    /// The problem of this name.
    #[must_use]
    pub fn new(name: &str, detail: impl fmt::Display) -> Self {
        Self { kind: format!("{PROBLEMS}{name}"), detail: detail.to_string() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.kind.rsplit('/').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_have_the_names_of_the_document() {
        let request = Request { version: "0.4.0".into(), tee: Tee::Snp, extra_params: json!({}) };
        let text = serde_json::to_value(&request).unwrap();
        assert_eq!(text, json!({ "version": "0.4.0", "tee": "snp", "extra-params": {} }));
        // Trustee sends an empty string there.
        let challenge: Challenge = serde_json::from_str(r#"{"nonce":"AAA=","extra-params":""}"#).unwrap();
        assert_eq!(challenge.nonce, "AAA=");
        let attestation = Attestation {
            init_data: None,
            runtime_data: RuntimeData { nonce: "n".into(), tee_pubkey: PublicKey::new(&[[0; 32], [1; 32]]) },
            tee_evidence: CompositeEvidence {
                primary_evidence: json!({}),
                additional_evidence: String::new(),
            },
        };
        let text = serde_json::to_value(&attestation).unwrap();
        assert_eq!(text["runtime-data"]["tee-pubkey"]["kty"], "EC");
        assert_eq!(text["tee-evidence"]["additional_evidence"], "");
        assert_eq!(text.get("init-data"), None);
        assert!(
            serde_json::from_str::<Request>(r#"{"version":"0.4.0","tee":"sample","extra-params":{}}"#)
                .is_err()
        );
    }

    #[test]
    fn a_key_of_another_kind_is_refused() {
        let key = PublicKey::new(&[[1; 32], [2; 32]]);
        assert_eq!(key.point().unwrap(), [[1; 32], [2; 32]]);
        let with = |change: fn(&mut PublicKey)| {
            let mut other = key.clone();
            change(&mut other);
            other.point()
        };
        assert!(with(|key| key.crv = "P-521".into()).unwrap_err().contains("P-256"));
        assert!(with(|key| key.kty = "RSA".into()).is_err());
        assert!(with(|key| key.alg = "ECDH-ES".into()).is_err());
        assert!(with(|key| key.x.push('A')).unwrap_err().contains("32 bytes"));
    }
}
