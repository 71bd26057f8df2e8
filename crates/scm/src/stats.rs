//! Counters and latencies of a running engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Buckets of a histogram: each power of two of nanoseconds has eight.
const BUCKETS: usize = 64 * 8;

/// A histogram of durations, exact to one part in eight.
#[derive(Debug)]
pub struct Latency([AtomicU64; BUCKETS]);

impl Default for Latency {
    fn default() -> Latency {
        Latency([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Latency {
    /// Counts one.
    pub fn record(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
    }

    /// The nanoseconds that so many of 1000 stayed below; 0 if there were none.
    #[must_use]
    pub fn permille(&self, permille: u64) -> u64 {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        let wanted = (all * permille).div_ceil(1000);
        let mut seen = 0;
        for (index, count) in counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return upper(index);
            }
        }
        0
    }
}

fn bucket(nanoseconds: u64) -> usize {
    let exponent = nanoseconds.max(8).ilog2();
    let part = (nanoseconds >> (exponent - 3)) & 7;
    exponent as usize * 8 + usize::try_from(part).unwrap_or(0)
}

fn upper(index: usize) -> u64 {
    let (exponent, part) = (index / 8, index as u64 % 8);
    let Some(shift) = exponent.checked_sub(3) else { return 7 };
    u64::try_from((u128::from(part) + 9) << shift).map_or(u64::MAX, |end| end - 1)
}

/// The steps of opening a page for a touch, in their order, as `docs/scm.md` has them.
pub const STEPS: [&str; 8] = [
    "read and decrypt",
    "duplicate",
    "mark copied",
    "transform",
    "mark transformed",
    "update",
    "finish",
    "show to the VMM",
];

/// How long each of [`STEPS`] took.
#[derive(Debug, Default)]
pub struct Steps([Latency; STEPS.len()]);

/// A step of a fault, in a [`Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// One of [`STEPS`].
    pub name: String,
    /// Median, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
}

impl Steps {
    pub(crate) fn summary(&self) -> Vec<Step> {
        let step = |(name, latency): (&&str, &Latency)| Step {
            name: (*name).into(),
            p50_ns: latency.permille(500),
            p99_ns: latency.permille(990),
        };
        STEPS.iter().zip(&self.0).map(step).collect()
    }
}

/// Notes the steps of one page, if it is to.
pub(crate) struct Clock<'a> {
    steps: Option<&'a Steps>,
    next: usize,
    since: Option<Instant>,
}

impl<'a> Clock<'a> {
    pub(crate) fn new(steps: Option<&'a Steps>) -> Clock<'a> {
        Clock { steps, next: 0, since: steps.map(|_| Instant::now()) }
    }

    /// The next step is over.
    pub(crate) fn step(&mut self) {
        let (Some(steps), Some(since)) = (self.steps, self.since) else { return };
        let now = Instant::now();
        if let Some(latency) = steps.0.get(self.next) {
            latency.record(now - since);
        }
        self.next += 1;
        self.since = Some(now);
    }
}

/// What happened since the engine was opened.
#[derive(Debug, Default)]
pub struct Stats {
    /// Pages decrypted in place.
    pub opened: AtomicU64,
    /// Pages encrypted in place.
    pub closed: AtomicU64,
    /// Pages written anew.
    pub rewritten: AtomicU64,
    /// Pages read without being opened.
    pub read: AtomicU64,
    /// Pages that were found corrupt, each time.
    pub corrupt: AtomicU64,
    /// Faults served.
    pub faults: AtomicU64,
    /// From a fault's arrival until the toucher goes on.
    pub fault_latency: Latency,
    /// The steps of some of them.
    pub steps: Steps,
    /// Pages that were opened ahead of their touch.
    pub ahead: AtomicU64,
    /// How often a VMM did not take pages out of its page tables when it was asked to.
    pub kept: AtomicU64,
    /// Batches of pages that were taken back.
    pub batches: AtomicU64,
    /// Processor time for taking pages back, in microseconds.
    pub taking_cpu_us: AtomicU64,
}

/// The same at one moment, with the pages' states, for `status` and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Bytes of a page.
    pub page_size: u64,
    /// Pages of the region.
    pub pages: u64,
    /// Pages that are open, in plaintext on the medium.
    pub open: u64,
    /// Pages that are encrypted.
    pub encrypted: u64,
    /// Pages that were open at a crash and not written whole since.
    pub unverified: u64,
    /// Pages decrypted in place since the start.
    pub opened: u64,
    /// Pages encrypted in place since the start.
    pub closed: u64,
    /// Pages written anew since the start.
    pub rewritten: u64,
    /// Pages read without being opened since the start.
    pub read: u64,
    /// How often a page was found corrupt.
    pub corrupt: u64,
    /// Faults served since the start.
    pub faults: u64,
    /// Median of a fault, in nanoseconds.
    pub fault_p50_ns: u64,
    /// The 99th percentile.
    pub fault_p99_ns: u64,
    /// The 99.9th percentile.
    pub fault_p999_ns: u64,
    /// How long each step of a fault takes.
    pub fault_steps: Vec<Step>,
    /// Pages opened ahead of their touch.
    pub ahead: u64,
    /// How often a VMM did not take pages out of its page tables when it was asked to: they stay open.
    pub kept: u64,
    /// Batches of pages taken back.
    pub batches: u64,
    /// Processor time for taking pages back, in milliseconds; part of `cpu_ms`.
    pub taking_cpu_ms: u64,
    /// Processor time of the serving process, in milliseconds.
    pub cpu_ms: u64,
    /// Whether the engine has stopped after a failure of the medium.
    pub stopped: bool,
}

impl Status {
    /// As Prometheus reads it.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let mut put = |name: &str, kind: &str, value: u64| {
            text.push_str(&format!("# TYPE cvmio_scm_{name} {kind}\ncvmio_scm_{name} {value}\n"));
        };
        put("pages_open", "gauge", self.open);
        put("pages_encrypted", "gauge", self.encrypted);
        put("pages_unverified", "gauge", self.unverified);
        put("opened_total", "counter", self.opened);
        put("closed_total", "counter", self.closed);
        put("rewritten_total", "counter", self.rewritten);
        put("read_total", "counter", self.read);
        put("corrupt_total", "counter", self.corrupt);
        put("faults_total", "counter", self.faults);
        put("ahead_total", "counter", self.ahead);
        put("kept_total", "counter", self.kept);
        put("batches_total", "counter", self.batches);
        put("taking_cpu_milliseconds_total", "counter", self.taking_cpu_ms);
        put("fault_p50_nanoseconds", "gauge", self.fault_p50_ns);
        put("fault_p99_nanoseconds", "gauge", self.fault_p99_ns);
        put("fault_p999_nanoseconds", "gauge", self.fault_p999_ns);
        put("cpu_milliseconds_total", "counter", self.cpu_ms);
        put("stopped", "gauge", u64::from(self.stopped));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_an_eighth() {
        let latency = Latency::default();
        assert_eq!(latency.permille(500), 0);
        for nanoseconds in 1..=10_000_u64 {
            latency.record(Duration::from_nanos(nanoseconds));
        }
        for (permille, exact) in [(500, 5000), (990, 9900), (1000, 10_000)] {
            let found = latency.permille(permille);
            assert!((exact..=exact + exact / 8 + 1).contains(&found), "{permille}: {found}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(upper(BUCKETS - 1), u64::MAX);
    }
}
