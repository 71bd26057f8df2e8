//! Key slots: changed, and cut short at every step.

use crate::common::late::{comes_too_late, keep_moves, kill_on_its_way};
use crate::common::{Bench, credential, options};
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential};
use store::Operation;
use volume::format::protections::Freshness;
use volume::geometry::Shape;
use volume::policy::Policy;
use volume::{
    AttachOptions, Environment, KeyChange, KeyNotice, Kind, Remedy, Result, attach, change_keys, dump,
};

const COST: Argon2Params = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };

fn other() -> Credential {
    Credential::Passphrase(SecretBytes::from_slice(b"open sesame"))
}

fn add() -> KeyChange {
    KeyChange::Add { credential: other(), label: "other".into(), argon2: COST }
}

fn bench(freshness: Freshness) -> (Bench, Policy) {
    let mut options = options(Shape::STANDARD.min_logical, Shape::STANDARD);
    options.freshness = freshness;
    let blocks = volume::geometry::Geometry::for_logical(Shape::STANDARD.min_logical, Shape::STANDARD);
    let bench = Bench::new(options, blocks.unwrap().physical_blocks);
    let policy = bench.create();
    (bench, policy)
}

fn change(
    environment: &Environment,
    policy: &Policy,
    by: Credential,
    change: KeyChange,
    force: bool,
) -> Result<Vec<usize>> {
    let job = change_keys(environment.clone(), policy.clone(), by, change, force, AttachOptions::default());
    Ok(job?.block()?.slots.iter().map(|slot| slot.index).collect())
}

/// The indices of the slots in force, by what anybody can read and the anchor.
fn slots(environment: &Environment) -> Vec<usize> {
    let dump =
        dump::dump(environment.clone(), None, None, AttachOptions::default()).unwrap().block().unwrap();
    dump.slots().unwrap().iter().map(|slot| slot.index).collect()
}

fn opens(bench: &Bench, policy: &Policy, by: Credential) -> bool {
    // Opening is what is asked for, not a session: a removal of a slot that is not there goes as far as that.
    let nothing = KeyChange::Remove { slot: 15 };
    match change(&bench.environment, policy, by, nothing, false) {
        Err(error) if error.kind() == Kind::Locked => false,
        Err(error) if error.to_string().contains("no key in slot 15") => true,
        result => panic!("{result:?}"),
    }
}

#[test]
fn a_slot_is_added_used_and_removed() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let (bench, policy) = bench(freshness);
        assert!(!opens(&bench, &policy, other()));
        assert_eq!(change(&bench.environment, &policy, credential(), add(), false).unwrap(), [0, 1]);
        assert!(opens(&bench, &policy, other()) && opens(&bench, &policy, credential()));
        let remove = KeyChange::Remove { slot: 0 };
        assert_eq!(change(&bench.environment, &policy, other(), remove, false).unwrap(), [1]);
        assert!(!opens(&bench, &policy, credential()));
        assert_eq!(slots(&bench.environment), [1]);
        let last = change(&bench.environment, &policy, other(), KeyChange::Remove { slot: 1 }, false);
        assert_eq!(last.unwrap_err().kind(), Kind::Usage);
        // The volume is the same one still.
        let job = attach(bench.environment.clone(), policy.clone(), other(), bench.attach).unwrap();
        assert!(job.block().is_ok());
    }
}

#[test]
fn a_session_that_did_not_detach_is_in_the_way() {
    let (bench, policy) = bench(Freshness::Strict);
    drop(bench.attach(&policy).unwrap());
    let refused = change(&bench.environment, &policy, credential(), add(), false).unwrap_err();
    assert_eq!(refused.kind(), Kind::Usage);
    assert!(refused.remedy() == Some(Remedy::Force), "{refused}");
    assert_eq!(slots(&bench.environment), [0]);
    assert_eq!(change(&bench.environment, &policy, credential(), add(), true).unwrap(), [0, 1]);
}

#[test]
fn a_session_that_still_runs_is_fenced() {
    let (bench, policy) = bench(Freshness::Strict);
    let mut session = bench.attach(&policy).unwrap();
    session.write(0, 1, 1).unwrap();
    change(&bench.environment, &policy, credential(), add(), true).unwrap();
    assert_eq!(session.flush().unwrap_err().kind(), Kind::Fenced);
}

#[test]
fn a_change_that_is_refused_fences_nobody() {
    let (bench, policy) = bench(Freshness::Strict);
    let mut session = bench.attach(&policy).unwrap();
    session.write(0, 1, 1).unwrap();
    let none_there = KeyChange::Remove { slot: 15 };
    let refused = change(&bench.environment, &policy, credential(), none_there, true).unwrap_err();
    assert_eq!(refused.kind(), Kind::Usage);
    assert!(refused.to_string().contains("no key in slot 15"), "{refused}");
    session.flush().unwrap();
}

/// Writes and flushes of one change, and of the repair before it.
const STEPS: i64 = 6;

#[test]
fn a_crash_after_any_step_leaves_the_old_slots_or_the_new() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let mut seen = [false; 2];
        for first in 0..STEPS {
            for second in 0..STEPS {
                let (bench, policy) = bench(freshness);
                for (by, steps) in [(credential(), first), (credential(), second)] {
                    let (environment, _) = bench.stopping(steps);
                    // Whether it ended well or not, nothing but the old or the new slots may be there.
                    let _ = change(&environment, &policy, by, add(), false);
                    let there = slots(&bench.environment);
                    assert!(opens(&bench, &policy, credential()), "{freshness} {first} {second}");
                    let added = opens(&bench, &policy, other());
                    assert_eq!(added, there.len() > 1, "{freshness} {first} {second}: {there:?}");
                    seen[usize::from(added)] = true;
                }
                assert!(bench.attach(&policy).is_ok(), "{freshness} {first} {second}");
            }
        }
        assert_eq!(seen, [true, true], "the crashes did not fall on both sides of the change");
    }
}

#[test]
fn a_move_that_arrives_late_finds_its_copy_or_comes_too_late() {
    let (mut bench, policy) = bench(Freshness::Strict);
    let anchor = keep_moves(&mut bench);
    let begin = || {
        let options = AttachOptions::default();
        change_keys(bench.environment.clone(), policy.clone(), credential(), add(), false, options).unwrap()
    };
    kill_on_its_way(&bench, &anchor, begin());
    comes_too_late(&anchor, begin());
    assert_eq!(slots(&bench.environment), [0, 1]);
    assert!(opens(&bench, &policy, other()));
    assert!(bench.attach(&policy).is_ok());
}

#[test]
fn an_old_header_that_is_put_back_is_stale() {
    let (bench, policy) = bench(Freshness::Strict);
    let mut old = Vec::new();
    let mut queue = bench.environment.store.queue(4).unwrap();
    let buffer = queue.buffer(4);
    queue.submit(1, Operation::Read { block: 0, buffer });
    queue.wait(None, &mut old);
    let pairs = old.remove(0).buffer.unwrap();
    change(&bench.environment, &policy, credential(), add(), false).unwrap();
    change(&bench.environment, &policy, other(), KeyChange::Remove { slot: 0 }, false).unwrap();
    queue.submit(2, Operation::Write { block: 0, buffer: pairs });
    queue.wait(None, &mut old);
    let error = bench.attach(&policy).err().unwrap();
    assert_eq!(error.kind(), Kind::Stale, "{error}");
}

#[test]
fn a_dump_shows_structure_and_no_secret() {
    let (bench, policy) = bench(Freshness::Strict);
    let mut session = bench.attach(&policy).unwrap();
    session.write(3, 1, 9).unwrap();
    session.checkpoint();
    session.detach().unwrap();
    let options = AttachOptions::default();
    let full = dump::dump(bench.environment.clone(), Some(policy), Some(credential()), options);
    let full = full.unwrap().block().unwrap();
    assert!(full.copies.iter().all(|copy| copy.verified && copy.anchored == Some(true)));
    assert!(full.copies.iter().all(|copy| copy.whole == Some(true)));
    let superblocks = full.superblocks.unwrap();
    assert!(superblocks.iter().any(|superblock| superblock.mapped_blocks == 1), "{superblocks:?}");
    assert_eq!(full.stamp.unwrap().state, "released");
    let bare = dump::dump(bench.environment.clone(), None, None, options).unwrap().block().unwrap();
    assert!(bare.superblocks.is_none() && bare.copies.iter().all(|copy| !copy.verified));
}

#[test]
fn a_change_that_may_not_be_meant_is_noticed() {
    let (bench, policy) = bench(Freshness::Strict);
    let notice = |by: Credential, change: KeyChange| {
        let (environment, options) = (bench.environment.clone(), AttachOptions::default());
        let job = change_keys(environment, policy.clone(), by, change, false, options).unwrap();
        job.block().unwrap().notice
    };
    assert_eq!(notice(credential(), add()), None);
    assert_eq!(notice(credential(), add()), Some(KeyNotice::OpensAlready { slot: 1 }));
    // What opened two slots opens one still.
    assert_eq!(notice(other(), KeyChange::Remove { slot: 1 }), None);
    assert_eq!(notice(other(), KeyChange::Remove { slot: 2 }), Some(KeyNotice::OwnRemoved { slot: 2 }));
    assert_eq!(slots(&bench.environment), [0]);
}
