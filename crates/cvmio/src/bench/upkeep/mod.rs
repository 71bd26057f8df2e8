//! A volume's long jobs: how fast they are beside what is possible, and what their users feel of them.

mod job;
mod limit;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use store::BLOCK_SIZE;
use volume::{Error, Kind, Result};

use super::case::Case;
use super::load::histogram;
use super::setup::{Bench, Medium, Side};
use super::{Protections, Run, quiesce};
use job::Job;
use limit::Limit;
use report::{Latency, METHOD, Seen, Speed};

/// The loads whose latency is measured unless others are asked for.
const STANDARD: &[&str] = &["randread-4k-q1", "randwrite-4k-q1"];

/// A scrub and a change of key: their speed, and what users feel of them
///
/// Each job is first measured alone, in turns with its limit: one thread that reads as much from the bare store and opens it and, for a change
/// of key, seals it anew and writes it back. Then a load's latency is measured alone, beside a scrub and beside a change of key, in turns.
/// The jobs are driven as the daemon drives them; the scrub without a rate.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: on the disk under /srv
  cvmio bench upkeep --dir /srv")]
pub struct UpkeepArgs {
    /// Where the blocks lie
    #[arg(long, value_enum, default_value = "file")]
    medium: Medium,
    /// Directory for the files, which are removed; choose it on the disk that is to be measured
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// What users do meanwhile: `randread-4k-q1` and the like, separated by commas
    #[arg(long, value_delimiter = ',', default_values = STANDARD)]
    cases: Vec<Case>,
    /// Logical size in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
    size: u64,
    /// Percent of the logical blocks that hold data
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
    fill: u8,
    /// Time for which a load is measured in each turn
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often everything has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Memory for changes and for the map's cache, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: u64,
    #[command(flatten)]
    protections: Protections,
    /// Print one JSON object for each row instead of the tables
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark and prints what came out.
///
/// # Errors
/// When it cannot be set up, a request or a job fails, or a job ends before the load beside it.
pub fn run(args: &UpkeepArgs) -> Result<()> {
    let time = Duration::try_from_secs_f64(args.seconds)
        .map_err(|error| Error::new(Kind::Usage, format!("--seconds {}: {error}", args.seconds)))?;
    let blocks = (args.size << 20) / BLOCK_SIZE as u64;
    let bench = Bench::new(args.medium, &args.dir, blocks, args.memory << 20, &args.protections)?;
    let filled = (blocks * u64::from(args.fill) / 100).max(1);
    bench.fill(Side::Protected, filled)?;
    let bench = speeds(bench, args, filled)?;
    let mut turns = Turns { bench, args, filled, time };
    if !args.json {
        println!("\n{}", Latency::head());
    }
    for case in &args.cases {
        turns = turns.case(case)?;
    }
    turns.bench.session.end()?;
    if !args.json {
        println!("{METHOD}");
    }
    Ok(())
}

fn show(args: &UpkeepArgs, row: &impl Serialize, line: &str) -> Result<()> {
    if !args.json {
        println!("{line}");
        return Ok(());
    }
    let text = serde_json::to_string(row).map_err(|error| Error::new(Kind::Io, error.to_string()))?;
    println!("{text}");
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mebibytes(blocks: f64) -> f64 {
    blocks * BLOCK_SIZE as f64 / (1 << 20) as f64
}

/// Both jobs alone, in turns with their limits.
fn speeds(mut bench: Bench, args: &UpkeepArgs, filled: u64) -> Result<Bench> {
    let mut limit = Limit::new(bench.raw.clone(), filled, &args.protections)?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let speed = |took: Duration| mebibytes(filled as f64) / took.as_secs_f64();
    let mut turns = Job::ALL.map(|_| Vec::new());
    for _ in 0..args.turns {
        quiesce();
        let read = limit.read()?;
        turns[0].push((speed(read), speed(Job::Scrub.alone(&bench.session.volume)?)));
        let resealed = limit.reseal()?;
        bench = bench.rekeyed()?;
        quiesce();
        turns[1].push((speed(resealed), speed(Job::Rekey.alone(&bench.session.volume)?)));
    }
    if !args.json {
        println!("{}", Speed::head());
    }
    for (job, turns) in Job::ALL.into_iter().zip(turns) {
        let row = Speed::new(job, &turns);
        show(args, &row, &row.line())?;
    }
    Ok(bench)
}

/// What a load's turns need.
struct Turns<'a> {
    bench: Bench,
    args: &'a UpkeepArgs,
    filled: u64,
    time: Duration,
}

impl Turns<'_> {
    /// A load alone, beside a scrub and beside a change of key.
    fn case(mut self, case: &Case) -> Result<Self> {
        let mut turns = Job::ALL.map(|_| Vec::new());
        for turn in 0..self.args.turns {
            let alone = self.load(case, turn)?;
            let scrubbed = self.beside(Job::Scrub, case, turn)?;
            turns[0].push((alone, scrubbed));
            self.bench = self.bench.rekeyed()?;
            turns[1].push((alone, self.beside(Job::Rekey, case, turn)?));
        }
        for (job, turns) in Job::ALL.into_iter().zip(turns) {
            let row = Latency::new(case.to_string(), job, &turns);
            show(self.args, &row, &row.line())?;
        }
        Ok(self)
    }

    fn beside(&self, job: Job, case: &Case, turn: u32) -> Result<Seen> {
        quiesce();
        let (seen, speed) = job.beside(&self.bench.session.volume, || self.load_at_once(case, turn))?;
        Ok(Seen { job: mebibytes(speed), ..seen })
    }

    fn load(&self, case: &Case, turn: u32) -> Result<Seen> {
        quiesce();
        self.load_at_once(case, turn)
    }

    fn load_at_once(&self, case: &Case, turn: u32) -> Result<Seen> {
        let Self { bench, filled, time, .. } = self;
        let mut times = histogram();
        let run = Run { bench, case, side: Side::Protected, threads: 1, filled: *filled, time: *time, turn };
        run.turn(&mut times)?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
        Ok(Seen { p50: at(0.5), p99: at(0.99), job: 0.0 })
    }
}
