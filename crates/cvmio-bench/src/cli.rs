//! What can be typed: the commands of `cvmio` that this program carries out.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Benchmarks and a demonstration of protected volumes.
#[derive(Parser, Debug)]
#[command(name = "cvmio", bin_name = "cvmio", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure what protection costs on this machine
    #[command(subcommand, after_help = "Example:\n  cvmio bench volume --dir /srv --size 4096")]
    Bench(bench::BenchCommand),
    Demo(demo::DemoArgs),
    /// Writes the manual pages of these commands; started by `cvmio man`
    #[command(hide = true)]
    Man {
        directory: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn who_asked_for_json_is_answered_so() {
        let words = ["cvmio-bench", "bench", "upkeep", "--json"].map(Into::into);
        let asked = programs::answer::parse::<Cli>(Cli::command(), &words);
        assert!(asked.map_err(|unclear| unclear.error).unwrap().json);
    }
}
