//! Between what has ended and what is new: a store that ended all that it was given stands still until it hears of more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Bench, options};
use memory::Buffer;
use store::{Operation, Store};
use testkit::{InterceptingStore, Interceptor, Verdict};
use volume::Request;
use volume::geometry::{Geometry, Shape};

const BLOCKS: u64 = 4096;
const READS: u64 = 64;

/// Counts the reads that the store was told of.
#[derive(Default)]
struct Counting(AtomicU64);

impl Interceptor for Counting {
    fn submitted(&self, _queue: usize, operation: &Operation, _medium: &dyn Store) -> Verdict {
        self.0.fetch_add(u64::from(matches!(operation, Operation::Read { .. })), Ordering::Relaxed);
        Verdict::Pass
    }
}

#[test]
fn a_new_read_reaches_the_store_before_all_that_has_ended_is_opened() {
    let full = Geometry::for_logical(BLOCKS, Shape::STANDARD).expect("a size that is allowed");
    let mut bench = Bench::new(options(BLOCKS, Shape::STANDARD), full.physical_blocks);
    let policy = bench.create();
    let reads = Arc::new(Counting::default());
    bench.environment.store = InterceptingStore::new(Arc::clone(&bench.environment.store), &reads);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 128, 7).expect("written");
    // So that no read has to wait for a node of the map.
    session.read(0, 128).expect("read");
    let read = |block| Request::Read { block, buffer: Buffer::private_zeroed(1) };
    let before = reads.0.load(Ordering::Relaxed);
    let seen = || reads.0.load(Ordering::Relaxed) - before;
    (0..READS).for_each(|block| session.queue.submit(1000 + block, read(block)));
    let mut ended = Vec::new();
    while ended.is_empty() {
        session.queue.poll(&mut ended);
    }
    assert_eq!(seen(), READS);
    session.queue.submit(5000, read(100));
    let more = session.queue.poll(&mut ended);
    assert_eq!(seen(), READS + 1, "the store has not heard of the new read");
    assert!(more && ended.len() < 32, "{} of {READS} reads were opened first, more: {more}", ended.len());
    while session.queue.pending() > 0 {
        session.queue.poll(&mut ended);
    }
    assert_eq!(ended.len() as u64, READS + 1);
    ended.into_iter().for_each(|completion| completion.result.expect("read"));
    session.detach().expect("detached");
}
