//! An SNP report as other systems send it: JSON with a field for each field of the report, as the crate `sev` lays it out. What is judged is the
//! report's bytes, put together from it again: a field that was changed on the way breaks the signature, as a changed byte does.

use attest::snp::REPORT_SIZE;
use serde_json::{Map, Value, json};

/// A field of bytes: its name, where it lies, and how many it has.
const BYTES: [(&str, usize, usize); 10] = [
    ("family_id", 0x10, 16),
    ("image_id", 0x20, 16),
    ("report_data", 0x50, 64),
    ("measurement", 0x90, 48),
    ("host_data", 0xc0, 32),
    ("id_key_digest", 0xe0, 48),
    ("author_key_digest", 0x110, 48),
    ("report_id", 0x140, 32),
    ("report_id_ma", 0x160, 32),
    ("chip_id", 0x1a0, 64),
];
/// A number, little-endian.
const NUMBERS: [(&str, usize, usize); 7] = [
    ("version", 0, 4),
    ("guest_svn", 4, 4),
    ("policy", 8, 8),
    ("vmpl", 0x30, 4),
    ("sig_algo", 0x34, 4),
    ("plat_info", 0x40, 8),
    ("key_info", 0x48, 4),
];
/// A number that reports of this version and later have.
const LATER: [(&str, usize, usize, u64); 5] = [
    ("cpuid_fam_id", 0x188, 1, 3),
    ("cpuid_mod_id", 0x189, 1, 3),
    ("cpuid_step", 0x18a, 1, 3),
    ("launch_mit_vector", 0x1f8, 8, 5),
    ("current_mit_vector", 0x200, 8, 5),
];
/// Patch levels.
const LEVELS: [(&str, usize); 4] =
    [("current_tcb", 0x38), ("reported_tcb", 0x180), ("committed_tcb", 0x1e0), ("launch_tcb", 0x1f0)];
/// Versions of firmware.
const VERSIONS: [(&str, usize); 2] = [("current", 0x1e8), ("committed", 0x1ec)];
/// Both numbers of the signature.
const SIGNATURE: [(&str, usize); 2] = [("r", 0x2a0), ("s", 0x2e8)];
const SIGNATURE_SIZE: usize = 72;

/// The processor family of Turin.
const TURIN: u8 = 0x1a;

/// Where each patch level lies in its eight bytes: before Turin, and from Turin on.
const BEFORE_TURIN: &[(&str, usize)] = &[("bootloader", 0), ("tee", 1), ("snp", 6), ("microcode", 7)];
const FROM_TURIN: &[(&str, usize)] =
    &[("fmc", 0), ("bootloader", 1), ("tee", 2), ("snp", 3), ("microcode", 7)];

/// The layout of patch levels in this report.
fn levels(report: &[u8]) -> &'static [(&'static str, usize)] {
    let is_turin = match report[0] {
        // Before version 3 a report does not name the processor; Turin's chip id has 8 bytes.
        2 => report[0x1a8..0x1e0].iter().all(|byte| *byte == 0) && report[0x1a0..0x1a8] != [0; 8],
        _ => report[0x188] >= TURIN,
    };
    if is_turin { FROM_TURIN } else { BEFORE_TURIN }
}

fn number(report: &[u8], at: usize, size: usize) -> u64 {
    report[at..at + size].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A report as JSON; `None` if it has another size.
pub(crate) fn to_json(report: &[u8]) -> Option<Value> {
    let report: &[u8; REPORT_SIZE] = report.try_into().ok()?;
    let version = number(report, 0, 4);
    let mut all = Map::new();
    for (name, at, size) in NUMBERS {
        all.insert(name.into(), number(report, at, size).into());
    }
    for (name, at, size) in BYTES {
        all.insert(name.into(), report[at..at + size].into());
    }
    for (name, at, size, since) in LATER {
        let value = if version >= since { number(report, at, size).into() } else { Value::Null };
        all.insert(name.into(), value);
    }
    for (name, at) in LEVELS {
        let mut parts: Map<String, Value> = levels(report)
            .iter()
            .map(|(part, offset)| ((*part).into(), report[at + offset].into()))
            .collect();
        parts.entry("fmc").or_insert(Value::Null);
        all.insert(name.into(), parts.into());
    }
    for (name, at) in VERSIONS {
        let value = json!({ "build": report[at], "minor": report[at + 1], "major": report[at + 2] });
        all.insert(name.into(), value);
    }
    let signature = SIGNATURE.map(|(name, at)| (name.to_string(), report[at..at + SIGNATURE_SIZE].into()));
    all.insert("signature".into(), Map::from_iter(signature).into());
    Some(all.into())
}

/// The report's bytes again.
///
/// # Errors
/// Names the field that is missing, or of another size.
pub(crate) fn from_json(json: &Value) -> Result<Vec<u8>, String> {
    let mut report = vec![0; REPORT_SIZE];
    for (name, at, size) in NUMBERS {
        put_number(&mut report[at..at + size], &json[name], name)?;
    }
    for (name, at, size) in BYTES {
        put_bytes(&mut report[at..at + size], &json[name], name)?;
    }
    for (name, at, size, _) in LATER {
        if !json[name].is_null() {
            put_number(&mut report[at..at + size], &json[name], name)?;
        }
    }
    let layout = levels(&report);
    for (name, at) in LEVELS {
        for (part, offset) in layout {
            put_number(&mut report[at + offset..=at + offset], &json[name][*part], name)?;
        }
    }
    for (name, at) in VERSIONS {
        for (offset, part) in ["build", "minor", "major"].into_iter().enumerate() {
            put_number(&mut report[at + offset..=at + offset], &json[name][part], name)?;
        }
    }
    for (name, at) in SIGNATURE {
        put_bytes(&mut report[at..at + SIGNATURE_SIZE], &json["signature"][name], "signature")?;
    }
    Ok(report)
}

fn put_number(to: &mut [u8], value: &Value, name: &str) -> Result<(), String> {
    let bytes = value.as_u64().map(u64::to_le_bytes);
    let bytes = bytes.filter(|bytes| bytes[to.len()..].iter().all(|byte| *byte == 0));
    let bytes = bytes.ok_or_else(|| format!("the report's `{name}` is no number of {} bytes", to.len()))?;
    let size = to.len();
    to.copy_from_slice(&bytes[..size]);
    Ok(())
}

fn put_bytes(to: &mut [u8], value: &Value, name: &str) -> Result<(), String> {
    let wrong = format!("the report's `{name}` is no list of {} bytes", to.len());
    let list = value.as_array().filter(|list| list.len() == to.len()).ok_or(&wrong)?;
    for (byte, value) in to.iter_mut().zip(list) {
        *byte = value.as_u64().and_then(|value| value.try_into().ok()).ok_or(&wrong)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report with another byte everywhere that has a meaning.
    fn report(version: u8, family: u8) -> Vec<u8> {
        let mut report: Vec<u8> = (0..REPORT_SIZE).map(|at| u8::try_from(at % 251).unwrap() | 1).collect();
        report[..4].copy_from_slice(&[version, 0, 0, 0]);
        report[0x188] = family;
        let mut zero =
            vec![0x4c..0x50, 0x18b..0x1a0, 0x1eb..0x1ec, 0x1ef..0x1f0, 0x208..0x2a0, 0x330..REPORT_SIZE];
        if version < 5 {
            zero.push(0x1f8..0x208);
        }
        if version < 3 {
            zero.push(0x188..0x18b);
        }
        for (_, at) in LEVELS {
            zero.push(if family >= TURIN { at + 4..at + 7 } else { at + 2..at + 6 });
        }
        zero.into_iter().for_each(|range| report[range].fill(0));
        report
    }

    #[test]
    fn a_report_comes_back_to_the_byte() {
        for (version, family) in [(2, 0x19), (3, 0x19), (4, 0x19), (5, 0x19), (3, 0x1a), (5, 0x1a)] {
            let report = report(version, family);
            let json = to_json(&report).unwrap();
            assert_eq!(from_json(&json).unwrap(), report, "version {version} of family {family:#x}");
            assert_eq!(json["current_tcb"]["fmc"].is_null(), family < TURIN);
            assert_eq!(json["cpuid_step"].is_null(), version < 3);
            assert_eq!(json["current_mit_vector"].is_null(), version < 5);
        }
        assert_eq!(to_json(&[0; 5]), None);
    }

    #[test]
    fn a_field_that_is_missing_or_of_another_size_is_named() {
        let with = |change: fn(&mut Value)| {
            let mut json = to_json(&report(5, 0x19)).unwrap();
            change(&mut json);
            from_json(&json).unwrap_err()
        };
        assert!(with(|json| json["vmpl"] = Value::Null).contains("`vmpl`"));
        assert!(with(|json| json["vmpl"] = (1_u64 << 32).into()).contains("`vmpl` is no number of 4 bytes"));
        assert!(with(|json| json["measurement"] = json!([1])).contains("`measurement` is no list of 48"));
        assert!(with(|json| json["chip_id"][0] = 256.into()).contains("`chip_id`"));
        assert!(with(|json| json["current"] = json!({})).contains("`current`"));
        assert!(with(|json| json["launch_tcb"]["snp"] = (-1).into()).contains("`launch_tcb`"));
        assert!(with(|json| json["signature"] = json!({})).contains("`signature`"));
        assert!(from_json(&Value::Null).is_err());
    }

    #[test]
    fn reports_of_real_chips_come_back_to_the_byte() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/evidence/snp");
        if !folder.exists() {
            println!("\nSKIPPED reports of real chips: no folder `shared/evidence` lies beside the checkout");
            return;
        }
        for name in ["genoa-report.bin", "milan-v3-report.bin", "milan-debug-report.bin", "vlek-report.bin"] {
            let report = std::fs::read(folder.join(name)).unwrap();
            assert_eq!(from_json(&to_json(&report).unwrap()).unwrap(), report, "{name}");
        }
    }
}
