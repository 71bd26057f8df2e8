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
mod sign;
mod system;
#[cfg(test)]
mod testing;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use crate::cli::Command;
use crate::cli::answer::{self, Asked, Unclear};
use crate::failure::Failure;

/// The name under which systemd starts this program at boot.
const GENERATOR: &str = "cvmio-generator";

fn main() -> ExitCode {
    system::keep_to_errors();
    let words: Vec<OsString> = std::env::args_os().collect();
    let is_generator =
        words.first().and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == GENERATOR);
    if is_generator {
        return end(commands::service::generate(words.into_iter().skip(1)), false);
    }
    match answer::parse(&words) {
        Ok(Asked { command, json }) => end(run(command), json),
        Err(Unclear { error, json }) => {
            // That nobody reads it is no failure of its own.
            let _ = error.print();
            json.iter().for_each(output::json_error);
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX))
        }
    }
}

fn end(done: Result<(), Failure>, json: bool) -> ExitCode {
    let done = done.and_then(|()| output::unprinted().map_or(Ok(()), Err));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&failure);
            if json && !failure.is_told() {
                output::json_error(&failure);
            }
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
