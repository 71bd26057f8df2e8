//! What is done to each target.

use clap::ValueEnum;
use report::run::{Case, Metric};

use super::ScmArgs;
use super::stage::{ASLEEP, AWAKE, MEMORY, NAIVE, is_file, is_mapped};

/// How fio touches memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// By loads and stores in a mapping.
    Mmap,
    /// By pread(2) and pwrite(2).
    Psync,
}

impl Engine {
    /// As fio names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mmap => "mmap",
            Self::Psync => "psync",
        }
    }
}

/// Which part of a region is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hot {
    /// An eighth: half of what may be open.
    Inside,
    /// All of it: four times what may be open.
    Outside,
    /// All of it once, from the beginning, while every page is still encrypted; all of it may be open.
    First,
}

/// One thing that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// By fio.
    Fio {
        /// How it touches memory.
        engine: Engine,
        /// As fio names it.
        kind: &'static str,
        /// Bytes of a record.
        record: u64,
        /// Threads.
        threads: u32,
        /// Which part of a region.
        hot: Hot,
    },
    /// Touches, one at a time, of pages that are encrypted.
    Faults {
        /// Whether they are in order.
        in_order: bool,
    },
}

const KINDS: [&str; 4] = ["read", "randread", "write", "randwrite"];

/// All that the arguments ask for.
pub fn all(args: &ScmArgs) -> Vec<Load> {
    let mut loads = vec![Load::Faults { in_order: false }, Load::Faults { in_order: true }];
    for record in [4, 64] {
        let (kind, record, threads) = ("read", record << 10, 1);
        loads.push(Load::Fio { engine: Engine::Mmap, kind, record, threads, hot: Hot::First });
    }
    for hot in [Hot::Inside, Hot::Outside] {
        for engine in args.engines.iter().copied() {
            for kind in KINDS {
                for threads in args.threads.iter().copied() {
                    let load = |record: &u64| Load::Fio { engine, kind, record: record << 10, threads, hot };
                    loads.extend(args.records.iter().map(load));
                }
            }
        }
    }
    loads
}

impl Load {
    /// Its name in the run. The report takes the papers' numbers by its first word.
    pub fn name(&self) -> String {
        match self {
            Self::Fio { engine, kind, record, threads, hot } => {
                let hot = match hot {
                    Hot::Inside => "inside",
                    Hot::Outside => "outside",
                    Hot::First => "first",
                };
                format!("scm-{kind}-{}k-{}-{hot}-t{threads}", record >> 10, engine.name())
            }
            Self::Faults { in_order } => {
                format!("scm-fault-{}", if *in_order { "sequential" } else { "random" })
            }
        }
    }

    /// Whether a target has a turn at it.
    pub fn is_for(&self, target: &str) -> bool {
        match self {
            Self::Faults { .. } => target == ASLEEP || target == AWAKE || is_mapped(target),
            Self::Fio { engine, hot, threads, .. } if target == NAIVE => {
                *engine == Engine::Mmap && *hot == Hot::Inside && *threads == 1
            }
            Self::Fio { engine: Engine::Mmap, .. } => {
                target == MEMORY || is_file(target) || is_mapped(target)
            }
            Self::Fio { engine: Engine::Psync, .. } => target == MEMORY || is_file(target),
        }
    }

    /// As the run file has it.
    pub fn case(&self, args: &ScmArgs) -> Case {
        let command = match self {
            Self::Fio { .. } => {
                format!("fio --filename=TARGET {}", self.options(args.size, args.seconds).join(" "))
            }
            Self::Faults { in_order } => {
                let order = if *in_order { " --in-order" } else { "" };
                format!("cvmio-bench bench scm-probe faults --file TARGET{order}")
            }
        };
        let metric = match self {
            Self::Fio { .. } => Metric::Bandwidth,
            Self::Faults { .. } => Metric::Latency,
        };
        Case { name: self.name(), metric, aged: false, command }
    }

    /// fio's options, but for the target's.
    pub fn options(&self, size: u64, seconds: f64) -> Vec<String> {
        let Self::Fio { engine, kind, record, threads, hot } = self else { return Vec::new() };
        let mut options = vec![
            format!("--ioengine={}", engine.name()),
            format!("--rw={kind}"),
            format!("--bs={record}"),
            format!("--size={}", if *hot == Hot::Inside { size / 8 } else { size }),
            "--thread=1".into(),
            "--group_reporting=1".into(),
            "--lat_percentiles=1".into(),
            "--norandommap=1".into(),
            "--randrepeat=0".into(),
            "--allow_file_create=0".into(),
            "--invalidate=0".into(),
        ];
        if *hot != Hot::First {
            // fio takes whole numbers.
            let time = |name: &str| format!("--{name}={}ms", (seconds * 1000.0).ceil());
            options.extend(["--time_based=1".into(), time("runtime"), time("ramp_time")]);
        }
        options.extend(["--name=load".into(), format!("--numjobs={threads}")]);
        options
    }
}
