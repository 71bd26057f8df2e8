//! `cvmio`: protected volumes on storage that need not be trusted, from the command line.

mod cli;
mod commands;
mod others;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use daemon::failure::Failure;
use programs::answer;

use crate::cli::{Cli, Command};

/// The name under which systemd starts this program at boot.
const GENERATOR: &str = "cvmio-generator";

fn main() -> ExitCode {
    daemon::system::keep_to_errors();
    programs::anchors::install();
    let words: Vec<OsString> = std::env::args_os().collect();
    let is_generator =
        words.first().and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == GENERATOR);
    if is_generator {
        return programs::end(commands::service::generate(words.into_iter().skip(1)), false);
    }
    if let Some((other, arguments)) = others::asked(&words) {
        return programs::end(Err(other.start(&arguments)), answer::seems_json(&words));
    }
    programs::run(|| cli::dash::refused(others::listed(Cli::command())), &words, |cli: Cli| run(cli.command))
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
