//! A change of key that a crash or the end of a session cuts short, and that goes on from there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::medium::put_back;
use crate::common::options_at;
use crate::common::rekeying::{BLOCKS, Case, Job, reseal};
use futures::FutureExt;
use volume::format::protections::Freshness;
use volume::{Kind, RekeyOrder};

#[test]
fn a_crash_after_any_step_of_the_beginning_has_begun_or_not() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let mut seen = [false; 2];
        for steps in 0..8 {
            let case = Case::written(options_at(freshness), 0..40);
            let (environment, _) = case.bench.stopping(steps);
            let _ = case.begin_on(&environment, RekeyOrder::default());
            let mut session = case.attach();
            seen[usize::from(session.volume.is_rekeying())] = true;
            session.check_each(0..40, 0);
            session.write_each(40..50, 0);
            session.detach().unwrap();
            // Done again it has begun, whatever was there; and it ends.
            case.begin();
            let mut session = case.attach();
            assert!(reseal(&mut session).ended, "{freshness} {steps}");
            session.check_each(0..50, 0);
            session.detach().unwrap();
        }
        assert_eq!(seen, [true, true], "the crashes did not fall on both sides of the beginning");
    }
}

/// Attaches and re-seals on a machine that stops after so many writes and flushes. Whether it was there to the end.
fn stopped_after(case: &Case, steps: i64) -> bool {
    let (environment, left) = case.bench.stopping(steps);
    let Ok(mut session) = case.bench.attach_on(&environment, &case.policy) else { return false };
    let mut job = Job::new(&session);
    for _ in 0..100_000 {
        job.step();
        if job.ended.is_some() {
            break;
        }
        session.step();
    }
    left.load(Ordering::Relaxed) > 0
}

#[test]
fn a_crash_after_any_step_until_the_end_is_gone_on_from() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let (mut ended, mut open) = (0, 0);
        let case = Case::written(options_at(freshness), (0..BLOCKS).step_by(50));
        let old = case.key();
        case.begin();
        let begun = case.bench.image();
        let anchor = case.bench.environment.anchor.as_ref();
        let stamp = || anchor.and_then(|anchor| anchor.read().now_or_never().expect("memory").unwrap());
        let anchored = stamp();
        for steps in 0.. {
            put_back(&*case.bench.environment.store, &begun);
            if let (Some(anchor), Some(then)) = (anchor, &anchored) {
                anchor.advance(stamp().as_ref(), then).now_or_never().expect("memory").unwrap();
            }
            let whole = stopped_after(&case, steps);
            let session = case.bench.attach(&case.policy);
            let mut session = session.unwrap_or_else(|error| panic!("{freshness} {steps}: {error}"));
            *(if session.volume.is_rekeying() { &mut open } else { &mut ended }) += 1;
            assert!(reseal(&mut session).ended, "{freshness} {steps}");
            session.check_each((0..BLOCKS).step_by(50), 0);
            session.detach().unwrap();
            case.assert_only_new(&old);
            if whole {
                break;
            }
        }
        assert!(ended >= 2 && open >= 30, "{freshness}: {ended} {open}");
    }
}

#[test]
fn a_reader_sees_all_of_it_at_any_stage_and_changes_nothing() {
    let case = Case::written(options_at(Freshness::Strict), 0..600);
    let look = |rekeying: bool| {
        let before = case.bench.image();
        let mut reader = case.attach_reading();
        assert_eq!(reader.volume.is_rekeying(), rekeying);
        reader.check_each(0..600, 0);
        if rekeying {
            let job = reader.volume.reseal(Arc::default()).unwrap();
            assert_eq!(job.block().unwrap_err().kind(), Kind::Usage, "it is for reading only");
        }
        assert!(case.bench.image() == before);
    };
    case.begin();
    look(true);
    let mut session = case.attach();
    Job::new(&session).until(&mut session, 200);
    session.detach().unwrap();
    look(true);
    let mut session = case.attach();
    let report = reseal(&mut session);
    assert!(report.ended && report.resealed < 600, "it does not begin anew: {report:?}");
    session.detach().unwrap();
    look(false);
}

#[test]
fn a_session_that_is_stopped_in_the_middle_ends_well() {
    let case = Case::written(options_at(Freshness::Strict), (0..BLOCKS).step_by(2));
    case.begin();
    let mut session = case.attach();
    let mut job = Job::new(&session);
    job.until(&mut session, 1);
    session.volume.stop();
    let report = job.end(&mut session).unwrap();
    assert!(!report.ended, "{report:?}");
    session.detach().unwrap();
    assert!(case.attach().volume.is_rekeying());
}
