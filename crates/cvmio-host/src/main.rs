//! `cvmio-host`: serves disks to confidential guests, from the host's side. Also reached as `cvmio host`.

#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod control;
mod failure;
mod journal;
mod metrics;
mod vmm;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::run(arguments::Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
