//! The load on one queue, and the measuring of it.

use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use rustix::time::{ClockId, clock_gettime};
use store::Buffer;
use volume::Result;

use super::case::Case;
use super::gate::Gate;
use super::lane::{Ended, Lane, check_marks, put_marks};

/// How long a load runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(200);

/// What one thread saw.
pub struct Seen {
    /// Requests that ended in the measured time.
    pub requests: u64,
    /// Their times, in nanoseconds.
    pub times: Histogram<u64>,
}

impl Seen {
    fn none() -> Self {
        Self { requests: 0, times: histogram() }
    }
}

/// When a load ends.
#[derive(Clone, Copy)]
pub enum Until<'a> {
    /// After the warm-up, and so much time from when the gate opens, or when it closes.
    Time(Duration, &'a Gate),
    /// After so many requests; their blocks are shown.
    Requests(u64, &'a ProgressBar),
}

/// A load on one queue.
pub struct Load<'a> {
    pub case: &'a Case,
    /// The blocks that it may touch.
    pub range: std::ops::Range<u64>,
    pub until: Until<'a>,
    pub seed: u64,
}

struct Slot {
    block: u64,
    started: Instant,
    /// The buffer of a write that waits for its flush.
    kept: Option<Buffer>,
    reads: bool,
}

impl Load<'_> {
    /// Runs to the end. What ends in the measured time, which begins when the gate opens, is counted.
    ///
    /// # Errors
    /// The first request that failed, or that read something else than was written there.
    pub fn run(&self, lane: &mut dyn Lane) -> Result<Seen> {
        let mut running = Running::new(self, lane);
        let result = running.run(lane);
        result.map(|()| running.seen)
    }
}

struct Running<'a> {
    load: &'a Load<'a>,
    random: Rng,
    next: u64,
    places: u64,
    slots: Vec<Slot>,
    idle: Vec<(usize, Buffer)>,
    writes: u64,
    submitted: u64,
    in_flight: usize,
    seen: Seen,
}

impl<'a> Running<'a> {
    fn new(load: &'a Load<'a>, lane: &mut dyn Lane) -> Self {
        let mut random = Rng::with_seed(load.seed);
        let depth = usize::try_from(load.case.depth).unwrap_or(1);
        let now = Instant::now();
        let idle =
            (0..depth).map(|slot| (slot, filled(lane.buffer(load.case.blocks), &mut random))).collect();
        let slots = (0..depth).map(|_| Slot { block: 0, started: now, kept: None, reads: false }).collect();
        let blocks = u64::try_from(load.case.blocks).unwrap_or(1);
        let places = ((load.range.end - load.range.start) / blocks).max(1);
        // A sequential load starts anywhere, so that each turn goes on elsewhere.
        let next = random.u64(..places) * u64::from(matches!(load.until, Until::Time(..)));
        Self {
            load,
            random,
            next,
            places,
            slots,
            idle,
            writes: 0,
            submitted: 0,
            in_flight: 0,
            seen: Seen::none(),
        }
    }

    fn run(&mut self, lane: &mut dyn Lane) -> Result<()> {
        match self.load.until {
            Until::Requests(count, bar) => {
                let before = bar.position();
                let blocks = u64::try_from(self.load.case.blocks).unwrap_or(1);
                self.go(lane, |running, _| {
                    bar.set_position(before + running.submitted * blocks);
                    running.submitted < count
                })?;
            }
            Until::Time(time, gate) => {
                let end = Instant::now() + WARM_UP;
                let warm = self.go(lane, |_, now| now < end);
                gate.arrive();
                warm?;
                // The load goes on until the last thread is warm.
                self.go(lane, |_, _| gate.opened().is_none())?;
                let end = gate.opened().unwrap_or_else(Instant::now) + time;
                self.go(lane, |_, now| now < end && gate.closed().is_none())?;
                let seen = std::mem::replace(&mut self.seen, Seen::none());
                self.drain(lane)?;
                self.seen = seen;
                return Ok(());
            }
        }
        self.drain(lane)
    }

    /// Keeps the queue full for as long as `go_on` says. What was sent last is waited for, so that closing the gate while one request
    /// is under way has it counted.
    fn go(&mut self, lane: &mut dyn Lane, go_on: impl Fn(&Self, Instant) -> bool) -> Result<()> {
        let mut ended = Vec::new();
        loop {
            let (now, before) = (Instant::now(), self.submitted);
            while go_on(self, now) {
                let Some((slot, buffer)) = self.idle.pop() else { break };
                self.start(lane, slot, buffer, now);
            }
            if self.submitted == before && !go_on(self, now) {
                return Ok(());
            }
            self.step(lane, &mut ended)?;
        }
    }

    fn drain(&mut self, lane: &mut dyn Lane) -> Result<()> {
        let mut ended = Vec::new();
        while self.in_flight > 0 {
            self.step(lane, &mut ended)?;
        }
        lane.settle();
        Ok(())
    }

    fn start(&mut self, lane: &mut dyn Lane, slot: usize, mut buffer: Buffer, now: Instant) {
        let case = self.load.case;
        let place = if case.random { self.random.u64(..self.places) } else { self.next % self.places };
        self.next += 1;
        let block = self.load.range.start + place * u64::try_from(case.blocks).unwrap_or(1);
        let reads = case.reads == 100 || (case.reads > 0 && self.random.u8(..100) < case.reads);
        self.slots[slot] = Slot { block, started: now, kept: None, reads };
        let token = slot as u64;
        if reads {
            lane.read(token, block, buffer);
        } else {
            put_marks(&mut buffer, block);
            lane.write(token, block, buffer);
        }
        self.in_flight += 1;
        self.submitted += 1;
    }

    /// Whether what ends now is counted.
    fn counts(&self) -> bool {
        match self.load.until {
            Until::Time(_, gate) => gate.opened().is_some(),
            Until::Requests(..) => true,
        }
    }

    fn step(&mut self, lane: &mut dyn Lane, ended: &mut Vec<Ended>) -> Result<()> {
        lane.wait(ended);
        let (now, counts) = (Instant::now(), self.counts());
        for end in ended.drain(..) {
            end.result?;
            let index = usize::try_from(end.token).unwrap_or(usize::MAX);
            let slot = &mut self.slots[index];
            if let Some(buffer) = end.buffer {
                if slot.reads {
                    check_marks(&buffer, slot.block)?;
                } else {
                    self.writes += 1;
                    if self.load.case.flush_every > 0
                        && self.writes.is_multiple_of(self.load.case.flush_every)
                    {
                        slot.kept = Some(buffer);
                        lane.flush(end.token);
                        continue;
                    }
                }
                self.idle.push((index, buffer));
            } else if let Some(buffer) = slot.kept.take() {
                self.idle.push((index, buffer));
            }
            self.in_flight -= 1;
            if counts {
                self.seen.requests += 1;
                let nanoseconds = u64::try_from((now - slot.started).as_nanos()).unwrap_or(u64::MAX);
                self.seen.times.saturating_record(nanoseconds);
            }
        }
        Ok(())
    }
}

fn filled(mut buffer: Buffer, random: &mut Rng) -> Buffer {
    if let Some(content) = buffer.private_mut() {
        random.fill(content);
    }
    buffer
}

/// Processor time of all threads of this process so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// For times in nanoseconds, to three digits. What takes longer than ten minutes counts as ten minutes.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("these bounds are allowed")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    /// One of two lanes; its requests end only while the other one is served, too, as when a commit takes the other's writes along.
    struct Coupled<'a> {
        served: &'a [AtomicU64; 2],
        own: usize,
        seen: u64,
        waiting: Vec<Ended>,
    }

    /// A lane's count when it is gone.
    const GONE: u64 = u64::MAX;

    impl Lane for Coupled<'_> {
        fn buffer(&mut self, blocks: usize) -> Buffer {
            Buffer::private_zeroed(blocks)
        }

        fn read(&mut self, _: u64, _: u64, _: Buffer) {
            unreachable!("this load only writes");
        }

        fn write(&mut self, token: u64, _: u64, buffer: Buffer) {
            self.waiting.push(Ended { token, buffer: Some(buffer), result: Ok(()) });
        }

        fn flush(&mut self, token: u64) {
            self.waiting.push(Ended { token, buffer: None, result: Ok(()) });
        }

        fn wait(&mut self, ended: &mut Vec<Ended>) {
            self.served[self.own].fetch_add(1, Ordering::SeqCst);
            let start = Instant::now();
            loop {
                let other = self.served[1 - self.own].load(Ordering::SeqCst);
                if other == GONE || other > self.seen {
                    self.seen = other;
                    break;
                }
                assert!(start.elapsed() < Duration::from_secs(20), "the other queue is not served any more");
                thread::yield_now();
            }
            ended.append(&mut self.waiting);
        }
    }

    impl Drop for Coupled<'_> {
        fn drop(&mut self) {
            self.served[self.own].store(GONE, Ordering::SeqCst);
        }
    }

    /// A lane on which a request takes its time; the gate is closed while the first counted one is under way.
    struct Closing<'a> {
        gate: &'a Gate,
        waiting: Vec<Ended>,
    }

    impl Lane for Closing<'_> {
        fn buffer(&mut self, blocks: usize) -> Buffer {
            Buffer::private_zeroed(blocks)
        }

        fn read(&mut self, _: u64, _: u64, _: Buffer) {
            unreachable!("this load only writes");
        }

        fn write(&mut self, token: u64, _: u64, buffer: Buffer) {
            if self.gate.opened().is_some() {
                self.gate.close();
            }
            self.waiting.push(Ended { token, buffer: Some(buffer), result: Ok(()) });
        }

        fn flush(&mut self, _: u64) {
            unreachable!("nothing asks for a flush");
        }

        fn wait(&mut self, ended: &mut Vec<Ended>) {
            thread::sleep(Duration::from_millis(1));
            ended.append(&mut self.waiting);
        }
    }

    #[test]
    fn a_gate_that_closes_ends_the_load_and_what_was_under_way_is_counted() {
        let case: Case = "randwrite-4k-q1".parse().unwrap();
        let (gate, long) = (Gate::default(), Duration::from_secs(3600));
        let (seen, waited) = thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut lane = Closing { gate: &gate, waiting: Vec::new() };
                Load { case: &case, range: 0..16, until: Until::Time(long, &gate), seed: 1 }.run(&mut lane)
            });
            let opened = gate.open(1);
            gate.wait_until(opened + long);
            (load.join().unwrap().unwrap(), opened.elapsed())
        });
        // One was under way when it opened, or none; then the one that closed it.
        assert!((1..=2).contains(&seen.requests) && seen.times.len() == seen.requests);
        assert!(waited < long / 2);
    }

    #[test]
    fn a_thread_that_is_ready_before_the_others_goes_on_serving_its_queue() {
        let case: Case = "write-fsync-4k-q1".parse().unwrap();
        let (gate, served) = (Gate::default(), [AtomicU64::new(0), AtomicU64::new(0)]);
        let seen: Vec<Seen> = thread::scope(|scope| {
            let threads = [0, 1].map(|own| {
                let (case, gate, served) = (&case, &gate, &served);
                scope.spawn(move || {
                    let mut lane = Coupled { served, own, seen: 0, waiting: Vec::new() };
                    let until = Until::Time(Duration::from_millis(50), gate);
                    Load { case, range: 0..16, until, seed: own as u64 }.run(&mut lane).unwrap()
                })
            });
            gate.open(2);
            threads.map(|thread| thread.join().unwrap()).into()
        });
        assert!(seen.iter().all(|seen| seen.requests > 0 && seen.times.len() == seen.requests));
    }
}
