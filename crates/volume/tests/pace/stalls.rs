//! A checkpoint stops nobody for more than a few milliseconds, with real threads.
//!
//! Other programs take the processors away from time to time, and this must not count: not the time for which the writer's thread stood in
//! the scheduler's queue, and of the rest at most what the maintenance thread worked meanwhile. The store is as fast as memory, so there is
//! nothing else to wait for.
#![expect(clippy::disallowed_methods, reason = "this is about time")]

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::{Bench, filled, options};
use rustix::time::{ClockId, clock_gettime};
use volume::geometry::{Geometry, Shape};
use volume::{Request, Volume};

/// 4 GiB: a checkpoint changes thousands of leaves.
const BLOCKS: u64 = 1 << 20;
const CHECKPOINTS: usize = 3;
/// Writes that are under way at a time: enough to be faster than checkpoints.
const DEPTH: u32 = 8;

/// Half of the checkpoints may keep no write for longer. A few milliseconds in a release build; this one is hardly optimised, and single
/// checkpoints fall into a time in which the machine does not give us all of its processors.
const LIMIT: Duration = Duration::from_millis(40);

/// A moment, and the processor time that the maintenance thread has used by then.
type Mark = (Instant, Duration);

/// A write under way.
#[derive(Clone, Copy)]
struct Span {
    begun: Instant,
    ended: Instant,
    /// How long its thread waited for a processor.
    queued: Duration,
}

/// Tells how long this thread has waited for a processor so far.
struct Queued(Option<File>);

impl Queued {
    fn new() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Zero, where the kernel does not count it.
    fn so_far(&self) -> Duration {
        let mut text = [0; 64];
        let length = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..length]);
        Duration::from_nanos(text.split(' ').nth(1).and_then(|count| count.parse().ok()).unwrap_or(0))
    }
}

fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it does not run backwards")
}

/// Runs the maintenance job to its end; a mark after each of its steps.
fn maintain(volume: &Volume) -> Vec<Mark> {
    let mut maintenance = volume.maintenance().expect("a queue");
    let mut marks = Vec::new();
    loop {
        let ended = maintenance.poll();
        marks.push((Instant::now(), processor_time()));
        match ended {
            Some(result) => {
                result.expect("maintained");
                return marks;
            }
            None => std::thread::yield_now(),
        }
    }
}

/// Keeps writes under way until there were enough checkpoints; the spans, by the checkpoints that had ended before.
fn write_all(volume: &Volume) -> Vec<Vec<Span>> {
    let mut queue = volume.queue(DEPTH).expect("a queue");
    let queued = Queued::new();
    let (mut spans, mut under_way, mut ended) = (Vec::new(), HashMap::new(), Vec::new());
    for number in 0_u64.. {
        let checkpoints = usize::try_from(volume.status().checkpoints).expect("few");
        if checkpoints > CHECKPOINTS {
            break;
        }
        spans.resize_with(checkpoints + 1, Vec::new);
        let block = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % BLOCKS;
        under_way.insert(number, (Instant::now(), queued.so_far()));
        queue.submit(number, Request::Write { block, data: filled(1, 3), fua: false });
        queue.poll(&mut ended);
        while ended.is_empty() && under_way.len() >= DEPTH as usize {
            queue.poll(&mut ended);
        }
        for completion in ended.drain(..) {
            completion.result.expect("written");
            let (begun, before) = under_way.remove(&completion.token).expect("it was submitted");
            let span = Span { begun, ended: Instant::now(), queued: queued.so_far() - before };
            spans[checkpoints].push(span);
        }
    }
    while queue.pending() > 0 {
        queue.poll(&mut ended);
    }
    spans
}

/// How long a write would have taken at most, had each thread had a processor.
fn stall(marks: &[Mark], span: Span) -> Duration {
    // The steps that touch the span.
    let before = marks.partition_point(|mark| mark.0 <= span.begun).checked_sub(1);
    let after = marks.partition_point(|mark| mark.0 < span.ended).min(marks.len() - 1);
    let worked = marks[after].1 - before.map_or(Duration::ZERO, |before| marks[before].1);
    (span.ended - span.begun).saturating_sub(span.queued).min(worked)
}

#[test]
fn no_write_waits_for_more_than_a_few_milliseconds_of_a_checkpoint() {
    let full = Geometry::for_logical(BLOCKS, Shape::STANDARD).expect("a size that is allowed");
    let mut bench = Bench::new(options(BLOCKS, Shape::STANDARD), full.physical_blocks);
    bench.attach.memory = 64 << 20;
    let policy = bench.create();
    let session = bench.attach(&policy).expect("attached");
    let volume = session.volume.clone();
    let (spans, marks) = std::thread::scope(|scope| {
        let maintenance = scope.spawn(|| maintain(&volume));
        let spans = write_all(&volume);
        volume.stop();
        (spans, maintenance.join().expect("maintained"))
    });
    // The first one begins with the volume; writers have not reached their pace there.
    let mut longest: Vec<Duration> = Vec::new();
    for (number, spans) in spans.iter().enumerate().skip(1) {
        let mut stalls: Vec<Duration> = spans.iter().map(|span| stall(&marks, *span)).collect();
        stalls.sort_unstable();
        let (most, p999) = (stalls[stalls.len() - 1], stalls[stalls.len() * 999 / 1000]);
        let took = spans[spans.len() - 1].ended - spans[0].begun;
        eprintln!(
            "checkpoint {number}, {took:?} with {} writes: longest {most:?}, p99.9 {p999:?}",
            spans.len()
        );
        longest.push(most);
    }
    longest.sort_unstable();
    let median = longest[longest.len() / 2];
    assert!(median <= LIMIT, "in half of the checkpoints a write waited for {median:?} or more: {longest:?}");
}
