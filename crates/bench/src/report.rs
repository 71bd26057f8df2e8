//! What came out, for people and for programs.

use std::fmt::Write;

use cli::output;
use hdrhistogram::Histogram;
use serde::Serialize;
use volume::{Error, Kind};

use super::setup::{Medium, Side};

/// Prints a row: for programs as one line of JSON, for people as this line.
///
/// # Errors
/// When the row is no JSON.
pub fn show(json: bool, row: &impl Serialize, line: &str) -> Result<(), Error> {
    if !json {
        output::print(line);
        return Ok(());
    }
    let text = serde_json::to_string(row).map_err(|error| Error::new(Kind::Io, error.to_string()))?;
    output::print(&text);
    Ok(())
}

/// One turn of one contestant.
pub struct Turn {
    /// In the case's unit.
    pub speed: f64,
    /// Processor nanoseconds for each block, of all threads.
    pub processor: f64,
}

/// Times of requests, in microseconds.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Times {
    mean: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Times {
    pub fn of(nanoseconds: &Histogram<u64>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let at = |quantile| nanoseconds.value_at_quantile(quantile) as f64 / 1000.0;
        Self { mean: nanoseconds.mean() / 1000.0, p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

/// Both contestants at one case.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Row {
    case: String,
    medium: Medium,
    /// Percent of the logical blocks that hold data.
    fill: u8,
    aged: bool,
    threads: u32,
    unit: &'static str,
    /// What `raw` stands for: the bare store (`raw`), or a volume at level `off`.
    rival: &'static str,
    raw: f64,
    protected: f64,
    /// Geometric mean of protected : raw over the turns.
    ratio: f64,
    /// Its 95 % confidence interval.
    ratio_low: f64,
    ratio_high: f64,
    turns: usize,
    /// Processor nanoseconds for each block.
    raw_cpu: f64,
    protected_cpu: f64,
    raw_times: Times,
    protected_times: Times,
    /// What the given anchor did meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves: Option<Moves>,
}

/// What an anchor did during one case.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Moves {
    pub moves: u64,
    /// Flushes that users asked for.
    pub flushes: u64,
    /// How long a move took.
    pub times: Times,
}

/// What a row is about.
pub struct Subject {
    pub case: String,
    pub medium: Medium,
    pub fill: u8,
    pub aged: bool,
    pub threads: u32,
    pub unit: &'static str,
    pub rival: &'static str,
}

impl Row {
    pub fn new(subject: Subject, turns: &[(Turn, Turn)], times: [Times; 2]) -> Self {
        let mean =
            |value: &dyn Fn(&(Turn, Turn)) -> f64| turns.iter().map(value).sum::<f64>() / count(turns.len());
        let ratios: Vec<f64> = turns.iter().map(|(raw, protected)| protected.speed / raw.speed).collect();
        let (ratio, ratio_low, ratio_high) = interval(&ratios);
        let [raw_times, protected_times] = times;
        Self {
            case: subject.case,
            medium: subject.medium,
            fill: subject.fill,
            aged: subject.aged,
            threads: subject.threads,
            unit: subject.unit,
            rival: subject.rival,
            raw: mean(&|turn| turn.0.speed),
            protected: mean(&|turn| turn.1.speed),
            ratio,
            ratio_low,
            ratio_high,
            turns: turns.len(),
            raw_cpu: mean(&|turn| turn.0.processor),
            protected_cpu: mean(&|turn| turn.1.processor),
            raw_times,
            protected_times,
            moves: None,
        }
    }

    /// The table's head; the first contestant's name.
    pub fn head(rival: &str) -> String {
        format!(
            "{:<19} {:<6} {:>4}  {:>10} {:>10} {:<5}  {:>6} {:<15}  {:>8} {:>9}",
            "case",
            "medium",
            "fill",
            rival,
            "protected",
            "unit",
            "ratio",
            "95 % interval",
            format!("cpu {rival}"),
            "protected"
        )
    }

    /// The row for people; with the times of single requests, if `times`.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn line(&self, times: bool) -> String {
        let medium = match self.medium {
            Medium::File => "file",
            Medium::Memory => "memory",
        };
        let mut text = format!(
            "{:<19} {medium:<6} {:>3}%  {:>10.0} {:>10.0} {:<5}  {:>6.3} {:<15}  {:>8.0} {:>9.0}",
            self.case,
            self.fill,
            self.raw,
            self.protected,
            self.unit,
            self.ratio,
            format!("{:.3} .. {:.3}", self.ratio_low, self.ratio_high),
            self.raw_cpu,
            self.protected_cpu,
        );
        let sides = [(self.rival, &self.raw_times), (Side::Protected.name(), &self.protected_times)];
        for (name, of) in sides.into_iter().filter(|_| times) {
            let _ = write!(
                text,
                "\n    {name:<9} us: mean {:.1}  p50 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}",
                of.mean, of.p50, of.p99, of.p999, of.max
            );
        }
        if let Some(Moves { moves, flushes, times }) = &self.moves {
            let flushes = *flushes as f64 / (*moves).max(1) as f64;
            let _ = write!(
                text,
                "\n    anchor    {moves} moves, {flushes:.2} flushes a move; a move took us: p50 {:.1}  p99 {:.1}  max {:.1}",
                times.p50, times.p99, times.max
            );
        }
        text
    }
}

/// The note under the table.
pub const METHOD: &str = "\
Raw and protected take turns, in one process and at the same depth. The ratio is the geometric mean of protected : raw over the pairs of
turns, with the t interval of its logarithm. Cpu is processor time of the whole process for each 4096-byte block, in nanoseconds,
checkpoints and anchoring included. Every block that was read was checked to be the one that was asked for.";

/// A number of things, to divide by.
pub fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

/// Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom. Source: NIST/SEMATECH e-Handbook, section 1.3.6.7.2.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Geometric mean with its 95 % confidence interval; one sample bounds nothing.
pub fn interval(ratios: &[f64]) -> (f64, f64, f64) {
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let size = count(logarithms.len());
    let mean = logarithms.iter().sum::<f64>() / size;
    let Some(freedom) = logarithms.len().checked_sub(2) else { return (mean.exp(), 0.0, f64::INFINITY) };
    let variance = logarithms.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (size - 1.0);
    let reach = STUDENT.get(freedom).copied().unwrap_or(1.96) * (variance / size).sqrt();
    (mean.exp(), (mean - reach).exp(), (mean + reach).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3
    }

    #[test]
    fn the_interval_is_students() {
        // Logarithms -1, 0, 1: mean 0, standard deviation 1, so the reach is 4.303 / sqrt(3).
        let (mean, low, high) = interval(&[(-1.0f64).exp(), 1.0, 1.0f64.exp()]);
        assert!(near(mean, 1.0) && near(high.ln(), 2.4843) && near(low.ln(), -2.4843), "{mean} {low} {high}");
    }

    #[test]
    fn one_turn_bounds_nothing() {
        assert_eq!(interval(&[0.5]), (0.5, 0.0, f64::INFINITY));
    }

    #[test]
    fn a_row_pairs_the_turns() {
        let turn = |speed, processor| Turn { speed, processor };
        let turns = [(turn(100.0, 10.0), turn(50.0, 20.0)), (turn(200.0, 30.0), turn(100.0, 40.0))];
        let subject = Subject {
            case: "x".into(),
            medium: Medium::Memory,
            fill: 50,
            aged: false,
            threads: 1,
            unit: "iops",
            rival: "raw",
        };
        let mut times = Histogram::<u64>::new(3).unwrap();
        times.record(1000).unwrap();
        let row = Row::new(subject, &turns, [Times::of(&times), Times::of(&times)]);
        assert!(near(row.raw, 150.0) && near(row.protected, 75.0) && near(row.ratio, 0.5));
        assert!(near(row.ratio_low, 0.5) && near(row.raw_cpu, 20.0) && near(row.protected_cpu, 30.0));
        assert!(row.line(true).contains("0.500 .. 0.500") && row.line(true).contains("p99.9 1.0"));
    }
}
