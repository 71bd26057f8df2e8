//! What came out, for people and for programs.

use serde::Serialize;

use super::super::report::interval;
use super::job::Job;

/// A job alone, beside what the store and the cipher allow.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Speed {
    job: Job,
    /// Medians of the turns, MiB of data a second.
    limit: f64,
    speed: f64,
    /// Geometric mean of speed : limit over the turns, and its 95 % confidence interval.
    ratio: f64,
    ratio_low: f64,
    ratio_high: f64,
    turns: usize,
}

impl Speed {
    /// From the limit's speed and the job's in each turn.
    pub fn new(job: Job, turns: &[(f64, f64)]) -> Self {
        let ratios: Vec<f64> = turns.iter().map(|(limit, speed)| speed / limit).collect();
        let (ratio, ratio_low, ratio_high) = interval(&ratios);
        let (limit, speed) =
            (median(turns.iter().map(|turn| turn.0)), median(turns.iter().map(|turn| turn.1)));
        Self { job, limit, speed, ratio, ratio_low, ratio_high, turns: turns.len() }
    }

    pub fn head() -> String {
        format!(
            "{:<8} {:>12} {:>12}  {:>6} {:<15}",
            "alone", "limit MiB/s", "MiB/s", "ratio", "95 % interval"
        )
    }

    pub fn line(&self) -> String {
        format!(
            "{:<8} {:>12.0} {:>12.0}  {:>6.3} {:.3} .. {:.3}",
            self.job.name(),
            self.limit,
            self.speed,
            self.ratio,
            self.ratio_low,
            self.ratio_high
        )
    }
}

/// What one turn of a load saw: microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub p50: f64,
    pub p99: f64,
    /// Of the job beside it, MiB of data a second.
    pub job: f64,
}

/// A load beside a job, and with nothing else.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Latency {
    case: String,
    beside: Job,
    /// Medians of the turns, microseconds.
    alone_p50: f64,
    alone_p99: f64,
    beside_p50: f64,
    beside_p99: f64,
    /// Geometric mean of the p99 beside : alone over the turns, and its 95 % confidence interval.
    ratio: f64,
    ratio_low: f64,
    ratio_high: f64,
    /// Median of what the job got done meanwhile, MiB of data a second.
    job_speed: f64,
    turns: usize,
}

impl Latency {
    /// From the turns alone and beside the job.
    pub fn new(case: String, job: Job, turns: &[(Seen, Seen)]) -> Self {
        let ratios: Vec<f64> = turns.iter().map(|(alone, beside)| beside.p99 / alone.p99).collect();
        let (ratio, ratio_low, ratio_high) = interval(&ratios);
        let middle = |of: fn(&(Seen, Seen)) -> f64| median(turns.iter().map(of));
        Self {
            case,
            beside: job,
            alone_p50: middle(|turn| turn.0.p50),
            alone_p99: middle(|turn| turn.0.p99),
            beside_p50: middle(|turn| turn.1.p50),
            beside_p99: middle(|turn| turn.1.p99),
            ratio,
            ratio_low,
            ratio_high,
            job_speed: middle(|turn| turn.1.job),
            turns: turns.len(),
        }
    }

    pub fn head() -> String {
        format!(
            "{:<17} {:<7} {:>17} {:>17}  {:>6} {:<15} {:>10}",
            "case", "beside", "us p50/p99 alone", "beside", "ratio", "95 % interval", "job MiB/s"
        )
    }

    pub fn line(&self) -> String {
        format!(
            "{:<17} {:<7} {:>17} {:>17}  {:>6.2} {:<15} {:>10.1}",
            self.case,
            self.beside.name(),
            format!("{:.0}/{:.0}", self.alone_p50, self.alone_p99),
            format!("{:.0}/{:.0}", self.beside_p50, self.beside_p99),
            self.ratio,
            format!("{:.2} .. {:.2}", self.ratio_low, self.ratio_high),
            self.job_speed
        )
    }
}

/// The note under the tables.
pub const METHOD: &str = "\
The limit is what one thread does with the bare store and the cipher, 128 blocks at a time and eight times at once: for a scrub it reads and
opens as much data, for a change of key it also seals that under another key and writes it back. It needs no map, journal or anchor. Limit
and job take turns, and so do the load alone, beside a scrub that has no rate, and beside a change of key. Speeds and times are medians of
the turns; ratios are geometric means, of speed : limit and of the p99 beside : alone, with the t interval of their logarithms.";

/// The one in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[upper],
        _ => f64::midpoint(values[upper - 1], values[upper]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert!(near(median([9.0, 1.0, 2.0].into_iter()), 2.0));
        assert!(near(median([9.0, 1.0, 2.0, 4.0].into_iter()), 3.0));
        assert!(near(median(std::iter::empty()), 0.0));
    }

    #[test]
    fn a_speed_is_held_against_the_limit_of_its_turn() {
        let speed = Speed::new(Job::Scrub, &[(100.0, 50.0), (400.0, 200.0), (200.0, 100.0)]);
        assert!(near(speed.limit, 200.0) && near(speed.speed, 100.0) && near(speed.ratio, 0.5), "{speed:?}");
        assert!(speed.line().starts_with("scrub ") && speed.line().ends_with("0.500 .. 0.500"));
        assert_eq!(serde_json::to_value(&speed).unwrap()["ratio-low"], 0.5);
    }

    #[test]
    fn a_latency_is_held_against_that_of_its_turn() {
        let seen = |p99| Seen { p50: p99 / 2.0, p99, job: p99 / 4.0 };
        let turns = [(seen(100.0), seen(200.0)), (seen(40.0), seen(80.0))];
        let row = Latency::new("x".into(), Job::Rekey, &turns);
        assert!(near(row.ratio, 2.0) && near(row.alone_p99, 70.0) && near(row.beside_p50, 70.0), "{row:?}");
        assert!(near(row.job_speed, 35.0) && row.line().contains("35/70"), "{}", row.line());
        assert_eq!(serde_json::to_value(&row).unwrap()["beside"], "rekey");
    }
}
