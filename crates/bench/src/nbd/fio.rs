//! A steady load on an NBD server, by fio's client.

use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::case::Case;
use crate::program::run;
use daemon::failure::Failure;
use daemon::interrupt::Interrupt;

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// In the case's unit.
    pub speed: f64,
    /// Median time of a request, microseconds.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Writes every block once, in order.
///
/// # Errors
/// When fio or the server fails, or the end was asked for.
pub fn fill(uri: &str, mebibytes: u64, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut fio = fio(uri, mebibytes);
    fio.args(["--rw=write", "--bs=128k", "--iodepth=16", "--end_fsync=1"]);
    run(&mut fio, interrupt).map(drop)
}

/// One turn.
///
/// # Errors
/// When fio or the server fails, when fio says nothing usable, or the end was asked for.
pub fn turn(
    uri: &str,
    mebibytes: u64,
    case: &Case,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Seen, Failure> {
    let kind = match (case.random, case.reads) {
        (true, 0) => "randwrite",
        (true, 100) => "randread",
        (true, _) => "randrw",
        (false, 0) => "write",
        (false, _) => "read",
    };
    let mut fio = fio(uri, mebibytes);
    fio.args(["--time_based", "--ramp_time=0.3s", "--randrepeat=0", "--norandommap"])
        .arg(format!("--runtime={}ms", time.as_millis()))
        .arg(format!("--rw={kind}"))
        .arg(format!("--rwmixread={}", case.reads))
        .arg(format!("--bs={}k", case.blocks * 4))
        .arg(format!("--iodepth={}", case.depth))
        .arg(format!("--fsync={}", case.flush_every));
    judge(&run(&mut fio, interrupt)?, case)
}

fn fio(uri: &str, mebibytes: u64) -> Command {
    let mut fio = Command::new("fio");
    fio.args(["--name=load", "--ioengine=nbd", "--output-format=json", "--refill_buffers"])
        .arg(format!("--uri={uri}"))
        .arg(format!("--size={mebibytes}m"));
    fio
}

#[derive(Deserialize)]
struct Report {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    read: Half,
    write: Half,
}

#[derive(Deserialize)]
struct Half {
    total_ios: u64,
    iops: f64,
    clat_ns: Times,
}

#[derive(Deserialize)]
struct Times {
    #[serde(default)]
    percentile: Percentiles,
}

#[derive(Default, Deserialize)]
struct Percentiles {
    #[serde(rename = "50.000000", default)]
    p50: f64,
    #[serde(rename = "99.000000", default)]
    p99: f64,
}

/// What fio's report says about a case. In a mixed load the times are those of the reads.
fn judge(report: &str, case: &Case) -> Result<Seen, Failure> {
    let wrong = |what: &str| Failure::io(format!("fio's report: {what}"));
    // Warnings may stand before the object.
    let object = report.find('{').map_or("", |at| &report[at..]);
    let report: Report = serde_json::from_str(object).map_err(|error| wrong(&error.to_string()))?;
    let [job] = report.jobs.as_slice() else { return Err(wrong("not one job")) };
    if job.error != 0 {
        return Err(wrong(&format!("the load ended with error {}", job.error)));
    }
    let main = if case.reads > 0 { &job.read } else { &job.write };
    if main.total_ios == 0 {
        return Err(wrong("not one request ended"));
    }
    let percentile = &main.clat_ns.percentile;
    Ok(Seen {
        speed: case.speed(job.read.iops + job.write.iops),
        p50: percentile.p50 / 1000.0,
        p99: percentile.p99 / 1000.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(error: i64, ios: u64) -> String {
        let half = |iops: u64| {
            format!(
                r#"{{"total_ios": {ios}, "iops": {iops}.5, "clat_ns": {{"percentile": {{"50.000000": 2000, "99.000000": 9500}}}}}}"#
            )
        };
        format!(
            "fio: a warning\n{{\"jobs\": [{{\"error\": {error}, \"read\": {}, \"write\": {}}}]}}",
            half(100),
            half(50)
        )
    }

    #[test]
    fn a_report_gives_speed_and_times() {
        let case: Case = "randrw-4k-q8".parse().unwrap();
        let seen = judge(&report(0, 7), &case).unwrap();
        assert_eq!(seen, Seen { speed: 151.0, p50: 2.0, p99: 9.5 });
    }

    #[test]
    fn a_failed_an_empty_and_an_idle_report_are_no_result() {
        let case: Case = "randread-4k-q8".parse().unwrap();
        for text in [report(5, 7), report(0, 0), String::new(), "{}".into(), r#"{"jobs": []}"#.into()] {
            assert!(judge(&text, &case).is_err(), "{text}");
        }
    }
}
