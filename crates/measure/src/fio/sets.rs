//! The built-in job sets.

use std::str::FromStr;

use report::run::Metric;

/// Job sets that this program brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Set {
    /// The thesis' table 5.2: bandwidth 128K depth 128; IOPS 4K depth 32 with 4 jobs; latency 4K depth 1
    CvmIo,
    /// The in-memory paper's section 5.1: 4 jobs, depth 16, 4K to 1M, read, write and both
    InMemory,
    /// The SCM paper's section 7: records of 1K to 64K, one job, depth 1, sequential and random
    Scm,
    /// Rollbaccine's: 4K writes at depth 1, 1 to 32 jobs, with and without fsync after each
    Rollbaccine,
    /// MlsDisk's kind of load: 128K sequential and 4K random, depth 1, with a flush each 1024 writes
    Mlsdisk,
}

/// One fio job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The case's name.
    pub name: String,
    /// What it is about.
    pub metric: Metric,
    /// fio's options, without the target's and the time's.
    pub options: Vec<String>,
}

fn job(name: impl Into<String>, metric: Metric, options: &str) -> Job {
    Job {
        name: name.into(),
        metric,
        options: options.split(' ').map(|option| format!("--{option}")).collect(),
    }
}

impl Set {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::CvmIo => "cvm-io",
            Self::InMemory => "in-memory",
            Self::Scm => "scm",
            Self::Rollbaccine => "rollbaccine",
            Self::Mlsdisk => "mlsdisk",
        }
    }

    /// Its jobs.
    pub fn jobs(self) -> Vec<Job> {
        match self {
            Self::CvmIo => cvm_io(),
            Self::InMemory => in_memory(),
            Self::Scm => scm(),
            Self::Rollbaccine => rollbaccine(),
            Self::Mlsdisk => mlsdisk(),
        }
    }
}

/// Source: thesis, table 5.2 (the AMD report's table 2 is the same). The table calls `mixwrite` a randwrite of 30 %; its text, a mix with
/// 30 % reads.
fn cvm_io() -> Vec<Job> {
    use Metric::{Bandwidth, Iops, Latency};
    let bandwidth = |kind: &str| {
        job(format!("bandwidth-{kind}"), Bandwidth, &format!("rw={kind} bs=128k iodepth=128 numjobs=1"))
    };
    let iops = |name: &str, kind: &str| {
        job(format!("iops-{name}"), Iops, &format!("rw={kind} bs=4k iodepth=32 numjobs=4"))
    };
    let latency =
        |kind: &str| job(format!("latency-{kind}"), Latency, &format!("rw={kind} bs=4k iodepth=1 numjobs=1"));
    vec![
        bandwidth("read"),
        bandwidth("write"),
        iops("randread", "randread"),
        iops("mixread", "randrw rwmixread=70"),
        iops("mixwrite", "randrw rwmixread=30"),
        iops("randwrite", "randwrite"),
        latency("randread"),
        latency("randwrite"),
        latency("read"),
        latency("write"),
    ]
}

/// Source: in-memory paper, section 5.1.
fn in_memory() -> Vec<Job> {
    let mut jobs = Vec::new();
    for size in ["4k", "16k", "64k", "1m"] {
        for (name, kind) in [("read", "read"), ("write", "write"), ("readwrite", "rw")] {
            let options = format!("rw={kind} bs={size} iodepth=16 numjobs=4");
            jobs.push(job(format!("in-memory-{name}-{size}"), Metric::Bandwidth, &options));
        }
    }
    jobs
}

/// Source: SCM paper, section 7, figure 8.
fn scm() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (name, kind) in
        [("read", "read"), ("write", "write"), ("randread", "randread"), ("randwrite", "randwrite")]
    {
        for size in ["1k", "4k", "16k", "64k"] {
            let options = format!("rw={kind} bs={size} iodepth=1 numjobs=1");
            jobs.push(job(format!("scm-{name}-{size}"), Metric::Bandwidth, &options));
        }
    }
    jobs
}

fn rollbaccine() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (name, fsync) in [("write", ""), ("fsync", " fsync=1")] {
        for count in [1, 2, 4, 8, 16, 32] {
            let options = format!("rw=randwrite bs=4k iodepth=1 numjobs={count}{fsync}");
            jobs.push(job(format!("rollbaccine-{name}-{count}"), Metric::Iops, &options));
        }
    }
    jobs
}

fn mlsdisk() -> Vec<Job> {
    let of = |name: &str, options: &str| job(format!("mlsdisk-{name}"), Metric::Bandwidth, options);
    vec![
        of("read-128k", "rw=read bs=128k iodepth=1 numjobs=1"),
        of("write-128k", "rw=write bs=128k iodepth=1 numjobs=1 fsync=1024"),
        of("randread-4k", "rw=randread bs=4k iodepth=1 numjobs=1"),
        of("randwrite-4k", "rw=randwrite bs=4k iodepth=1 numjobs=1 fsync=1024"),
    ]
}

/// Values that one of a job's numbers goes through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    number: String,
    values: Vec<String>,
}

/// The numbers that can be swept.
const SWEPT: [&str; 3] = ["iodepth", "numjobs", "bs"];

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: a sweep is iodepth=1,4,16, numjobs=1,2,4 or bs=4k,64k");
        let (number, values) = text.split_once('=').ok_or_else(wrong)?;
        if !SWEPT.contains(&number) {
            return Err(wrong());
        }
        let is_number = |value: &str| {
            let digits = value.strip_suffix(['k', 'm']).filter(|_| number == "bs").unwrap_or(value);
            digits.parse::<u32>().is_ok_and(|value| value > 0)
        };
        let values: Vec<String> = values.split(',').map(String::from).collect();
        if values.iter().all(|value| is_number(value)) {
            Ok(Self { number: number.into(), values })
        } else {
            Err(wrong())
        }
    }
}

impl Sweep {
    /// A job with each of the values, by which it is named.
    pub fn of(&self, job: &Job) -> Vec<Job> {
        let own = format!("--{}=", self.number);
        let with = |value: &String| {
            let mut options: Vec<String> =
                job.options.iter().filter(|option| !option.starts_with(&own)).cloned().collect();
            options.push(format!("{own}{value}"));
            Job { name: format!("{}-{}-{value}", job.name, self.number), options, ..job.clone() }
        };
        self.values.iter().map(with).collect()
    }
}

/// A job of depth 1 as an open loop: requests begin at a fixed rate, at random moments, whether or not earlier ones have ended, so that a
/// target that stalls does not slow down what measures it. Up to 64 may be under way; a target that needs more is too slow for the rate.
pub fn open_loop(job: &Job, rate: u32) -> Option<Job> {
    if job.metric != Metric::Latency {
        return None;
    }
    let mut options: Vec<String> =
        job.options.iter().filter(|option| !option.starts_with("--iodepth=")).cloned().collect();
    options.push("--iodepth=64".into());
    options.push("--rate_process=poisson".into());
    options.push(format!("--rate_iops={rate}"));
    Some(Job { name: format!("{}-open-{rate}", job.name), metric: Metric::Latency, options })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn the_thesis_table_is_there() {
        let jobs = Set::CvmIo.jobs();
        assert_eq!(jobs.len(), 10);
        let find = |name: &str| jobs.iter().find(|job| job.name == name).unwrap().options.join(" ");
        assert_eq!(find("bandwidth-write"), "--rw=write --bs=128k --iodepth=128 --numjobs=1");
        assert_eq!(find("iops-mixwrite"), "--rw=randrw --rwmixread=30 --bs=4k --iodepth=32 --numjobs=4");
        assert_eq!(find("latency-randread"), "--rw=randread --bs=4k --iodepth=1 --numjobs=1");
    }

    #[test]
    fn names_are_unique_and_the_papers_numbers_find_their_cases() {
        let mut names: Vec<String> =
            Set::value_variants().iter().flat_map(|set| set.jobs()).map(|job| job.name).collect();
        for claim in report::papers::claims() {
            let ours = ["bandwidth-", "iops-", "latency-", "in-memory-", "scm-"];
            if ours.iter().any(|prefix| claim.case.starts_with(prefix)) {
                assert!(names.contains(&claim.case), "{}", claim.case);
            }
        }
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn a_sweep_is_a_job_for_each_value() {
        let jobs = Set::CvmIo.jobs();
        let sweep: Sweep = "iodepth=1,16".parse().unwrap();
        let swept = sweep.of(&jobs[0]);
        assert_eq!(swept[1].name, "bandwidth-read-iodepth-16");
        assert_eq!(swept[1].options, ["--rw=read", "--bs=128k", "--numjobs=1", "--iodepth=16"]);
        for bad in ["depth=1", "iodepth", "iodepth=1k", "bs=4k,", "bs=0", "numjobs=1;2", "rw=read"] {
            assert!(bad.parse::<Sweep>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_latency_has_an_open_loop() {
        let jobs = Set::CvmIo.jobs();
        let open: Vec<Job> = jobs.iter().filter_map(|job| open_loop(job, 500)).collect();
        assert_eq!(open.len(), 4);
        assert!(open[0].options.contains(&"--rate_iops=500".to_string()));
        assert_eq!(open[0].options.iter().filter(|option| option.starts_with("--iodepth")).count(), 1);
    }
}
