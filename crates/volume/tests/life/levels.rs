//! The promises of `docs/semantics.md`, at each freshness level.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Bench, Session, filled, options, page};
use anchor::{Anchor, AnchorFuture, MemoryAnchor, Stamp};
use memory::Buffer;
use store::{MemoryStore, Operation, Store};
use testkit::ScriptedAnchor;
use volume::format::protections::Freshness::{self, Interval, Off, Strict, Transaction, Write};
use volume::geometry::Shape;
use volume::mutation::{Mutation, break_rule};
use volume::policy::Policy;
use volume::{Completion, CreateOptions, Kind, Request, Result, Window};

const STORE: u64 = 5400;

/// An anchor that can go out of reach.
struct Unreliable {
    anchor: MemoryAnchor,
    down: AtomicBool,
}

impl Unreliable {
    fn check(&self) -> std::result::Result<(), anchor::Error> {
        let down = self.down.load(Ordering::Relaxed);
        if down { Err(anchor::Error::Io("the line is cut".into())) } else { Ok(()) }
    }
}

impl Anchor for Unreliable {
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
        Box::pin(async {
            self.check()?;
            self.anchor.read().await
        })
    }

    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
        let (expected, new) = (expected.cloned(), new.clone());
        Box::pin(async move {
            self.check()?;
            self.anchor.advance(expected.as_ref(), &new).await
        })
    }

    fn address(&self) -> String {
        "unreliable:".into()
    }
}

fn new(freshness: Freshness) -> (Bench, Policy) {
    let bench = Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, STORE);
    let policy = bench.create();
    (bench, policy)
}

/// A copy of the whole store.
fn copy(bench: &Bench) -> Arc<dyn Store> {
    let copy = MemoryStore::new(STORE).expect("memory");
    let (mut from, mut to) =
        (bench.environment.store.queue(1).expect("a queue"), copy.queue(1).expect("a queue"));
    let mut ended = Vec::new();
    for block in (0..STORE).step_by(100) {
        from.submit(1, Operation::Read { block, buffer: Buffer::private_zeroed(100) });
        from.wait(None, &mut ended);
        let buffer = ended.remove(0).buffer.expect("the buffer");
        to.submit(1, Operation::Write { block, buffer });
        to.wait(None, &mut ended);
        ended.remove(0).result.expect("written");
    }
    Arc::new(copy)
}

fn commit(session: &mut Session) -> Result<()> {
    session.one(Request::Commit).result
}

fn write_with_fua(session: &mut Session, fill: u8) -> Result<()> {
    session.one(Request::Write { block: 0, data: filled(1, fill), fua: true }).result
}

/// How an attach to this store is refused.
fn refusal(bench: &mut Bench, policy: &Policy, store: Arc<dyn Store>) -> Option<Kind> {
    let genuine = std::mem::replace(&mut bench.environment.store, store);
    let refused = bench.attach(policy).err().map(|error| error.kind());
    bench.environment.store = genuine;
    refused
}

#[test]
fn what_completes_is_durable_and_fresh_as_the_table_says() {
    let write: fn(&mut Session) -> Result<()> = |session| session.write(0, 1, 7);
    let flush: fn(&mut Session) -> Result<()> = |session| {
        session.write(0, 1, 7)?;
        session.flush()
    };
    let fua: fn(&mut Session) -> Result<()> = |session| write_with_fua(session, 7);
    let committed: fn(&mut Session) -> Result<()> = |session| {
        session.write(0, 1, 7)?;
        commit(session)
    };
    let discard: fn(&mut Session) -> Result<()> = |session| session.discard(0, 1);
    let discard_flushed: fn(&mut Session) -> Result<()> = |session| {
        session.discard(0, 1)?;
        session.flush()
    };
    // The level, what completes, what block 0 then holds after a crash (before: 1).
    let cases = [
        (Write, write, 7),
        (Write, discard, 0),
        (Write, flush, 7),
        (Strict, flush, 7),
        (Strict, fua, 7),
        (Strict, committed, 7),
        (Strict, discard_flushed, 0),
        (Interval, flush, 7),
        (Interval, fua, 7),
        (Interval, committed, 7),
        (Interval, discard_flushed, 0),
        (Transaction, write, 1),
        (Transaction, flush, 1),
        (Transaction, fua, 1),
        (Transaction, discard_flushed, 1),
        (Transaction, committed, 7),
        (Off, flush, 7),
        (Off, fua, 7),
        (Off, committed, 7),
        (Off, discard_flushed, 0),
    ];
    for (number, (freshness, act, expected)) in cases.into_iter().enumerate() {
        let (mut bench, policy) = new(freshness);
        let mut session = bench.attach(&policy).expect("attached");
        session.write(0, 1, 1).expect("written");
        session.flush().expect("flushed");
        commit(&mut session).expect("committed");
        let before = copy(&bench);
        act(&mut session).expect("done");
        let immediately = matches!(freshness, Strict | Write) || (freshness, expected) == (Transaction, 7);
        drop(session);
        if immediately {
            // Before anybody attaches again, since a claim would move the anchor.
            let stale = refusal(&mut bench, &policy, before);
            assert_eq!(stale, Some(Kind::Stale), "{freshness}, case {number}: not fresh");
        }
        let mut session = bench.attach(&policy).expect("attached again");
        assert_eq!(session.read(0, 1).expect("readable"), page(expected), "{freshness}, case {number}");
    }
}

#[test]
fn a_detach_keeps_everything_but_what_was_not_committed() {
    for freshness in [Off, Transaction, Interval, Strict, Write] {
        let (mut bench, policy) = new(freshness);
        let before = copy(&bench);
        let mut session = bench.attach(&policy).expect("attached");
        session.write(0, 1, 7).expect("written");
        session.detach().expect("detached");
        let rolled_back = (freshness != Off).then(|| refusal(&mut bench, &policy, before));
        assert_eq!(rolled_back, (freshness != Off).then_some(Some(Kind::Stale)), "{freshness}");
        let mut session = bench.attach(&policy).expect("attached again");
        let kept = if freshness == Transaction { 0 } else { 7 };
        assert_eq!(session.read(0, 1).expect("readable"), page(kept), "{freshness}");
    }
}

#[test]
fn an_anchor_out_of_reach_ends_what_has_to_move_it_and_reads_go_on() {
    for freshness in [Transaction, Interval, Strict, Write] {
        let anchor = Arc::new(Unreliable { anchor: MemoryAnchor::new(), down: AtomicBool::new(false) });
        let mut bench = Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, STORE);
        bench.environment.anchor = Some(Arc::clone(&anchor) as Arc<dyn Anchor>);
        let policy = bench.create();
        let mut session = bench.attach(&policy).expect("attached");
        session.write(0, 1, 7).expect("written");
        anchor.down.store(true, Ordering::Relaxed);
        let failed = match freshness {
            Write => session.write(1, 1, 8),
            Strict => session.flush(),
            _ => commit(&mut session),
        };
        let first = failed.expect_err("the anchor cannot be reached");
        assert_eq!(first.kind(), Kind::Anchor, "{freshness}: {first}");
        let second = session.write(2, 1, 9).expect_err("the session is over");
        assert_eq!(second.kind(), Kind::Anchor, "{freshness}: {second}");
        assert_eq!(session.read(0, 1).expect("reads go on"), page(7), "{freshness}");
        let refused = bench.attach(&policy).err().map(|error| error.kind());
        assert_eq!(refused, Some(Kind::Anchor), "{freshness}");
        drop(session);
        anchor.down.store(false, Ordering::Relaxed);
        bench.attach(&policy).unwrap_or_else(|error| panic!("{freshness}, the anchor is back: {error}"));
    }
}

/// A volume whose anchor does not answer until it is told to, attached.
fn over_a_slow_anchor(freshness: Freshness, commits: u64) -> (Bench, Policy, Arc<ScriptedAnchor>, Session) {
    let anchor = Arc::new(ScriptedAnchor::new(None));
    let mut bench = Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, STORE);
    bench.environment.anchor = Some(Arc::clone(&anchor) as Arc<dyn Anchor>);
    bench.attach.window = Window { commits, ..Window::default() };
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.settle();
    (bench, policy, anchor, session)
}

/// Gives everything time, and collects what has ended.
fn settled(session: &mut Session, ended: &mut Vec<Completion>) -> usize {
    for _ in 0..200 {
        session.volume.tick();
        session.queue.poll(ended);
        session.step();
    }
    ended.len()
}

fn flush_later(session: &mut Session, token: u64) {
    session.queue.submit(token, Request::Flush);
}

#[test]
fn flushes_wait_for_an_anchor_that_is_away_and_reads_go_on() {
    for freshness in [Strict, Write] {
        let (mut bench, policy, anchor, mut session) = over_a_slow_anchor(freshness, 1000);
        if freshness == Strict {
            session.write(0, 1, 7).expect("written");
        }
        anchor.hold(true);
        let mut ended = Vec::new();
        if freshness == Write {
            session.queue.submit(1 << 20, Request::Write { block: 0, data: filled(1, 7), fua: false });
        } else {
            flush_later(&mut session, 1 << 20);
        }
        assert_eq!(settled(&mut session, &mut ended), 0, "{freshness}");
        assert_eq!(anchor.pending(), 1, "{freshness}");
        session.queue.submit(1 << 22, Request::Read { block: 1, buffer: Buffer::private_zeroed(1) });
        assert_eq!(settled(&mut session, &mut ended), 1, "{freshness}: a read waits for the anchor");
        assert_eq!(session.volume.failure(), None, "{freshness}");
        while anchor.complete_next() {
            settled(&mut session, &mut ended);
        }
        assert_eq!(ended.len(), 2, "{freshness}");
        assert!(ended.iter().all(|completion| completion.result.is_ok()), "{freshness}: {ended:?}");
        anchor.hold(false);
        // Nobody attached anew, nothing is missing, and it is fresh.
        session.write(1, 1, 8).expect("it goes on");
        session.flush().expect("flushed");
        drop(session);
        let mut session = bench.attach(&policy).expect("attached again");
        assert_eq!(session.read(0, 1).expect("readable"), page(7), "{freshness}");
        assert_eq!(session.read(1, 1).expect("readable"), page(8), "{freshness}");
        drop(session);
        let rolled_back = Arc::new(MemoryStore::new(STORE).expect("memory"));
        assert!(refusal(&mut bench, &policy, rolled_back).is_some(), "{freshness}");
    }
}

#[test]
fn an_interval_goes_on_to_its_limits_while_the_anchor_is_away() {
    // Fewer than one segment of so small a volume's journal takes: the next one needs the anchor.
    const COMMITS: u64 = 12;
    let (bench, policy, anchor, mut session) = over_a_slow_anchor(Interval, COMMITS);
    session.commit().expect("committed");
    anchor.hold(true);
    let before = anchor.held().expect("claimed").generation;
    let mut ended = Vec::new();
    let mut flushed = 0;
    for round in 0..2 * COMMITS {
        let data = filled(1, u8::try_from(round).expect("small"));
        session.queue.submit(2 * round, Request::Write { block: round, data, fua: false });
        settled(&mut session, &mut ended);
        flush_later(&mut session, 2 * round + 1);
        if settled(&mut session, &mut ended) == 2 {
            flushed += 1;
        }
        ended.clear();
    }
    // The move began before the limit, and everybody went on beside it.
    assert_eq!(anchor.pending(), 1);
    assert!((COMMITS - 2..=COMMITS).contains(&flushed), "{flushed} flushes ended");
    assert_eq!(anchor.held().expect("claimed").generation, before);
    assert_eq!(session.volume.failure(), None);
    while anchor.complete_next() {
        settled(&mut session, &mut ended);
    }
    assert_eq!(ended.len() as u64, 2 * COMMITS - flushed, "the others have ended now");
    assert!(ended.iter().all(|completion| completion.result.is_ok()), "{ended:?}");
    anchor.hold(false);
    session.flush().expect("it goes on");
    drop(session);
    let mut session = bench.attach(&policy).expect("attached again");
    for round in 0..2 * COMMITS {
        let wanted = page(u8::try_from(round).expect("small"));
        assert_eq!(session.read(round, 1).expect("readable"), wanted, "block {round}");
    }
}

/// How many flushes, of a journal block each, are answered while the anchor does not move, and how many blocks the journal has. When it
/// moves again the session goes on.
fn flushed_beside_an_anchor_that_waits() -> (u64, u64) {
    let (bench, policy, anchor, mut session) = over_a_slow_anchor(Interval, u64::MAX);
    session.commit().expect("committed");
    anchor.hold(true);
    let blocks = session.volume.status().journal_blocks;
    let mut ended = Vec::new();
    let mut flushed = 0;
    for round in 0..blocks {
        session.queue.submit(2 * round, Request::Write { block: round % 64, data: filled(1, 9), fua: false });
        settled(&mut session, &mut ended);
        flush_later(&mut session, 2 * round + 1);
        if settled(&mut session, &mut ended) < 2 {
            break;
        }
        ended.clear();
        flushed += 1;
    }
    assert!(anchor.pending() == 1 && session.volume.failure().is_none());
    while anchor.complete_next() {
        settled(&mut session, &mut ended);
    }
    anchor.hold(false);
    session.flush().expect("it goes on");
    drop(session);
    bench.attach(&policy).expect("attached again").read(0, 1).expect("readable");
    (flushed, blocks)
}

/// Two segments of 16 blocks are this session's at most; each flush takes one block, and without the rule all 16 segments would do.
#[test]
fn a_segment_is_written_only_when_the_anchor_knows_that_it_is_reserved() {
    let (flushed, blocks) = flushed_beside_an_anchor_that_waits();
    assert!((2..=32).contains(&flushed), "{flushed} of {blocks}");
}

#[test]
fn that_a_segment_is_written_too_early_is_noticed() {
    let _broken = break_rule(Mutation::SegmentNotAnchored);
    let (flushed, blocks) = flushed_beside_an_anchor_that_waits();
    assert!(flushed > 32, "{flushed} of {blocks}");
}

#[test]
fn a_superseded_session_is_fenced_where_the_table_says() {
    for freshness in [Transaction, Interval, Strict, Write] {
        let (bench, policy) = new(freshness);
        let mut first = bench.attach(&policy).expect("attached");
        first.write(0, 1, 1).expect("written");
        let _second = bench.attach(&policy).expect("taken over");
        let end = match freshness {
            Write => first.write(1, 1, 8),
            Strict => first.flush(),
            _ => {
                first.write(1, 1, 8).expect("it does not know yet");
                commit(&mut first)
            }
        };
        let end = end.expect_err("fenced");
        assert_eq!(end.kind(), Kind::Fenced, "{freshness}");
        // It says which blocks it had acknowledged, and that no anchor vouches for.
        let (text, unanchored) = match freshness {
            Write => ("All that it acknowledged was anchored", vec![]),
            Strict => ("never anchored: 1 blocks: 0;", vec![(0, 1)]),
            _ => ("never anchored: 2 blocks: 0-1;", vec![(0, 2)]),
        };
        assert!(end.to_string().contains(text), "{freshness}: {end}");
        let status = first.volume.status();
        assert!(status.failure.is_some_and(|failure| failure.contains(text)), "{freshness}");
        assert_eq!(status.unanchored.map(|one| one.stretches), Some(unanchored), "{freshness}");
        assert_eq!(first.write(2, 1, 9).expect_err("stopped").kind(), Kind::Fenced, "{freshness}");
    }
}

#[test]
fn what_was_anchored_is_not_among_what_a_fenced_session_names() {
    let (bench, policy) = new(Interval);
    let mut first = bench.attach(&policy).expect("attached");
    first.write(0, 4, 1).expect("written");
    commit(&mut first).expect("anchored");
    first.write(9, 2, 2).expect("written");
    first.write(2, 1, 3).expect("written again");
    first.flush().expect("durable, and not anchored");
    let _second = bench.attach(&policy).expect("taken over");
    let end = commit(&mut first).expect_err("fenced");
    assert!(end.to_string().contains("never anchored: 3 blocks: 2, 9-10;"), "{end}");
}

/// An anchor whose moves take their time, and whose pauses end by nothing but a request.
struct Resting {
    anchor: ScriptedAnchor,
    pauses: std::sync::atomic::AtomicUsize,
}

impl Anchor for Resting {
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
        self.anchor.read()
    }

    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
        self.anchor.advance(expected, new)
    }

    fn pause(&self, _: std::time::Duration) -> AnchorFuture<'_, ()> {
        self.pauses.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::pending())
    }

    fn address(&self) -> String {
        "resting:".into()
    }
}

#[test]
fn a_commit_waits_for_the_flushes_of_the_last_one_to_come_back_where_moves_are_slow() {
    let anchor = Arc::new(Resting { anchor: ScriptedAnchor::new(None), pauses: 0.into() });
    let mut bench = Bench::new(CreateOptions { freshness: Strict, ..options(4096, Shape::STANDARD) }, STORE);
    bench.environment.anchor = Some(Arc::clone(&anchor) as Arc<dyn Anchor>);
    let clock = Arc::new(testkit::ManualClock::default());
    bench.environment.clock = Arc::clone(&clock) as Arc<dyn volume::Clock>;
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(9, 1, 1).expect("written");
    session.flush().expect("flushed");
    session.settle();
    anchor.anchor.hold(true);
    let mut ended = Vec::new();
    let write_and_flush = |session: &mut Session, token: u64, ended: &mut Vec<Completion>| {
        session.queue.submit(2 * token, Request::Write { block: token, data: filled(1, 7), fua: false });
        settled(session, ended);
        flush_later(session, 2 * token + 1);
        settled(session, ended)
    };
    let complete = |session: &mut Session, ended: &mut Vec<Completion>| {
        assert_eq!(anchor.anchor.pending(), 1, "a move is under way");
        clock.advance(std::time::Duration::from_millis(8));
        assert!(anchor.anchor.complete_next());
        settled(session, ended)
    };
    // One leads; the other comes too late for that commit.
    assert_eq!(write_and_flush(&mut session, 0, &mut ended), 1);
    assert_eq!(write_and_flush(&mut session, 1, &mut ended), 2);
    assert_eq!(anchor.pauses.load(Ordering::Relaxed), 0, "there was no slow move before");
    assert_eq!(complete(&mut session, &mut ended), 3, "the first flush has ended");
    // The second leads now, and waits for the first to come back.
    assert_eq!((anchor.pauses.load(Ordering::Relaxed), anchor.anchor.pending()), (1, 0));
    ended.clear();
    assert_eq!(write_and_flush(&mut session, 2, &mut ended), 1);
    assert_eq!(complete(&mut session, &mut ended), 3, "both flushes share a move");
}
