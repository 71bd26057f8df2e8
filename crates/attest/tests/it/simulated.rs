//! The simulated platform: refused unless it is asked for, and as strict as the others where it is.

use attest::simulated::{Issuer, Launch, Root, SimulatedError, measure};
use attest::{
    Binding, Check, Claims, Context, Evidence, Expected, Hex, Platform, Policy, ReportData, Roots, Verdict,
    verify,
};

use crate::checks;
use crate::flips::passing;

struct Bed {
    root: Root,
    launch: Launch,
    policy: Policy,
    report_data: ReportData,
    is_allowed: bool,
}

impl Bed {
    fn new() -> Self {
        let measurement = measure(&[("kernel", b"a kernel"), ("command-line", b"quiet")]);
        let policy = format!(
            "version = 1\n[simulated]\nmeasurements = ['{measurement}']\nminimum-tcb = 3\nhost-data = ['{}']\n",
            "02".repeat(32)
        );
        Self {
            root: Root::generate().unwrap(),
            launch: Launch {
                measurement,
                host_data: Hex([2; 32]),
                machine_id: Hex([3; 32]),
                tcb: 3,
                is_debug: false,
            },
            policy: Policy::parse(&policy).unwrap(),
            report_data: Binding::new("test").field("nonce", b"1").report_data(),
            is_allowed: true,
        }
    }

    fn evidence(&self) -> Evidence {
        let seat = self.root.launch(&self.launch).unwrap();
        Issuer::read(&seat).unwrap().evidence(self.report_data).unwrap()
    }

    fn judge(&self, evidence: &Evidence) -> Verdict {
        let roots = Roots::builtin().with_simulated(self.root.key().unwrap());
        let mut context = Context::new(0, &roots, Expected::Exactly(self.report_data));
        context.allow_simulated = self.is_allowed;
        verify(evidence, &self.policy, &context)
    }
}

#[test]
fn evidence_passes_where_it_is_allowed_and_is_named() {
    let bed = Bed::new();
    let verdict = bed.judge(&bed.evidence());
    assert_eq!(verdict.reasons(), []);
    assert!(verdict.notes().iter().any(|note| note.contains("simulated platform")));
    let Claims::Simulated(claims) = verdict.accepted().unwrap() else { panic!("it is simulated evidence") };
    assert_eq!(claims.measurement, bed.launch.measurement);
    assert_eq!(claims.report_data, bed.report_data);
}

#[test]
fn evidence_is_refused_unless_it_is_allowed() {
    let bed = Bed { is_allowed: false, ..Bed::new() };
    let verdict = bed.judge(&bed.evidence());
    assert_eq!(checks(&verdict), [Check::Simulated]);
    let refusal = verdict.accepted().unwrap_err();
    assert_eq!(refusal.platform, Platform::Simulated);
    assert!(refusal.to_string().contains("simulated evidence is refused: simulated: "), "{refusal}");
}

#[test]
fn each_field_that_is_wrong_has_its_own_reason() {
    let wrong = |change: fn(&mut Launch)| {
        let mut bed = Bed::new();
        change(&mut bed.launch);
        checks(&bed.judge(&bed.evidence()))
    };
    assert_eq!(wrong(|launch| launch.measurement = Hex([0; 48])), [Check::Measurement]);
    assert_eq!(wrong(|launch| launch.host_data = Hex([0; 32])), [Check::HostData]);
    assert_eq!(wrong(|launch| launch.tcb = 2), [Check::ReportedTcb]);
    assert_eq!(wrong(|launch| launch.is_debug = true), [Check::Debug]);
    let mut bed = Bed::new();
    bed.policy.simulated.as_mut().unwrap().machine_ids = Some(vec![Hex([4; 32])]);
    assert_eq!(checks(&bed.judge(&bed.evidence())), [Check::ChipId]);
    let bed = Bed { policy: Policy { simulated: None, ..Bed::new().policy }, ..Bed::new() };
    assert_eq!(checks(&bed.judge(&bed.evidence())), [Check::Platform]);
}

#[test]
fn another_root_another_guest_and_another_exchange_are_refused() {
    let mut bed = Bed::new();
    let evidence = bed.evidence();
    let other = Bed::new();
    assert_eq!(checks(&other.judge(&evidence)), [Check::Root]);
    bed.report_data = Binding::new("test").field("nonce", b"2").report_data();
    assert_eq!(checks(&bed.judge(&evidence)), [Check::ReportData]);
    // One guest's launch with the report of another.
    let (Evidence::Simulated { report: one }, Evidence::Simulated { report: two }) =
        (bed.evidence(), bed.evidence())
    else {
        panic!("it is simulated evidence")
    };
    let mixed = [&one[..329], &two[329..]].concat();
    assert_eq!(checks(&bed.judge(&Evidence::Simulated { report: mixed })), [Check::Signature]);
}

#[test]
fn no_bit_of_a_report_can_be_flipped_and_no_length_is_understood_but_one() {
    let bed = Bed::new();
    let Evidence::Simulated { report } = bed.evidence() else { panic!("it is simulated evidence") };
    let passes = |report| bed.judge(&Evidence::Simulated { report }).reasons().is_empty();
    assert!(passes(report.clone()));
    assert_eq!(passing(&report, passes), []);
    for size in 0..report.len() {
        assert_eq!(
            checks(&bed.judge(&Evidence::Simulated { report: report[..size].to_vec() })),
            [Check::Format]
        );
    }
    let verdict = bed.judge(&Evidence::Simulated { report: [&report[..], b"x"].concat() });
    assert_eq!(checks(&verdict), [Check::Format]);
    assert!(verdict.accepted().is_err());
}

#[test]
fn a_root_and_a_seat_come_back_from_their_bytes_and_others_are_refused() {
    let bed = Bed::new();
    let again = Root::read(bed.root.document()).unwrap();
    assert_eq!(again.key().unwrap(), bed.root.key().unwrap());
    let text = bed.root.key().unwrap().to_string();
    assert_eq!(attest::simulated::RootKey::parse(&text).unwrap(), bed.root.key().unwrap());
    assert_eq!(Root::read(b"x").unwrap_err(), SimulatedError::NoRoot);
    let seat = bed.root.launch(&bed.launch).unwrap();
    for size in 0..seat.len() {
        assert_eq!(Issuer::read(&seat[..size]).unwrap_err(), SimulatedError::NoSeat, "{size}");
    }
}
