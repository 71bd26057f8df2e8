//! The command line.
mod bench;

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    bench: bench::BenchArgs,
}

fn main() {
    if let Err(error) = bench::run(&Cli::parse().bench) {
        eprintln!("cvmio: {error}");
        std::process::exit(1);
    }
}
