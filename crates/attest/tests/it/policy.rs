//! Evidence policies, as a user may write them, and what the documents say about them.

use attest::snp::{Family, FirmwareVersion, Revocation, SigningKey};
use attest::{Check, MAX_POLICY, Policy};

const SNP: &str = "version = 1\n[snp]\nfamilies = ['milan']\nmeasurements = ['M']\n\
                   minimum-tcb.milan = { bootloader = 1, tee = 0, snp = 8, microcode = 200 }\n";

fn with(more: &str) -> String {
    SNP.replace('M', &"0a".repeat(48)) + more
}

fn refusal(text: &str) -> String {
    Policy::parse(text).unwrap_err().to_string()
}

#[test]
fn what_a_policy_does_not_say_is_the_strictest() {
    let policy = Policy::parse(&with("")).unwrap().snp.unwrap();
    assert_eq!(policy.vmpl, [0]);
    assert_eq!(policy.signing_keys, [SigningKey::Vcek]);
    assert_eq!(policy.revocation, Revocation::Required);
    assert_eq!(policy.families, [Family::Milan]);
}

#[test]
fn every_key_is_read() {
    let all = "vmpl = [0, 1]\nsigning-keys = ['vcek', 'vlek']\ncsp-ids = ['a']\nrevocation = 'when-given'\n\
               guest-policy = { require = ['single-socket'], refuse = ['smt'] }\n\
               platform-info = { require = ['ecc', 'alias-check-complete'], refuse = ['tio'] }\n\
               minimum-abi = '0.31'\nminimum-firmware = '1.55.22'\nmitigations = 3\nminimum-guest-svn = 4\n\
               host-data = ['H']\nfamily-ids = ['I']\nimage-ids = ['I']\nid-keys = ['K']\nauthor-keys = ['K']\n\
               chip-ids = ['C']\nrefused-chip-ids = ['C']\n";
    let all = all.replace('H', &"01".repeat(32)).replace('I', &"02".repeat(16));
    let all = all.replace('K', &"03".repeat(48)).replace('C', &"04".repeat(64));
    let policy = Policy::parse(&with(&all)).unwrap().snp.unwrap();
    assert_eq!(policy.minimum_abi, Some((0, 31)));
    assert_eq!(policy.minimum_firmware, Some(FirmwareVersion { major: 1, minor: 55, build: 22 }));
    assert_eq!(policy.guest_policy.refuse, ["smt"]);
    assert_eq!(policy.refused_chip_ids.len(), 1);
    // It comes back from what is written.
    let policy = Policy::parse(&with(&all)).unwrap();
    assert_eq!(Policy::parse(&toml::to_string(&policy).unwrap()).unwrap(), policy);
}

#[test]
fn a_policy_that_leaves_something_to_chance_is_refused() {
    assert!(refusal("").contains("missing field `version`"));
    assert!(refusal("version = 1").contains("every other platform's table"));
    assert!(refusal("version = 2").contains("`version` is 2, and version 1 is understood"));
    assert!(refusal(&with("vmpls = [0]\n")).contains("unknown field `vmpls`"));
    assert!(refusal(&with("vmpl = []\n")).contains("`snp.vmpl` names nothing"));
    assert!(refusal(&with("host-data = []\n")).contains("`snp.host-data` names nothing"));
    assert!(refusal(&with("minimum-abi = '31'\n")).contains("expected `major.minor`"));
    assert!(refusal(&with("minimum-firmware = '1.2'\n")).contains("expected `major.minor.build`"));
    assert!(refusal(&with("host-data = ['0a']\n")).contains("expected 64 hexadecimal digits"));
    assert!(
        refusal(&with("guest-policy = { require = ['debug'] }\n")).contains("names \"debug\"; known are smt")
    );
    let both = with("guest-policy = { require = ['smt'], refuse = ['smt'] }\n");
    assert!(refusal(&both).contains("requires \"smt\" and refuses it"));
    assert!(refusal(&with("").replace("'milan'", "'milan', 'genoa'")).contains("has no entry for Genoa"));
    assert!(refusal(&with("").replace("'milan'", "")).contains("`snp.families` names nothing"));
    assert!(refusal(&with("").replace("'milan'", "'rome'")).contains("unknown variant `rome`"));
    assert!(refusal(&"#".repeat(MAX_POLICY + 1)).contains("at most"));
    let tdx = format!("version = 1\n[tdx]\nmeasurements = ['{}']\n", "0a".repeat(48));
    assert!(refusal(&tdx).contains("`tdx.rtmr0` is missing, and there is no `tdx.events`"));
    assert!(refusal(&(tdx.clone() + "events = []\ntcb-statuses = ['Fine']\n")).contains("names \"Fine\""));
    assert!(
        refusal(&(tdx + "events = []\nattributes = { refuse = ['debug'] }\n")).contains("names \"debug\"")
    );
    assert!(refusal("version = 1\n[simulated]\nmeasurements = []\n").contains("`simulated.measurements`"));
}

#[test]
fn the_page_has_each_check_and_the_schema_each_key() {
    let page = include_str!("../../../../docs/attestation.md");
    for check in Check::ALL {
        assert!(page.contains(&format!("| `{check}` |")), "docs/attestation.md has no row for `{check}`");
    }
    let schema: serde_json::Value = serde_json::from_str(include_str!("../../policy.schema.json")).unwrap();
    for table in ["snp", "tdx", "simulated"] {
        let properties = schema["properties"][table]["properties"].as_object().unwrap();
        for (key, described) in properties {
            assert!(described["description"].is_string(), "{table}.{key} has no description");
            assert!(page.contains(&format!("`{key}`")), "docs/attestation.md does not have {table}.{key}");
        }
        // Each key of the schema is one that the parser knows, and each that it knows is in the schema.
        let known = refusal(&format!("version = 1\n[{table}]\nno-such-key = 1\n"));
        let known: Vec<&str> =
            known.split('`').skip(1).step_by(2).filter(|key| *key != "no-such-key").collect();
        let known: Vec<&str> = known.into_iter().filter(|key| !key.contains(' ')).collect();
        let known: std::collections::BTreeSet<&str> = known.into_iter().collect();
        let written: std::collections::BTreeSet<&str> = properties.keys().map(String::as_str).collect();
        assert_eq!(known, written, "{table}");
    }
}
