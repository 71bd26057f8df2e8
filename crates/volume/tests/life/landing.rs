//! Writes that complete before the store has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::common::streaming::{BLOCKS, bench_of, drive, export, reader};
use crate::common::{Bench, Session, filled, options_at, page};
use memory::Buffer;
use store::{Error, ErrorKind, Operation, Store};
use testkit::{InterceptingStore, Interceptor, Verdict};
use volume::format::protections::Freshness;
use volume::policy::Policy;
use volume::{Completion, Kind, Request, Result};

const AS_IT_COMES: u8 = 0;
const HELD: u8 = 1;
const FAILING: u8 = 2;
/// It takes the oldest write of a queue, and holds the others.
const ONE: u8 = 3;

/// Keeps writes from the store while it is told to, or fails them.
struct Slow(Arc<AtomicU8>);

impl Interceptor for Slow {
    fn submitted(&self, _queue: usize, operation: &Operation, _medium: &dyn Store) -> Verdict {
        if matches!(operation, Operation::Write { .. }) { Verdict::Hold } else { Verdict::Pass }
    }

    fn held(&self, _queue: usize, _operation: &Operation) -> Verdict {
        match self.0.load(Ordering::Relaxed) {
            HELD => Verdict::Hold,
            FAILING => Verdict::Fail(Error::new(ErrorKind::Io, "write", "slow", "the disk is worn out")),
            ONE => {
                self.0.store(HELD, Ordering::Relaxed);
                Verdict::Pass
            }
            _ => Verdict::Pass,
        }
    }
}

/// A volume of this level with 64 blocks written, and what its store does with writes from now on.
struct Case {
    bench: Bench,
    policy: Policy,
    session: Session,
    mood: Arc<AtomicU8>,
}

fn case(freshness: Freshness, behind: u64) -> Case {
    let mut bench = Bench::new(options_at(freshness), 16_384);
    let policy = bench.create();
    let mood = Arc::new(AtomicU8::new(AS_IT_COMES));
    let medium = Arc::clone(&bench.environment.store);
    bench.environment.store = InterceptingStore::new(medium, &Arc::new(Slow(Arc::clone(&mood))));
    bench.attach.behind = behind;
    let mut session = bench.attach(&policy).unwrap();
    session.write(0, 64, 1).unwrap();
    session.flush().unwrap();
    Case { bench, policy, session, mood }
}

impl Case {
    fn store(&self, mood: u8) {
        self.mood.store(mood, Ordering::Relaxed);
    }

    /// What ends of these requests while everybody does what can be done.
    fn submit(&mut self, requests: impl IntoIterator<Item = Request>) -> Vec<u64> {
        for (token, request) in (100..).zip(requests) {
            self.session.queue.submit(token, request);
        }
        self.ended().into_iter().map(|completion| completion.token - 100).collect()
    }

    fn ended(&mut self) -> Vec<Completion> {
        let mut ended = Vec::new();
        for _ in 0..100 {
            self.session.queue.poll(&mut ended);
            self.session.step();
        }
        ended
    }

    fn one(&mut self) -> Result<Vec<u8>> {
        let mut ended = self.ended();
        assert_eq!(ended.len(), 1, "{ended:?}");
        let ended = ended.remove(0);
        ended.result.map(|()| ended.buffer.map_or(Vec::new(), |buffer| buffer.private().unwrap().to_vec()))
    }
}

fn write(block: u64, blocks: usize, fill: u8) -> Request {
    Request::Write { block, data: filled(blocks, fill), fua: false }
}

fn read(block: u64) -> Request {
    Request::Read { block, buffer: Buffer::private_zeroed(1) }
}

#[test]
fn a_write_completes_before_the_store_has_it_and_whoever_reads_it_waits() {
    let mut case = case(Freshness::Strict, 1024);
    case.store(HELD);
    assert_eq!(case.submit([write(7, 4, 2)]), [0], "acknowledged");
    assert!(case.session.queue.pending() > 0, "and on its way");
    // Its neighbours are read, and of its own blocks each waits.
    assert_eq!(case.submit([read(6), read(11)]), [0, 1]);
    for block in 7..11 {
        assert_eq!(case.submit([read(block)]), [0_u64; 0], "block {block}");
        case.store(AS_IT_COMES);
        assert!(case.one().unwrap() == page(2), "block {block}");
        case.store(HELD);
        assert_eq!(case.submit([write(7, 4, 2)]), [0]);
    }
    assert_eq!(case.submit([Request::Allocation { block: 0, blocks: 8 }]), [0_u64; 0]);
    case.store(AS_IT_COMES);
    case.one().unwrap();
    case.session.detach().unwrap();
}

#[test]
fn the_last_of_several_writes_of_a_block_counts_and_discards_keep_their_place() {
    let mut case = case(Freshness::Strict, 1024);
    case.store(HELD);
    for fill in 2..9 {
        assert_eq!(case.submit([write(7, 1, fill), write(8, 1, fill)]), [0, 1]);
    }
    assert_eq!(case.submit([Request::Discard { block: 8, blocks: 1 }]), [0_u64; 0]);
    case.store(AS_IT_COMES);
    case.one().unwrap();
    assert!(case.session.read(7, 1).unwrap() == page(8) && case.session.read(8, 1).unwrap() == page(0));
    case.session.detach().unwrap();
}

#[test]
fn flush_fua_and_commit_wait_for_what_was_acknowledged_before_them() {
    let fua = Request::Write { block: 30, data: filled(1, 3), fua: true };
    let waiters = [
        (Freshness::Strict, Request::Flush),
        (Freshness::Off, Request::Flush),
        (Freshness::Interval, Request::Commit),
        (Freshness::Transaction, Request::Commit),
        (Freshness::Strict, fua),
    ];
    for (freshness, waiter) in waiters {
        let mut case = case(freshness, 1024);
        case.store(HELD);
        assert_eq!(case.submit([write(7, 1, 2)]), [0]);
        let name = format!("{freshness}: {waiter:?}");
        assert_eq!(case.submit([waiter]), [0_u64; 0], "{name}");
        case.store(AS_IT_COMES);
        case.one().unwrap();
        drop(case.session);
        let mut again = case.bench.attach(&case.policy).unwrap();
        assert!(again.read(7, 1).unwrap() == page(2), "{name}");
    }
}

#[test]
fn no_more_is_acknowledged_early_than_the_limit_says_and_nothing_that_was_asked_to_be_durable() {
    let mut case = case(Freshness::Strict, 4);
    case.store(HELD);
    assert_eq!(case.submit([write(0, 3, 2), write(10, 2, 2), write(20, 1, 2), write(30, 1, 2)]), [0, 2]);
    let fua = Request::Write { block: 40, data: filled(1, 2), fua: true };
    assert_eq!(case.submit([fua]), [0_u64; 0]);
    case.store(AS_IT_COMES);
    let ended = case.ended();
    assert!(ended.len() == 3 && ended.iter().all(|completion| completion.result.is_ok()), "{ended:?}");
    case.session.detach().unwrap();
    for (freshness, behind) in [(Freshness::Write, 1024), (Freshness::Strict, 0)] {
        let mut case = self::case(freshness, behind);
        case.store(HELD);
        assert_eq!(case.submit([write(7, 1, 2)]), [0_u64; 0], "{freshness}, at most {behind}");
        case.store(AS_IT_COMES);
        case.one().unwrap();
    }
}

/// What another queue acknowledges meanwhile would otherwise hold back half of what is under way.
#[test]
fn a_write_that_is_not_acknowledged_early_waits_for_what_was_acknowledged_before_it_was_asked_for_and_for_no_more()
 {
    for asked_first in [true, false] {
        let mut case = case(Freshness::Strict, 1);
        let mut other = case.session.volume.queue(8).unwrap();
        let (mut ended, mut others) = (Vec::new(), Vec::new());
        case.store(HELD);
        let mut acknowledge = || {
            other.submit(1, write(40, 1, 2));
            other.poll(&mut others);
            assert_eq!(others.len(), 1, "acknowledged");
        };
        if !asked_first {
            acknowledge();
        }
        // Larger than what may be acknowledged early.
        case.session.queue.submit(2, write(7, 2, 2));
        case.session.queue.poll(&mut ended);
        if asked_first {
            acknowledge();
        }
        case.store(ONE);
        for _ in 0..100 {
            case.session.queue.poll(&mut ended);
            case.session.step();
        }
        assert_eq!(ended.len(), usize::from(asked_first));
        case.store(AS_IT_COMES);
        while other.pending() + case.session.queue.pending() > 0 {
            other.poll(&mut others);
            case.session.queue.poll(&mut ended);
        }
        assert!(ended.len() == 1 && ended[0].result.is_ok());
        assert!(case.session.read(7, 1).unwrap() == page(2) && case.session.read(40, 1).unwrap() == page(2));
        case.session.detach().unwrap();
    }
}

#[test]
fn a_write_that_finds_no_room_waits_for_room_and_not_for_its_own_blocks() {
    let mut case = case(Freshness::Strict, 2);
    case.store(HELD);
    let writes = (0..5).map(|at| write(at * 8, 1, 2));
    assert_eq!(case.submit(writes), [0, 1]);
    for acknowledged in 2..5 {
        case.store(ONE);
        let ended = case.ended();
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert_eq!(ended[0].token, 100 + acknowledged);
        assert!(case.session.queue.pending() > 1, "the store does not have it");
    }
    case.store(AS_IT_COMES);
    assert!(case.ended().is_empty() && case.session.queue.pending() == 0);
    case.session.detach().unwrap();
}

#[test]
fn an_acknowledged_write_that_cannot_be_stored_ends_the_session_and_is_not_read_as_it_was() {
    let mut case = case(Freshness::Strict, 1024);
    case.store(HELD);
    assert_eq!(case.submit([write(7, 1, 2)]), [0]);
    assert_eq!(case.submit([read(7)]), [0_u64; 0]);
    case.store(FAILING);
    assert_eq!(case.one().unwrap_err().kind(), Kind::Io, "who waited for it hears of it");
    let failure = case.session.volume.failure().expect("it is over");
    assert!(failure.to_string().contains("that had completed could not be stored"), "{failure}");
    case.store(AS_IT_COMES);
    for request in [Request::Flush, write(20, 1, 3), Request::Discard { block: 0, blocks: 1 }, read(7)] {
        case.session.queue.submit(0, request);
        assert_eq!(case.one().unwrap_err().kind(), Kind::Io);
    }
    assert!(case.session.read(8, 1).unwrap() == page(1), "reads of everything else go on");
    drop(case.session);
    let mut again = case.bench.attach(&case.policy).unwrap();
    assert!(again.read(7, 1).unwrap() == page(1) && again.read(20, 1).unwrap() == page(1));
    again.detach().unwrap();
}

#[test]
fn a_write_that_was_not_acknowledged_fails_alone_and_leaves_the_old_content() {
    let mut case = case(Freshness::Strict, 0);
    case.store(FAILING);
    assert_eq!(case.session.write(7, 1, 2).unwrap_err().kind(), Kind::Io);
    case.store(AS_IT_COMES);
    assert!(case.session.read(7, 1).unwrap() == page(1));
    case.session.write(7, 1, 3).unwrap();
    case.session.detach().unwrap();
}

#[test]
fn a_queue_that_is_dropped_with_an_acknowledged_write_ends_the_session() {
    let mut case = case(Freshness::Strict, 1024);
    case.store(HELD);
    let mut other = case.session.volume.queue(8).unwrap();
    other.submit(1, write(7, 1, 2));
    other.poll(&mut Vec::new());
    assert!(case.session.volume.failure().is_none());
    drop(other);
    case.store(AS_IT_COMES);
    assert_eq!(case.session.flush().unwrap_err().kind(), Kind::Io, "it would promise what is not there");
}

#[test]
fn a_detach_waits_for_what_was_acknowledged() {
    let mut case = case(Freshness::Strict, 1024);
    case.store(HELD);
    assert_eq!(case.submit([write(7, 1, 2)]), [0]);
    case.session.volume.stop();
    assert!(case.ended().is_empty() && case.session.is_maintained(), "it waits");
    case.store(AS_IT_COMES);
    assert!(case.ended().is_empty() && !case.session.is_maintained(), "it has ended");
    let mut again = case.bench.attach(&case.policy).unwrap();
    assert!(again.read(7, 1).unwrap() == page(2));
    again.detach().unwrap();
}

#[test]
fn a_volume_with_an_acknowledged_write_on_its_way_is_not_empty_to_an_import() {
    let other = bench_of(BLOCKS);
    let policy = other.create();
    let stream = export(&other, &policy);
    let mut case = case(Freshness::Strict, 1024);
    case.session.discard(0, 64).unwrap();
    case.session.checkpoint();
    case.store(HELD);
    assert_eq!(case.submit([write(7, 1, 2)]), [0], "acknowledged");
    let mut job = case.session.volume.import(reader(&stream).unwrap(), Arc::default()).unwrap();
    assert!(job.poll().is_none());
    case.store(AS_IT_COMES);
    assert!(case.ended().is_empty());
    drive(&mut case.session, &mut job).unwrap();
    assert!(case.session.read(7, 1).unwrap() == page(0), "the stream has nothing there");
    case.session.detach().unwrap();
}
