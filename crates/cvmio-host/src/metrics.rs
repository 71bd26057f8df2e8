//! Counters for Prometheus, in its text format (version 0.0.4), over HTTP.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cli::failure::Failure;
use host::{Server, Status};

/// How long one who asks may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a request that are read.
const LARGEST: u64 = 8192;

/// Answers one after the other, for as long as the server lives.
pub struct Metrics(SocketAddr);

impl Metrics {
    pub fn start(address: SocketAddr, server: &Arc<Server>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::io(format!("{address}: no metrics: {error}"));
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let server = Arc::downgrade(server);
        let answer = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if server.strong_count() == 0 {
                    return;
                }
                // One who does not listen any more needs no answer.
                let _ = attend(stream, &server);
            }
        };
        thread::Builder::new().name("metrics".into()).spawn(answer).map_err(failed)?;
        Ok(Self(address))
    }

    pub fn address(&self) -> SocketAddr {
        self.0
    }
}

fn attend(mut stream: TcpStream, server: &Weak<Server>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?.take(LARGEST));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut header = String::new();
    // The rest is read, or the answer would be lost with the connection.
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let Some(server) = server.upgrade() else { return Ok(()) };
    let (code, body) = match line.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["GET", "/metrics"] => ("200 OK", text(&server.status())),
        ["GET", _] => ("404 Not Found", "only /metrics is here\n".into()),
        _ => ("405 Method Not Allowed", "only GET\n".into()),
    };
    let kind = "text/plain; version=0.0.4";
    write!(
        stream,
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn text(disks: &[Status]) -> String {
    let mut text = String::new();
    let mut family = |name: &str, about: &str, kind: &str, value: &dyn Fn(&Status) -> u64| {
        let _ = writeln!(text, "# HELP cvmio_host_{name} {about}\n# TYPE cvmio_host_{name} {kind}");
        for disk in disks {
            let label = disk
                .socket
                .display()
                .to_string()
                .replace('\\', r"\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = writeln!(text, "cvmio_host_{name}{{socket=\"{label}\"}} {}", value(disk));
        }
    };
    family("connected", "Whether a VMM is connected.", "gauge", &|disk| disk.connected.into());
    family("queues", "Queues that are served now.", "gauge", &|disk| disk.queues.into());
    family("ended", "Whether the service has ended over a breach.", "gauge", &|disk| {
        disk.ended.is_some().into()
    });
    family("failed", "Whether a flush has failed.", "gauge", &|disk| disk.failed.into());
    let names = disks.first().map(|disk| disk.counters.all()).unwrap_or_default();
    for (index, (name, about, _)) in names.into_iter().enumerate() {
        family(&format!("{name}_total"), about, "counter", &|disk| disk.counters.all()[index].2);
    }
    text
}
