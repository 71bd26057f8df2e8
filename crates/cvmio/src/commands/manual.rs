//! `cvmio completions` and `cvmio man`: made from the same grammar as the help.

use std::process::Command;

use clap::CommandFactory;
use cli::failure::Failure;
use cli::manual;
use cli::output;

use crate::cli::Cli;
use crate::cli::manual::{Completions, Manual};
use crate::others;

pub fn completions(args: &Completions) {
    manual::completions(others::spelled_out(Cli::command()), args.shell);
}

/// Writes this program's pages, and has each other program that is installed write its own.
pub fn manual(args: &Manual) -> Result<(), Failure> {
    let directory = &args.directory;
    manual::write(others::listed(Cli::command()), directory, |command| !others::is_one(command))?;
    for program in others::installed() {
        let without =
            |why: &str| output::warning(&format!("{} writes no manual pages: {why}", program.display()));
        match Command::new(&program).arg("man").arg(directory).output() {
            Ok(ran) if ran.status.success() => {}
            Ok(ran) => without(String::from_utf8_lossy(&ran.stderr).trim()),
            Err(error) => without(&error.to_string()),
        }
    }
    Ok(())
}
