//! `cvmio-owner`: the service that keeps stamps for volumes, from the command line. Also reached as `cvmio owner`.

mod cli;
mod commands;

use clap::CommandFactory;
use std::process::ExitCode;

fn main() -> ExitCode {
    // An anchor of the service's own may be of any kind but its own: a service that stands on a service gains nothing.
    let mut schemes = anchor::Schemes::new();
    schemes.register(anchor_etcd::scheme());
    schemes.register(anchor_tpm::scheme());
    anchor::install(schemes);
    let words: Vec<_> = std::env::args_os().collect();
    ::cli::run(cli::Cli::command, &words, |cli: cli::Cli| commands::run(cli.command))
}
