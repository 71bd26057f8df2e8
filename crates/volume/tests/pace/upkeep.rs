//! The long jobs beside users: they do a little at a time, hold nothing while they rest, and are no users themselves.
#![expect(clippy::disallowed_methods, reason = "one test is about time")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{Bench, Session, credential, options_at};
use volume::format::protections::Freshness;
use volume::geometry::Geometry;
use volume::policy::Policy;
use volume::{
    AttachOptions, CheckProgress, CheckReport, Driven, RekeyOrder, ResealProgress, ResealReport, Result,
    Sharing, begin_rekey,
};

/// Blocks that hold data: seven leaves of the map, and a part of one.
const FILLED: u64 = 1000;
/// What a job may do before it rests.
const LITTLE: u64 = 16;

fn filled() -> (Bench, Policy) {
    let options = options_at(Freshness::Strict);
    let blocks = Geometry::for_logical(4096, options.shape).unwrap().physical_blocks;
    let bench = Bench::new(options, blocks);
    let policy = bench.create();
    let mut session = bench.attach(&policy).unwrap();
    (0..FILLED).step_by(8).for_each(|block| session.write(block, 8, 3).unwrap());
    session.detach().unwrap();
    (bench, policy)
}

fn rekeyed(bench: &Bench, policy: &Policy) {
    let (environment, policy) = (bench.environment.clone(), policy.clone());
    let job = begin_rekey(environment, policy, credential(), RekeyOrder::default(), AttachOptions::default());
    job.unwrap().block().unwrap();
}

fn check(session: &Session) -> (Driven<Result<CheckReport>>, Arc<CheckProgress>) {
    let progress = Arc::<CheckProgress>::default();
    (session.volume.check(0, 1, Arc::clone(&progress)).unwrap(), progress)
}

/// A session with a change of key before it.
fn resealing() -> (Session, Driven<Result<ResealReport>>, Arc<ResealProgress>) {
    let (bench, policy) = filled();
    rekeyed(&bench, &policy);
    let session = bench.attach(&policy).unwrap();
    let progress = Arc::<ResealProgress>::default();
    let job = session.volume.reseal(Arc::clone(&progress)).unwrap();
    (session, job, progress)
}

/// Drives a job to its next rest; what it has come to, if that was its end.
fn to_rest<T>(job: &mut Driven<T>, session: &mut Session, sharing: &Sharing) -> Option<T> {
    for _ in 0..1_000_000 {
        if let Some(ended) = job.poll() {
            return Some(ended);
        }
        if sharing.rests() {
            return None;
        }
        session.step();
    }
    panic!("nothing moves: {:#?}", session.volume.status());
}

/// Far more than is ever admitted at once: whatever a job held, somebody would wait for it here.
fn use_it(session: &mut Session) {
    for _ in 0..4 {
        (2000..2600).for_each(|block| session.write(block, 1, 5).unwrap());
        session.flush().unwrap();
    }
}

#[test]
fn beside_users_a_check_does_a_little_then_rests_and_holds_nothing() {
    let (bench, policy) = filled();
    let mut session = bench.attach(&policy).unwrap();
    let (mut job, progress) = check(&session);
    progress.sharing.share(true);
    let mut before = 0;
    for _ in 0..5 {
        assert!(to_rest(&mut job, &mut session, &progress.sharing).is_none());
        let done = progress.blocks.load(Ordering::Relaxed);
        assert!((1..=LITTLE).contains(&(done - before)), "{before} {done}");
        before = done;
        use_it(&mut session);
        assert!(progress.sharing.rests());
        progress.sharing.go_on();
    }
    progress.sharing.share(false);
    let report = loop {
        if let Some(report) = to_rest(&mut job, &mut session, &progress.sharing) {
            break report.unwrap();
        }
        progress.sharing.go_on();
    };
    assert!(report.damaged_blocks == 0 && report.blocks >= FILLED, "{report:?}");
    session.detach().unwrap();
}

#[test]
fn beside_users_a_change_of_key_does_as_little() {
    let (mut session, mut job, progress) = resealing();
    progress.sharing.share(true);
    let (mut before, mut rests) = (0, 0);
    let report = loop {
        if let Some(report) = to_rest(&mut job, &mut session, &progress.sharing) {
            break report.unwrap();
        }
        let done = progress.resealed.load(Ordering::Relaxed);
        assert!(done - before <= LITTLE, "{before} {done}");
        (before, rests) = (done, rests + 1);
        progress.sharing.go_on();
    };
    assert!(report.ended && report.resealed >= FILLED && rests >= FILLED / LITTLE, "{report:?} {rests}");
    session.detach().unwrap();
}

#[test]
fn a_change_of_key_that_finds_users_rests_before_it_does_more() {
    let (mut session, mut job, progress) = resealing();
    while progress.resealed.load(Ordering::Relaxed) == 0 {
        assert!(job.poll().is_none());
        session.step();
    }
    progress.sharing.share(true);
    assert!(to_rest(&mut job, &mut session, &progress.sharing).is_none(), "not all was done at once");
    // Several leaves were under way, and each has come to the end of a stretch.
    use_it(&mut session);
    progress.sharing.share(false);
    progress.sharing.go_on();
    assert!(to_rest(&mut job, &mut session, &progress.sharing).unwrap().unwrap().ended);
    session.detach().unwrap();
}

#[test]
fn a_check_is_no_user() {
    let (bench, policy) = filled();
    let mut session = bench.attach(&policy).unwrap();
    let (mut job, progress) = check(&session);
    let before = (session.volume.uses(), session.volume.status().read_blocks);
    let report = to_rest(&mut job, &mut session, &progress.sharing).unwrap().unwrap();
    assert_eq!(report.blocks, FILLED);
    assert_eq!((session.volume.uses(), session.volume.status().read_blocks), before);
    session.detach().unwrap();
}

#[test]
fn what_the_map_does_not_reach_yet_is_checked_too_and_nothing_twice() {
    let (bench, policy) = filled();
    let mut session = bench.attach(&policy).unwrap();
    // In leaves that are there, and in others, beside the job and in all of its parts.
    [5, 700, 2000, 2001, 4095].into_iter().for_each(|block| session.write(block, 1, 9).unwrap());
    let mut report = CheckReport::default();
    for part in 0..3 {
        let mut job = session.volume.check(part, 3, Arc::default()).unwrap();
        let sharing = Sharing::default();
        report.merge(to_rest(&mut job, &mut session, &sharing).unwrap().unwrap());
    }
    assert_eq!(report, CheckReport { blocks: FILLED + 3, ..CheckReport::default() });
    session.detach().unwrap();
}

#[test]
fn a_driver_that_sleeps_hears_that_the_job_rests() {
    let (bench, policy) = filled();
    let session = bench.attach(&policy).unwrap();
    let (mut job, progress) = check(&session);
    progress.sharing.share(true);
    let began = Instant::now();
    while !progress.sharing.rests() {
        assert!(job.step(Duration::from_secs(30)).is_none());
    }
    assert!(began.elapsed() < Duration::from_secs(20), "nobody woke it");
    drop(job);
    session.detach().unwrap();
}
