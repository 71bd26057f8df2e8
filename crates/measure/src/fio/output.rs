//! What fio reports, from its JSON to figures: the only place where that is read.

use std::collections::BTreeMap;

use report::run::Metric;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::session::Measured;

#[derive(Deserialize)]
struct Report {
    /// When it was written.
    #[serde(default)]
    timestamp_ms: u64,
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    error: i64,
    read: Half,
    write: Half,
    #[serde(default)]
    sync: Sync,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
}

#[derive(Deserialize)]
struct Half {
    total_ios: u64,
    #[serde(default)]
    io_bytes: u64,
    /// Milliseconds.
    #[serde(default)]
    runtime: u64,
    bw_bytes: f64,
    iops: f64,
    lat_ns: Times,
    clat_ns: Times,
}

#[derive(Default, Deserialize)]
struct Sync {
    #[serde(default)]
    total_ios: u64,
    #[serde(default)]
    lat_ns: Times,
}

#[derive(Default, Deserialize)]
struct Times {
    #[serde(default, rename = "N")]
    count: u64,
    #[serde(default)]
    mean: f64,
    #[serde(default)]
    max: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// The quantiles that are kept, as fio names them and as the run file does.
const QUANTILES: [(&str, &str); 3] = [("50.000000", "p50"), ("99.000000", "p99"), ("99.900000", "p99.9")];

/// Exact up to 2^53, which is more bytes than a turn has.
#[expect(clippy::cast_precision_loss, reason = "a rate of that many needs no more digits")]
fn wide(number: u64) -> f64 {
    number as f64
}

fn float(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}

/// What fio wrote, one report behind the other: where it was told to say how it stands now and then, the last is that of the whole turn.
fn reports(said: &str) -> Result<Vec<Report>> {
    let unread = |error| Error::io("fio's report cannot be read").because(error);
    let (mut found, mut rest) = (Vec::new(), said);
    // Warnings may stand before each of them.
    while let Some(begin) = rest.find('{') {
        let mut objects = serde_json::Deserializer::from_str(&rest[begin..]).into_iter();
        found.extend(objects.next().transpose().map_err(unread)?);
        rest = &rest[begin + objects.byte_offset()..];
    }
    Ok(found)
}

/// What all jobs have done since the time of the turn began.
struct Totals {
    seconds: f64,
    bytes: f64,
    requests: f64,
    /// Nanoseconds of all requests together.
    times: f64,
}

impl Totals {
    fn of(report: &Report) -> Self {
        let halves = || report.jobs.iter().flat_map(|job| [&job.read, &job.write]);
        let milliseconds = halves().map(|half| half.runtime).max().unwrap_or_default();
        Self {
            seconds: float(milliseconds) / 1000.0,
            bytes: halves().map(|half| wide(half.io_bytes)).sum(),
            requests: halves().map(|half| wide(half.lat_ns.count)).sum(),
            times: halves().map(|half| half.lat_ns.mean * wide(half.lat_ns.count)).sum(),
        }
    }
}

/// The value inside a turn, from reports that fio was to write each `every` seconds; `warm_up` seconds before the time of the turn do not count.
pub(super) fn course(said: &str, metric: Metric, every: f64, warm_up: f64) -> Result<Vec<(f64, f64)>> {
    let reports = reports(said)?;
    let begin = |report: &Report| wide(report.timestamp_ms) / 1000.0 - Totals::of(report).seconds;
    let Some(last) = reports.last() else { return Ok(Vec::new()) };
    // fio counts anew when the warm-up is over.
    let is_counted = |report: &&Report| begin(report) > begin(last) - warm_up / 2.0 - every / 2.0;
    let mut before = Totals { seconds: 0.0, bytes: 0.0, requests: 0.0, times: 0.0 };
    let mut points = Vec::new();
    for now in reports.iter().filter(is_counted).map(Totals::of) {
        let seconds = now.seconds - before.seconds;
        if seconds < every / 2.0 || now.requests < before.requests {
            continue;
        }
        let requests = now.requests - before.requests;
        let value = match metric {
            Metric::Bandwidth => (now.bytes - before.bytes) / seconds,
            Metric::Latency if requests > 0.0 => (now.times - before.times) / requests,
            // No request ended, so none has a time.
            Metric::Latency => continue,
            _ => requests / seconds,
        };
        points.push((now.seconds, value.max(0.0)));
        before = now;
    }
    Ok(points)
}

/// The figures of a report; all its jobs run at once, so rates add up.
///
/// # Errors
/// When it is no report, a job failed, or not one request ended.
pub fn figures(report: &str, metric: Metric) -> Result<Measured> {
    let report =
        reports(report)?.pop().ok_or_else(|| Error::io("fio's report cannot be read: there is none"))?;
    if let Some(job) = report.jobs.iter().find(|job| job.error != 0) {
        let error = i32::try_from(job.error).map_or_else(
            |_| format!("error {}", job.error),
            |number| std::io::Error::from_raw_os_error(number).to_string(),
        );
        return Err(Error::io(format!("fio's job {} failed: {error}", job.jobname)));
    }
    let halves = || report.jobs.iter().flat_map(|job| [("read", &job.read), ("write", &job.write)]);
    let requests: f64 = halves().map(|(_, half)| float(half.total_ios)).sum();
    if requests == 0.0 {
        return Err(Error::io("not one request of fio ended in the time of a turn; choose longer --seconds"));
    }
    let bandwidth: f64 = halves().map(|(_, half)| half.bw_bytes).sum();
    let iops: f64 = halves().map(|(_, half)| half.iops).sum();
    let latency = halves().map(|(_, half)| half.lat_ns.mean * float(half.total_ios)).sum::<f64>() / requests;
    let mut figures = BTreeMap::from([
        ("bandwidth".to_string(), bandwidth),
        ("iops".to_string(), iops),
        ("latency".to_string(), latency),
        ("requests".to_string(), requests),
    ]);
    for (name, half) in halves().filter(|(_, half)| half.total_ios > 0) {
        let times = if half.lat_ns.percentile.is_empty() { &half.clat_ns } else { &half.lat_ns };
        for (theirs, ours) in QUANTILES {
            // Of several jobs the slowest: quantiles do not add up.
            if let Some(value) = times.percentile.get(theirs) {
                let kept = figures.entry(format!("{name}-{ours}")).or_insert(0.0);
                *kept = kept.max(*value);
            }
        }
        let kept = figures.entry(format!("{name}-max")).or_insert(0.0);
        *kept = kept.max(half.lat_ns.max);
    }
    for job in report.jobs.iter().filter(|job| job.sync.total_ios > 0) {
        figures.insert("sync-latency".into(), job.sync.lat_ns.mean);
    }
    figures.insert("fio-cpu".into(), report.jobs.iter().map(|job| job.usr_cpu + job.sys_cpu).sum());
    let value = match metric {
        Metric::Bandwidth => bandwidth,
        Metric::Iops | Metric::Rate => iops,
        Metric::Latency => latency,
        Metric::Duration => return Err(Error::io("fio measures no time to completion")),
    };
    Ok(Measured { value, figures, course: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(error: i64, ios: u64) -> String {
        let half = |iops: u64, ios: u64| {
            format!(
                r#"{{"total_ios": {ios}, "bw_bytes": {}, "iops": {iops}.0, "lat_ns": {{"mean": {iops}, "max": 9}},
                 "clat_ns": {{"percentile": {{"50.000000": 2000, "99.000000": 9500}}}}}}"#,
                iops * 4096
            )
        };
        format!(
            "fio: a warning\n{{\"jobs\": [{{\"jobname\": \"x\", \"error\": {error}, \"read\": {}, \"write\": {}}}]}}",
            half(100, ios),
            half(50, ios * 3)
        )
    }

    #[test]
    fn rates_add_up_and_times_are_weighed() {
        let measured = figures(&report(0, 7), Metric::Iops).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(near(measured.value, 150.0) && near(measured.figures["bandwidth"], 150.0 * 4096.0));
        // A quarter of the requests took 100, the others 50.
        assert!(near(measured.figures["latency"], 62.5) && near(measured.figures["read-p99"], 9500.0));
        assert!(near(figures(&report(0, 7), Metric::Latency).unwrap().value, 62.5));
    }

    /// As fio writes with --status-interval: the first is of the warm-up, and the last comes soon behind the one before it.
    fn states(states: &[(u64, u64, u64, u64)]) -> String {
        let one = |(at, runtime, ios, mean): &(u64, u64, u64, u64)| {
            let half = |ios: u64| {
                format!(
                    r#"{{"total_ios": {ios}, "io_bytes": {}, "runtime": {runtime}, "bw_bytes": 1, "iops": 1.0,
                     "lat_ns": {{"N": {ios}, "mean": {mean}}}, "clat_ns": {{}}}}"#,
                    ios * 4096
                )
            };
            format!(
                "{{\"timestamp_ms\": {at}, \"jobs\": [{{\"jobname\": \"x\", \"error\": 0, \"read\": {}, \"write\": {}}}]}}\nfio: a warning\n",
                half(*ios),
                half(0)
            )
        };
        states.iter().map(one).collect()
    }

    #[test]
    fn the_course_of_a_turn_is_of_the_time_since_the_point_before() {
        let said = states(&[
            (10_450, 400, 9000, 1),
            (11_520, 500, 100, 10),
            (12_000, 1000, 300, 30),
            (12_500, 1500, 300, 30),
            (13_010, 2000, 600, 30),
            (13_030, 2010, 610, 30),
        ]);
        let of = |metric| course(&said, metric, 0.5, 1.0).unwrap();
        let rates = [(0.5, 200.0), (1.0, 400.0), (1.5, 0.0), (2.0, 600.0)];
        let near = |found: Vec<(f64, f64)>, wanted: &[(f64, f64)]| {
            let pairs = || found.iter().zip(wanted);
            assert!(found.len() == wanted.len(), "{found:?}");
            assert!(
                pairs().all(|(a, b)| (a.0 - b.0).abs() < 1e-6 && (a.1 - b.1).abs() < 1e-6 * b.1.max(1.0)),
                "{found:?}"
            );
        };
        near(of(Metric::Iops), &rates);
        near(of(Metric::Bandwidth), &rates.map(|(at, rate)| (at, rate * 4096.0)));
        // 100 took 10, the 200 behind them 40; then none ended.
        near(of(Metric::Latency), &[(0.5, 10.0), (1.0, 40.0), (2.0, 30.0)]);
        assert_eq!(figures(&said, Metric::Iops).unwrap().figures["requests"].to_bits(), 610_f64.to_bits());
        // One that says nothing in between has one point.
        near(course(&states(&[(12_000, 1000, 300, 30)]), Metric::Iops, 0.5, 0.0).unwrap(), &[(1.0, 300.0)]);
        assert!(course("{\"jobs\": []} {", Metric::Iops, 0.5, 0.0).is_err());
    }

    #[test]
    fn a_failed_an_empty_and_an_idle_report_are_no_result() {
        for (text, word) in [
            (report(5, 7), "failed"),
            (report(0, 0), "not one request"),
            (String::new(), "cannot be read"),
            ("{}".into(), "cannot be read"),
            (r#"{"jobs": []}"#.into(), "not one request"),
        ] {
            let error = figures(&text, Metric::Iops).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
