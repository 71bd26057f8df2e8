//! Watching volumes.

use std::time::Duration;

use clap::Args;

use super::RuntimeArgs;
use cli::input::{parse_duration, parse_name};

/// Show what attached volumes do right now
///
/// Rates, latencies and hits are those of the last interval. Ends with Ctrl-C, or when the volume is put away.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: one look, and a line of JSON each ten seconds for an hour
  cvmio volume top --once
  cvmio volume top ledger --json --interval 10s --count 360")]
pub struct Top {
    /// The attached volume's name, as in `cvmio volume list`; without it, all of them
    #[arg(value_parser = parse_name)]
    pub name: Option<String>,
    /// Time between two looks
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub interval: Duration,
    /// End after so many intervals
    #[arg(long, value_name = "COUNT", conflicts_with = "once", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The same as --count 1
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// Print one line of JSON for each volume and interval
    #[arg(long)]
    pub json: bool,
}
