//! The DSSE envelope: a payload, its type, and signatures over both.

use std::fmt;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::challenge::SIGNING_KEY;
use crate::error::{Error, Result};

/// A signed payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    keyid: String,
    sig: String,
}

/// A key that signs (Ed25519).
pub struct SigningKey {
    pair: Ed25519KeyPair,
    document: Zeroizing<Vec<u8>>,
}

impl SigningKey {
    /// Makes one, by the cipher library's randomness.
    ///
    /// # Errors
    /// If the library fails.
    pub fn generate() -> Result<Self> {
        let failed = |_| Error::io("the cipher library could not make a key");
        let pair = Ed25519KeyPair::generate().map_err(failed)?;
        let document = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).map_err(failed)?;
        Self::read(document.as_ref())
    }

    /// Reads its private key (PKCS #8).
    ///
    /// # Errors
    /// If it is none.
    pub fn read(document: &[u8]) -> Result<Self> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(document)
            .map_err(|_| Error::protocol("the signing key is no private key of Ed25519 (PKCS #8)"))?;
        Ok(Self { pair, document: Zeroizing::new(document.to_vec()) })
    }

    /// The private key (PKCS #8).
    #[must_use]
    pub fn document(&self) -> &[u8] {
        &self.document
    }

    /// The public key, in hexadecimal digits.
    #[must_use]
    pub fn public(&self) -> String {
        hex::encode(self.pair.public_key())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").finish_non_exhaustive()
    }
}

/// What is signed: type and payload with their lengths, so that no two pairs read alike.
fn signed(kind: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

impl Envelope {
    pub(super) fn sign(kind: &str, payload: &[u8], key: &SigningKey) -> Self {
        let signature = key.pair.sign(&signed(kind, payload));
        let signature = Signature { keyid: key.public(), sig: Base64::encode_string(signature.as_ref()) };
        Self {
            payload: Base64::encode_string(payload),
            payload_type: kind.into(),
            signatures: vec![signature],
        }
    }

    /// The payload, if it has this type.
    pub(super) fn payload(&self, kind: &str) -> Result<Vec<u8>> {
        if self.payload_type != kind {
            return Err(Error::protocol(format!(
                "the envelope holds {}, and a manifest is {kind}",
                self.payload_type
            )));
        }
        Base64::decode_vec(&self.payload)
            .map_err(|_| Error::protocol("the envelope's payload is no base64 text"))
    }

    /// Whether the one signature is this key's.
    pub(super) fn verify(&self, payload: &[u8], key: &[u8; SIGNING_KEY]) -> Result<()> {
        let [Signature { sig, .. }] = &self.signatures[..] else {
            return Err(Error::protocol(format!(
                "the manifest has {} signatures, and one is expected",
                self.signatures.len()
            )));
        };
        let bytes = Base64::decode_vec(sig)
            .map_err(|_| Error::protocol("the manifest's signature is no base64 text"))?;
        let key = UnparsedPublicKey::new(&ED25519, key);
        key.verify(&signed(&self.payload_type, payload), &bytes).map_err(|_| {
            Error::refused("the manifest's signature is not one of the key that its evidence vouches for: it was changed, or another guest made it")
        })
    }

    #[cfg(test)]
    pub(super) fn with_payload(&self, payload: &[u8]) -> Self {
        Self { payload: Base64::encode_string(payload), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of DSSE's `protocol.md`.
    #[test]
    fn lengths_keep_type_and_payload_apart() {
        let text = signed("http://example.com/HelloWorld", b"hello world");
        assert_eq!(text, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
        assert_ne!(signed("a", b"1 b"), signed("a 1", b"b"));
    }

    #[test]
    fn a_key_comes_back() {
        let key = SigningKey::generate().unwrap();
        assert_eq!(SigningKey::read(key.document()).unwrap().public(), key.public());
        assert!(SigningKey::read(b"no key").is_err());
    }
}
