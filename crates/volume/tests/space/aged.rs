//! A volume that is full and has been overwritten at random several times over: what is free lies in many places, a little in each.
#![allow(clippy::cast_precision_loss, reason = "numbers of blocks, far below 2^52")]

use std::sync::{Arc, Mutex};

use crate::common::dice::Dice;
use crate::common::{Bench, Session, filled, options};
use store::{Operation, Store};
use testkit::{InterceptingStore, Interceptor, Verdict};
use volume::Request;
use volume::geometry::{Geometry, Shape};

/// Polls of the maintenance job for each that moves its transfers on.
const SLOW: u32 = 6;

/// What came through a queue.
#[derive(Default)]
struct Traffic {
    /// The blocks that were written, in order.
    written: Vec<u64>,
    polls: u32,
}

/// Notes what is written through each queue, and takes its time with what comes through the one that was opened last, which is the
/// maintenance job's: so a good part of the overwrites comes while a checkpoint is under way, as on a real disk.
#[derive(Default)]
struct Noting(Mutex<Vec<Traffic>>);

impl Interceptor for Noting {
    fn opened(&self, _queue: usize) {
        self.0.lock().expect("a lock").push(Traffic::default());
    }

    fn submitted(&self, queue: usize, operation: &Operation, _medium: &dyn Store) -> Verdict {
        if let Operation::Write { block, buffer } = operation {
            self.0.lock().expect("a lock")[queue].written.extend(*block..*block + buffer.blocks() as u64);
        }
        Verdict::Pass
    }

    fn lets_poll(&self, queue: usize) -> bool {
        let mut queues = self.0.lock().expect("a lock");
        let last = queue + 1 == queues.len();
        queues[queue].polls += 1;
        !last || queues[queue].polls.is_multiple_of(SLOW)
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
    let noted = Arc::new(Noting::default());
    bench.environment.store = InterceptingStore::new(bench.environment.store, &noted);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for block in (0..blocks).step_by(16) {
        session.write(block, 16, 1).expect("written");
    }
    let mut dice = Dice(7);
    overwrite(&mut session, &mut dice, blocks, 4 * blocks);

    let before = session.volume.status();
    noted.0.lock().expect("a lock").iter_mut().for_each(|traffic| traffic.written.clear());
    overwrite(&mut session, &mut dice, blocks, blocks);
    let after = session.volume.status();
    let overwrites = (after.written_blocks - before.written_blocks) as f64;
    let each = overwrites / (after.checkpoints - before.checkpoints) as f64;
    let model = geometry.pinned_limit() as f64;
    assert!(each > 0.85 * model, "{each} overwrites for a checkpoint, the model says {model}");

    let noted = noted.0.lock().expect("a lock");
    let maintenance = noted.last().expect("a queue").written.iter().copied();
    let nodes: Vec<u64> = maintenance.filter(|block| geometry.holds(*block)).collect();
    let length = nodes.len() as f64 / runs(&nodes) as f64;
    assert!(length > 8.0, "{} nodes went to the store in runs of {length} on average", nodes.len());
}
