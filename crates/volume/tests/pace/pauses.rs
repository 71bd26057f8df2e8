//! A checkpoint makes nobody wait for all of it.
//!
//! Counted in steps of the maintenance job, not in time: a step is what it does between two moments at which it waits for the store.

use crate::common::{Bench, Session, filled, options, options_at};
use memory::Buffer;
use volume::Request;
use volume::format::protections::Freshness;
use volume::geometry::{Geometry, Shape};

/// 2 GiB: a checkpoint changes thousands of leaves.
const BLOCKS: u64 = 1 << 19;
const REQUESTS: u64 = 150_000;
/// Turns of the queue for each step of the maintenance job: writers that are much faster than checkpoints.
const TURNS: u64 = 1500;

/// The most steps that a request of each kind (write, read) was under way, and the steps that the checkpoints took.
fn run(session: &mut Session) -> ([u64; 2], Vec<u64>) {
    let (mut steps, mut turns, mut ended) = (0, 0, Vec::new());
    let (mut longest, mut checkpoints) = ([0; 2], Vec::new());
    let (mut done, mut began) = (session.volume.status().checkpoints, None);
    for number in 0..REQUESTS {
        let block = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % BLOCKS;
        let reads = number % 8 == 0;
        let request = match reads {
            true => Request::Read { block, buffer: Buffer::private_zeroed(1) },
            false => Request::Write { block, data: filled(1, 3), fua: false },
        };
        session.queue.submit(number, request);
        let (submitted, mut tries) = (steps, 0);
        while ended.is_empty() {
            session.queue.poll(&mut ended);
            (turns, tries) = (turns + 1, tries + 1);
            // A request takes two or three turns, unless it waits for something.
            if turns % TURNS == 0 || tries > 4 {
                session.step();
                steps += 1;
                let status = session.volume.status();
                if status.checkpoints > done {
                    done = status.checkpoints;
                    checkpoints.extend(began.take().map(|began| steps - began));
                }
                // Nothing else empties the overlay.
                if began.is_none() && status.overlay_changes < 100 {
                    began = Some(steps);
                }
            }
        }
        ended.drain(..).for_each(|completion| completion.result.expect("served"));
        let kind = usize::from(reads);
        longest[kind] = longest[kind].max(steps - submitted);
    }
    (longest, checkpoints)
}

#[test]
fn no_request_waits_for_a_whole_checkpoint() {
    let full = Geometry::for_logical(BLOCKS, Shape::STANDARD).expect("a size that is allowed");
    let mut bench = Bench::new(options(BLOCKS, Shape::STANDARD), full.physical_blocks);
    bench.attach.memory = 64 << 20;
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    let (longest, checkpoints) = run(&mut session);
    let status = session.volume.status();
    session.detach().expect("detached");
    eprintln!("longest write {} and read {} steps, checkpoints {checkpoints:?}", longest[0], longest[1]);
    assert!(status.waits_for_checkpoint > 0, "the writers were no faster than the checkpoints: {status:#?}");
    let shortest = *checkpoints.iter().min().expect("at least one checkpoint");
    assert!(longest[0] * 8 <= shortest, "a write waited for {} of {shortest} steps", longest[0]);
    assert!(longest[1] <= 4, "a read waited for {} of {shortest} steps", longest[1]);
}

#[test]
fn who_waits_for_room_stands_in_line_and_only_the_first_looks() {
    const WRITES: u64 = 4000;
    // No commit makes room at this level, only a checkpoint does.
    let bench = Bench::new(options_at(Freshness::Transaction), 32_768);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for number in 0..WRITES {
        session.queue.submit(number, Request::Write { block: number, data: filled(1, 3), fua: false });
    }
    let (mut ended, mut steps) = (Vec::new(), 0);
    while session.queue.pending() > 0 {
        // The writers are as fast as they may be.
        for _ in 0..10 {
            session.queue.poll(&mut ended);
        }
        session.step();
        steps += 1;
    }
    let looks = session.volume.status().waits_for_checkpoint;
    session.detach().expect("detached");
    eprintln!("{} ended, {steps} steps, {looks} looks", ended.len());
    assert!(ended.len() as u64 == WRITES && looks > 0, "none had to wait");
    assert!(looks <= 2 * steps, "{looks} looks in {steps} steps");
}

#[test]
fn who_comes_later_does_not_get_room_before_those_in_line() {
    const WRITES: u64 = 100_000;
    const DEPTH: u64 = 512;
    let blocks = 1 << 16;
    let full = Geometry::for_logical(blocks, Shape::STANDARD).expect("a size that is allowed");
    let mut bench = Bench::new(options(blocks, Shape::STANDARD), full.physical_blocks);
    bench.attach.memory = 8 << 20;
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    let (mut ended, mut submitted, mut last, mut overtaken) = (Vec::new(), 0_u64, 0, 0);
    while session.queue.pending() > 0 || submitted < WRITES {
        while submitted < WRITES && (session.queue.pending() as u64) < DEPTH {
            let block = submitted.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks;
            session.queue.submit(submitted, Request::Write { block, data: filled(1, 3), fua: false });
            submitted += 1;
        }
        // The writers are as fast as they may be.
        for _ in 0..DEPTH / 4 {
            session.queue.poll(&mut ended);
        }
        session.step();
        for completion in ended.drain(..) {
            completion.result.expect("served");
            last = completion.token.max(last);
            overtaken = overtaken.max(last - completion.token);
        }
    }
    let waits = session.volume.status().waits_for_checkpoint;
    session.detach().expect("detached");
    eprintln!("{waits} waits; a write completed behind one that came {overtaken} writes later");
    assert!(waits > 100, "too few had to wait: {waits}");
    assert!(overtaken < DEPTH / 16, "a write completed behind one that came {overtaken} writes later");
}

#[test]
fn who_waits_is_told_when_the_maintenance_job_is_given_up() {
    const WRITES: u64 = 4000;
    let bench = Bench::new(options_at(Freshness::Transaction), 32_768);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.step();
    for number in 0..WRITES {
        session.queue.submit(number, Request::Write { block: number, data: filled(1, 3), fua: false });
    }
    let mut ended = Vec::new();
    for _ in 0..WRITES {
        session.queue.poll(&mut ended);
    }
    assert!(session.queue.pending() > 0, "none had to wait");
    // As when its thread ends by a defect.
    session.give_maintenance_up();
    for _ in 0..WRITES {
        session.queue.poll(&mut ended);
    }
    assert_eq!(session.queue.pending(), 0, "somebody waits for what nobody does any more");
    let refused = ended.iter().find_map(|completion| completion.result.as_ref().err()).expect("an error");
    assert!(refused.to_string().contains("maintenance job was given up"), "{refused}");
}
