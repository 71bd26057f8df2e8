//! `cvmio-scm`: encrypted regions of storage-class memory, from the command line. `cvmio scm` starts it.

mod arguments;
mod commands;
mod control;
mod failure;
mod fuse;
mod progress;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Create(args) => commands::create(&args),
        Command::Serve(args) => commands::serve(&args),
        Command::Status(args) => commands::status(&args),
        Command::Recover(args) => commands::recover(&args),
        Command::Check(args) => commands::check(&args),
        Command::Accept(args) => commands::accept(&args),
        Command::QemuArgs(args) => commands::qemu_args(&args),
        Command::Grammar => commands::grammar(),
        Command::Man { directory } => commands::man(&directory),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
