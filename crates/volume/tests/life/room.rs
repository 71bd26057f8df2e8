//! The last free blocks of a fully provisioned volume: whoever holds some for a moment is no reason to refuse another one.

use crate::common::rekeying::{BLOCKS, Case, Job};
use crate::common::{Bench, Session, filled, options_at, pattern};
use volume::format::protections::Freshness;
use volume::geometry::{Geometry, Shape};
use volume::{Queue, Request};

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
