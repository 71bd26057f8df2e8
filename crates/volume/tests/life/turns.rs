//! Between what has ended and what is new: a store that ended all that it was given stands still until it hears of more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use crate::common::{Bench, options};
use memory::Buffer;
use store::{Completion, Error, Operation, Queue, Store};
use volume::Request;
use volume::geometry::{Geometry, Shape};

const BLOCKS: u64 = 4096;
const READS: u64 = 64;

/// A store that counts the reads that it was told of.
struct Counting {
    medium: Arc<dyn Store>,
    reads: Arc<AtomicU64>,
}

struct CountingQueue {
    medium: Box<dyn Queue>,
    reads: Arc<AtomicU64>,
}

impl Store for Counting {
    fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    fn name(&self) -> String {
        self.medium.name()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(CountingQueue { medium: self.medium.queue(depth)?, reads: Arc::clone(&self.reads) }))
    }
}

impl Queue for CountingQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.medium.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        self.reads.fetch_add(u64::from(matches!(operation, Operation::Read { .. })), Ordering::Relaxed);
        self.medium.submit(token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.medium.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.medium.wait(timeout, completions);
    }

    fn waker(&self) -> Waker {
        self.medium.waker()
    }
}

#[test]
fn a_new_read_reaches_the_store_before_all_that_has_ended_is_opened() {
    let full = Geometry::for_logical(BLOCKS, Shape::STANDARD).expect("a size that is allowed");
    let mut bench = Bench::new(options(BLOCKS, Shape::STANDARD), full.physical_blocks);
    let policy = bench.create();
    let reads = Arc::new(AtomicU64::new(0));
    bench.environment.store =
        Arc::new(Counting { medium: Arc::clone(&bench.environment.store), reads: Arc::clone(&reads) });
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 128, 7).expect("written");
    // So that no read has to wait for a node of the map.
    session.read(0, 128).expect("read");
    let read = |block| Request::Read { block, buffer: Buffer::private_zeroed(1) };
    let before = reads.load(Ordering::Relaxed);
    let seen = || reads.load(Ordering::Relaxed) - before;
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
