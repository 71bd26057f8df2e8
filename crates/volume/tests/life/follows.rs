//! A session that is to follow a certain other one.

use crate::common::worn::wear;
use crate::common::{Bench, Session, credential, options, options_at};
use volume::format::protections::Freshness;
use volume::geometry::Shape;
use volume::policy::Policy;
use volume::{AttachOptions, CreateOptions, Kind, Left, RekeyOrder, Request, Result, attach, begin_rekey};

const LEVELS: [Freshness; 5] =
    [Freshness::Strict, Freshness::Write, Freshness::Interval, Freshness::Transaction, Freshness::Off];

fn created(freshness: Freshness) -> (Bench, Policy) {
    let bench = Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, 5400);
    let policy = bench.create();
    (bench, policy)
}

/// A session that writes, and what it leaves.
fn session(bench: &Bench, policy: &Policy, fill: u8) -> Left {
    let mut session = bench.attach(policy).expect("attached");
    session.write(0, 1, fill).expect("written");
    session.one(Request::Commit).result.expect("committed");
    let volume = session.volume.clone();
    session.detach().expect("detached");
    volume.left()
}

fn follow(bench: &Bench, policy: &Policy, left: Left) -> Result<()> {
    let options = AttachOptions { follows: Some(left), ..bench.attach };
    let job = attach(bench.environment.clone(), policy.clone(), credential(), options)?;
    Session::new(job.block()?).detach()
}

#[test]
fn it_follows_the_one_that_it_is_to_follow_and_no_other() {
    for freshness in LEVELS {
        let (bench, policy) = created(freshness);
        let left = session(&bench, &policy, 1);
        follow(&bench, &policy, left).unwrap_or_else(|error| panic!("{freshness}: {error}"));
        let later = session(&bench, &policy, 2);
        assert_ne!(left, later);
        let refused = follow(&bench, &policy, left).expect_err("somebody had it in between");
        assert_eq!(refused.kind(), Kind::Fenced, "{freshness}: {refused}");
        follow(&bench, &policy, later).unwrap_or_else(|error| panic!("{freshness}: {error}"));
    }
}

#[test]
fn it_takes_the_volume_from_nobody() {
    let (bench, policy) = created(Freshness::Strict);
    let left = session(&bench, &policy, 1);
    // It has written nothing yet.
    let mut other = bench.attach(&policy).expect("attached");
    let refused = follow(&bench, &policy, left).expect_err("somebody has it");
    assert_eq!(refused.kind(), Kind::Fenced, "{refused}");
    other.write(0, 1, 2).expect("written");
    other.flush().expect("it has the volume still");
    other.detach().expect("detached");
}

#[test]
fn a_change_of_key_is_no_other_session_and_follows_none_either() {
    let (bench, policy) = created(Freshness::Strict);
    let left = session(&bench, &policy, 1);
    let rekey = |left| -> Result<()> {
        let options = AttachOptions { follows: Some(left), ..bench.attach };
        let order = RekeyOrder::default();
        begin_rekey(bench.environment.clone(), policy.clone(), credential(), order, options)?.block()?;
        Ok(())
    };
    let later = session(&bench, &policy, 2);
    assert_eq!(rekey(left).expect_err("somebody had it in between").kind(), Kind::Fenced);
    follow(&bench, &policy, later).expect("nothing was changed");
    rekey(later).expect("begun");
    follow(&bench, &policy, later).expect("attached");
}

/// Superblocks that cannot be read are no rival's, whether from some moment on or until then.
#[test]
fn a_superblock_that_cannot_be_read_is_not_taken_for_another_session() {
    let mut refused = 0;
    for worn_first in [false, true] {
        for slot in 4..8 {
            for polls in 0.. {
                let mut bench = Bench::new(options_at(Freshness::Strict), 16_384);
                let unreadable = wear(&mut bench);
                let policy = bench.create();
                session(&bench, &policy, 1);
                let left = session(&bench, &policy, 2);
                let wear_out = |worn: bool| {
                    *unreadable.lock().expect("not poisoned") = worn.then_some(slot).into_iter().collect();
                };
                wear_out(worn_first);
                let options = AttachOptions { follows: Some(left), ..bench.attach };
                let job = attach(bench.environment.clone(), policy.clone(), credential(), options);
                let mut job = job.expect("a queue");
                if (0..polls).any(|_| job.poll().is_some()) {
                    break;
                }
                wear_out(!worn_first);
                if let Err(error) = job.block() {
                    assert_eq!(error.kind(), Kind::Io, "slot {slot}, {polls} polls, {worn_first}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 0, "the disk was never in the way");
}
