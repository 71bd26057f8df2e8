//! A map many times larger than the cache, on a sparse file; memory stays within what was allowed.
//!
//! One test in a binary of its own: it looks at the memory of the whole process.
#![expect(clippy::disallowed_methods, reason = "this test plays the front end, on a real file")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anchor::MemoryAnchor;
use common::{credential, filled, options};
use memory::Buffer;
use store::{FileStore, Options};
use testkit::ManualClock;
use volume::format::protections::{Freshness, Provision};
use volume::geometry::Shape;
use volume::{AttachOptions, Environment, Queue, Request, attach, create};

const TIB: u64 = 1 << 28;
const WRITES: u64 = 60_000;
const MEMORY: u64 = 16 << 20;

fn place(step: u64) -> u64 {
    step.wrapping_mul(0x9e37_79b9_7f4a_7c15) % TIB
}

fn fill(step: u64) -> u8 {
    u8::try_from(step % 251).expect("small") + 1
}

/// The most memory that this process ever had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux tells");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
}

/// Keeps 64 requests in flight until `count` have completed.
fn drive(
    queue: &mut Queue,
    count: u64,
    request: impl Fn(u64) -> Request,
    check: impl Fn(u64, Option<Buffer>),
) {
    let (mut submitted, mut ended, mut completions) = (0, 0, Vec::new());
    while ended < count {
        while submitted < count && queue.pending() < 64 {
            queue.submit(submitted, request(submitted));
            submitted += 1;
        }
        queue.wait(Some(Duration::from_millis(20)), &mut completions);
        for completion in completions.drain(..) {
            completion.result.expect("served");
            check(completion.token, completion.buffer);
            ended += 1;
        }
    }
}

#[test]
fn a_map_many_times_larger_than_the_cache_stays_within_its_memory() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut create_options = options(TIB, Shape::STANDARD);
    create_options.provision = Provision::Thin;
    create_options.freshness = Freshness::Strict;
    let blocks = TIB + TIB / 16;
    let path = directory.path().join("image");
    let file = Options { create: Some(blocks), ..Options::default() };
    let environment = Environment {
        store: Arc::new(FileStore::open(&path, file).expect("a sparse file")),
        anchor: Some(Arc::new(MemoryAnchor::new())),
        random: Arc::new(seal::SystemRandom),
        clock: Arc::new(ManualClock::default()),
    };
    let policy =
        create(environment.clone(), create_options, credential(), Box::new(|_| Ok(()))).expect("a queue");
    let policy = policy.block().expect("created");
    let before = peak();
    let attach_options = AttachOptions { memory: MEMORY, ..AttachOptions::default() };
    let volume = attach(environment, policy, credential(), attach_options)
        .expect("a queue")
        .block()
        .expect("attached");
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let maintenance = scope.spawn(|| volume.maintenance().expect("a queue").block());
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                volume.tick();
            }
        });
        let mut queue = volume.queue(64).expect("a queue");
        let write = |step| Request::Write { block: place(step), data: filled(1, fill(step)), fua: false };
        drive(&mut queue, WRITES, write, |_, _| ());
        let read = |step| Request::Read { block: place(step), buffer: Buffer::private_zeroed(1) };
        drive(&mut queue, WRITES, read, |step, buffer| {
            let buffer = buffer.expect("the buffer");
            assert!(buffer.private().expect("private").iter().all(|byte| *byte == fill(step)), "step {step}");
        });
        drop(queue);
        let status = volume.status();
        volume.stop();
        maintenance.join().expect("no panic").expect("detached");
        stopped.store(true, Ordering::Relaxed);
        assert!(status.checkpoints > 0, "{status:#?}");
        const { assert!(WRITES * 4096 > 6 * MEMORY, "nearly every write touches a leaf of its own") };
        let grown = peak() - before;
        assert!(grown < MEMORY + (64 << 20), "{grown} bytes were used, {MEMORY} allowed; {status:#?}");
        eprintln!("{} MiB used of {} allowed", grown >> 20, MEMORY >> 20);
    });
}
