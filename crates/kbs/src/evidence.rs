//! Evidence in the form that each kind of machine has in the protocol.

use attest::Evidence;
use base64ct::{Base64, Encoding};
use serde_json::{Value, json};

use crate::Error;
use crate::message::Tee;
use crate::snp_report;

/// Most certificates beside a report.
const MAX_CERTIFICATES: usize = 16;

/// The kind of machine, and its evidence as JSON.
///
/// # Errors
/// [`Error::Evidence`], for an SNP report that has not the size of one.
pub fn to_wire(evidence: &Evidence) -> Result<(Tee, Value), Error> {
    Ok(match evidence {
        Evidence::Snp { report, certificates } => {
            let report = snp_report::to_json(report)
                .ok_or_else(|| Error::Evidence(format!("the report has {} bytes", report.len())))?;
            (Tee::Snp, json!({ "attestation_report": report, "cert_chain": chain(certificates) }))
        }
        Evidence::Tdx { quote, event_log } => {
            let log = event_log.as_ref().map(|log| Base64::encode_string(log));
            (Tee::Tdx, json!({ "quote": Base64::encode_string(quote), "cc_eventlog": log }))
        }
        Evidence::Simulated { report } => {
            (Tee::CvmioSimulated, json!({ "report": Base64::encode_string(report) }))
        }
    })
}

/// Certificates as a list of a host's table; which is which the receiver finds out by itself.
fn chain(certificates: &[Vec<u8>]) -> Value {
    if certificates.is_empty() {
        return Value::Null;
    }
    let entry = |der: &Vec<u8>| json!({ "cert_type": attest::snp::certificate_kind(der), "data": der });
    certificates.iter().map(entry).collect()
}

/// Evidence of this kind of machine.
///
/// # Errors
/// A sentence, if it is none. What it says is not looked at.
pub fn from_wire(tee: Tee, json: &Value) -> Result<Evidence, String> {
    let decode = |name: &str| {
        let text = json[name].as_str().ok_or_else(|| format!("the evidence's `{name}` is no text"))?;
        Base64::decode_vec(text).map_err(|_| format!("the evidence's `{name}` is not base64 text"))
    };
    match tee {
        Tee::Snp => Ok(Evidence::Snp {
            report: snp_report::from_json(&json["attestation_report"])?,
            certificates: certificates(&json["cert_chain"])?,
        }),
        Tee::Tdx => {
            let event_log = if json["cc_eventlog"].is_null() { None } else { Some(decode("cc_eventlog")?) };
            Ok(Evidence::Tdx { quote: decode("quote")?, event_log })
        }
        Tee::CvmioSimulated => Ok(Evidence::Simulated { report: decode("report")? }),
    }
}

fn certificates(chain: &Value) -> Result<Vec<Vec<u8>>, String> {
    if chain.is_null() {
        return Ok(Vec::new());
    }
    let list = chain.as_array().filter(|list| list.len() <= MAX_CERTIFICATES);
    let list =
        list.ok_or_else(|| format!("`cert_chain` is no list of at most {MAX_CERTIFICATES} certificates"))?;
    let bytes = |entry: &Value| -> Option<Vec<u8>> {
        entry["data"].as_array()?.iter().map(|byte| byte.as_u64()?.try_into().ok()).collect()
    };
    let all: Option<Vec<_>> = list.iter().map(bytes).collect();
    all.ok_or_else(|| "a certificate's `data` is no list of bytes".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_comes_back() {
        let all = [
            (
                Tee::Snp,
                Evidence::Snp { report: vec![0; attest::snp::REPORT_SIZE], certificates: vec![vec![1, 255]] },
            ),
            (Tee::Snp, Evidence::Snp { report: vec![0; attest::snp::REPORT_SIZE], certificates: Vec::new() }),
            (Tee::Tdx, Evidence::Tdx { quote: vec![4; 9], event_log: Some(vec![5; 3]) }),
            (Tee::Tdx, Evidence::Tdx { quote: vec![4; 9], event_log: None }),
            (Tee::CvmioSimulated, Evidence::Simulated { report: vec![3; 7] }),
        ];
        for (tee, evidence) in all {
            let (named, json) = to_wire(&evidence).unwrap();
            assert_eq!((named, from_wire(tee, &json)), (tee, Ok(evidence)));
        }
        let short = Evidence::Snp { report: vec![0; 5], certificates: Vec::new() };
        assert!(to_wire(&short).unwrap_err().to_string().contains("5 bytes"));
    }

    #[test]
    fn what_is_none_is_refused() {
        let refusal = |tee, json: Value| from_wire(tee, &json).unwrap_err();
        assert!(refusal(Tee::Tdx, json!({})).contains("`quote`"));
        assert!(refusal(Tee::Tdx, json!({ "quote": "*" })).contains("base64"));
        assert!(refusal(Tee::CvmioSimulated, json!("x")).contains("`report`"));
        assert!(refusal(Tee::Snp, json!({})).contains("`version`"));
        assert!(certificates(&json!([{ "data": [256] }])).is_err());
        assert!(certificates(&json!([{}])).is_err());
        assert!(
            certificates(&Value::from(vec![json!({ "data": [] }); 17])).unwrap_err().contains("at most 16")
        );
    }
}
