//! A thin volume on a device that gives space as it is written to, says nothing of it, and is full.

use std::time::Duration;

use crate::common::{Session, pattern};
use crate::thin::Case;
use volume::Kind;

/// 1 GiB.
const BLOCKS: u64 = 262_144;

/// Writes single blocks everywhere until there is no room; which ones are there.
fn fill(session: &mut Session, round: u64) -> Vec<u64> {
    let (mut there, mut refused) = (Vec::new(), 0);
    for at in 0..BLOCKS {
        let block = at * 7919 % BLOCKS;
        match session.write(block, 1, pattern(block, round)) {
            Ok(()) => there.push(block),
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                refused += 1;
            }
        }
        assert_eq!(session.queue.pending(), 0, "a write had completed that the store has no room for");
        if refused == 100 {
            return there;
        }
    }
    panic!("there is room for everything");
}

/// Users learn at once that there is no room, and nothing waits for some: a flush ends, what is discarded comes back, by a checkpoint whose nodes
/// need places, also behind a kill, and in a session that finds the device full.
#[test]
fn on_a_full_device_nothing_waits_and_what_is_discarded_comes_back() {
    for (killed, discard) in [(false, None), (true, None), (false, Some(false))] {
        let case = Case::on_a_device(BLOCKS, discard);
        let mut session = case.attach();
        case.store.set_room(case.store.taken() + 20_000);
        let there = fill(&mut session, 1);
        assert!(there.len() > 15_000, "{}", there.len());
        session.flush().expect("flushed");
        if killed {
            drop(session);
            session = case.attach();
        }
        session.check_each(there.iter().copied().take(200), 1);
        let full = case.store.taken();
        // All but the first and the last, in many pieces: of each leaf something stays.
        for at in 0..BLOCKS / 128 {
            session.discard(at * 128 + 1, 126).expect("discarded");
        }
        session.flush().expect("flushed");
        session.checkpoint();
        // What a killed session had reserved is left alone for so long.
        case.clock.advance(Duration::from_secs(if killed { 600 } else { 0 }));
        case.pass_time(&mut session, 300);
        if discard.is_none() {
            assert!(case.store.taken() < full - 5000, "{} of {full}", case.store.taken());
            let again = fill(&mut session, 2);
            assert!(again.len() > 5000, "{}", again.len());
            session.check_each(again.into_iter().take(200), 2);
        }
        session.flush().expect("flushed");
        session.detach().expect("detached");
    }
}

/// What a device gives for journal, bitmap, superblocks and the first nodes, it gives when the volume is made.
#[test]
fn a_flush_finds_room_on_a_device_that_was_full_from_the_first_moment() {
    for blocks in [BLOCKS, 8 * BLOCKS] {
        let case = Case::on_a_device(blocks, None);
        case.store.set_room(case.store.taken());
        let mut session = case.attach();
        for block in 0..1000 {
            let write = session.write(block, 1, pattern(block, 1));
            assert_eq!(write.expect_err("no room").kind(), Kind::NoSpace);
        }
        Case::discards_wait_for_nothing(session);
    }
}

/// Each session finds the device full, since others take what comes free. Its users discard single blocks everywhere, and some sessions are killed,
/// or stand still for a while. Each can be attached, makes a checkpoint and is detached all the same, and nothing is lost.
#[test]
fn sessions_that_find_the_device_full_come_and_go() {
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let case = Case::on_a_device(BLOCKS, None);
        let mut session = case.attach();
        case.store.set_room(case.store.taken() + 12_000);
        let mut kept = fill(&mut session, seed + 1);
        kept.truncate(random.usize(200..8000));
        for _ in 0..6 {
            session.flush().expect("flushed");
            if random.bool() {
                session.detach().expect("detached");
            } else {
                drop(session);
                case.clock.advance(Duration::from_secs(random.u64(0..2) * 600));
            }
            case.store.set_room(case.store.taken());
            session = case.attach();
            session.check_each(kept.iter().copied().take(100), seed + 1);
            if random.bool() {
                case.pass_time(&mut session, random.u32(0..100));
                case.store.set_room(case.store.taken());
            }
            for block in kept.split_off(kept.len() * 3 / 4) {
                session.discard(block, 1).expect("discarded");
            }
            let write = session.write(kept[0], 1, pattern(kept[0], seed + 1));
            assert!(write.is_ok() || write.is_err_and(|error| error.kind() == Kind::NoSpace));
            session.flush().expect("flushed");
            session.checkpoint();
            case.pass_time(&mut session, random.u32(0..100));
        }
        session.check_each(kept.iter().copied(), seed + 1);
        session.detach().expect("detached");
    }
}
