//! Limits of a disk: so many requests and so many bytes a second, over all its queues.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How much may come at once after a rest.
const BURST: Duration = Duration::from_millis(100);

/// Two buckets that fill with time. A request may be taken while neither is in debt; a large one leaves a debt that must pass first.
#[derive(Debug)]
pub(crate) struct Limits {
    requests: Option<f64>,
    bytes: Option<f64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    at: Instant,
    requests: f64,
    bytes: f64,
}

impl Limits {
    /// `None` is no limit; both are for each second.
    pub(crate) fn new(requests: Option<u32>, bytes: Option<u64>, now: Instant) -> Option<Self> {
        if requests.is_none() && bytes.is_none() {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a limit is no exact number")]
        let bytes = bytes.map(|bytes| bytes as f64);
        let requests = requests.map(f64::from);
        Some(Self { requests, bytes, state: Mutex::new(State { at: now, requests: 1.0, bytes: 1.0 }) })
    }

    /// `None` if a request may be taken now; else how long to wait.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(state.at).as_secs_f64();
        state.at = now.max(state.at);
        let fill = |left: f64, rate: Option<f64>| {
            rate.map_or(1.0, |rate| (left + rate * passed).min((rate * BURST.as_secs_f64()).max(1.0)))
        };
        state.requests = fill(state.requests, self.requests);
        state.bytes = fill(state.bytes, self.bytes);
        let missing = |left: f64, rate: Option<f64>| match rate {
            Some(rate) if left < 1.0 => (1.0 - left) / rate,
            _ => 0.0,
        };
        let wait = missing(state.requests, self.requests).max(missing(state.bytes, self.bytes));
        (wait > 0.0).then(|| Duration::from_secs_f64(wait.min(3600.0)))
    }

    /// A request was taken.
    pub(crate) fn took(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        #[expect(clippy::cast_precision_loss, reason = "a limit is no exact number")]
        let bytes = bytes as f64;
        state.requests -= 1.0;
        state.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of so many bytes that are taken in ten simulated seconds.
    fn taken(requests: Option<u32>, bytes: Option<u64>, each: u64) -> u64 {
        let begin = Instant::now();
        let limits = Limits::new(requests, bytes, begin).unwrap();
        let (mut now, mut count) = (begin, 0);
        while now < begin + Duration::from_secs(10) {
            match limits.wait(now) {
                Some(wait) => now += wait + Duration::from_nanos(1),
                None => {
                    limits.took(each);
                    count += 1;
                }
            }
        }
        count
    }

    #[test]
    fn a_rate_is_kept_and_not_undercut() {
        assert!(Limits::new(None, None, Instant::now()).is_none());
        for (requests, bytes, each, expected) in [
            (Some(100), None, 1 << 20, 1000),
            (None, Some(1 << 20), 4096, 2560),
            (Some(100), Some(4096), 4096, 10),
        ] {
            let count = taken(requests, bytes, each);
            assert!((expected..=expected + expected / 50 + 2).contains(&count), "{count} of {expected}");
        }
    }
}
