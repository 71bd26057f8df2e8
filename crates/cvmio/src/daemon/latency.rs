//! How long requests take, counted by the thread that serves them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The kinds of requests that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    Allocation,
    Commit,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::Allocation, Self::Commit];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::Allocation => "allocation",
            Self::Commit => "commit",
        }
    }
}

/// Percentiles of one kind of request, in nanoseconds from submission to completion.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Percentiles {
    /// Which kind.
    pub kind: Kind,
    /// How many there were.
    pub count: u64,
    /// Half were faster.
    pub p50: u64,
    /// One in a hundred was slower.
    pub p99: u64,
    /// One in a thousand was slower.
    pub p999: u64,
    /// The slowest.
    pub max: u64,
}

/// The longest time that is told apart, a minute.
const LONGEST: u64 = 60_000_000_000;

/// The times of one thread.
pub struct Latency(Mutex<[Histogram<u64>; 6]>);

impl Latency {
    /// Nothing counted yet.
    pub fn new() -> Self {
        let empty = || Histogram::new_with_bounds(1, LONGEST, 2).expect("the bounds are right");
        Self(Mutex::new(std::array::from_fn(|_| empty())))
    }

    /// Counts one request.
    pub fn record(&self, kind: Kind, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(LONGEST);
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize].saturating_record(nanoseconds);
    }

    /// Percentiles of the kinds that occurred.
    pub fn percentiles(&self) -> Vec<Percentiles> {
        Self::merged([self])
    }

    /// The same over several threads.
    pub fn merged<'a>(threads: impl IntoIterator<Item = &'a Self>) -> Vec<Percentiles> {
        let sum = Self::new();
        let mut sum = sum.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        for thread in threads {
            let thread = thread.0.lock().unwrap_or_else(PoisonError::into_inner);
            for (to, from) in sum.iter_mut().zip(thread.iter()) {
                // All have the same bounds.
                let _ = to.add(from);
            }
        }
        Kind::ALL
            .into_iter()
            .zip(&sum)
            .filter(|(_, histogram)| !histogram.is_empty())
            .map(percentiles)
            .collect()
    }
}

fn percentiles((kind, histogram): (Kind, &Histogram<u64>)) -> Percentiles {
    Percentiles {
        kind,
        count: histogram.len(),
        p50: histogram.value_at_quantile(0.5),
        p99: histogram.value_at_quantile(0.99),
        p999: histogram.value_at_quantile(0.999),
        max: histogram.max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_threads() {
        let (a, b) = (Latency::new(), Latency::new());
        for micros in 1..=99 {
            a.record(Kind::Read, Duration::from_micros(micros));
        }
        b.record(Kind::Read, Duration::from_secs(3600));
        b.record(Kind::Flush, Duration::from_millis(1));
        let all = Latency::merged([&a, &b]);
        assert_eq!(
            all.iter().map(|one| (one.kind, one.count)).collect::<Vec<_>>(),
            [(Kind::Read, 100), (Kind::Flush, 1)]
        );
        let near = |value: u64, wanted: u64| value.abs_diff(wanted) * 50 <= wanted;
        assert!(near(all[0].p50, 50_000) && near(all[0].p99, 99_000) && near(all[0].max, LONGEST), "{all:?}");
        assert_eq!(a.percentiles().len(), 1);
    }
}
