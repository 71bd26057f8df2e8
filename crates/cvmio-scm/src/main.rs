//! `cvmio-scm`: encrypted regions of storage-class memory, from the command line. `cvmio scm` starts it.

mod arguments;
mod commands;
mod control;
mod fuse;
mod progress;

use std::process::ExitCode;

use clap::CommandFactory;
use cli::failure::Failure;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    cli::run(Arguments::command, &words, |arguments: Arguments| run(arguments.command))
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Create(args) => commands::create(&args),
        Command::Serve(args) => commands::serve(&args),
        Command::Status(args) => commands::status(&args),
        Command::Recover(args) => commands::recover(&args),
        Command::Check(args) => commands::check(&args),
        Command::Accept(args) => commands::accept(&args),
        Command::QemuArgs(args) => commands::qemu_args(&args),
        Command::Grammar => commands::grammar(),
        Command::Man { directory } => commands::man(&directory),
    }
}
