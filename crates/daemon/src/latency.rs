//! How long requests take, counted by the thread that serves them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The kinds of requests that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Of blocks that are there.
    Read,
    /// Of any size.
    Write,
    /// Of all that was acknowledged.
    Flush,
    /// Blocks that are needed no longer.
    Discard,
    /// Which blocks hold data.
    Allocation,
    /// `cvmio volume commit`.
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
pub struct Latency(Mutex<[Histogram<u64>; Kind::ALL.len()]>);

impl Latency {
    /// Nothing counted yet.
    pub(crate) fn new() -> Self {
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
        let sum = Self::sum(threads);
        let all = Kind::ALL.into_iter().zip(&sum);
        all.filter(|(_, histogram)| !histogram.is_empty()).map(percentiles).collect()
    }

    /// All times of all kinds, over several threads.
    pub fn times<'a>(threads: impl IntoIterator<Item = &'a Self>) -> Vec<Times> {
        let sum = Self::sum(threads);
        let all = Kind::ALL.into_iter().zip(&sum);
        all.map(|(kind, histogram)| {
            let steps = histogram.iter_recorded();
            let counts = steps.map(|step| (step.value_iterated_to(), step.count_since_last_iteration()));
            Times { kind, counts: counts.collect() }
        })
        .collect()
    }

    fn sum<'a>(threads: impl IntoIterator<Item = &'a Self>) -> [Histogram<u64>; Kind::ALL.len()] {
        let sum = Self::new();
        let mut sum = sum.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        for thread in threads {
            let thread = thread.0.lock().unwrap_or_else(PoisonError::into_inner);
            for (to, from) in sum.iter_mut().zip(thread.iter()) {
                // All have the same bounds.
                let _ = to.add(from);
            }
        }
        sum
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

/// How many requests of one kind took how long.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Times {
    /// Which kind.
    pub kind: Kind,
    /// (nanoseconds, within a hundredth; how many requests), rising.
    pub counts: Vec<(u64, u64)>,
}

impl Times {
    /// How many requests.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// What came after `earlier`, which is of the same kind and the same daemon.
    pub fn since(&self, earlier: &Self) -> Self {
        let before: BTreeMap<u64, u64> = earlier.counts.iter().copied().collect();
        let new = |&(time, count): &(u64, u64)| {
            let count = count.saturating_sub(before.get(&time).copied().unwrap_or(0));
            (count > 0).then_some((time, count))
        };
        Self { kind: self.kind, counts: self.counts.iter().filter_map(new).collect() }
    }

    /// The time in which `part` of `whole` requests were done; `None` without any.
    pub fn quantile(&self, part: u64, whole: u64) -> Option<Duration> {
        let wanted = u128::from(self.count()) * u128::from(part);
        let mut below = 0;
        let found = self.counts.iter().find(|(_, count)| {
            below += u128::from(*count) * u128::from(whole);
            below >= wanted
        });
        found.map(|(time, _)| Duration::from_nanos(*time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_an_interval_are_those_that_were_added() {
        let latency = Latency::new();
        (0..100).for_each(|_| latency.record(Kind::Read, Duration::from_micros(10)));
        let earlier = Latency::times([&latency]).swap_remove(0);
        (1..=100).for_each(|millis| latency.record(Kind::Read, Duration::from_millis(millis)));
        let now = Latency::times([&latency]).swap_remove(0);
        assert_eq!((earlier.count(), now.count()), (100, 200));
        let new = now.since(&earlier);
        assert_eq!((new.kind, new.count()), (Kind::Read, 100));
        let near = |time: Option<Duration>, wanted: u128| time.unwrap().as_millis().abs_diff(wanted) <= 1;
        assert!(near(new.quantile(50, 100), 50) && near(new.quantile(99, 100), 99), "{new:?}");
        assert_eq!(now.since(&now).quantile(1, 2), None);
    }

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
