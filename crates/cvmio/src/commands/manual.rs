//! `cvmio completions` and `cvmio man`: made from the same grammar as the help.

use std::process::Command;

use clap::CommandFactory;
use daemon::failure::Failure;
use programs::manual;

use crate::cli::Cli;
use crate::cli::manual::{Completions, Manual};
use crate::others;

pub fn completions(args: &Completions) {
    manual::completions(others::listed(Cli::command()), args.shell);
}

/// Writes this program's pages, and has each other program that is installed write its own.
pub fn manual(args: &Manual) -> Result<(), Failure> {
    let directory = &args.directory;
    manual::write(others::listed(Cli::command()), directory, |command| !others::is_one(command))?;
    others::each(|program| {
        let failed =
            |why: String| Failure::io(format!("{} writes no manual pages: {why}", program.display()));
        let ran = Command::new(program).arg("man").arg(directory).output();
        let ran = ran.map_err(|error| failed(error.to_string()))?;
        match ran.status.success() {
            true => Ok(()),
            false => Err(failed(String::from_utf8_lossy(&ran.stderr).trim().into())),
        }
    })
}
