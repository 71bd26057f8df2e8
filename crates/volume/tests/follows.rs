//! A session that is to follow a certain other one.

mod common;

use common::{Bench, Session, credential, options};
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
