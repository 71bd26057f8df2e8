//! `simulator run --seeds 0..2000` runs many seeds; `simulator replay --seed V:N` tells one, in words.
#![forbid(unsafe_code)]

#[cfg(feature = "mutations")]
mod hunts;

use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use simulator::{Coverage, Report};

/// The volume under crash and attack, by seed.
#[derive(Parser)]
enum Command {
    /// Run many seeds; a failing one is named, with the command that replays it.
    Run {
        /// First seed, and the one after the last: `0..2000`.
        #[arg(long, value_parser = seeds)]
        seeds: Range<u64>,
        /// Requests of each run.
        #[arg(long, default_value_t = 200)]
        ops: u64,
        /// Runs at a time.
        #[arg(long, default_value_t = 2)]
        jobs: u64,
    },
    /// Run one seed and tell what happens, step by step.
    Replay {
        /// The seed as it was reported, with its version (`v10:1234`), or a bare number.
        #[arg(long, value_parser = simulator::untag)]
        seed: u64,
        /// Requests of the run.
        #[arg(long, default_value_t = 200)]
        ops: u64,
    },
    /// Break one rule of the volume after the other, and see that each is noticed.
    #[cfg(feature = "mutations")]
    Mutants {
        /// Only the one of this name.
        #[arg(long)]
        only: Option<String>,
        /// Most seeds for each, from 0.
        #[arg(long, default_value_t = 100_000)]
        seeds: u64,
        /// Mutants at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (first, end) = text.split_once("..").ok_or("two numbers with `..` between them")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    Ok(number(first)?..number(end)?)
}

/// Between two signs of life of a long run, in seeds.
const PROGRESS: u64 = 10_000;
/// Between two looks at the runs.
const NAP: Duration = Duration::from_millis(20);
/// A run that is seen more often than this hangs inside one step. Counted in looks, not by the clock: a process that was stopped meanwhile, or
/// a machine that slept, is no hang.
const PATIENCE: u32 = 3000;

fn main() -> ExitCode {
    match Command::parse() {
        Command::Run { seeds, ops, jobs } => run_many(seeds, ops, jobs),
        #[cfg(feature = "mutations")]
        Command::Mutants { only, seeds, jobs } => hunts::all(only.as_deref(), seeds, jobs),
        Command::Replay { seed, ops } => {
            // That nobody reads on (`| head`, a pager) is no defect.
            let say = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
            let report = simulator::run(seed, ops, Some(Box::new(say)));
            say(&format!("trace hash {:016x}", report.hash));
            if report.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
    }
}

#[derive(Default)]
struct Tally {
    runs: u64,
    coverage: Coverage,
    failures: Vec<u64>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the front end: it measures itself, and nothing of it reaches a run"
)]
fn run_many(seeds: Range<u64>, ops: u64, jobs: u64) -> ExitCode {
    let begin = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let tally = Mutex::new(Tally::default());
    // A panic is reported with its seed, below.
    std::panic::set_hook(Box::new(|_| {}));
    let working: Vec<Mutex<Option<u64>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
    let mut seen = vec![(None, 0); working.len()];
    std::thread::scope(|scope| {
        for slot in &working {
            let (next, tally, seeds) = (&next, &tally, &seeds);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        break;
                    }
                    *slot.lock().expect("no poison") = Some(seed);
                    let report = simulator::run_caught(seed, ops);
                    *slot.lock().expect("no poison") = None;
                    account(&mut tally.lock().expect("no poison"), seed, ops, &report);
                }
            });
        }
        while next.load(Ordering::SeqCst) < seeds.end
            || working.iter().any(|slot| slot.lock().expect("no poison").is_some())
        {
            std::thread::sleep(NAP);
            for (slot, (before, looks)) in working.iter().zip(&mut seen) {
                let now = *slot.lock().expect("no poison");
                *looks = if now == *before { *looks + 1 } else { 0 };
                *before = now;
                if let Some(seed) = now.filter(|_| *looks > PATIENCE) {
                    println!("seed {seed}: hangs inside one step\n{}", command(seed, ops));
                    std::process::exit(1);
                }
            }
        }
    });
    let tally = tally.into_inner().expect("no poison");
    summarize(&tally, begin.elapsed())
}

fn command(seed: u64, ops: u64) -> String {
    let more = if ops == 200 { String::new() } else { format!(" --ops {ops}") };
    format!("    cargo run --release -p simulator -- replay --seed {}{more}", simulator::tag(seed))
}

fn account(tally: &mut Tally, seed: u64, ops: u64, report: &Report) {
    tally.runs += 1;
    tally.coverage += report.coverage;
    if tally.runs.is_multiple_of(PROGRESS) {
        eprintln!("{} seeds, {} failed; seed {seed} has ended", tally.runs, tally.failures.len());
    }
    if let Some(failure) = &report.failure {
        tally.failures.push(seed);
        println!("seed {seed}: {failure}\n{}", command(seed, ops));
    }
}

fn summarize(tally: &Tally, elapsed: Duration) -> ExitCode {
    let seconds = elapsed.as_secs_f64().max(0.001);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = tally.runs as f64 * 60.0 / seconds;
    println!("{} seeds in {seconds:.1} s, {rate:.0} a minute; {} failed", tally.runs, tally.failures.len());
    println!("{}", tally.coverage);
    if tally.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_is_printed_replays_that_run() {
        for operations in [200, 50] {
            let printed = command(1234, operations);
            let words = printed.split_whitespace().skip_while(|word| *word != "--").skip(1);
            let parsed = Command::try_parse_from(std::iter::once("simulator").chain(words));
            let same = matches!(parsed, Ok(Command::Replay { seed: 1234, ops }) if ops == operations);
            assert!(same, "{printed}");
        }
    }
}
