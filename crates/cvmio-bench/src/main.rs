//! `cvmio-bench`: what `cvmio bench` and `cvmio demo` start. A program of its own, so that the one that holds keys has no more than it needs.

mod cli;

use std::process::ExitCode;

use ::cli::failure::Failure;
use ::cli::grammar::Grammar;
use ::cli::{manual, output};
use clap::CommandFactory;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    anchors::install();
    let words: Vec<_> = std::env::args_os().collect();
    ::cli::run(Cli::command, &words, run)
}

fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Bench(command) => bench::run(&command),
        Command::Demo(args) => demo::run(&args),
        Command::Grammar => output::print_json(&Grammar::of(&Cli::command())),
        Command::Man { directory } => {
            let root = Cli::command().get_name().to_string();
            manual::write(Cli::command(), &directory, |command| command.get_name() != root)
        }
    }
}
