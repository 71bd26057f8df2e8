//! `cvmio`: protected volumes on storage that nobody trusts, from the command line.

mod bench;
mod cli;
mod commands;
mod daemon;
mod demo;
mod failure;
mod input;
mod interrupt;
mod output;
mod runtime;
mod service;
mod session;
mod system;
#[cfg(test)]
mod testing;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

/// The name under which systemd starts this program at boot.
const GENERATOR: &str = "cvmio-generator";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let done = match Path::new(&name).file_name().is_some_and(|name| name == GENERATOR) {
        true => commands::service::generate(arguments),
        false => run(Cli::parse().command),
    };
    match done {
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
        Command::Bench(command) => bench::run(&command),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => commands::manual::completions(&args),
        Command::Man(args) => commands::manual::manual(&args),
    }
}
