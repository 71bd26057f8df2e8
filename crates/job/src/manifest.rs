//! The result manifest: what ran, on what, from what, with which result, signed by a key that the evidence vouches for.
//!
//! It is an in-toto statement (version 1) in a DSSE envelope. Its subjects are the files that came back.
//!
//! Sources: in-toto attestation framework, `spec/v1/statement.md`; DSSE, `protocol.md` and `envelope.md`.

mod envelope;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::challenge::Exchange;
use crate::error::{Error, Result};
use crate::file::Digest;
use crate::volume::Used;

pub use envelope::{Envelope, SigningKey};

/// The statement's type.
const STATEMENT: &str = "https://in-toto.io/Statement/v1";
/// The predicate's type.
const PREDICATE: &str = "tag:cvm-io,2026:job-result/1";
/// The payload's type.
const PAYLOAD: &str = "application/vnd.in-toto+json";
/// Most bytes of a manifest.
pub const MAX_MANIFEST: usize = 16 << 20;

/// A file with its digest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// Its path: of a subject, below the directory with results; of an input, in the container.
    pub name: String,
    /// By algorithm, in hexadecimal digits: `sha256`.
    pub digest: BTreeMap<String, String>,
}

impl Resource {
    /// One with this digest.
    #[must_use]
    pub fn new(name: impl Into<String>, digest: Digest) -> Self {
        Self { name: name.into(), digest: [("sha256".to_string(), digest.digits())].into() }
    }

    /// Its SHA-256, in digits.
    #[must_use]
    pub fn sha256(&self) -> Option<&str> {
        self.digest.get("sha256").map(String::as_str)
    }
}

/// How the container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct End {
    /// The exit code; 128 and the signal's number where a signal ended it.
    pub exit_code: i32,
    /// The limit that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<String>,
}

/// What is said about the outputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Predicate {
    /// The job's name.
    pub job: String,
    /// The job file, as the guest got it.
    pub job_file: Resource,
    /// The image: an archive by its own digest, a context by that of its stream.
    pub image: Resource,
    /// Each file that the container could read.
    pub inputs: Vec<Resource>,
    /// Volumes that outlive the machine, with what their anchors held before and after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Used>,
    /// What the container wrote to its standard output and error.
    pub log: Resource,
    /// How it ended.
    pub end: End,
    /// Seconds since 1970 by the guest's clock, which its host sets.
    pub begun: u64,
    /// The same.
    pub ended: u64,
    /// Limits that were in force, by their names.
    pub limits: BTreeMap<String, serde_json::Value>,
    /// The first exchange, evidence included.
    pub exchange: Exchange,
}

/// The statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    /// Each file that came back.
    pub subject: Vec<Resource>,
    #[serde(rename = "predicateType")]
    predicate_kind: String,
    /// What is said about them.
    pub predicate: Predicate,
}

impl Statement {
    /// One of these files.
    #[must_use]
    pub fn new(subject: Vec<Resource>, predicate: Predicate) -> Self {
        Self { kind: STATEMENT.into(), subject, predicate_kind: PREDICATE.into(), predicate }
    }

    /// Signs it.
    ///
    /// # Panics
    /// Never: its fields are text and numbers.
    #[must_use]
    pub fn sign(&self, key: &SigningKey) -> Envelope {
        let payload = serde_json::to_vec(self).expect("text and numbers can be written");
        Envelope::sign(PAYLOAD, &payload, key)
    }

    /// Reads a manifest and checks its signature by the key that it names itself. **The evidence is not judged here**: until it was
    /// ([`Exchange::evidence`], [`Exchange::report_data`]), the manifest proves nothing.
    ///
    /// # Errors
    /// If it is too long, of another form or type, or the signature is not one of the key in its exchange.
    pub fn open(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_MANIFEST {
            return Err(Error::protocol(format!(
                "the manifest has {} bytes, and at most {MAX_MANIFEST} are read",
                bytes.len()
            )));
        }
        let envelope: Envelope = serde_json::from_slice(bytes)
            .map_err(|error| Error::protocol(format!("this is no manifest: {error}")).because(error))?;
        let payload = envelope.payload(PAYLOAD)?;
        let statement: Self = serde_json::from_slice(&payload).map_err(|error| {
            Error::protocol(format!("the manifest's statement has another form: {error}")).because(error)
        })?;
        if statement.kind != STATEMENT || statement.predicate_kind != PREDICATE {
            return Err(Error::protocol(format!(
                "the manifest has type {} and predicate {}; this program reads {STATEMENT} and {PREDICATE}",
                statement.kind, statement.predicate_kind
            )));
        }
        let exchange = &statement.predicate.exchange;
        exchange.check()?;
        envelope.verify(&payload, &exchange.signing_key()?)?;
        Ok(statement)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::challenge::{Answer, Question, tests::ssh_key};

    pub(crate) fn statement(key: &SigningKey) -> Statement {
        let digest = Digest::new([7; 32]);
        let exchange = Exchange {
            question: Question { nonce: "01".repeat(32), owner_key: ssh_key(1) },
            answer: Answer {
                evidence: serde_json::json!({}),
                host_key: ssh_key(2),
                signing_key: key.public(),
            },
        };
        let predicate = Predicate {
            job: "a".into(),
            job_file: Resource::new("job.toml", digest),
            image: Resource::new("image", digest),
            inputs: vec![Resource::new("/in/a", digest)],
            volumes: Vec::new(),
            log: Resource::new("log", digest),
            end: End { exit_code: 0, stopped_by: None },
            begun: 1,
            ended: 2,
            limits: [("memory".to_string(), serde_json::json!(1))].into(),
            exchange,
        };
        Statement::new(vec![Resource::new("out/a", digest)], predicate)
    }

    #[test]
    fn a_manifest_comes_back() {
        let key = SigningKey::generate().unwrap();
        let statement = statement(&key);
        let bytes = serde_json::to_vec(&statement.sign(&key)).unwrap();
        assert_eq!(Statement::open(&bytes).unwrap(), statement);
    }

    #[test]
    fn a_manifest_that_was_edited_or_signed_by_another_key_is_refused() {
        let key = SigningKey::generate().unwrap();
        let statement = statement(&key);
        let other = SigningKey::generate().unwrap();
        let bytes = serde_json::to_vec(&statement.sign(&other)).unwrap();
        assert!(Statement::open(&bytes).unwrap_err().to_string().contains("signature"));
        // Every byte of the payload counts.
        let envelope = statement.sign(&key);
        let payload = envelope.payload(PAYLOAD).unwrap();
        for place in (0..payload.len()).step_by(7) {
            let mut changed = payload.clone();
            changed[place] ^= 1;
            let bytes = serde_json::to_vec(&envelope.with_payload(&changed)).unwrap();
            assert!(Statement::open(&bytes).is_err(), "byte {place}");
        }
        let of_another_type = Envelope::sign("text/plain", &payload, &key);
        assert!(Statement::open(&serde_json::to_vec(&of_another_type).unwrap()).is_err());
        for bytes in [&b"{}"[..], b"", b"[1]"] {
            assert!(Statement::open(bytes).is_err());
        }
    }
}
