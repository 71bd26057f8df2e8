//! Defects that were found by reading the protocols: each test showed one before it was mended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Bench, Session, credential, filled, options};
use anchor::{Anchor, AnchorFuture, Stamp};
use futures::FutureExt;
use memory::Buffer;
use volume::format::protections::Freshness;
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{Completion, CreateOptions, Request, Window, attach};

/// Runs a request without giving the maintenance job time; `None` if it does not end.
fn alone(session: &mut Session, token: u64, request: Request) -> Option<Completion> {
    session.queue.submit(token, request);
    let mut ended = Vec::new();
    (0..20).find_map(|_| {
        session.queue.poll(&mut ended);
        ended.pop()
    })
}

#[test]
fn a_late_commit_of_the_predecessor_spoils_no_record() {
    for moment in 0..60u64 {
        let bench = Bench::new(options(4096, Shape::TINY), 16384);
        let policy = bench.create();
        let mut first = bench.attach(&policy).expect("attached");
        first.write(1, 1, 1).expect("written");
        first.flush().expect("flushed");
        first.write(2, 1, 2).expect("written");
        let mut second = bench.attach(&policy).expect("taken over");
        for step in 0..moment {
            second.write(step, 1, 3).expect("written");
            second.flush().expect("flushed");
            if step == 5 {
                second.checkpoint();
            }
        }
        first.flush().expect_err("fenced, but its record is written by then");
        drop((first, second));
        bench.attach(&policy).map(drop).unwrap_or_else(|error| panic!("after {moment} commits: {error}"));
    }
}

/// Behind a checkpoint no record says yet which segment the predecessor goes on in: the superblock does.
#[test]
fn a_late_commit_right_behind_a_checkpoint_spoils_no_record() {
    for (lead, moment) in (0..12).flat_map(|lead| [1, 2, 5].map(|moment| (lead, moment))) {
        let interval = CreateOptions { freshness: Freshness::Interval, ..options(2000, Shape::TINY) };
        let mut bench = Bench::new(interval, 8000);
        bench.attach.window = Window { bytes: u64::MAX, commits: u64::MAX, time: Duration::MAX };
        let policy = bench.create();
        let mut first = bench.attach(&policy).expect("attached");
        for block in 0..lead {
            first.write(block, 1, 1).expect("written");
            first.flush().expect("flushed");
        }
        first.checkpoint();
        let mut second = bench.attach(&policy).expect("taken over");
        for step in 0..moment {
            second.write(step, 1, 3).expect("written");
            second.commit().expect("anchored");
        }
        // It learns that it is fenced when it moves the anchor: before its first record in a segment that the anchor must know.
        let write = || Request::Write { block: 100, data: filled(1, 1), fua: false };
        let mut done = |request| alone(&mut first, 1 << 40, request).expect("it has room").result;
        assert!((0..40).any(|_| done(write()).and_then(|()| done(Request::Flush)).is_err()));
        drop((first, second));
        let mut third = bench
            .attach(&policy)
            .unwrap_or_else(|error| panic!("{lead} commits, a checkpoint, {moment} commits: {error}"));
        for step in 0..moment {
            assert_eq!(third.read(step, 1).expect("readable")[0], 3, "{lead} {moment}");
        }
    }
}

/// A commit larger than two journal segments: what its predecessor may still write is one segment and the one named next.
#[test]
fn a_late_commit_that_is_long_spoils_no_record() {
    // 32 GiB: what one session reserves ahead is more than two segments have items for.
    let blocks = 1 << 23;
    let full = Geometry::for_logical(blocks, Shape::STANDARD).expect("a size that is allowed");
    let mut bench = Bench::new(options(blocks, Shape::STANDARD), full.physical_blocks);
    bench.attach.memory = 256 << 20;
    let policy = bench.create();
    let mut first = bench.attach(&policy).expect("attached");
    first.write(1, 1, 1).expect("written");
    first.flush().expect("flushed");
    // One request: more of them would wait for a commit in between.
    let write = Request::Write { block: 0, data: filled(60_000, 2), fua: false };
    alone(&mut first, 1 << 40, write).expect("it has room").result.expect("written");
    let mut second = bench.attach(&policy).expect("taken over");
    for step in 0..8 {
        // Into its second segment and its third.
        for block in 0..32 {
            second.write(block * 1024 + step, 1024, 3).expect("written");
        }
        second.flush().expect("flushed");
    }
    first.flush().expect_err("fenced, but some of its records are written by then");
    drop((first, second));
    bench.attach(&policy).map(drop).expect("what the second one has is whole");
}

#[test]
fn a_session_that_pauses_behind_its_claim_spoils_nothing() {
    let bench = Bench::new(options(4096, Shape::STANDARD), 16384);
    let policy = bench.create();
    let mut before = bench.attach(&policy).expect("attached");
    for block in 0..2000 {
        before.write(block, 1, 1).expect("written");
    }
    before.detach().expect("detached");
    let anchor = bench.environment.anchor.clone().expect("an anchor");
    let claims =
        || anchor.read().now_or_never().expect("at once").expect("readable").expect("claimed").claims;
    let mut paused =
        attach(bench.environment.clone(), policy.clone(), credential(), bench.attach).expect("a queue");
    while claims() == 1 {
        assert!(paused.poll().is_none());
    }
    let mut second = bench.attach(&policy).expect("taken over");
    for block in 0..64 {
        second.write(block, 1, 3).expect("written");
    }
    second.flush().expect("flushed");
    // The first goes on; whether it may attach or not, it must not write over what the second has.
    if let Ok(volume) = paused.block() {
        let mut first = Session::new(volume);
        for block in 0..64 {
            let request = Request::Write { block: 100 + block, data: filled(1, 9), fua: false };
            let _ = alone(&mut first, 1 << 40 | block, request);
        }
    }
    for block in 0..64 {
        assert_eq!(second.read(block, 1).expect("readable")[0], 3, "block {block}");
    }
}

/// A session whose checkpoint has anchored its commit and merges now; blocks 0 to 20 hold 1, every third of them 2. And how many
/// checkpoints it had made before.
fn in_a_checkpoint() -> (Bench, Policy, Session, u64) {
    let bench = Bench::new(options(262_144, Shape::STANDARD), 300_000);
    let policy = bench.create();
    let mut first = bench.attach(&policy).expect("attached");
    for block in 0..20 {
        first.write(block, 1, 1).expect("written");
    }
    first.checkpoint();
    for block in (0..20).step_by(3) {
        first.write(block, 1, 2).expect("written");
    }
    let before = first.volume.status();
    first.volume.checkpoint_soon();
    while first.volume.status().anchored_generation == before.anchored_generation {
        first.step();
    }
    (bench, policy, first, before.checkpoints)
}

#[test]
fn a_session_that_pauses_in_a_checkpoint_spoils_no_node() {
    let (bench, policy, mut first, checkpoints) = in_a_checkpoint();
    let mut second = bench.attach(&policy).expect("taken over");
    for _ in 0..5000 {
        if first.volume.status().checkpoints > checkpoints {
            break;
        }
        first.step();
    }
    for block in 0..3000 {
        let request = Request::Write { block: 100_000 + block, data: filled(1, 9), fua: false };
        let _ = alone(&mut first, 1 << 40 | block, request);
    }
    for block in 0..20u64 {
        let expected = if block.is_multiple_of(3) { 2 } else { 1 };
        assert_eq!(second.read(block, 1).expect("readable")[0], expected, "block {block}");
    }
}

#[test]
fn the_anchor_follows_within_the_window_when_the_clock_stands_still() {
    let mut bench =
        Bench::new(CreateOptions { freshness: Freshness::Interval, ..options(4096, Shape::STANDARD) }, 16384);
    bench.attach.window = Window { commits: 3, ..Window::default() };
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for step in 0..500 {
        session.write(step % 4, 1, 1).expect("written");
        session.flush().expect("flushed");
        let status = session.volume.status();
        let behind = status.generation - status.anchored_generation.expect("anchored");
        assert!(behind <= 4, "{behind} commits are not anchored, the window is 3");
    }
}

#[test]
fn the_window_holds_in_bytes() {
    let mut bench =
        Bench::new(CreateOptions { freshness: Freshness::Interval, ..options(4096, Shape::STANDARD) }, 16384);
    let window = 16 << 12;
    bench.attach.window = Window { bytes: window, commits: u64::MAX, time: Duration::MAX };
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    // What each commit brought, behind the one that the anchor covers.
    let mut behind = VecDeque::new();
    for step in 0..500 {
        let blocks = 1 + step % 5;
        session.write(step * 5 % 4000, usize::try_from(blocks).expect("few"), 1).expect("written");
        session.flush().expect("flushed");
        let status = session.volume.status();
        behind.push_back((status.generation, blocks << 12));
        let anchored = status.anchored_generation.expect("anchored");
        behind.retain(|(generation, _)| *generation > anchored);
        let bytes: u64 = behind.iter().map(|(_, bytes)| bytes).sum();
        assert!(bytes <= window + (5 << 12), "{bytes} bytes are not anchored, the window is {window}");
    }
    let moves = session.volume.status().anchor_moves;
    assert!(moves < 250, "{moves} moves in 500 commits: something else than the bytes holds the window");
}

#[test]
fn the_window_holds_for_commits_that_wait_for_each_other() {
    let mut bench =
        Bench::new(CreateOptions { freshness: Freshness::Interval, ..options(4096, Shape::STANDARD) }, 16384);
    bench.attach.window = Window { commits: 1, ..Window::default() };
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    // Each asks for its commit while none is due, and leads it when the others have made some.
    let mut queues: Vec<_> = (0..16).map(|_| session.volume.queue(8).expect("a queue")).collect();
    let mut ended = Vec::new();
    for round in 0..200 {
        for (block, queue) in (0..).zip(&mut queues) {
            queue.submit(round, Request::Write { block, data: filled(1, 1), fua: true });
        }
        for _ in 0..40 {
            for queue in &mut queues {
                queue.poll(&mut ended);
                let status = session.volume.status();
                let behind = status.generation - status.anchored_generation.expect("anchored");
                assert!(behind <= 2, "{behind} commits are not anchored, the window is 1");
            }
            session.step();
        }
    }
    assert_eq!(ended.len(), 16 * 200);
}

#[test]
fn writers_that_wait_for_a_reader_go_on_when_it_ends() {
    let bench = Bench::new(options(240, Shape::TINY), 4096);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    let mut reader = session.volume.queue(8).expect("a queue");
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for moment in 0..60 {
        for block in (0..240).step_by(6) {
            session.write(block, 1, 1).expect("written");
        }
        let before = session.volume.status().checkpoints;
        session.volume.checkpoint_soon();
        (0..moment).for_each(|_| session.step());
        // It stays in flight until its queue is polled again, and holds what the checkpoint frees.
        reader.submit(moment, Request::Read { block: 0, buffer: Buffer::private_zeroed(1) });
        reader.poll(&mut read);
        for _ in 0..200 {
            session.step();
        }
        for block in 0..20 {
            session.queue.submit(1 << 32 | block, Request::Write { block, data: filled(1, 2), fua: false });
        }
        for round in 0..400 {
            session.queue.poll(&mut written);
            session.step();
            if round == 200 {
                reader.poll(&mut read);
            }
        }
        assert_eq!(written.len(), 20, "reader at step {moment} after {before} checkpoints: writers wait");
        written.clear();
    }
}

#[test]
fn a_superseded_session_reserves_nothing() {
    for freshness in [Freshness::Transaction, Freshness::Interval] {
        let bench = Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, 16384);
        let policy = bench.create();
        let mut first = bench.attach(&policy).expect("attached");
        first.write(0, 10, 1).expect("written");
        first.one(Request::Commit).result.expect("committed");
        let mut second = bench.attach(&policy).expect("taken over");
        for block in (0..400).step_by(10) {
            second.write(block, 10, 3).expect("written");
        }
        second.one(Request::Commit).result.expect("committed");
        for block in (1000..2000).step_by(10) {
            if first.write(block, 10, 9).is_err() {
                break;
            }
        }
        for block in 0..400 {
            let read = second.read(block, 1).unwrap_or_else(|error| panic!("{freshness}: {error}"));
            assert_eq!(read[0], 3, "{freshness}, block {block}");
        }
    }
}

#[test]
fn a_checkpoint_between_reading_and_claiming_spoils_no_node() {
    for polls in 0..40 {
        let (bench, policy, mut first, _) = in_a_checkpoint();
        let mut attaching =
            attach(bench.environment.clone(), policy.clone(), credential(), bench.attach).expect("a queue");
        if (0..polls).any(|_| attaching.poll().is_some()) {
            break;
        }
        for _ in 0..100 {
            first.step();
        }
        let mut second = Session::new(attaching.block().expect("taken over"));
        for block in 0..3000 {
            let request = Request::Write { block: 100_000 + block, data: filled(1, 9), fua: false };
            let _ = alone(&mut first, 1 << 40 | block, request);
        }
        for block in 0..20u64 {
            let expected = if block.is_multiple_of(3) { 2 } else { 1 };
            let read = second.read(block, 1).unwrap_or_else(|error| panic!("after {polls} polls: {error}"));
            assert_eq!(read[0], expected, "block {block}");
        }
    }
}

/// A session that commits without pause moves the anchor faster than anybody can replay its journal.
#[test]
fn a_claim_succeeds_against_a_session_that_never_rests() {
    let bench = Bench::new(options(4096, Shape::TINY), 16384);
    let policy = bench.create();
    let mut first = bench.attach(&policy).expect("attached");
    let mut second = attach(bench.environment.clone(), policy, credential(), bench.attach).expect("a queue");
    let mut flushed = 0;
    let volume = loop {
        if let Some(ended) = second.poll() {
            break ended.expect("a claim always succeeds");
        }
        let at = flushed + 1;
        if first
            .write(at % 100, 1, 1 + u8::try_from(at / 100).expect("it ends"))
            .and_then(|()| first.flush())
            .is_ok()
        {
            flushed = at;
        }
    };
    assert!(flushed > 2, "the first one worked meanwhile");
    // A superblock's slot is chosen by the number of the claim: the first one may still be about to write to its own.
    let claims = volume.status().claims - first.volume.status().claims;
    assert!(!claims.is_multiple_of(2) && claims > 1, "overtaken, and {claims} claims later");
    assert_eq!(first.flush().expect_err("fenced").kind(), volume::Kind::Fenced);
    let mut second = Session::new(volume);
    // The write that was refused may count, too: its block is left out.
    for at in flushed.saturating_sub(98).max(1)..=flushed {
        let fill = 1 + u8::try_from(at / 100).expect("small");
        let found = second.read(at % 100, 1).expect("readable");
        assert!(
            found == crate::common::page(fill),
            "flush {at} of {flushed}: {} instead of {fill}",
            found[0]
        );
    }
    second.write(0, 1, 9).expect("written");
    second.detach().expect("detached");
}

/// An anchor whose first answer took so long that others have moved it meanwhile.
struct Late {
    inner: Arc<dyn Anchor>,
    first: Mutex<Option<Stamp>>,
}

impl Anchor for Late {
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
        match self.first.lock().expect("no poison").take() {
            Some(stamp) => Box::pin(std::future::ready(Ok(Some(stamp)))),
            None => self.inner.read(),
        }
    }

    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
        self.inner.advance(expected, new)
    }

    fn address(&self) -> String {
        self.inner.address()
    }
}

/// Who attaches looks at the anchor first and at the superblocks later; checkpoints in between make these newer than the stamp.
#[test]
fn checkpoints_while_somebody_attaches_are_no_rollback() {
    let mut bench = Bench::new(options(4096, Shape::TINY), 16384);
    let policy = bench.create();
    let mut first = bench.attach(&policy).expect("attached");
    first.write(7, 1, 7).expect("written");
    first.flush().expect("flushed");
    let inner = bench.environment.anchor.clone().expect("an anchor");
    let before = inner.read().now_or_never().expect("at once").expect("readable");
    // So many that nothing is left of what that stamp vouched for: neither superblocks nor journal.
    for block in 8..80 {
        first.write(block, 1, 8).expect("written");
        first.checkpoint();
    }
    bench.environment.anchor = Some(Arc::new(Late { inner, first: Mutex::new(before) }));
    let mut second = bench.attach(&policy).expect("the store is what the anchor vouches for");
    assert!(second.read(7, 1).expect("readable") == crate::common::page(7));
    assert_eq!(
        first
            .flush()
            .and_then(|()| first.write(7, 1, 9))
            .and_then(|()| first.flush())
            .expect_err("fenced")
            .kind(),
        volume::Kind::Fenced
    );
}

#[test]
fn who_detached_has_no_write_on_its_way_and_leaves_nothing_to_be_spared() {
    let bench = Bench::new(options(65_536, Shape::STANDARD), 80_000);
    let policy = bench.create();
    let mut first = bench.attach(&policy).expect("attached");
    first.write(0, 64, 1).expect("written");
    first.queue.submit(7, Request::Write { block: 100, data: filled(8, 2), fua: true });
    let mut ended = Vec::new();
    first.queue.poll(&mut ended);
    assert!(ended.is_empty(), "the store has not been asked whether it has it");
    first.volume.stop();
    let step = |session: &mut Session| {
        session.volume.tick();
        session.step();
    };
    for _ in 0..5000 {
        step(&mut first);
    }
    assert!(first.is_maintained(), "the volume was released while a write was on its way");
    first.queue.submit(8, Request::Write { block: 200, data: filled(8, 3), fua: false });
    for _ in 0..5000 {
        first.queue.poll(&mut ended);
        step(&mut first);
    }
    assert!(!first.is_maintained(), "it waits for nothing any more: {:#?}", first.volume.status());
    let result =
        |token| ended.iter().find(|completion| completion.token == token).map(|ended| ended.result.is_ok());
    assert_eq!((result(7), result(8)), (Some(true), Some(false)));

    let mut second = bench.attach(&policy).expect("attached");
    assert_eq!(second.volume.status().foreign_units, 0, "nobody else can write there");
    assert_eq!(second.read(107, 1).expect("readable")[0], 2);
    drop(second);
    let third = bench.attach(&policy).expect("taken over");
    assert!(third.volume.status().foreign_units > 0, "the second one may be alive");
}
