//! The load on one queue, and the measuring of it.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use store::Buffer;
use volume::Result;

use super::case::Case;
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

/// When a load ends.
#[derive(Clone, Copy)]
pub enum Until {
    /// After the warm-up and so much time.
    Time(Duration),
    /// After so many requests.
    Requests(u64),
}

/// A load on one queue.
pub struct Load<'a> {
    pub case: &'a Case,
    /// The blocks that it may touch.
    pub range: std::ops::Range<u64>,
    pub until: Until,
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
    /// Runs to the end. The barrier is passed before the warm-up ends, and after the measured time; what is between is measured.
    ///
    /// # Errors
    /// The first request that failed, or that read something else than was written there.
    pub fn run(&self, lane: &mut dyn Lane, barrier: Option<&Barrier>) -> Result<Seen> {
        let mut running = Running::new(self, lane);
        let result = running.run(lane, barrier);
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
        let seen = Seen { requests: 0, times: histogram() };
        // A sequential load starts anywhere, so that each turn goes on elsewhere.
        let next = random.u64(..places) * u64::from(matches!(load.until, Until::Time(_)));
        Self { load, random, next, places, slots, idle, writes: 0, submitted: 0, in_flight: 0, seen }
    }

    fn run(&mut self, lane: &mut dyn Lane, barrier: Option<&Barrier>) -> Result<()> {
        match self.load.until {
            Until::Requests(count) => self.go(lane, |running, _| running.submitted < count)?,
            Until::Time(time) => {
                let end = Instant::now() + WARM_UP;
                let warm = self.go(lane, |_, now| now < end);
                // A thread that has failed passes both barriers too: the others would wait for ever.
                barrier.map(Barrier::wait);
                self.seen.requests = 0;
                self.seen.times.reset();
                let end = Instant::now() + time;
                let measured = warm.and_then(|()| self.go(lane, |_, now| now < end));
                barrier.map(Barrier::wait);
                measured?;
            }
        }
        self.drain(lane)
    }

    /// Keeps the queue full for as long as `go_on` says.
    fn go(&mut self, lane: &mut dyn Lane, go_on: impl Fn(&Self, Instant) -> bool) -> Result<()> {
        let mut ended = Vec::new();
        loop {
            let now = Instant::now();
            while go_on(self, now) {
                let Some((slot, buffer)) = self.idle.pop() else { break };
                self.start(lane, slot, buffer, now);
            }
            if !go_on(self, now) {
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

    fn step(&mut self, lane: &mut dyn Lane, ended: &mut Vec<Ended>) -> Result<()> {
        lane.wait(ended);
        let now = Instant::now();
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
            self.seen.requests += 1;
            let nanoseconds = u64::try_from((now - slot.started).as_nanos()).unwrap_or(u64::MAX);
            self.seen.times.saturating_record(nanoseconds);
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
