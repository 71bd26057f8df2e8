//! A volume that is full and has been overwritten at random several times over: what is free lies in many places, a little in each.
#![allow(clippy::cast_precision_loss, reason = "numbers of blocks, far below 2^52")]

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use crate::common::dice::Dice;
use crate::common::{Bench, Session, filled, options};
use memory::Buffer;
use store::{Completion, Error, Operation, Queue, Store};
use volume::Request;
use volume::geometry::{Geometry, Shape};

/// Polls of the maintenance job for each that moves its transfers on.
const SLOW: u32 = 6;

/// Of each queue that was opened, the blocks that were written through it, in order.
type Written = Arc<Mutex<Vec<Vec<u64>>>>;

/// A store that notes what is written, and takes its time with what comes through the queue that was opened last, which is the maintenance
/// job's: so a good part of the overwrites comes while a checkpoint is under way, as on a real disk.
struct Noting {
    medium: Arc<dyn Store>,
    written: Written,
}

struct NotingQueue {
    queue: Box<dyn Queue>,
    written: Written,
    number: usize,
    polls: u32,
}

impl Store for Noting {
    fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    fn name(&self) -> String {
        self.medium.name()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        let mut written = self.written.lock().expect("a lock");
        written.push(Vec::new());
        let (number, written) = (written.len() - 1, Arc::clone(&self.written));
        Ok(Box::new(NotingQueue { queue: self.medium.queue(depth)?, written, number, polls: 0 }))
    }
}

impl Queue for NotingQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.queue.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        if let Operation::Write { block, buffer } = &operation {
            let mut written = self.written.lock().expect("a lock");
            written[self.number].extend(*block..*block + buffer.blocks() as u64);
        }
        self.queue.submit(token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.polls += 1;
        let last = self.number + 1 == self.written.lock().expect("a lock").len();
        if !last || self.polls.is_multiple_of(SLOW) {
            self.queue.poll(completions);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.queue.wait(timeout, completions);
    }

    fn waker(&self) -> Waker {
        self.queue.waker()
    }
}

/// Writes blocks anywhere, as many as a client with a queue keeps under way at a time.
fn overwrite(session: &mut Session, dice: &mut Dice, blocks: u64, count: u64) {
    for _ in 0..count / 32 {
        let mut write = || Request::Write { block: dice.below(blocks), data: filled(1, 6), fua: false };
        let requests = std::iter::repeat_with(&mut write).take(32).collect();
        session.run(requests).into_iter().for_each(|ended| ended.result.expect("overwritten"));
    }
}

/// Stretches of neighbouring places, in the order in which they were written: a store gets each as one write, and a cloud counts it as one.
fn runs(places: &[u64]) -> usize {
    1 + places.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count()
}

#[test]
fn an_aged_volume_has_no_more_checkpoints_than_a_new_one_and_their_nodes_lie_together() {
    let blocks = 65_536;
    let geometry = Geometry::for_logical(blocks, Shape::STANDARD).expect("a size");
    let mut bench = Bench::new(options(blocks, Shape::STANDARD), geometry.physical_blocks);
    bench.attach.memory = 64 << 20;
    let written = Written::default();
    bench.environment.store =
        Arc::new(Noting { medium: bench.environment.store, written: Arc::clone(&written) });
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for block in (0..blocks).step_by(16) {
        session.write(block, 16, 1).expect("written");
    }
    let mut dice = Dice(7);
    overwrite(&mut session, &mut dice, blocks, 4 * blocks);

    let before = session.volume.status();
    written.lock().expect("a lock").iter_mut().for_each(Vec::clear);
    overwrite(&mut session, &mut dice, blocks, blocks);
    let after = session.volume.status();
    let overwrites = (after.written_blocks - before.written_blocks) as f64;
    let each = overwrites / (after.checkpoints - before.checkpoints) as f64;
    let model = geometry.pinned_limit() as f64;
    assert!(each > 0.85 * model, "{each} overwrites for a checkpoint, the model says {model}");

    let written = written.lock().expect("a lock");
    let maintenance = written.last().expect("a queue").iter().copied();
    let nodes: Vec<u64> = maintenance.filter(|block| geometry.holds(*block)).collect();
    let length = nodes.len() as f64 / runs(&nodes) as f64;
    assert!(length > 8.0, "{} nodes went to the store in runs of {length} on average", nodes.len());
}
