//! `cvmio-job`: jobs and the images of their guests, from the command line. `cvmio run`, `cvmio job` and `cvmio image` start it.

#![forbid(unsafe_code)]

mod arguments;
mod build;
mod guest;
mod jobs;
mod run;
mod trust;

use std::cell::Cell;
use std::process::ExitCode;

use clap::CommandFactory;
use cli::failure::Failure;
use cli::grammar::Grammar;
use cli::{manual, output};

use arguments::{Arguments, Command, Image};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let of_container = Cell::new(0);
    let ended = cli::run(Arguments::command, &words, |arguments: Arguments| {
        of_container.set(run(arguments.command)?);
        Ok(())
    });
    // A job that was carried out has the container's exit code.
    match of_container.get() {
        0 => ended,
        code => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
    }
}

/// Does what was asked for. What is returned is a container's exit code, if one ran.
fn run(command: Command) -> Result<i32, Failure> {
    match command {
        Command::Run(args) => return run::run(&args),
        Command::Job(command) => return jobs::run(command),
        Command::Image(Image::Build(args)) => build::build(&args)?,
        Command::Image(Image::Policy(args)) => build::policy(&args)?,
        Command::Guest(command) => guest::run(&command)?,
        Command::Grammar => output::print_json(&Grammar::of(&Arguments::command()))?,
        Command::Man { directory } => {
            let root = Arguments::command().get_name().to_string();
            manual::write(Arguments::command(), &directory, |command| command.get_name() != root)?;
        }
    }
    Ok(0)
}
