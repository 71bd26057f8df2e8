//! A volume behind its NBD server against other servers on the same disk, with fio as everybody's client.

mod contestant;
mod fio;

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tempfile::TempDir;

use super::Scale;
use super::case::Case;
use super::report::{count, interval, show};
use contestant::{Contestant, Server};
use daemon::failure::Failure;
use daemon::input::parse_size;
use daemon::interrupt::Interrupt;
use fio::Seen;

/// The peers that are measured unless others are asked for.
const PEERS: &[&str] = &["nbdkit-file", "nbdkit-luks", "qemu-raw", "qemu-luks"];
/// The loads that are run unless others are asked for.
const STANDARD: &[&str] = &["seqread-128k-q16", "seqwrite-128k-q16", "randread-4k-q32", "randwrite-4k-q32"];

/// A volume's NBD server against others, on the same disk
///
/// Each serves as much on a unix socket, is written once from beginning to end, and is then driven by fio's NBD client, all in turns. Cases
/// leave their traces: what was written at random lies on the disk at random.
/// Needs fio, nbdkit and qemu-nbd with qemu-img, as far as they are measured.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: against encryption without integrity, on the disk under /srv
  cvmio bench nbd --dir /srv --peers nbdkit-luks,qemu-luks")]
pub struct NbdArgs {
    /// Who takes turns with the volume, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = PEERS)]
    peers: Vec<Contestant>,
    #[command(flatten)]
    scale: Scale,
    /// What to run: `randread-4k-q32` and the like, separated by commas
    #[arg(long, value_delimiter = ',', default_values = STANDARD)]
    cases: Vec<Case>,
    /// Let the volume go through the page cache, as nbdkit does
    #[arg(long)]
    buffered: bool,
    /// Give the volume a cache for blocks, in memory, of so many bytes (`attach --block-cache`)
    #[arg(long, value_name = "MEMORY", value_parser = parse_size)]
    block_cache: Option<u64>,
    /// Print one JSON object for each case and peer instead of the table
    #[arg(long)]
    json: bool,
}

/// The volume and one peer at one case.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    case: String,
    unit: &'static str,
    peer: Contestant,
    /// Means of the turns.
    peer_speed: f64,
    cvmio_speed: f64,
    /// Geometric mean of cvmio : peer over the turns, and its 95 % confidence interval.
    ratio: f64,
    ratio_low: f64,
    ratio_high: f64,
    turns: usize,
    peer_p50: f64,
    peer_p99: f64,
    cvmio_p50: f64,
    cvmio_p99: f64,
}

impl Row {
    /// From the turns of the peer and of the volume, in the order in which they were taken.
    fn new(case: &Case, peer: Contestant, theirs: &[Seen], ours: &[Seen]) -> Self {
        let mean =
            |turns: &[Seen], of: fn(&Seen) -> f64| turns.iter().map(of).sum::<f64>() / count(turns.len());
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our.speed / their.speed).collect();
        let (ratio, ratio_low, ratio_high) = interval(&ratios);
        Self {
            case: case.to_string(),
            unit: case.unit(),
            peer,
            peer_speed: mean(theirs, |seen| seen.speed),
            cvmio_speed: mean(ours, |seen| seen.speed),
            ratio,
            ratio_low,
            ratio_high,
            turns: ratios.len(),
            peer_p50: mean(theirs, |seen| seen.p50),
            peer_p99: mean(theirs, |seen| seen.p99),
            cvmio_p50: mean(ours, |seen| seen.p50),
            cvmio_p99: mean(ours, |seen| seen.p99),
        }
    }

    fn head() -> String {
        format!(
            "{:<19} {:<12} {:>9} {:>9} {:<5}  {:>6} {:<15}  {:>15} {:>15}",
            "case", "peer", "peer", "cvmio", "unit", "ratio", "95 % interval", "us p50/p99 peer", "cvmio"
        )
    }

    fn line(&self) -> String {
        format!(
            "{:<19} {:<12} {:>9.0} {:>9.0} {:<5}  {:>6.3} {:<15}  {:>15} {:>15}",
            self.case,
            self.peer,
            self.peer_speed,
            self.cvmio_speed,
            self.unit,
            self.ratio,
            format!("{:.3} .. {:.3}", self.ratio_low, self.ratio_high),
            format!("{:.0}/{:.0}", self.peer_p50, self.peer_p99),
            format!("{:.0}/{:.0}", self.cvmio_p50, self.cvmio_p99),
        )
    }
}

/// The note under the table.
const METHOD: &str = "\
All are driven by fio's NBD client on a unix socket, in turns and at the same depth. The ratio is the geometric mean of cvmio : peer over
the turns, with the t interval of its logarithm. What goes through the page cache reads from memory what fits there, and a write of it has
not reached the disk: that is nbdkit, and cvmio with --buffered. qemu-nbd, and cvmio without, use direct I/O; with --block-cache, cvmio reads
from memory what fits there.";

/// Runs the benchmark and prints what came out.
///
/// # Errors
/// When a program is missing, a server or fio fails, or a signal asks for the end.
pub fn run(args: &NbdArgs) -> Result<(), Failure> {
    let time = args.scale.time()?;
    let interrupt = Interrupt::new()?;
    let directory = TempDir::with_prefix_in("cvmio-bench-", &args.scale.dir).map_err(|error| {
        Failure::usage(format!("{}: {error}; choose another with --dir", args.scale.dir.display()))
    })?;
    let place = directory
        .path()
        .canonicalize()
        .map_err(|error| Failure::io(format!("{}: {error}", args.scale.dir.display())))?;
    let mut servers = Vec::new();
    for contestant in std::iter::once(Contestant::Cvmio).chain(args.peers.iter().copied()) {
        let server = Server::start(contestant, &place, args, &interrupt)?;
        fio::fill(&server.uri(), args.scale.size, &interrupt)?;
        servers.push(server);
    }
    if !args.json {
        println!("{}", Row::head());
    }
    for case in &args.cases {
        for row in measure(&servers, args, case, time, &interrupt)? {
            show(args.json, &row, &row.line())?;
        }
    }
    if !args.json {
        println!("{METHOD}");
    }
    Ok(())
}

/// A row for each peer; the first of the servers is the volume's.
fn measure(
    servers: &[Server],
    args: &NbdArgs,
    case: &Case,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Vec<Row>, Failure> {
    let mut seen: Vec<Vec<Seen>> = vec![Vec::new(); servers.len()];
    for _ in 0..args.scale.turns {
        for (server, seen) in servers.iter().zip(&mut seen) {
            seen.push(fio::turn(&server.uri(), args.scale.size, case, time, interrupt)?);
        }
    }
    let (ours, theirs) = seen.split_first().ok_or_else(|| Failure::internal("nobody takes part"))?;
    let peers = servers.iter().skip(1).zip(theirs);
    Ok(peers.map(|(server, theirs)| Row::new(case, server.contestant, theirs, ours)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_pairs_the_turns_of_both() {
        let seen = |speed| Seen { speed, p50: speed / 10.0, p99: speed };
        let case: Case = "randread-4k-q32".parse().unwrap();
        let row = Row::new(&case, Contestant::QemuLuks, &[seen(10.0), seen(30.0)], &[seen(20.0), seen(60.0)]);
        assert!((row.ratio - 2.0).abs() < 1e-9 && (row.ratio_low - 2.0).abs() < 1e-9, "{row:?}");
        assert_eq!((row.peer_speed, row.cvmio_speed, row.turns), (20.0, 40.0, 2));
        assert!(row.line().contains("qemu-luks") && row.line().contains("2.000 .. 2.000"), "{}", row.line());
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((&json["peer"], &json["cvmio-p99"]), (&"qemu-luks".into(), &40.0.into()));
    }
}
