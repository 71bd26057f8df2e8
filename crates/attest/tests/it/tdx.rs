//! TDX quotes of real chips, changed and whole.

use std::fs;
use std::path::PathBuf;

use attest::tdx::{AcceptedEvent, EventLogError, events, replay};
use attest::{Check, Claims, Context, Evidence, Expected, Hex, Policy, Roots, Verdict, verify};

use crate::checks;
use crate::flips::passing;
use crate::real::folder;

/// 2025-07-01 and 2026-03-01: within the validity of the two collaterals.
const TIME: u64 = 1_751_328_000;
const LATER: u64 = 1_772_323_200;

struct Real {
    quote: Vec<u8>,
    event_log: Option<Vec<u8>>,
    collateral: Option<Vec<u8>>,
    policy: Policy,
    time: u64,
    roots: Roots,
}

/// Where the body of a quote begins: behind the header, and behind type and size in version 5.
fn body(quote: &[u8]) -> usize {
    if quote[0] == 4 { 48 } else { 54 }
}

/// A policy that accepts what the body of a quote says.
fn policy_of(quote: &[u8]) -> Policy {
    let body = &quote[body(quote)..];
    let field = |at: usize| hex::encode(&body[at..at + 48]);
    let text = format!(
        "version = 1\n[tdx]\nmeasurements = ['{}']\nrtmr0 = ['{}']\nrtmr1 = ['{}']\nrtmr2 = ['{}']\nrtmr3 = ['{}']\n",
        field(136),
        field(328),
        field(376),
        field(424),
        field(472)
    );
    Policy::parse(&text).unwrap()
}

impl Real {
    fn read(name: &str, collateral: bool) -> Option<Self> {
        let folder: PathBuf = folder(name)?.join("tdx");
        let quote = fs::read(folder.join(format!("{name}.bin"))).unwrap();
        let collateral =
            collateral.then(|| fs::read(folder.join(format!("{name}-collateral.json"))).unwrap());
        let policy = policy_of(&quote);
        Some(Self { quote, event_log: None, collateral, policy, time: TIME, roots: Roots::builtin() })
    }

    fn tdx(&mut self) -> &mut attest::tdx::Policy {
        self.policy.tdx.as_mut().unwrap()
    }

    fn judge(&self, quote: Vec<u8>, policy: &Policy) -> Verdict {
        let mut context = Context::new(self.time, &self.roots, Expected::Anything);
        context.collateral = self.collateral.as_deref();
        verify(&Evidence::Tdx { quote, event_log: self.event_log.clone() }, policy, &context)
    }

    fn verdict(&self) -> Verdict {
        self.judge(self.quote.clone(), &self.policy)
    }
}

#[test]
fn a_quote_with_current_collateral_verifies_and_one_without_a_level_does_not() {
    let Some(real) = Real::read("quote-uptodate", true) else { return };
    let verdict = real.verdict();
    assert_eq!(verdict.reasons(), []);
    let Claims::Tdx(claims) = verdict.accepted().unwrap() else { panic!("it is TDX evidence") };
    assert_eq!(claims.version, 4);
    let mut real = Real::read("quote-notcb", true).unwrap();
    real.time = LATER;
    let verdict = real.verdict();
    assert_eq!(checks(&verdict), [Check::Collateral]);
    assert!(verdict.reasons()[0].detail.contains("No matching TCB level found"), "{:?}", verdict.reasons());
}

#[test]
fn a_debug_quote_is_refused_for_that_and_quotes_without_collateral_for_its_lack() {
    let Some(real) = Real::read("quote-v4-debug", false) else { return };
    assert_eq!(checks(&real.verdict()), [Check::Collateral, Check::Debug]);
    let mut gcp = Real::read("quote-v4-gcp", false).unwrap();
    let found = checks(&gcp.verdict());
    // The file has words behind the quote; and the guest can be tormented by pages that the host takes away.
    assert_eq!(found, [Check::Reserved, Check::Collateral, Check::TdAttributes]);
    gcp.tdx().attributes.refuse = vec!["sept-ve-disable".to_string()];
    assert_eq!(checks(&gcp.verdict()), [Check::Reserved, Check::Collateral]);
    let v5 = Real::read("quote-v5", false).unwrap();
    assert_eq!(checks(&v5.verdict()), [Check::Collateral]);
    assert!(matches!(v5.verdict().claimed(), Some(Claims::Tdx(report)) if report.version == 5));
}

#[test]
fn collateral_of_another_time_another_platform_or_changed_is_refused() {
    let Some(mut real) = Real::read("quote-uptodate", true) else { return };
    for time in [0, TIME - 365 * 86_400, TIME + 60 * 86_400, u64::from(u32::MAX) * 8] {
        real.time = time;
        assert_eq!(checks(&real.verdict()), [Check::Collateral], "at {time}");
    }
    real.time = TIME;
    let good = real.collateral.clone().unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    for (from, to) in [("UpToDate", "Outdated"), ("TD_QE", "TD_QF"), ("issueDate", "issueDatf")] {
        real.collateral = Some(text.replacen(from, to, 1).into_bytes());
        assert_eq!(checks(&real.verdict()), [Check::Collateral], "{from}");
    }
    for bad in [&b""[..], b"{}", b"[]", &good[..good.len() - 2]] {
        real.collateral = Some(bad.to_vec());
        assert_eq!(checks(&real.verdict()), [Check::Collateral]);
    }
    real.collateral = Real::read("quote-notcb", true).unwrap().collateral;
    assert_eq!(checks(&real.verdict()), [Check::Collateral]);
}

#[test]
fn each_key_of_the_policy_says_no_by_itself() {
    let Some(mut real) = Real::read("quote-uptodate", true) else { return };
    let original = real.policy.clone();
    let mut wrong = |change: fn(&mut attest::tdx::Policy)| {
        real.policy = original.clone();
        change(real.policy.tdx.as_mut().unwrap());
        checks(&real.verdict())
    };
    assert_eq!(wrong(|policy| policy.measurements = vec![Hex([1; 48])]), [Check::Measurement]);
    assert_eq!(wrong(|policy| policy.rtmr0 = Some(vec![Hex([1; 48])])), [Check::Rtmr]);
    assert_eq!(wrong(|policy| policy.rtmr1 = Some(vec![Hex([1; 48])])), [Check::Rtmr]);
    assert_eq!(wrong(|policy| policy.rtmr2 = Some(vec![Hex([1; 48])])), [Check::Rtmr]);
    assert_eq!(wrong(|policy| policy.rtmr3 = Some(vec![Hex([1; 48])])), [Check::Rtmr]);
    assert_eq!(wrong(|policy| policy.tdx_modules = Some(vec![Hex([1; 48])])), [Check::TdxModule]);
    assert_eq!(wrong(|policy| policy.config_ids = Some(vec![Hex([1; 48])])), [Check::HostData]);
    assert_eq!(wrong(|policy| policy.owners = Some(vec![Hex([1; 48])])), [Check::Owner]);
    assert_eq!(wrong(|policy| policy.owner_configs = Some(vec![Hex([1; 48])])), [Check::Owner]);
    assert_eq!(wrong(|policy| policy.xfams = Some(vec![Hex([1; 8])])), [Check::Xfam]);
    assert_eq!(wrong(|policy| policy.fmspcs = Some(vec![Hex([1; 6])])), [Check::Family]);
    assert_eq!(wrong(|policy| policy.minimum_tee_tcb_svn = Some(Hex([7; 16]))), [Check::ReportedTcb]);
    assert_eq!(wrong(|policy| policy.tcb_statuses = vec!["OutOfDate".to_string()]), [Check::TcbStatus]);
    let pks = |policy: &mut attest::tdx::Policy| policy.attributes.require = vec!["pks".to_string()];
    assert_eq!(wrong(pks), [Check::TdAttributes]);
    // Without a value and without events nothing but zeros passes in the last register, and nothing in the others.
    assert_eq!(wrong(|policy| policy.rtmr1 = None), [Check::Rtmr]);
    assert_eq!(wrong(|policy| policy.events = Some(Vec::new())), [Check::EventLog]);
    // The family is refused by what Intel's collateral was matched with.
    real.policy = original;
    let fmspc = fmspc(&real);
    real.tdx().refused_fmspcs = vec![fmspc];
    assert_eq!(checks(&real.verdict()), [Check::Family]);
}

/// The FMSPC in the collateral of a quote.
fn fmspc(real: &Real) -> Hex<6> {
    let collateral: serde_json::Value = serde_json::from_slice(real.collateral.as_ref().unwrap()).unwrap();
    let info: serde_json::Value = serde_json::from_str(collateral["tcb_info"].as_str().unwrap()).unwrap();
    Hex::parse(info["fmspc"].as_str().unwrap()).unwrap()
}

#[test]
fn a_quote_that_is_cut_or_of_another_kind_names_what_is_wrong() {
    let Some(real) = Real::read("quote-uptodate", true) else { return };
    for size in (0..4936).step_by(7) {
        let verdict = real.judge(real.quote[..size].to_vec(), &real.policy);
        assert_eq!(checks(&verdict), [Check::Format], "{size} bytes");
    }
    let changed = |at: usize, value: u8| {
        let mut quote = real.quote.clone();
        quote[at] = value;
        checks(&real.judge(quote, &real.policy))[0]
    };
    assert_eq!(changed(0, 3), Check::Version);
    assert_eq!(changed(0, 6), Check::Version);
    assert_eq!(changed(2, 3), Check::SignatureAlgorithm);
    assert_eq!(changed(4, 0), Check::Format);
    assert_eq!(changed(12, 0), Check::QuotingEnclave);
    assert_eq!(changed(5005, 1), Check::Reserved);
    // Another root, and none.
    let roots = [Roots::none(), Roots::builtin().with_intel(vec![1, 2, 3])];
    for roots in roots {
        let real = Real { roots, ..Real::read("quote-uptodate", true).unwrap() };
        assert_eq!(checks(&real.verdict()), [Check::Root]);
    }
}

#[test]
fn no_bit_of_a_quote_can_be_flipped() {
    let Some(real) = Real::read("quote-uptodate", true) else { return };
    let verify = |quote: Vec<u8>| {
        // A policy that names what the flipped quote says: only signatures, form and attributes are left to say no.
        let policy = policy_of(if quote[0] == 4 { &quote } else { &real.quote });
        real.judge(quote, &policy).reasons().is_empty()
    };
    assert!(verify(real.quote.clone()));
    assert_eq!(passing(&real.quote, verify), []);
}

#[test]
fn an_event_log_leads_to_the_registers_and_each_event_is_judged() {
    let Some(mut real) = Real::read("quote-with-ccel", false) else { return };
    let log = fs::read(folder("the log").unwrap().join("tdx/quote-with-ccel-eventlog.bin")).unwrap();
    let all = events(&log).unwrap();
    assert_eq!(all.len(), 43);
    let body = body(&real.quote);
    let rtmr = |register: usize| &real.quote[body + 328 + 48 * register..][..48];
    for (register, value) in replay(&all).iter().enumerate() {
        assert_eq!(value.0, rtmr(register), "RTMR {register}");
    }
    let accepted: Vec<AcceptedEvent> = all
        .iter()
        .map(|event| AcceptedEvent {
            register: event.register,
            digest: event.digest,
            meaning: event.to_string(),
        })
        .collect();
    real.event_log = Some(log.clone());
    let policy = real.tdx();
    (policy.rtmr0, policy.rtmr1, policy.rtmr2, policy.rtmr3) = (None, None, None, None);
    policy.events = Some(accepted.clone());
    assert_eq!(checks(&real.verdict()), [Check::Collateral]);
    // Each event that the policy does not name is found.
    for left_out in 0..accepted.len() {
        let rest = accepted.iter().filter(|one| {
            (one.register, one.digest) != (accepted[left_out].register, accepted[left_out].digest)
        });
        real.tdx().events = Some(rest.cloned().collect());
        let verdict = real.verdict();
        assert_eq!(checks(&verdict), [Check::Collateral, Check::EventLog], "{left_out}");
        let expected = format!("event {left_out} ");
        assert!(verdict.reasons().iter().any(|reason| reason.detail.contains(&expected)), "{left_out}");
    }
    // A digest that is accepted in another register only.
    let mut moved = accepted.clone();
    let last = moved.len() - 1;
    moved[last].register = (moved[last].register + 1) % 4;
    let is_twice = accepted[..last].iter().any(|one| *one == accepted[last]);
    real.tdx().events = Some(moved);
    assert_eq!(checks(&real.verdict()).contains(&Check::EventLog), !is_twice);
    // A log that says what the policy wants to hear, and not what happened.
    real.tdx().events = Some(accepted);
    let mut without_last = log.clone();
    let event = &all[all.len() - 1];
    without_last.truncate(log.len() - event.data.len() - 4 - 50 - 12);
    real.event_log = Some(without_last);
    assert_eq!(checks(&real.verdict()), [Check::Collateral, Check::EventLog]);
    real.event_log = None;
    assert_eq!(checks(&real.verdict()), [Check::Collateral, Check::EventLog]);
}

#[test]
fn a_log_that_is_cut_is_refused_and_what_memory_is_filled_with_is_left_out() {
    let Some(folder) = folder("the log") else { return };
    let log = fs::read(folder.join("tdx/quote-with-ccel-eventlog.bin")).unwrap();
    let all = events(&log).unwrap();
    for filling in [0, 0xff] {
        assert_eq!(events(&[&log[..], &[filling; 1000]].concat()).unwrap(), all);
    }
    assert_eq!(events(&[]), Err(EventLogError::Header));
    assert_eq!(events(&log[..40]), Err(EventLogError::Header));
    let whole = (1..log.len()).filter(|size| events(&log[..*size]).is_ok()).count();
    // It can end behind each event, and within zeros that a cut leaves of one.
    assert!((41..200).contains(&whole), "{whole} cuts are understood");
    let mut other = log.clone();
    other[65] = 9;
    assert!(
        matches!(events(&other), Err(EventLogError::Event(1, _))),
        "{:?}",
        events(&other).map(|all| all.len())
    );
    assert!(matches!(events(&vec![0; 2 * 1024 * 1024]), Err(EventLogError::TooLong(_))));
}
