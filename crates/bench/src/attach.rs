//! How long a volume takes from the command to its first data, put away cleanly before or killed.

mod client;
mod subject;

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tempfile::TempDir;

use super::report::show;
use cli::failure::Failure;
use cli::interrupt::Interrupt;
use cli::output;
use client::Door;
use subject::{Before, Subject};

/// How long `attach` takes to the first data
///
/// In each turn the command is run as a user runs it, with a key file and the process that serves the volume, and the first 4 KiB are read
/// through the front end. Measured is the time from the start of the command to the data. First of a volume that was detached; then of one
/// whose process was killed right after a flush, with what it had written since its last checkpoint still in the journal.
/// A passphrase takes longer by what it costs to derive its key, some seconds.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: on the disk under /srv
  cvmio bench attach --dir /srv")]
pub struct AttachArgs {
    /// Directory for the files, which are removed; choose it on the disk that is to be measured
    #[arg(long, default_value = ".")]
    dir: std::path::PathBuf,
    /// Logical size of the volume in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
    size: u64,
    /// What is written, in blocks at random, before the process is killed, in MiB; beyond some 64 checkpoints keep the journal short
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    written: u64,
    /// How often each is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// How the volume is shown, separated by commas [default: nbd, and fuse where the kernel has it]
    #[arg(long = "as", value_enum, value_name = "FRONT-END", value_delimiter = ',')]
    front_ends: Vec<Door>,
    /// Print one JSON object for each row instead of the table
    #[arg(long)]
    json: bool,
}

/// One front end after one kind of end.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    front_end: Door,
    after: Before,
    /// Changes that were in the journal only; median of the turns.
    changes: u64,
    unit: &'static str,
    turns: usize,
    median: f64,
    min: f64,
    p95: f64,
    max: f64,
}

impl Row {
    /// From the turns' times and what was in the journal; there is one at least.
    fn new(front_end: Door, after: Before, turns: &[(Duration, u64)]) -> Self {
        let mut times: Vec<f64> = turns.iter().map(|(took, _)| took.as_secs_f64() * 1000.0).collect();
        times.sort_by(f64::total_cmp);
        let mut changes: Vec<u64> = turns.iter().map(|(_, changes)| *changes).collect();
        changes.sort_unstable();
        let at = |percent: usize| times[rank(times.len(), percent)];
        Self {
            front_end,
            after,
            changes: changes[rank(changes.len(), 50)],
            unit: "ms",
            turns: times.len(),
            median: at(50),
            min: at(0),
            p95: at(95),
            max: at(100),
        }
    }

    fn head() -> String {
        format!(
            "{:<9} {:<6} {:>8} {:>5}  {:>9} {:>9} {:>9} {:>9}  unit",
            "front end", "after", "changes", "turns", "median", "min", "p95", "max"
        )
    }

    fn line(&self) -> String {
        format!(
            "{:<9} {:<6} {:>8} {:>5}  {:>9.1} {:>9.1} {:>9.1} {:>9.1}  {}",
            self.front_end.name(),
            self.after.name(),
            output::count(self.changes),
            self.turns,
            self.median,
            self.min,
            self.p95,
            self.max,
            self.unit
        )
    }
}

/// The place of a percentile among so many that are sorted (nearest rank).
fn rank(count: usize, percent: usize) -> usize {
    (count * percent).div_ceil(100).saturating_sub(1)
}

/// The note under the table.
const METHOD: &str = "\
From the start of `cvmio volume attach` with a key file to the first 4 KiB, which were checked. Changes are those that the process had made
durable in the journal only when it was killed; they are replayed.";

/// Runs the benchmark and prints what came out.
///
/// # Errors
/// When a command fails, something reads otherwise than it was written, or a signal asks for the end.
pub fn run(args: &AttachArgs) -> Result<(), Failure> {
    if args.written > args.size {
        return Err(Failure::usage("--written is more than the volume has; give it more with --size"));
    }
    let interrupt = Interrupt::on_signals()?;
    let directory = TempDir::with_prefix_in("cvmio-bench-", &args.dir).map_err(|error| {
        Failure::usage(format!("{}: {error}; choose another with --dir", args.dir.display()))
    })?;
    let subject = Subject::create(directory.path(), args.size, args.written, &interrupt)?;
    if !args.json {
        println!("{}", Row::head());
    }
    for front_end in front_ends(args) {
        for before in [Before::Detach, Before::Crash] {
            let mut turns = Vec::new();
            for _ in 0..args.turns {
                interrupt.check()?;
                turns.push(subject.turn(front_end, before)?);
            }
            let row = Row::new(front_end, before, &turns);
            show(args.json, &row, &row.line())?;
        }
    }
    if !args.json {
        println!("{METHOD}");
    }
    Ok(())
}

fn front_ends(args: &AttachArgs) -> Vec<Door> {
    if !args.front_ends.is_empty() {
        return args.front_ends.clone();
    }
    let all = [Door::Nbd, Door::Fuse];
    all.into_iter()
        .filter(|door| {
            door.missing().is_none_or(|why| {
                output::warning(&format!("without fuse: {why}"));
                false
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_ranks_of_its_turns() {
        let turns: Vec<_> = (1..=20).rev().map(|turn| (Duration::from_millis(turn * 10), turn)).collect();
        let row = Row::new(Door::Nbd, Before::Crash, &turns);
        assert_eq!((row.min, row.median, row.p95, row.max), (10.0, 100.0, 190.0, 200.0));
        assert_eq!((row.turns, row.changes), (20, 10));
        assert!(row.line().contains("crash") && row.line().contains("100.0"), "{}", row.line());
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(
            (&json["front-end"], &json["after"], &json["p95"]),
            (&"nbd".into(), &"crash".into(), &190.0.into())
        );
        let one = Row::new(Door::Fuse, Before::Detach, &turns[..1]);
        assert_eq!((one.min, one.median, one.p95, one.max), (200.0, 200.0, 200.0, 200.0));
    }
}
