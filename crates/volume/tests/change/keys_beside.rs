//! Key slots that are changed while the volume is attached.

use std::sync::atomic::Ordering;

use crate::common::late::keep_moves;
use crate::common::rekeying::{Case, Job};
use crate::common::streaming::drive;
use crate::common::{Bench, Session, credential, options_at};
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential, SlotLimits};
use testkit::Outcome;
use volume::format::protections::Freshness;
use volume::policy::Policy;
use volume::{KeyChange, Kind, Result, attach, dump};

const LEVELS: [Freshness; 4] =
    [Freshness::Off, Freshness::Transaction, Freshness::Interval, Freshness::Strict];

fn other() -> Credential {
    Credential::Passphrase(SecretBytes::from_slice(b"open sesame"))
}

fn add() -> KeyChange {
    let argon2 = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };
    KeyChange::Add { credential: other(), label: "other".into(), argon2 }
}

fn spare() -> KeyChange {
    let credential = Credential::KeyFile(SecretBytes::from_slice(&[3; 64]));
    let argon2 = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };
    KeyChange::Add { credential, label: "spare".into(), argon2 }
}

fn change(session: &mut Session, by: Credential, change: KeyChange) -> Result<Vec<usize>> {
    let mut job = session.volume.change_keys(by, change, SlotLimits::default()).expect("a queue");
    Ok(drive(session, &mut job)?.slots.iter().map(|slot| slot.index).collect())
}

/// The slots of a session by what it knows, and by what anybody can read.
fn slots(bench: &Bench, session: &Session) -> Vec<usize> {
    let known = session.volume.key_slots().expect("a session that writes");
    let dump = dump::dump(bench.environment.clone(), None, None, bench.attach).expect("a queue");
    let read = dump.block().expect("readable");
    let read: Vec<usize> = read.slots().expect("whole").iter().map(|slot| slot.index).collect();
    assert_eq!(read, known.iter().map(|slot| slot.index).collect::<Vec<_>>());
    read
}

fn opened_by(bench: &Bench, policy: &Policy, by: Credential) -> Result<Session> {
    attach(bench.environment.clone(), policy.clone(), by, bench.attach)?.block().map(Session::new)
}

#[test]
fn a_slot_is_added_and_removed_beside_users_at_every_level() {
    for level in LEVELS {
        let bench = Bench::new(options_at(level), 16_384);
        let policy = bench.create();
        let mut session = bench.attach(&policy).unwrap();
        session.write(0, 64, 1).unwrap();
        session.commit().unwrap();
        session.write(0, 8, 2).unwrap();
        assert_eq!(change(&mut session, credential(), add()).unwrap(), [0, 1], "{level}");
        assert_eq!(slots(&bench, &session), [0, 1]);
        assert_eq!(session.read(0, 1).unwrap()[0], 2);
        let remove = KeyChange::Remove { slot: 0 };
        assert_eq!(change(&mut session, other(), remove).unwrap(), [1], "{level}");
        session.write(8, 8, 3).unwrap();
        session.checkpoint();
        session.detach().unwrap();
        assert_eq!(opened_by(&bench, &policy, credential()).err().unwrap().kind(), Kind::Locked);
        let mut session = opened_by(&bench, &policy, other()).unwrap();
        // Nobody has committed what was written since.
        let expected = if level == Freshness::Transaction { [1, 1, 1] } else { [2, 3, 1] };
        let now = [0, 8, 16].map(|block| session.read(block, 1).unwrap()[0]);
        assert_eq!(now, expected, "{level}");
    }
}

#[test]
fn what_is_refused_writes_nothing_and_ends_nothing() {
    let bench = Bench::new(options_at(Freshness::Strict), 16_384);
    let policy = bench.create();
    let mut session = bench.attach(&policy).unwrap();
    session.write(0, 1, 1).unwrap();
    session.flush().unwrap();
    let before = bench.image();
    let refused = |session: &mut Session, by, wanted| change(session, by, wanted).unwrap_err().kind();
    assert_eq!(refused(&mut session, other(), add()), Kind::Locked);
    assert_eq!(refused(&mut session, credential(), KeyChange::Remove { slot: 0 }), Kind::Usage);
    assert_eq!(refused(&mut session, credential(), KeyChange::Remove { slot: 15 }), Kind::Usage);
    assert!(bench.image() == before);
    session.write(0, 1, 2).unwrap();
    session.detach().unwrap();
    let reading = bench.attach_reading(&policy).unwrap();
    let job = reading.volume.change_keys(credential(), add(), SlotLimits::default()).unwrap();
    assert_eq!(job.block().unwrap_err().kind(), Kind::Usage);
    assert_eq!(reading.volume.key_slots().unwrap_err().kind(), Kind::Usage);
}

#[test]
fn an_old_header_that_is_put_back_is_stale() {
    let bench = Bench::new(options_at(Freshness::Strict), 16_384);
    let policy = bench.create();
    let old = bench.image();
    let mut session = bench.attach(&policy).unwrap();
    change(&mut session, credential(), add()).unwrap();
    session.detach().unwrap();
    crate::common::medium::put(&*bench.environment.store, 0, &old[..4].concat());
    assert_eq!(bench.attach(&policy).err().unwrap().kind(), Kind::Stale);
}

/// It has lost the volume, so it must not touch what its successor has in force.
#[test]
fn a_session_that_was_superseded_changes_nothing() {
    let bench = Bench::new(options_at(Freshness::Strict), 16_384);
    let policy = bench.create();
    let mut first = bench.attach(&policy).unwrap();
    let mut second = bench.attach(&policy).unwrap();
    let before = bench.image()[..4].to_vec();
    assert_eq!(change(&mut first, credential(), add()).unwrap_err().kind(), Kind::Fenced);
    assert!(bench.image()[..4] == before);
    assert_eq!(change(&mut second, credential(), add()).unwrap(), [0, 1]);
    second.detach().unwrap();
}

#[test]
fn a_crash_after_any_write_leaves_the_old_slots_or_the_new() {
    for level in LEVELS {
        let mut seen = [0; 2];
        for steps in 0..12 {
            let bench = Bench::new(options_at(level), 16_384);
            let policy = bench.create();
            let (environment, left) = bench.stopping(i64::MAX);
            let mut session = bench.attach_on(&environment, &policy).unwrap();
            session.write(0, 64, 1).unwrap();
            session.commit().unwrap();
            left.store(steps, Ordering::Relaxed);
            let ended = change(&mut session, credential(), add());
            drop(session);
            let mut session =
                bench.attach(&policy).unwrap_or_else(|error| panic!("{level} {steps}: {error}"));
            assert_eq!(session.read(63, 1).unwrap()[0], 1);
            let there = slots(&bench, &session);
            assert!(ended.is_err() || there.len() == 2, "{level} {steps}: it was told that it is there");
            // What was cut is done again.
            if there.len() == 1 {
                assert_eq!(change(&mut session, credential(), add()).unwrap(), [0, 1], "{level} {steps}");
            }
            session.detach().unwrap();
            opened_by(&bench, &policy, other()).unwrap().detach().unwrap();
            seen[there.len() - 1] += 1;
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{level}: {seen:?}");
    }
}

/// The end of a change of key changes the header as well.
#[test]
fn slots_that_were_added_stay_when_a_change_of_key_ends() {
    let case = Case::written(options_at(Freshness::Strict), 0..500);
    let old = case.key();
    case.begin();
    let mut session = case.attach();
    let mut job = Job::new(&session);
    job.until(&mut session, 100);
    assert_eq!(change(&mut session, credential(), add()).unwrap(), [0, 1]);
    while job.ended.is_none() {
        job.step();
        session.step();
    }
    assert!(!session.volume.is_rekeying());
    assert_eq!(slots(&case.bench, &session), [0, 1]);
    session.detach().unwrap();
    opened_by(&case.bench, &case.policy, other()).unwrap().detach().unwrap();
    case.assert_only_new(&old);
}

/// Who waits for his turn meanwhile must leave the copy alone that the anchor may vouch for by now.
#[test]
fn a_change_whose_move_fails_is_the_last_of_its_session() {
    for (outcome, there) in [(Outcome::FailAfter, vec![0, 1]), (Outcome::FailBefore, vec![0])] {
        let mut bench = Bench::new(options_at(Freshness::Strict), 16_384);
        let policy = bench.create();
        let anchor = keep_moves(&mut bench);
        anchor.hold(false);
        let mut session = bench.attach(&policy).unwrap();
        anchor.hold(true);
        let mut jobs = [add(), spare()]
            .map(|change| session.volume.change_keys(credential(), change, SlotLimits::default()).unwrap());
        let mut ended = [None, None];
        // It is asked twice before it is given up.
        let (mut left, mut moves) = (vec![outcome, Outcome::FailBefore], 0);
        while ended.iter().any(Option::is_none) {
            session.step();
            for (job, ended) in jobs.iter_mut().zip(&mut ended) {
                *ended = ended.take().or_else(|| job.poll());
            }
            let image = bench.image();
            if anchor.pending() > 0 && image[..2] != image[2..4] {
                anchor.complete_next_with(left.pop().unwrap_or(Outcome::Proceed));
                moves += 1;
            }
            anchor.complete_next();
        }
        assert!(ended.iter().flatten().all(|ended| ended.as_ref().is_err()), "{ended:?}");
        assert_eq!(moves, 2, "the second change asks for none");
        drop(session);
        anchor.hold(false);
        let session = bench.attach(&policy).unwrap_or_else(|error| panic!("{outcome:?}: {error}"));
        let found = session.volume.key_slots().unwrap();
        assert_eq!(found.iter().map(|slot| slot.index).collect::<Vec<_>>(), there, "{outcome:?}");
        session.detach().unwrap();
    }
}

/// Of two at once the one that comes second is told; none undoes the other.
#[test]
fn two_changes_at_once_are_both_there_or_one_is_refused() {
    let bench = Bench::new(options_at(Freshness::Strict), 16_384);
    let policy = bench.create();
    let mut session = bench.attach(&policy).unwrap();
    let limits = SlotLimits::default;
    let mut jobs =
        [add(), spare()].map(|change| session.volume.change_keys(credential(), change, limits()).unwrap());
    let mut ended = [None, None];
    for _ in 0..100_000 {
        session.step();
        for (job, ended) in jobs.iter_mut().zip(&mut ended) {
            if ended.is_none() {
                *ended = job.poll();
            }
        }
    }
    let done = ended.iter().flatten().filter(|ended| ended.is_ok()).count();
    let refused = ended.iter().flatten().filter_map(|ended| ended.as_ref().err());
    assert!(refused.clone().all(|error| error.kind() == Kind::Usage), "{ended:?}");
    assert_eq!(done + refused.count(), 2);
    assert_eq!(slots(&bench, &session).len(), 1 + done);
    assert!(done > 0);
    session.detach().unwrap();
}
