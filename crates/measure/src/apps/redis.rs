//! Redis with its append-only file on the target, by its own benchmark.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;

use super::script::{Script, program};
use super::{Sizes, command};
use crate::error::{Error, Result};
use crate::ledger::Place;
use crate::program::{Server, output};
use crate::session::Measured;

/// SET or GET. Source: AMD report, section 4.
pub fn benchmark(place: &super::Place<'_>, what: &str) -> Result<Measured> {
    // Not on the target: a socket's address has at most 107 bytes.
    let private = Place::temporary("cvmio-bench-redis-")?;
    let socket = private.path().join("redis");
    let mut server = command("redis-server");
    server.args(["--port", "0", "--save", "", "--appendonly", "yes", "--unixsocket"]).arg(&socket);
    server.arg("--dir").arg(place.directory);
    let mut server = Server::start(&mut server)?;
    server.wait_until(place.interrupt, || UnixStream::connect(&socket).is_ok())?;
    let mut benchmark = command("redis-benchmark");
    benchmark.arg("-s").arg(&socket).args(["-t", what, "-r", "100000", "--csv", "-n"]);
    benchmark.arg(place.sizes.requests.to_string());
    let said = output(&mut benchmark, place.interrupt)?;
    server.check()?;
    drop(server);
    figures(&said)
}

/// [`benchmark`] in a guest.
pub fn script(what: &str, sizes: &Sizes) -> Script {
    let (server, benchmark) = (program("redis-server"), program("redis-benchmark"));
    let before = format!(
        "{server} --port 0 --save '' --appendonly yes --unixsocket /run/redis --dir $d >/run/redis.log 2>&1 &\n\
         server=$!\n\
         trap 'kill $server; wait $server || true' EXIT\n\
         for glance in $(seq 1000); do\n\
         if [ -S /run/redis ]; then break; fi\n\
         kill -0 $server || {{ cat /run/redis.log >&2; exit 1; }}\n\
         sleep 0.02\n\
         done\n"
    );
    let requests = sizes.requests;
    let timed = format!("{benchmark} -s /run/redis -t {what} -r 100000 --csv -n {requests}\n");
    Script { before, timed }
}

/// Reads the benchmark's table: a head, and a line for its one test.
pub fn figures(csv: &str) -> Result<Measured> {
    let wrong = || Error::io(format!("redis-benchmark says nothing that can be read: {}", csv.trim()));
    let mut lines = csv
        .lines()
        .filter(|line| line.starts_with('"'))
        .map(|line| line.split(',').map(|cell| cell.trim_matches('"').to_string()).collect::<Vec<String>>());
    let (head, line) = (lines.next().ok_or_else(wrong)?, lines.next().ok_or_else(wrong)?);
    let pairs =
        head.into_iter().zip(line).filter_map(|(name, value)| Some((name, value.parse::<f64>().ok()?)));
    let figures: BTreeMap<String, f64> = pairs.collect();
    let value = *figures.get("rps").ok_or_else(wrong)?;
    Ok(Measured { value, figures, course: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let said = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"90909.09\",\"0.291\"\n";
        let measured = figures(said).unwrap();
        assert!((measured.value - 90909.09).abs() < 1e-9 && measured.figures.contains_key("avg_latency_ms"));
        assert!(figures("Could not connect").is_err() && figures("\"test\"\n\"SET\"\n").is_err());
    }
}
