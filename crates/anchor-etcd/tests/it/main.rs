//! The anchor against a real cluster, and against what else may answer under its address.
#![allow(clippy::disallowed_methods, reason = "real processes, and real time")]

#[allow(dead_code, reason = "tests of volumes use the rest")]
mod cluster;
mod peers;
mod proxy;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anchor::{Access, Anchor, Error, MOVED_TO_SIZE, Options, Schemes, Stamp, State};
use cluster::{Cluster, PATIENCE};
use futures::FutureExt;
use futures::executor::block_on;
use proxy::{Proxy, Way};

/// A stamp of one session that goes on.
fn stamp(generation: u64) -> Stamp {
    Stamp {
        volume: [1; 16],
        generation,
        head: [2; 32],
        session: [3; 16],
        claims: 4,
        header_digest: [5; 32],
        state: State::Claimed,
        moved_to: [0; MOVED_TO_SIZE],
        mac: [6; 32],
    }
}

fn options(pairs: Vec<(String, String)>) -> Options {
    pairs.into_iter().collect()
}

fn open_with(address: &str, options: &Options, timeout: Option<Duration>) -> Result<Arc<dyn Anchor>, Error> {
    let mut schemes = Schemes::new();
    schemes.register(anchor_etcd::scheme());
    schemes.open(address, options, Access::ReadWrite, timeout)
}

/// The same with a request's time-out that suits a test.
fn open(cluster: &Cluster, address: &str) -> Arc<dyn Anchor> {
    let mut options = options(cluster.options());
    options.insert("request-timeout-ms".into(), "1500".into());
    open_with(address, &options, None).expect("an anchor")
}

/// Moves on by one generation.
fn move_on(anchor: &Arc<dyn Anchor>, from: u64) {
    let moved = block_on(anchor.advance(Some(&stamp(from)), &stamp(from + 1)));
    assert_eq!(moved, Ok(()), "from {from}");
}

#[test]
fn it_moves_through_the_loss_of_members_and_waits_without_a_quorum() {
    let cluster = Cluster::start();
    let anchor = open(&cluster, &cluster.address("cvmio/a"));
    assert_eq!(block_on(anchor.read()), Ok(None));
    assert_eq!(block_on(anchor.advance(Some(&stamp(1)), &stamp(2))), Err(Error::Conflict(None)));
    assert_eq!(block_on(anchor.advance(None, &stamp(1))), Ok(()));
    let taken = Err(Error::Conflict(Some(Box::new(stamp(1)))));
    assert_eq!(block_on(anchor.advance(None, &stamp(2))), taken);
    move_on(&anchor, 1);
    let other = open(&cluster, &cluster.address("cvmio/b"));
    assert_eq!(block_on(other.read()), Ok(None), "another name, another stamp");

    // The one that is asked goes away.
    cluster.kill(0);
    move_on(&anchor, 2);
    // The one that leads stops, with a new member in the place of the first.
    cluster.replace(0);
    cluster.wait();
    let leader = cluster.leader();
    cluster.freeze(leader, true);
    move_on(&anchor, 3);
    cluster.freeze(leader, false);
    move_on(&anchor, 4);

    // No quorum: it waits, says so, and goes on by itself.
    cluster.wait();
    cluster.kill(1);
    cluster.kill(2);
    let mut moving = anchor.advance(Some(&stamp(5)), &stamp(6));
    let begun = Instant::now();
    let away = loop {
        assert!((&mut moving).now_or_never().is_none(), "a move without a quorum");
        match anchor.health().away {
            Some(away) if away.attempts >= 2 => break away,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(begun.elapsed() < PATIENCE, "it does not say that it is away");
    };
    assert!(away.error.starts_with("etcd: https://127.0.0.1:"), "{}", away.error);
    cluster.restart(1);
    assert_eq!(block_on(moving), Ok(()));
    assert_eq!(anchor.health().away, None);
    move_on(&anchor, 6);
    assert_eq!(block_on(open(&cluster, &cluster.address("cvmio/a")).read()), Ok(Some(stamp(7))));
}

#[test]
fn answers_that_are_lost_or_late_change_nothing() {
    let cluster = Cluster::start();
    let proxy = Proxy::to(cluster.port(0));
    let address = cluster.address_at(&[proxy.port], "cvmio/a");
    let anchor = open(&cluster, &address);
    assert_eq!(block_on(anchor.advance(None, &stamp(1))), Ok(()));

    // Lost: the move arrived, and a read finds that out; it is not sent again.
    let history = || cluster.control(&["get", "/cvmio/a", "--write-out=fields"]).1;
    let changes = |said: &str| {
        let line = said.lines().find(|line| line.starts_with("\"Version\"")).expect("a version").to_owned();
        line.rsplit(' ').next().and_then(|number| number.parse::<u64>().ok()).expect("a number")
    };
    let before = changes(&history());
    proxy.set(Way::LoseAnswers);
    let moving = anchor.advance(Some(&stamp(1)), &stamp(2)).fuse();
    let mut moving = Box::pin(moving);
    assert!((&mut moving).now_or_never().is_none());
    wait_until("it has noticed", || anchor.health().away.is_some());
    proxy.set(Way::Pass);
    assert_eq!(block_on(moving), Ok(()));
    assert_eq!(changes(&history()), before + 1, "it was sent once");

    // Delayed: slower, and nothing else.
    proxy.set(Way::Delay(Duration::from_millis(300)));
    move_on(&anchor, 2);
    proxy.set(Way::Pass);

    // Kept by the host, until somebody else has moved on: it finds another stamp then.
    proxy.set(Way::HoldQuestions);
    let mut held = anchor.advance(Some(&stamp(3)), &stamp(4));
    assert!((&mut held).now_or_never().is_none());
    wait_until("it has given up the connection", || anchor.health().away.is_some());
    drop(held);
    let successor = open(&cluster, &cluster.address("cvmio/a"));
    let claim = Stamp { claims: 5, session: [9; 16], ..stamp(3) };
    assert_eq!(block_on(successor.advance(Some(&stamp(3)), &claim)), Ok(()));
    proxy.set(Way::Pass);
    // The first session is fenced, whether it moves by itself or by what was held back.
    let fenced = block_on(anchor.advance(Some(&stamp(3)), &stamp(4)));
    assert_eq!(fenced, Err(Error::Conflict(Some(Box::new(claim.clone())))));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(block_on(successor.read()), Ok(Some(claim)));
}

#[test]
fn a_restored_member_is_outvoted_and_a_restored_majority_is_believed_by_a_new_session() {
    let cluster = Cluster::start();
    let address = cluster.address("cvmio/a");
    let anchor = open(&cluster, &address);
    assert_eq!(block_on(anchor.advance(None, &stamp(1))), Ok(()));
    // The host copies two members' disks, and lets time pass.
    let copies = [0, 1].map(|member| cluster.copy_data(member));
    for generation in 1..5 {
        move_on(&anchor, generation);
    }

    // One of three comes back with its old data.
    cluster.kill(0);
    cluster.put_back(0, &copies[0]);
    cluster.restart(0);
    cluster.wait();
    let alone = open(&cluster, &cluster.address_at(&[cluster.port(1), cluster.port(2)], "cvmio/a"));
    assert_eq!(block_on(alone.read()), Ok(Some(stamp(5))));
    assert_eq!(block_on(anchor.read()), Ok(Some(stamp(5))));
    move_on(&anchor, 5);

    // Two of three do: no cluster withstands this. A session that has seen more refuses it...
    for member in 0..3 {
        cluster.kill(member);
    }
    for member in [0, 1] {
        cluster.put_back(member, &copies[usize::from(member)]);
        cluster.restart(member);
    }
    cluster.wait();
    let refused = block_on(anchor.advance(Some(&stamp(6)), &stamp(7)));
    let Err(Error::Unusable(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("rolled back"), "{why}");
    // ... and a new session believes it. So members keep no data that a host can put back: see docs/freshness.md.
    assert_eq!(block_on(open(&cluster, &address).read()), Ok(Some(stamp(1))));
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
