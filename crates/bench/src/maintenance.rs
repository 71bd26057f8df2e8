//! A volume's long jobs: how fast they are beside what is possible, and what their users feel of them.

mod job;
mod limit;
mod report;

use std::time::Duration;

use clap::Args;
use cli::output;
use store::BLOCK_SIZE;
use volume::Result;

use super::case::Case;
use super::gate::Gate;
use super::load::histogram;
use super::report::show;
use super::setup::{Contestants, Setup, Side};
use super::{Run, quiesce};
use job::Job;
use limit::Limit;
use report::{Latency, METHOD, Seen, Speed};

/// The loads whose latency is measured unless others are asked for.
const STANDARD: &[&str] = &["randread-4k-q1", "randwrite-4k-q1"];

/// A scrub and a change of key: their speed, and what users feel of them
///
/// Each job is first measured alone, in turns with its limit: one thread that reads as much from the bare store and opens it and, for a change
/// of key, seals it anew and writes it back. Then a load's latency is measured alone, beside a scrub and beside a change of key, in turns.
/// The jobs are driven as the daemon drives them; the scrub without a rate. A change of key that ends before --seconds are over ends the
/// turn of the load beside it: to measure that for longer, give it more to do with --size.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: on the disk under /srv
  cvmio bench upkeep --dir /srv")]
pub struct MaintenanceArgs {
    #[command(flatten)]
    setup: Setup,
    /// What users do meanwhile: `randread-4k-q1` and the like, separated by commas
    #[arg(long, value_delimiter = ',', default_values = STANDARD)]
    cases: Vec<Case>,
    /// Print one JSON object for each row instead of the tables
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark and prints what came out.
///
/// # Errors
/// When it cannot be set up, or a request or a job fails.
pub fn run(args: &MaintenanceArgs) -> Result<()> {
    let time = args.setup.scale.time()?;
    measure::ledger::clear();
    let bench = Contestants::new(&args.setup)?;
    bench.fill(Side::Protected)?;
    let bench = speeds(bench, args)?;
    let mut turns = Turns { bench, args, time };
    if !args.json {
        output::print(&format!("\n{}", Latency::head()));
    }
    for case in &args.cases {
        turns = turns.case(case)?;
    }
    turns.bench.session.end()?;
    if !args.json {
        output::print(METHOD);
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mebibytes(blocks: f64) -> f64 {
    blocks * BLOCK_SIZE as f64 / (1 << 20) as f64
}

/// Both jobs alone, in turns with their limits.
fn speeds(mut bench: Contestants, args: &MaintenanceArgs) -> Result<Contestants> {
    let filled = bench.filled;
    let mut limit = Limit::new(bench.raw.clone(), filled, &args.setup.protections)?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let speed = |took: Duration| mebibytes(filled as f64) / took.as_secs_f64();
    let mut turns = Job::ALL.map(|_| Vec::new());
    for _ in 0..args.setup.scale.turns {
        quiesce();
        let read = limit.read()?;
        turns[0].push((speed(read), speed(Job::Scrub.alone(&bench.session.volume)?)));
        let resealed = limit.reseal()?;
        bench = bench.rekeyed()?;
        quiesce();
        turns[1].push((speed(resealed), speed(Job::Rekey.alone(&bench.session.volume)?)));
    }
    if !args.json {
        output::print(&Speed::head());
    }
    for (job, turns) in Job::ALL.into_iter().zip(turns) {
        let row = Speed::new(job, &turns);
        show(args.json, &row, &row.line())?;
    }
    Ok(bench)
}

/// What a load's turns need.
struct Turns<'a> {
    bench: Contestants,
    args: &'a MaintenanceArgs,
    time: Duration,
}

impl Turns<'_> {
    /// A load alone, beside a scrub and beside a change of key.
    fn case(mut self, case: &Case) -> Result<Self> {
        let mut turns = Job::ALL.map(|_| Vec::new());
        for turn in 0..self.args.setup.scale.turns {
            let alone = self.load(case, turn)?;
            let scrubbed = self.beside(Job::Scrub, case, turn)?;
            turns[0].push((alone, scrubbed));
            self.bench = self.bench.rekeyed()?;
            turns[1].push((alone, self.beside(Job::Rekey, case, turn)?));
        }
        for (job, turns) in Job::ALL.into_iter().zip(turns) {
            let row = Latency::new(case.to_string(), job, &turns);
            show(self.args.json, &row, &row.line())?;
        }
        Ok(self)
    }

    fn beside(&self, job: Job, case: &Case, turn: u32) -> Result<Seen> {
        quiesce();
        let gate = Gate::default();
        let load = || self.load_at_once(case, turn, &gate);
        let (seen, speed) = job.beside(&self.bench.session.volume, &gate, load)?;
        Ok(Seen { job: mebibytes(speed), ..seen })
    }

    fn load(&self, case: &Case, turn: u32) -> Result<Seen> {
        quiesce();
        self.load_at_once(case, turn, &Gate::default())
    }

    fn load_at_once(&self, case: &Case, turn: u32, gate: &Gate) -> Result<Seen> {
        let Self { bench, time, .. } = self;
        let mut times = histogram();
        let run = Run { bench, case, side: Side::Protected, threads: 1, time: *time, turn };
        run.turn(gate, &mut times)?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
        Ok(Seen { p50: at(0.5), p99: at(0.99), job: 0.0 })
    }
}
