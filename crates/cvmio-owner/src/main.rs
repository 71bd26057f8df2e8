//! `cvmio-owner`: the service that keeps stamps for volumes, from the command line. Also reached as `cvmio owner`.

mod cli;
mod commands;
mod failure;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // An anchor of the service's own may be of any kind but its own: a service that stands on a service gains nothing.
    let mut schemes = anchor::Schemes::new();
    schemes.register(anchor_etcd::scheme());
    schemes.register(anchor_tpm::scheme());
    anchor::install(schemes);
    let cli = cli::Cli::parse();
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("cvmio-owner: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
