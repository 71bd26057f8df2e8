//! `cvmio`: protected volumes on storage that nobody trusts, from the command line.

mod bench;
mod cli;
mod commands;
mod daemon;
mod demo;
mod failure;
mod input;
mod output;
mod runtime;
mod system;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&failure);
            ExitCode::from(failure.code())
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Volume(volume) => commands::volume(*volume),
        Command::Bench(command) => Ok(bench::run(&command)?),
        Command::Demo(args) => demo::run(&args),
    }
}
