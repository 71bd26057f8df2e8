//! `cvmio-host`: serves disks to confidential guests, from the host's side. Also reached as `cvmio host`.

#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod commands;
mod control;
mod journal;
mod metrics;
mod vmm;

use std::process::ExitCode;

use arguments::Arguments;
use clap::CommandFactory;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    cli::run(Arguments::command, &words, |arguments: Arguments| commands::run(arguments.command))
}
