//! The last free blocks of a volume: a request that holds some for a moment is no reason to refuse another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::rekeying::{BLOCKS, Case, Job};
use crate::common::{Bench, Session, filled, options, options_at, pattern};
use memory::Buffer;
use store::{Operation, Store};
use testkit::{InterceptingStore, Interceptor, Verdict};
use volume::format::protections::{Freshness, Provision};
use volume::geometry::{Geometry, Shape};
use volume::{Completion, CreateOptions, Queue, Request};

/// Writes without a pause, on a queue of its own.
struct Writer {
    queue: Queue,
    written: u64,
    largest: u64,
}

impl Writer {
    fn keep_busy(&mut self, at_once: usize, number: u64, every: u64) {
        let mut ended = Vec::new();
        while self.queue.pending() < at_once {
            let block = (self.written * every + number) * 977 % (BLOCKS - self.largest);
            let data = filled(usize::try_from(self.largest).unwrap(), pattern(block, number));
            self.queue
                .submit(self.written, Request::Write { block, data, fua: self.written.is_multiple_of(3) });
            self.written += 1;
        }
        self.queue.poll(&mut ended);
        for completion in ended {
            completion
                .result
                .unwrap_or_else(|error| panic!("writer {number}, {} written: {error}", self.written));
        }
    }
}

fn fill(session: &mut Session) {
    (0..BLOCKS).step_by(64).for_each(|block| session.write(block, 64, 1).expect("written"));
}

#[test]
fn queues_that_overwrite_with_the_largest_requests_share_it() {
    for (writers, at_once, turns) in [(2, 1, 1), (2, 2, 3), (3, 2, 1), (3, 3, 7), (4, 1, 5)] {
        let blocks = Geometry::for_logical(BLOCKS, Shape::STANDARD).expect("a size").physical_blocks;
        let bench = Bench::new(options_at(Freshness::Strict), blocks);
        let policy = bench.create();
        let mut session = bench.attach(&policy).expect("attached");
        fill(&mut session);
        let largest = session.volume.largest_change();
        let mut all: Vec<Writer> = (0..writers)
            .map(|_| Writer { queue: session.volume.queue(32).expect("a queue"), written: 0, largest })
            .collect();
        let mut round = 0;
        while all.iter().any(|writer| writer.written < 200) {
            for (number, writer) in (0..).zip(&mut all) {
                writer.keep_busy(at_once, number, writers);
            }
            round += 1;
            if round % turns == 0 {
                session.step();
            }
            assert!(
                round < 100_000,
                "nothing moves in {writers} {at_once} {turns}, written {:?}: {:#?}",
                all.iter().map(|w| w.written).collect::<Vec<_>>(),
                session.volume.status()
            );
        }
        let mut ended = Vec::new();
        while all.iter().any(|writer| writer.queue.pending() > 0) {
            for writer in &mut all {
                writer.queue.poll(&mut ended);
            }
            session.step();
        }
        assert!(ended.iter().all(|completion| completion.result.is_ok()));
        drop(all);
        session.detach().expect("detached");
    }
}

#[test]
fn a_change_of_key_goes_through_a_full_volume() {
    let case = Case::written(options_at(Freshness::Strict), 0..BLOCKS);
    let old = case.key();
    case.begin();
    let mut session = case.attach();
    let mut job = Job::new(&session);
    let mut round = 0_u64;
    let report = loop {
        job.step();
        if let Some(report) = job.ended.take() {
            break report;
        }
        if round.is_multiple_of(50) {
            session.step();
        }
        round += 1;
        assert!(round < 1_000_000, "nothing moves: {:#?}", session.volume.status());
    };
    assert!(report.expect("sealed anew").ended);
    session.detach().expect("detached");
    case.assert_only_new(&old);
}

/// Keeps what a queue sends to the store back while it is told to.
#[derive(Default)]
struct Slow {
    last_opened: AtomicUsize,
    queue: AtomicUsize,
    holds: AtomicBool,
}

impl Slow {
    fn verdict(&self, queue: usize) -> Verdict {
        let slow = queue == self.queue.load(Ordering::SeqCst) && self.holds.load(Ordering::SeqCst);
        if slow { Verdict::Hold } else { Verdict::Pass }
    }
}

impl Interceptor for Slow {
    fn opened(&self, queue: usize) {
        self.last_opened.store(queue, Ordering::SeqCst);
    }

    fn submitted(&self, queue: usize, _operation: &Operation, _medium: &dyn Store) -> Verdict {
        self.verdict(queue)
    }

    fn held(&self, queue: usize, _operation: &Operation) -> Verdict {
        self.verdict(queue)
    }
}

/// Blocks of each write.
const PIECE: usize = 16;
/// Checkpoints that are asked for while a request waits.
const ASKED: u64 = 4;

/// A thin volume that takes no more new data, with a queue whose operations the store keeps waiting.
struct FullVolume {
    session: Session,
    slow: Queue,
    rules: Arc<Slow>,
}

impl FullVolume {
    fn new() -> Self {
        let options = CreateOptions { provision: Provision::Thin, ..options(16_384, Shape::STANDARD) };
        let mut bench = Bench::new(options, 6144);
        let (policy, rules) = (bench.create(), Arc::<Slow>::default());
        bench.environment.store = InterceptingStore::new(Arc::clone(&bench.environment.store), &rules);
        bench.attach.memory = 1 << 20;
        let mut session = bench.attach(&policy).expect("attached");
        let full = (0..16_384).step_by(PIECE).find(|block| session.write(*block, PIECE, 1).is_err());
        full.expect("16384 blocks went into 6144");
        session.checkpoint();
        let slow = session.volume.queue(32).expect("a queue");
        rules.queue.store(rules.last_opened.load(Ordering::SeqCst), Ordering::SeqCst);
        rules.holds.store(true, Ordering::SeqCst);
        Self { session, slow, rules }
    }

    /// What ends while everybody does what can be done, and `checkpoints` are asked for.
    fn ended(&mut self, checkpoints: u64) -> Vec<Completion> {
        let mut ended = Vec::new();
        for asked in 0..=checkpoints {
            if asked > 0 {
                self.session.volume.checkpoint_soon();
            }
            for _ in 0..1000 {
                self.session.queue.poll(&mut ended);
                self.slow.poll(&mut ended);
                self.session.step();
            }
        }
        ended
    }

    /// Overwrites something, if there is room for that at the moment; otherwise it waits.
    fn ended_of_one_more(&mut self, piece: u64) -> Option<()> {
        self.session.queue.submit(1000 + piece, overwrite(piece));
        let mut ended = self.ended(0);
        let completion = ended.pop()?;
        assert!(ended.is_empty(), "one at a time");
        completion
            .result
            .map(Some)
            .unwrap_or_else(|error| panic!("{error}; {:#?}", self.session.volume.status()))
    }

    /// `waiting` requests wait, however often a checkpoint is asked for; and when the store takes everything again, they end, and well. How
    /// many checkpoints there were meanwhile: more than were asked for make nothing free, and move the anchor.
    fn all_wait_for_the_store(mut self, waiting: usize) -> u64 {
        let before = self.session.volume.status().checkpoints;
        let ended = self.ended(ASKED);
        assert!(ended.is_empty(), "{ended:?}");
        let checkpoints = self.session.volume.status().checkpoints - before;
        self.rules.holds.store(false, Ordering::SeqCst);
        let ended = self.ended(0);
        assert_eq!(ended.len(), waiting);
        assert!(ended.iter().all(|completion| completion.result.is_ok()), "{ended:?}");
        drop(self.slow);
        self.session.detach().expect("detached");
        checkpoints
    }
}

fn overwrite(piece: u64) -> Request {
    let block = piece * PIECE as u64;
    Request::Write { block, data: filled(PIECE, pattern(block, 2)), fua: false }
}

#[test]
fn an_overwrite_waits_for_others_that_are_on_their_way_to_the_store() {
    let mut full = FullVolume::new();
    // They hold what is kept for overwrites, and give as much back when they have ended.
    let mut number = 0;
    while full.ended_of_one_more(number).is_some() {
        number += 1;
        full.slow.submit(number, overwrite(number));
        assert!(full.ended(0).is_empty(), "held");
    }
    assert_eq!(full.all_wait_for_the_store(usize::try_from(number).expect("few") + 1), ASKED);
}

#[test]
fn an_overwrite_waits_for_a_reader_of_what_was_overwritten() {
    let mut full = FullVolume::new();
    full.slow.submit(1, Request::Read { block: 4096, buffer: Buffer::private_zeroed(1) });
    assert!(full.ended(0).is_empty(), "held");
    let mut number = 0;
    while full.ended_of_one_more(number).is_some() {
        number += 1;
    }
    // A checkpoint waits for the reader, too.
    assert_eq!(full.all_wait_for_the_store(2), 0);
}

/// As many as there may be at a time, of the largest that there may be, on a volume that small writes have filled. They stand in line: none
/// of those behind the first one is a reason to refuse it.
#[test]
fn a_full_thin_volume_takes_the_largest_overwrites_at_once() {
    for (shape, logical, physical, memory) in
        [(Shape::STANDARD, 16_384, 6144, 4 << 20), (Shape::TINY, 4096, 5500, 16 << 10)]
    {
        let options = CreateOptions { provision: Provision::Thin, ..options(logical, shape) };
        let mut bench = Bench::new(options, physical);
        let policy = bench.create();
        bench.attach.memory = memory;
        let mut session = bench.attach(&policy).expect("attached");
        let full = (0..logical).find(|block| session.write(*block, 1, 1).is_err()).expect("it is too small");
        let most = session.volume.largest_change();
        let writes = (0..full / most).flat_map(|piece| [piece * most; 3]).map(|block| Request::Write {
            block,
            data: filled(usize::try_from(most).expect("few"), 2),
            fua: false,
        });
        let ended = session.run(writes.collect());
        assert!(ended.len() > 20, "{} of {most} blocks", ended.len());
        for completion in ended {
            completion.result.unwrap_or_else(|error| panic!("{error}; {:#?}", session.volume.status()));
        }
        session.detach().expect("detached");
    }
}

/// What is kept for overwrites is no more than the store of a volume of its size has to spare.
#[test]
fn a_thin_volume_with_room_for_all_of_it_can_be_written_in_any_order() {
    for (shape, blocks) in
        [(Shape::STANDARD, 4096), (Shape::STANDARD, 8192), (Shape::TINY, 1024), (Shape::TINY, 4096)]
    {
        let size = Geometry::for_logical(blocks, shape).expect("a size").physical_blocks;
        let bench = Bench::new(CreateOptions { provision: Provision::Thin, ..options(blocks, shape) }, size);
        let policy = bench.create();
        let mut session = bench.attach(&policy).expect("attached");
        for at in 0..blocks {
            let block = at * 1237 % blocks;
            let written = session.write(block, 1, pattern(block, 1));
            written
                .unwrap_or_else(|error| panic!("{at} of {blocks}: {error}; {:#?}", session.volume.status()));
        }
        session.check_each(0..blocks, 1);
        session.detach().expect("detached");
    }
}
