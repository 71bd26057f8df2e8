//! The life of a volume: created, attached, written, detached or dropped, attached again.

use std::time::Duration;

use crate::common::{Bench, Session, filled, options, page};
use memory::Buffer;
use volume::format::protections::{Freshness, Provision};
use volume::geometry::Shape;
use volume::{CreateOptions, Kind, Request};

fn bench(freshness: Freshness) -> Bench {
    Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, 16384)
}

fn expect(session: &mut Session, block: u64, fill: u8) {
    assert_eq!(session.read(block, 1).expect("readable"), page(fill), "block {block}");
}

/// What an operator sees of it: each commit takes some, a checkpoint gives it back.
#[test]
fn the_status_shows_how_full_the_journal_is() {
    let bench = Bench::new(options(8192, Shape::TINY), 24_000);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    let free = |session: &Session| session.volume.status().journal_free_blocks;
    let (mut before, mut taken, mut given_back) = (free(&session), 0, 0);
    assert!(before <= session.volume.status().journal_blocks);
    // As many records as the ring has blocks, so that it comes round.
    for commit in 0..session.volume.status().journal_blocks {
        session.write(commit, 1, 1).expect("written");
        session.one(Request::Flush).result.expect("flushed");
        let now = free(&session);
        (taken, given_back) = (taken + u64::from(now < before), given_back + u64::from(now > before));
        before = now;
    }
    assert!(taken > given_back && given_back > 0, "{taken} times less, {given_back} times more");
}

#[test]
fn what_was_written_is_read_back_across_a_clean_detach() {
    let bench = bench(Freshness::Strict);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    expect(&mut session, 17, 0);
    session.write(17, 3, 0xaa).expect("written");
    expect(&mut session, 19, 0xaa);
    expect(&mut session, 20, 0);
    session.detach().expect("detached");
    let mut session = bench.attach(&policy).expect("attached again");
    expect(&mut session, 17, 0xaa);
    expect(&mut session, 19, 0xaa);
    expect(&mut session, 16, 0);
    session.detach().expect("detached");
}

#[test]
fn flushed_writes_survive_a_session_that_is_dropped() {
    for freshness in [Freshness::Strict, Freshness::Write, Freshness::Interval, Freshness::Off] {
        let bench = bench(freshness);
        let policy = bench.create();
        for round in 1..20u8 {
            let mut session = bench.attach(&policy).expect("attached");
            if round > 1 {
                expect(&mut session, u64::from(round) - 1, round - 1);
                expect(&mut session, 1, 1);
            }
            session.write(u64::from(round), 1, round).expect("written");
            session.flush().expect("flushed");
        }
    }
}

#[test]
fn a_transaction_is_all_or_nothing() {
    let bench = bench(Freshness::Transaction);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(1, 1, 1).expect("written");
    session.one(volume::Request::Commit).result.expect("committed");
    session.write(1, 1, 2).expect("written");
    session.write(2, 1, 2).expect("written");
    session.flush().expect("flushed");
    session.checkpoint();
    expect(&mut session, 1, 2);
    drop(session);
    let mut session = bench.attach(&policy).expect("attached again");
    expect(&mut session, 1, 1);
    expect(&mut session, 2, 0);
    session.write(3, 1, 3).expect("written");
    session.checkpoint();
    session.write(4, 1, 4).expect("written");
    session.one(volume::Request::Commit).result.expect("committed");
    drop(session);
    let mut session = bench.attach(&policy).expect("attached again");
    for (block, fill) in [(1, 1), (2, 0), (3, 3), (4, 4)] {
        expect(&mut session, block, fill);
    }
}

/// What is under way when a transaction ends may be in its commit, and a commit must not reach a third journal segment.
#[test]
fn a_transaction_with_much_under_way_is_spilt_and_admits_again() {
    for (queues, spilt) in [(1, false), (5, true)] {
        let options = CreateOptions { freshness: Freshness::Transaction, ..options(8192, Shape::TINY) };
        let mut bench = Bench::new(options, 24_000);
        bench.attach.behind = 0;
        let policy = bench.create();
        let mut session = bench.attach(&policy).expect("attached");
        // Most of the segment in use is full, and more than half of what the next one holds waits already.
        for fill in 0..2 {
            session.write(0, 1, fill).expect("written");
            session.one(Request::Commit).result.expect("committed");
        }
        for block in (0..240).step_by(16) {
            session.write(block, 16, 1).expect("written");
        }
        let (mut ended, mut committed) = (Vec::new(), Vec::new());
        let mut busy: Vec<_> = (0..queues).map(|_| session.volume.queue(128).expect("a queue")).collect();
        for (at, queue) in (0..).zip(&mut busy) {
            // A queue turns to the store when it has 128 blocks for it.
            for block in at * 100..(at + 1) * 100 {
                queue.submit(block, Request::Write { block: 1000 + block, data: filled(1, 2), fua: false });
            }
            queue.poll(&mut ended);
        }
        assert!(ended.is_empty(), "all are under way");
        let before = session.volume.status().metadata_blocks;
        session.queue.submit(0, Request::Commit);
        while committed.is_empty() {
            session.queue.poll(&mut committed);
            session.step();
        }
        committed.remove(0).result.expect("committed");
        // A record of so many items has three blocks; a spill writes all changed nodes.
        let record_alone = session.volume.status().metadata_blocks <= before + 3;
        assert_eq!(!record_alone, spilt, "{queues} queues");
        while busy.iter().any(|queue| queue.pending() > 0) {
            for queue in &mut busy {
                queue.poll(&mut ended);
            }
            session.step();
        }
        assert!(ended.iter().all(|end| end.result.is_ok()));
        session.write(8000, 1, 3).expect("the next transaction's writes are admitted");
        drop((busy, session));
        let mut session = bench.attach(&policy).expect("attached again");
        for (block, fill) in [(0, 1), (239, 1), (1000, 0), (8000, 0)] {
            expect(&mut session, block, fill);
        }
    }
}

/// A superblock can list 256 units, and only the end of a transaction writes one.
#[test]
fn a_transaction_may_be_larger_than_what_a_superblock_lists() {
    let options = CreateOptions { freshness: Freshness::Transaction, ..options(8192, Shape::TINY) };
    let bench = Bench::new(options, 24_000);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for at in 0..100u64 {
        session.write(at * 64, 64, 1 + u8::try_from(at).expect("small")).expect("written");
    }
    session.one(Request::Commit).result.expect("committed");
    drop(session);
    let mut session = bench.attach(&policy).expect("attached again");
    for at in 0..100u64 {
        expect(&mut session, at * 64 + 63, 1 + u8::try_from(at).expect("small"));
    }
}

#[test]
fn a_full_volume_is_overwritten_discarded_and_filled_again() {
    let bench = bench(Freshness::Strict);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for round in 1..4u8 {
        for block in (0..4096).step_by(32) {
            session
                .write(block, 32, round)
                .unwrap_or_else(|error| panic!("round {round}, block {block}: {error}"));
        }
    }
    // Scattered overwrites, many times what is free.
    for step in 0..20_000u64 {
        let block = step * 2_654_435_761 % 4096;
        session.write(block, 1, 7).unwrap_or_else(|error| panic!("step {step}: {error}"));
    }
    for block in (0..4096).step_by(97) {
        let got = session.read(block, 1).expect("readable")[0];
        assert!(got == 7 || got == 3, "block {block} has {got}");
    }
    session.discard(0, 4096).expect("discarded");
    expect(&mut session, 0, 0);
    expect(&mut session, 4095, 0);
    session.checkpoint();
    expect(&mut session, 4095, 0);
    assert_eq!(session.volume.status().mapped_blocks, 0);
    for block in (0..4096).step_by(64) {
        session.write(block, 64, 9).expect("filled again");
    }
    session.detach().expect("detached");
    let mut session = bench.attach(&policy).expect("attached again");
    for block in 0..4096 {
        expect(&mut session, block, 9);
    }
    assert_eq!(session.volume.status().mapped_blocks, 4096);
}

#[test]
fn any_number_of_large_writes_at_once_is_no_more_than_the_journal_takes() {
    let bench = Bench::new(options(2000, Shape::TINY), 8000);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    let most = session.volume.largest_change();
    let at_once = |blocks: u64| -> Vec<Request> {
        let write = |at: u8| {
            let data = filled(usize::try_from(blocks).expect("small"), at);
            Request::Write { block: u64::from(at), data, fua: at.is_multiple_of(8) }
        };
        (1..60).map(write).collect()
    };
    for completion in session.run(at_once(most)) {
        completion.result.expect("written, if not all at once");
    }
    for completion in session.run(at_once(most + 1)) {
        assert_eq!(completion.result.expect_err("too large").kind(), Kind::Usage);
    }
    for bytes in [0, 1, 4095, 4097] {
        let request = Request::Write { block: 0, data: vec![1; bytes].into(), fua: false };
        let result = session.one(request).result;
        assert_eq!(
            result.err().map(|error| error.kind()),
            (bytes > 0).then_some(Kind::Usage),
            "{bytes} bytes"
        );
    }
    session.write(0, 1, 0xee).expect("the session goes on");
    session.detach().expect("detached");
}

#[test]
fn a_thin_volume_says_cleanly_that_it_is_full() {
    let options = CreateOptions { provision: Provision::Thin, ..options(65536, Shape::STANDARD) };
    let bench = Bench::new(options, 16384);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    let mut filled = 0;
    let error = loop {
        match session.write(filled, 16, 5) {
            Ok(()) => filled += 16,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
    assert!(filled > 8192, "only {filled} blocks of 16384 could be used");
    // Reads, overwrites and discards go on.
    expect(&mut session, 0, 5);
    for block in (0..filled).step_by(16) {
        session.write(block, 16, 6).expect("overwritten");
    }
    session.discard(0, 4096).expect("discarded");
    session.write(filled, 16, 8).expect("there is room again");
    session.detach().expect("detached");
}

#[test]
fn a_full_thin_volume_takes_overwrites_of_any_length() {
    let options = CreateOptions { provision: Provision::Thin, ..options(16384, Shape::STANDARD) };
    let bench = Bench::new(options, 6144);
    let policy = bench.create();
    for piece in [16, 128, 256] {
        let mut session = bench.attach(&policy).expect("attached");
        let blocks = usize::try_from(piece).expect("few");
        let full = (0..16384).step_by(blocks).find(|block| session.write(*block, blocks, 5).is_err());
        let full = full.expect("16384 blocks went into 6144");
        for block in (0..full).step_by(blocks) {
            session
                .write(block, blocks, 6)
                .unwrap_or_else(|error| panic!("{piece} from {block} on: {error}"));
        }
        session.discard(0, 16384).expect("discarded");
        session.detach().expect("detached");
    }
}

#[test]
fn a_second_session_fences_the_first() {
    let bench = bench(Freshness::Strict);
    let policy = bench.create();
    let mut first = bench.attach(&policy).expect("attached");
    first.write(1, 1, 1).expect("written");
    first.flush().expect("flushed");
    let mut second = bench.attach(&policy).expect("taken over");
    second.write(2, 1, 2).expect("written");
    second.flush().expect("flushed");
    first.write(3, 1, 3).expect("it does not know yet");
    let error = first.flush().expect_err("fenced");
    assert_eq!(error.kind(), Kind::Fenced);
    assert_eq!(first.write(3, 1, 3).expect_err("stopped").kind(), Kind::Fenced);
    second.detach().expect("detached");
    let mut third = bench.attach(&policy).expect("attached");
    for (block, fill) in [(1, 1), (2, 2), (3, 0)] {
        expect(&mut third, block, fill);
    }
}

#[test]
fn a_full_volume_outlives_crash_after_crash_under_overwrites() {
    let bench = bench(Freshness::Strict);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for block in (0..4096).step_by(64) {
        session.write(block, 64, 1).expect("filled");
    }
    session.flush().expect("flushed");
    for round in 0..6u64 {
        drop(session);
        session = bench.attach(&policy).unwrap_or_else(|error| panic!("round {round}: {error}"));
        for step in 0..6_000u64 {
            let block = (step * 2_654_435_761 + round * 77) % 4096;
            session.write(block, 1, 2).unwrap_or_else(|error| panic!("round {round}, step {step}: {error}"));
        }
        session.flush().expect("flushed");
    }
    session.detach().expect("detached");
}

#[test]
fn a_volume_with_freshness_needs_its_anchor() {
    let mut bench = bench(Freshness::Strict);
    let policy = bench.create();
    bench.environment.anchor = None;
    assert_eq!(bench.attach(&policy).err().expect("refused").kind(), Kind::Anchor);
}

#[test]
fn a_queue_with_much_to_do_lets_its_caller_ask_for_more_in_between() {
    const READS: u64 = 32;
    let bench = bench(Freshness::Strict);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 512, 7).expect("written");
    session.write(512, 512, 7).expect("written");
    for token in 0..READS {
        session.queue.submit(token, Request::Read { block: token * 32, buffer: Buffer::private_zeroed(32) });
    }
    let (mut ended, mut before, mut polls) = (Vec::new(), 0, 0);
    while (ended.len() as u64) < READS {
        // Nothing would wake it: a wait that slept over what is left to do would take as long as it may.
        let waited = timed(|| session.queue.wait(Some(Duration::from_secs(60)), &mut ended));
        assert!(waited < Duration::from_secs(30), "it slept");
        assert!(ended.len() - before <= 8, "{} requests of 128 KiB at once", ended.len() - before);
        before = ended.len();
        polls += 1;
    }
    assert!(polls >= 4);
    assert!(ended.iter().all(|completion| completion.result.is_ok()));
}

#[expect(clippy::disallowed_methods, reason = "the test plays the front end")]
fn timed(work: impl FnOnce()) -> Duration {
    let begun = std::time::Instant::now();
    work();
    begun.elapsed()
}
