//! The first exchange with a guest: a nonce for evidence, which vouches for the keys of both sides.
//!
//! The owner sends a nonce and the SSH key that it will log in with. The guest answers once in its life, with evidence whose report data
//! binds the nonce, that key, its own SSH host key and the key that will sign the manifest. So the owner sees that this guest, and no other,
//! answered now; that it lets nobody else in; whose host key to pin; and whose signature to believe. A host that answers in the guest's
//! place has no evidence, and one that asks first leaves evidence for another key.

use attest::{Binding, Evidence, ReportData};
use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What the evidence is for.
const PURPOSE: &str = "cvmio job 1";
/// Bytes of a nonce.
pub const NONCE: usize = 32;
/// Bytes of a key that signs manifests (Ed25519).
pub const SIGNING_KEY: usize = 32;
/// Most bytes of a question or an answer: one line of JSON.
pub const MAX_MESSAGE: u64 = 1 << 20;
/// Most characters of an SSH key.
const MAX_KEY: usize = 1024;

/// What the owner asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Question {
    /// 32 fresh random bytes, in hexadecimal digits.
    pub nonce: String,
    /// The owner's public SSH key: its type and its base64 text.
    pub owner_key: String,
}

/// What the guest answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Answer {
    /// The evidence document ([`attest::Evidence`]).
    pub evidence: serde_json::Value,
    /// The guest's public SSH host key: its type and its base64 text.
    pub host_key: String,
    /// The key that signs the manifest (Ed25519), in hexadecimal digits.
    pub signing_key: String,
}

/// Question and answer, as both sides and a later reader of the manifest see them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Exchange {
    /// The question.
    pub question: Question,
    /// The answer.
    pub answer: Answer,
}

impl Question {
    /// The report data for these keys of the guest's.
    #[must_use]
    pub fn report_data(&self, host_key: &str, signing_key: &str) -> ReportData {
        Binding::new(PURPOSE)
            .field("nonce", self.nonce.as_bytes())
            .field("owner key", self.owner_key.as_bytes())
            .field("host key", host_key.as_bytes())
            .field("signing key", signing_key.as_bytes())
            .report_data()
    }

    /// Whether a guest may answer it.
    ///
    /// # Errors
    /// If a field has not its form. What is written into a file of SSH's later is checked here.
    pub fn check(&self) -> Result<(), Error> {
        if hex::decode(&self.nonce).map(|nonce| nonce.len()) != Ok(NONCE) {
            return Err(Error::protocol(format!("the nonce is not {NONCE} bytes in hexadecimal digits")));
        }
        check_ssh_key(&self.owner_key)
    }
}

impl Exchange {
    /// The report data that the evidence must have.
    #[must_use]
    pub fn report_data(&self) -> ReportData {
        self.question.report_data(&self.answer.host_key, &self.answer.signing_key)
    }

    /// The evidence, not judged yet.
    ///
    /// # Errors
    /// If it is no evidence document.
    pub fn evidence(&self) -> Result<Evidence, Error> {
        Evidence::parse(self.answer.evidence.to_string().as_bytes())
            .map_err(|error| Error::protocol(format!("the guest's answer has no evidence: {error}")))
    }

    /// The key that signs the manifest.
    ///
    /// # Errors
    /// If it is not one.
    pub fn signing_key(&self) -> Result<[u8; SIGNING_KEY], Error> {
        let bytes = hex::decode(&self.answer.signing_key).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| {
            Error::protocol(format!("the signing key is not {SIGNING_KEY} bytes in hexadecimal digits"))
        })
    }

    /// Whether the guest's keys have their form; nothing is believed yet.
    ///
    /// # Errors
    /// Names the one that has not.
    pub fn check(&self) -> Result<(), Error> {
        self.question.check()?;
        check_ssh_key(&self.answer.host_key)?;
        self.signing_key().map(drop)
    }
}

/// A line of a file of SSH's must hold one key and nothing else: no options, no second line.
fn check_ssh_key(key: &str) -> Result<(), Error> {
    let refuse = || {
        Err(Error::protocol(format!("{key:?} is no Ed25519 SSH key: its type, a blank and its base64 text")))
    };
    let Some(text) = key.strip_prefix("ssh-ed25519 ").filter(|_| key.len() <= MAX_KEY) else {
        return refuse();
    };
    // The type again as a string of SSH's, then the key as one (RFC 8709, section 4).
    match Base64::decode_vec(text) {
        Ok(bytes) if bytes.len() == 51 && bytes.starts_with(b"\0\0\0\x0bssh-ed25519\0\0\0\x20") => Ok(()),
        _ => refuse(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A key in SSH's form.
    pub(crate) fn ssh_key(fill: u8) -> String {
        let bytes = [&b"\0\0\0\x0bssh-ed25519\0\0\0\x20"[..], &[fill; 32]].concat();
        format!("ssh-ed25519 {}", Base64::encode_string(&bytes))
    }

    #[test]
    fn each_key_and_the_nonce_are_bound() {
        let question = Question { nonce: "ab".repeat(NONCE), owner_key: ssh_key(1) };
        let (host, signing) = (ssh_key(2), "cd".repeat(SIGNING_KEY));
        let data = question.report_data(&host, &signing);
        let other =
            |question: &Question, host: &str, signing: &str| question.report_data(host, signing) != data;
        assert!(other(&Question { nonce: "ac".repeat(NONCE), ..question.clone() }, &host, &signing));
        assert!(other(&Question { owner_key: ssh_key(3), ..question.clone() }, &host, &signing));
        assert!(other(&question, &ssh_key(3), &signing));
        assert!(other(&question, &host, &"ce".repeat(SIGNING_KEY)));
    }

    #[test]
    fn nothing_but_a_key_reaches_a_file_of_ssh() {
        assert!(check_ssh_key(&ssh_key(7)).is_ok());
        let good = ssh_key(7);
        for bad in [
            String::new(),
            format!("{good}\n{good}"),
            format!("command=\"x\" {good}"),
            format!("{good} comment"),
            good.replace("ssh-ed25519 ", "ssh-rsa "),
            format!("ssh-ed25519 {}", Base64::encode_string(b"short")),
            format!("* {good}"),
        ] {
            assert!(check_ssh_key(&bad).is_err(), "{bad}");
        }
        let question = |nonce: &str| Question { nonce: nonce.into(), owner_key: ssh_key(1) }.check();
        assert!(question(&"00".repeat(NONCE)).is_ok());
        assert!(question("00").is_err() && question(&"zz".repeat(NONCE)).is_err());
    }
}
