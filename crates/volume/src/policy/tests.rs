use proptest::prelude::*;

use super::*;
use crate::format::protections::Provision;
use crate::geometry::{Geometry, Shape};

const TEXT: &str = r#"
version = 1
volume = "0123456789abcdef0123456789abcdef"   # volume id, hex
suite = "aes-256-gcm"
confidentiality = true
integrity = true
freshness = "strict"
size = 1073741824
anchor = "file:/var/lib/cvmio/ledger.anchor"
"#;

fn policy() -> Policy {
    Policy::parse(TEXT).expect("a valid policy")
}

fn header() -> Header {
    Header {
        rekeying: None,
        generation: 1,
        volume: policy().volume,
        suite: SuiteCode::Aes256Gcm,
        confidentiality: true,
        integrity: true,
        freshness: Freshness::Strict,
        provision: Provision::Thin,
        geometry: Geometry::for_logical(1 << 18, Shape::STANDARD).expect("1 GiB"),
    }
}

/// What is said to the text with one line replaced.
fn parse_with(key: &str, line: &str) -> Result<Policy, PolicyError> {
    assert!(TEXT.lines().any(|old| old.starts_with(key)) || key.is_empty());
    let lines = TEXT.lines().filter(|old| key.is_empty() || !old.starts_with(key)).chain([line]);
    Policy::parse(&lines.collect::<Vec<_>>().join("\n"))
}

fn value(result: Result<Policy, PolicyError>) -> &'static str {
    match result {
        Err(PolicyError::Value { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

fn syntax(result: Result<Policy, PolicyError>) -> String {
    match result {
        Err(PolicyError::Syntax(message)) => message,
        other => panic!("{other:?}"),
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    let suite = prop::sample::select(SuiteCode::ALL);
    let freshness = prop::sample::select(Freshness::ALL);
    let protections = (suite, any::<bool>(), any::<bool>(), freshness)
        .prop_filter("a legal combination", |&(s, c, i, f)| check_protections(s, c, i, f).is_ok());
    let anchor = prop_oneof![Just(None), "[^\\p{Cc}]{1,40}".prop_map(Some)];
    let options = prop::collection::btree_map("\\PC{1,10}", any::<String>(), 0..3);
    (any::<[u8; 16]>(), protections, 1..1_u64 << 34, anchor, any::<bool>(), options).prop_map(
        |(
            volume,
            (suite, confidentiality, integrity, freshness),
            blocks,
            anchor,
            format_if_blank,
            options,
        )| {
            let anchor = anchor.or((freshness != Freshness::Off).then(|| "file:/a".into()));
            Policy {
                version: 1,
                volume,
                suite,
                confidentiality,
                integrity,
                freshness,
                size: blocks * BLOCK_SIZE as u64,
                format_if_blank,
                anchor_options: options.into_iter().filter(|_| anchor.is_some()).collect(),
                anchor,
            }
        },
    )
}

proptest! {
    #[test]
    fn round_trip(policy in policies()) {
        let text = policy.to_toml().expect("a valid policy");
        prop_assert_eq!(Policy::parse(&text), Ok(policy));
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in any::<String>(), at in 0..TEXT.len()) {
        prop_assert!(Policy::parse(&text).is_err());
        let (before, after) = TEXT.split_at(at);
        drop(Policy::parse(&[before, &text, after].concat()));
    }

    #[test]
    fn a_volume_meets_the_policy_it_was_made_by(policy in policies(), full: bool) {
        let blocks = (policy.size / BLOCK_SIZE as u64).max(Geometry::MIN_LOGICAL);
        let policy = Policy { size: blocks * BLOCK_SIZE as u64, ..policy };
        let header = Header {
            rekeying: None,
            generation: 1,
            volume: policy.volume,
            suite: policy.suite,
            confidentiality: policy.confidentiality,
            integrity: policy.integrity,
            freshness: policy.freshness,
            provision: if full { Provision::Full } else { Provision::Thin },
            geometry: Geometry::for_logical(blocks, Shape::STANDARD).expect("within the limits"),
        };
        prop_assert_eq!(policy.check_header(&header), Ok(()));
    }
}

#[test]
fn options_of_the_anchor_are_handed_on_and_never_shown() {
    let text = format!("{TEXT}\n[anchor-options]\nca-file = \"/ca.pem\"\nsecret = \"s3cret\"\n");
    let policy = Policy::parse(&text).expect("a valid policy");
    assert_eq!(policy.anchor_options.get("ca-file"), Some("/ca.pem"));
    assert_eq!(policy.anchor_options.get("secret"), Some("s3cret"));
    assert!(!format!("{policy:?}").contains("s3cret"));
    assert!(syntax(Policy::parse(&format!("{TEXT}\n[anchor-options]\nport = 1\n"))).contains("string"));
}

#[test]
fn format_if_blank_is_off_unless_it_is_said() {
    assert!(!policy().format_if_blank);
    assert!(parse_with("", "format-if-blank = true").expect("a valid policy").format_if_blank);
}

#[test]
fn what_is_not_known_or_missing_is_refused() {
    assert!(syntax(parse_with("", "format_if_blank = true")).contains("unknown field `format_if_blank`"));
    assert!(syntax(parse_with("", "extra = 1")).contains("unknown field `extra`"));
    for key in ["version", "volume", "suite", "confidentiality", "integrity", "freshness", "size"] {
        assert!(syntax(parse_with(key, "")).contains(&format!("missing field `{key}`")), "{key}");
    }
    assert!(syntax(parse_with("", "size = 4096")).contains("duplicate key"));
    assert!(
        syntax(parse_with("suite", "suite = \"rot13\"")).contains("there is no suite `rot13`; choose one of")
    );
    assert!(syntax(parse_with("freshness", "freshness = \"STRICT\"")).contains("freshness level"));
    for volume in ["", "01", "0123456789abcdef0123456789abcdeg", "0123456789abcdef0123456789abcdef00"] {
        syntax(parse_with("volume", &format!("volume = \"{volume}\"")));
    }
    syntax(parse_with("size", "size = -4096"));
    syntax(parse_with("integrity", "integrity = \"true\""));
}

#[test]
fn values_must_go_together() {
    assert_eq!(value(parse_with("version", "version = 2")), "version");
    assert_eq!(value(parse_with("integrity", "integrity = false")), "freshness");
    assert_eq!(value(parse_with("suite", "suite = \"aes-256-xts\"")), "suite");
    for size in ["0", "4095", "4097"] {
        assert_eq!(value(parse_with("size", &format!("size = {size}"))), "size");
    }
    assert_eq!(value(parse_with("anchor", "")), "anchor");
    assert_eq!(value(parse_with("anchor", "anchor = \"\"")), "anchor");
    assert_eq!(value(parse_with("anchor", "anchor = \"file:/a\\nb\"")), "anchor");
    assert_eq!(
        value(parse_with("anchor", &format!("anchor = \"{}\"", "a".repeat(MAX_ANCHOR + 1)))),
        "anchor"
    );
    assert!(parse_with("anchor", &format!("anchor = \"{}\"", "a".repeat(MAX_ANCHOR))).is_ok());
}

#[test]
fn an_anchor_may_be_absent_only_with_freshness_off() {
    let off = TEXT.replace("strict", "off");
    let without: String =
        off.lines().filter(|line| !line.starts_with("anchor")).collect::<Vec<_>>().join("\n");
    assert_eq!(Policy::parse(&without).expect("a valid policy").anchor, None);
    assert!(Policy::parse(&off).is_ok());
}

#[test]
fn long_texts_are_not_read() {
    let padded = |length: usize| format!("{TEXT}#{}", "x".repeat(length - TEXT.len() - 1));
    assert_eq!(Policy::parse(&padded(MAX_SIZE)), Ok(policy()));
    assert_eq!(Policy::parse(&padded(MAX_SIZE + 1)), Err(PolicyError::TooLong { bytes: MAX_SIZE + 1 }));
}

#[test]
fn what_would_be_refused_is_not_written() {
    let broken = Policy { integrity: false, ..policy() };
    assert!(matches!(broken.to_toml(), Err(PolicyError::Value { field: "freshness", .. })));
    let huge = Policy { size: u64::MAX - 4095, ..policy() };
    assert!(matches!(huge.to_toml(), Err(PolicyError::Value { field: "size", .. })));
}

#[test]
fn a_contradiction_names_both_sides() {
    let header = Header { suite: SuiteCode::Aegis128x2, ..header() };
    let contradiction = policy().check_header(&header).expect_err("it must be refused");
    let text = contradiction.to_string();
    let start = "the policy says suite = aes-256-gcm, but the disk claims aegis-128x2; nothing was written.";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn what_identifies_the_volume_must_be_equal() {
    let field = |header: Header| policy().check_header(&header).expect_err("it must be refused").field;
    assert_eq!(policy().check_header(&header()), Ok(()));
    assert_eq!(field(Header { volume: [0; 16], ..header() }), "volume");
    assert_eq!(field(Header { suite: SuiteCode::Aegis256x2, ..header() }), "suite");
    for logical in [(1 << 18) - 1, (1 << 18) + 1] {
        let geometry = Geometry::for_logical(logical, Shape::STANDARD).expect("within the limits");
        assert_eq!(field(Header { geometry, ..header() }), "size");
    }
}

#[test]
fn protections_may_be_stronger_but_never_weaker() {
    let check = |policy: (bool, bool), disk: (bool, bool)| {
        let policy = Policy {
            confidentiality: policy.0,
            integrity: policy.1,
            freshness: Freshness::Off,
            ..self::policy()
        };
        let header =
            Header { confidentiality: disk.0, integrity: disk.1, freshness: Freshness::Off, ..header() };
        policy.check_header(&header).map_err(|contradiction| contradiction.field)
    };
    for (least, claim) in [(false, false), (false, true), (true, true)] {
        assert_eq!(check((least, true), (claim, true)), Ok(()));
        assert_eq!(check((true, least), (true, claim)), Ok(()));
    }
    assert_eq!(check((true, true), (false, true)), Err("confidentiality"));
    assert_eq!(check((false, true), (false, false)), Err("integrity"));
}

#[test]
fn freshness_may_be_stronger_but_never_weaker() {
    for &least in Freshness::ALL {
        for &claim in Freshness::ALL {
            let policy = Policy { freshness: least, ..policy() };
            let result = policy.check_header(&Header { freshness: claim, ..header() });
            assert_eq!(result.is_ok(), claim.code() >= least.code(), "{least} and {claim}");
        }
    }
}

#[test]
fn a_fresher_disk_needs_an_anchor() {
    let policy = Policy { freshness: Freshness::Off, anchor: None, ..policy() };
    let check = |freshness| policy.check_header(&Header { freshness, ..header() });
    assert_eq!(check(Freshness::Off), Ok(()));
    assert_eq!(check(Freshness::Interval).map_err(|contradiction| contradiction.field), Err("anchor"));
}
