//! `cvmio`: protected volumes on storage that need not be trusted, from the command line.

mod cli;
mod commands;
mod others;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use ::cli::answer;
use ::cli::failure::Failure;
use clap::CommandFactory;

use crate::cli::{Cli, Command};

/// The name under which systemd starts this program at boot.
const GENERATOR: &str = "cvmio-generator";

fn main() -> ExitCode {
    daemon::system::keep_to_errors();
    anchors::install();
    let words: Vec<OsString> = std::env::args_os().collect();
    let is_generator =
        words.first().and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == GENERATOR);
    if is_generator {
        return ::cli::end(commands::service::generate(words.into_iter().skip(1)), false);
    }
    if let Some((other, arguments)) = others::asked(&words) {
        return ::cli::end(Err(other.start(&arguments)), answer::seems_json(&words));
    }
    ::cli::run(
        || crate::cli::dash::refused(others::listed(Cli::command())),
        &words,
        |cli: Cli| run(cli.command),
    )
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Volume(volume) => commands::volume(*volume),
        Command::Anchor(command) => commands::anchor::run(&command),
        Command::Completions(args) => {
            commands::manual::completions(&args);
            Ok(())
        }
        Command::Man(args) => commands::manual::manual(&args),
    }
}
