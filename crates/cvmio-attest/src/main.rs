//! `cvmio-attest`: evidence of confidential VMs, from the command line. `cvmio attest` starts it.
#![forbid(unsafe_code)]

mod arguments;
mod commands;

use std::process::ExitCode;

use clap::CommandFactory;
use cli::failure::Failure;

use arguments::{Arguments, Command, Simulate};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    cli::run(Arguments::command, &words, |arguments: Arguments| run(arguments.command))
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Report(args) => commands::report(&args),
        Command::Verify(args) => commands::verify(&args),
        Command::Measure(args) => commands::measure(&args),
        Command::Fetch(args) => commands::fetch(&args),
        Command::Doctor(args) => commands::doctor(&args),
        Command::Simulate(Simulate::Root { key }) => commands::simulate_root(&key),
        Command::Simulate(Simulate::Launch(args)) => commands::simulate_launch(&args),
        Command::Grammar => commands::grammar(),
        Command::Man { directory } => cli::manual::write(Arguments::command(), &directory, |_| true),
    }
}
