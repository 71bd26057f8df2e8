//! Evidence as one JSON document.

use std::fmt;

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};

use crate::Platform;

/// Most bytes of the document.
pub const MAX_EVIDENCE: usize = 2 * 1024 * 1024;
/// Most certificates that come with it.
const MAX_CERTIFICATES: usize = 16;

/// Evidence of one machine, with what came beside it. Nothing of it is believed before [`crate::verify`] has seen it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// An SNP report.
    Snp {
        /// The report, as the firmware wrote it.
        report: Vec<u8>,
        /// Certificates (DER), in any order.
        certificates: Vec<Vec<u8>>,
    },
    /// A TDX quote.
    Tdx {
        /// The quote.
        quote: Vec<u8>,
        /// The event log of firmware and boot loader (the content of the ACPI table CCEL's area), if it is there.
        event_log: Option<Vec<u8>>,
    },
    /// A report of a simulated platform ([`crate::simulated`]).
    Simulated {
        /// The report, as its issuer wrote it.
        report: Vec<u8>,
    },
}

/// Why bytes are no evidence document.
#[derive(Debug)]
pub enum EvidenceError {
    /// It is longer than [`MAX_EVIDENCE`]; its size in bytes.
    TooLong(usize),
    /// It is no JSON document of this kind.
    Syntax(serde_json::Error),
    /// A field is not base64 text; its name.
    Base64(&'static str),
    /// It has too many certificates; how many.
    TooManyCertificates(usize),
}

impl fmt::Display for EvidenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(size) => {
                write!(f, "the evidence has {size} bytes, and at most {MAX_EVIDENCE} are read")
            }
            Self::Syntax(error) => write!(f, "this is no evidence document: {error}"),
            Self::Base64(field) => write!(f, "the evidence's field `{field}` is not base64 text"),
            Self::TooManyCertificates(count) => {
                write!(f, "the evidence has {count} certificates, and at most {MAX_CERTIFICATES} are read")
            }
        }
    }
}

impl std::error::Error for EvidenceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Syntax(error) => Some(error),
            Self::TooLong(_) | Self::Base64(_) | Self::TooManyCertificates(_) => None,
        }
    }
}

/// The document: bytes as base64.
#[derive(Serialize, Deserialize)]
#[serde(tag = "platform", rename_all = "kebab-case", deny_unknown_fields)]
enum Document {
    Snp {
        report: String,
        #[serde(default)]
        certificates: Vec<String>,
    },
    Tdx {
        quote: String,
        #[serde(default, rename = "event-log", skip_serializing_if = "Option::is_none")]
        event_log: Option<String>,
    },
    Simulated {
        report: String,
    },
}

impl Evidence {
    /// The kind of machine that it says it is from.
    #[must_use]
    pub fn platform(&self) -> Platform {
        match self {
            Self::Snp { .. } => Platform::Snp,
            Self::Tdx { .. } => Platform::Tdx,
            Self::Simulated { .. } => Platform::Simulated,
        }
    }

    /// Reads the document.
    ///
    /// # Errors
    /// If it is too long, or no such document. What the fields hold is not looked at.
    pub fn parse(bytes: &[u8]) -> Result<Self, EvidenceError> {
        if bytes.len() > MAX_EVIDENCE {
            return Err(EvidenceError::TooLong(bytes.len()));
        }
        let decode = |field, text: &str| Base64::decode_vec(text).map_err(|_| EvidenceError::Base64(field));
        match serde_json::from_slice(bytes).map_err(EvidenceError::Syntax)? {
            Document::Snp { report, certificates } => {
                if certificates.len() > MAX_CERTIFICATES {
                    return Err(EvidenceError::TooManyCertificates(certificates.len()));
                }
                let certificates = certificates.iter().map(|text| decode("certificates", text));
                Ok(Self::Snp {
                    report: decode("report", &report)?,
                    certificates: certificates.collect::<Result<_, _>>()?,
                })
            }
            Document::Tdx { quote, event_log } => Ok(Self::Tdx {
                quote: decode("quote", &quote)?,
                event_log: event_log.map(|log| decode("event-log", &log)).transpose()?,
            }),
            Document::Simulated { report } => Ok(Self::Simulated { report: decode("report", &report)? }),
        }
    }

    /// Writes the document: one line of JSON.
    ///
    /// # Panics
    /// Never: its fields are text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let document = match self {
            Self::Snp { report, certificates } => Document::Snp {
                report: Base64::encode_string(report),
                certificates: certificates.iter().map(|der| Base64::encode_string(der)).collect(),
            },
            Self::Tdx { quote, event_log } => Document::Tdx {
                quote: Base64::encode_string(quote),
                event_log: event_log.as_ref().map(|log| Base64::encode_string(log)),
            },
            Self::Simulated { report } => Document::Simulated { report: Base64::encode_string(report) },
        };
        serde_json::to_string(&document).expect("a document of text can be written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_comes_back_and_others_are_refused() {
        let all = [
            Evidence::Snp { report: vec![1; 1184], certificates: vec![vec![2; 5], Vec::new()] },
            Evidence::Tdx { quote: vec![4; 9], event_log: Some(vec![5; 3]) },
            Evidence::Tdx { quote: vec![4; 9], event_log: None },
            Evidence::Simulated { report: vec![3; 7] },
        ];
        for evidence in all {
            assert_eq!(Evidence::parse(evidence.to_json().as_bytes()).unwrap(), evidence);
        }
        let refusal = |text: &str| Evidence::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(refusal("{").contains("no evidence document"));
        assert!(refusal(r#"{"platform":"sample","report":""}"#).contains("unknown variant"));
        assert!(refusal(r#"{"platform":"snp","report":"AAAA","x":1}"#).contains("unknown field"));
        assert!(refusal(r#"{"platform":"snp","report":"A"}"#).contains("`report` is not base64"));
        let many = format!(r#"{{"platform":"snp","report":"","certificates":[{}""]}}"#, r#""","#.repeat(16));
        assert!(refusal(&many).contains("17 certificates"));
        assert!(refusal(&" ".repeat(MAX_EVIDENCE + 1)).contains("at most"));
    }
}
