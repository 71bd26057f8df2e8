//! What fio reports, from its JSON to figures: the only place where that is read.

use std::collections::BTreeMap;

use report::run::Metric;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::session::Measured;

#[derive(Deserialize)]
struct Report {
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
    #[serde(default)]
    mean: f64,
    #[serde(default)]
    max: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// The quantiles that are kept, as fio names them and as the run file does.
const QUANTILES: [(&str, &str); 3] = [("50.000000", "p50"), ("99.000000", "p99"), ("99.900000", "p99.9")];

fn float(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}

/// The figures of a report; all its jobs run at once, so rates add up.
///
/// # Errors
/// When it is no report, a job failed, or not one request ended.
pub fn figures(report: &str, metric: Metric) -> Result<Measured> {
    // Warnings may stand before the object.
    let object = report.find('{').map_or("", |at| &report[at..]);
    let report: Report = serde_json::from_str(object)
        .map_err(|error| Error::io("fio's report cannot be read").because(error))?;
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
    Ok(Measured { value, figures })
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
