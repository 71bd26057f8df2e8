//! `cvmio-owner`: the service that keeps stamps for volumes, from the command line. Also reached as `cvmio owner`.

mod cli;
mod commands;
mod failure;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    // An anchor of the service's own may be of any kind but its own: a service that stands on a service gains nothing.
    let mut schemes = anchor::Schemes::new();
    schemes.register(anchor_etcd::scheme());
    schemes.register(anchor_tpm::scheme());
    anchor::install(schemes);
    owner::end_when_damaged(|error| std::process::exit(tell(&error.to_string(), 4).into()));
    let cli = cli::Cli::parse();
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(tell(&failure.to_string(), failure.code())),
    }
}

/// Says what went wrong. A reader that has gone away is no failure of its own.
fn tell(what: &str, code: u8) -> u8 {
    let _ = writeln!(std::io::stderr(), "cvmio-owner: {what}");
    code
}
