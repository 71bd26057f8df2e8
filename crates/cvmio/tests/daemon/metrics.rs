//! What a daemon tells those who watch it: metrics over HTTP, and signs of tampering in the journal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use crate::common::Desk;
use crate::common::machine::{content, damage_middle, tell_skipped, wait_for};
use crate::common::session::Session;

const BLOCK: usize = 4096;

/// Asks over HTTP; the head and the body of the answer.
fn ask(stream: &mut (impl Read + Write), request: &str) -> (String, String) {
    stream.write_all(format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.into(), body.into())
}

/// A sample's name and labels, as they stand in the page, and its value. Checks the page as `promtool check metrics` would.
fn parse(page: &str) -> BTreeMap<String, f64> {
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    let mut help = "";
    let mut samples = BTreeMap::new();
    let mut family = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, text) = rest.split_once(' ').unwrap();
            assert!(text.ends_with('.') && text.len() > 10, "{line}");
            help = name;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, help, "TYPE without its HELP");
            assert!(types.insert(name, kind).is_none(), "{name} twice");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            family = name;
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = sample.split_once('{').unwrap();
            let known =
                name.chars().all(|c| c.is_ascii_lowercase() || c == '_') && name.starts_with("cvmio_");
            assert!(known, "{line}");
            assert!(name == family || types[family] == "histogram" && name.starts_with(family), "{line}");
            assert!(labels.starts_with("name=\"disk\"") && labels.ends_with("\"}"), "{line}");
            assert!(samples.insert(sample.to_string(), value.parse().unwrap()).is_none(), "{sample} twice");
        }
    }
    assert!(page.ends_with('\n'));
    samples
}

fn value(samples: &BTreeMap<String, f64>, name: &str, labels: &str) -> f64 {
    let sample = format!("cvmio_{name}{{name=\"disk\"{labels}}}");
    *samples.get(&sample).unwrap_or_else(|| panic!("no {sample} in {samples:#?}"))
}

fn scrape(desk: &Desk) -> BTreeMap<String, f64> {
    let mut stream = UnixStream::connect(desk.path("metrics.sock")).unwrap();
    let (head, body) = ask(&mut stream, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    parse(&body)
}

/// A volume with a megabyte, of which one block is damaged.
fn damaged() -> Rc<Desk> {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let before = desk.read("disk.img");
    let session = Session::attach(&desk, false);
    let file = File::options().write(true).open(&session.file).unwrap();
    file.write_all_at(&content(3, 1 << 20), 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    session.detach();
    damage_middle(&desk, &before);
    desk
}

#[test]
fn metrics_are_what_the_volume_did() {
    crate::skip_without_devices!();
    let desk = damaged();
    let session = Session::attach_with(&desk, "--metrics unix:metrics.sock --block-cache 16M");
    assert_eq!(fs::metadata(desk.path("metrics.sock")).unwrap().mode() & 0o777, 0o600);
    let file = File::options().read(true).write(true).open(&session.file).unwrap();
    let first = scrape(&desk);
    assert_eq!(value(&first, "tamper_events_total", ",kind=\"corrupt\""), 0.0);
    assert_eq!(value(&first, "size_bytes", ""), f64::from(16 << 20));
    assert!(value(&first, "store_taken_bytes", "") >= f64::from(16 << 20));
    assert!(value(&first, "store_left_bytes", "") > 0.0);

    file.write_all_at(&content(4, 64 * BLOCK), 2 << 20).unwrap();
    file.sync_all().unwrap();
    let failed =
        (0..256).filter(|block| file.read_exact_at(&mut [0; BLOCK], block * BLOCK as u64).is_err()).count();
    assert!(failed > 0);
    let then = scrape(&desk);
    let grown = |name| value(&then, name, "") - value(&first, name, "");
    assert!(grown("written_bytes_total") >= (64 * BLOCK) as f64, "{then:#?}");
    assert!(grown("read_bytes_total") >= (200 * BLOCK) as f64, "{then:#?}");
    assert!(grown("commits_total") >= 1.0 && grown("flushes_total") >= 1.0, "{then:#?}");
    assert!(grown("failed_requests_total") >= 1.0 && grown("corrupt_blocks_total") >= 1.0, "{then:#?}");
    assert!(value(&then, "tamper_events_total", ",kind=\"corrupt\"") >= 1.0, "{then:#?}");
    assert!(value(&then, "block_cache_bytes", "") >= (64 * BLOCK) as f64, "{then:#?}");
    assert_eq!(value(&then, "failed", ""), 0.0);
    for kind in ["read", "write"] {
        let bucket = |le: &str| {
            value(&then, "request_duration_seconds_bucket", &format!(",kind=\"{kind}\",le=\"{le}\""))
        };
        let count = value(&then, "request_duration_seconds_count", &format!(",kind=\"{kind}\""));
        assert!(count >= 1.0 && bucket("+Inf") == count && bucket("0.0001") <= bucket("0.1"), "{then:#?}");
    }
    assert!(!then.keys().any(|name| name.contains("scrub")), "there was none: {then:#?}");
    let journal = (value(&then, "journal_free_bytes", ""), value(&then, "journal_size_bytes", ""));
    assert!(0.0 < journal.0 && journal.0 < journal.1, "{journal:?}");
    desk.done("volume scrub disk --rate 1G");
    wait_for("the scrub's end", || value(&scrape(&desk), "scrub_running", "") == 0.0);
    let scrubbed = scrape(&desk);
    assert_eq!(value(&scrubbed, "scrub_done", ""), 1.0);
    assert!(value(&scrubbed, "scrub_bytes", "") >= (200 * BLOCK) as f64);
    assert_eq!(value(&scrubbed, "scrub_damaged_blocks", ""), 1.0);
    assert_eq!(value(&scrubbed, "scrub_unreadable_blocks", ""), 0.0);
    let mut stream = UnixStream::connect(desk.path("metrics.sock")).unwrap();
    assert!(ask(&mut stream, "GET /").0.starts_with("HTTP/1.1 404 "));
    drop(file);

    let log = String::from_utf8(desk.read("run/disk/log")).unwrap();
    assert!(log.contains("CVMIO_KIND=corrupt CVMIO_BLOCK=") && log.contains("CVMIO_NAME=disk"), "{log}");
    session.detach();
    assert!(!desk.path("metrics.sock").exists());
}

#[test]
fn metrics_on_a_port_are_for_this_machine_only() {
    crate::skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let refused = desk.run("volume attach disk.img --key-file key --metrics 0.0.0.0:9100");
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(refused.error.contains("not a loopback address"), "{}", refused.error);

    // Whoever opens a port that nobody has told us of has it: so, one that was free a moment ago.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let refused = desk.run(&format!("volume attach disk.img --key-file key --metrics {address}"));
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(refused.error.contains("choose another address"), "{}", refused.error);
    drop(taken);
    let session = Session::attach_with(&desk, &format!("--metrics {address}"));
    let (head, body) = ask(&mut TcpStream::connect(address).unwrap(), "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    parse(&body);

    // Those who say nothing keep nobody else waiting, and are not many.
    let silent: Vec<TcpStream> = (0..7).map(|_| TcpStream::connect(address).unwrap()).collect();
    parse(&ask(&mut TcpStream::connect(address).unwrap(), "GET /metrics").1);
    let more: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let hung_up = more.into_iter().filter_map(|mut stream| stream.read(&mut [0; 64]).ok());
    assert!(hung_up.filter(|read| *read == 0).count() >= 19);
    drop(silent);
    session.detach();
}

/// The fields of an entry as the native protocol of the journal has them; values of several lines do not occur here.
fn fields(datagram: &[u8]) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    let mut rest = datagram;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8(rest[..end].to_vec()).unwrap();
        rest = &rest[end + 1..];
        if let Some((name, value)) = line.split_once('=') {
            found.entry(name.into()).or_default().push(value.into());
            continue;
        }
        let length = usize::try_from(u64::from_le_bytes(rest[..8].try_into().unwrap())).unwrap();
        let value = String::from_utf8(rest[8..8 + length].to_vec()).unwrap();
        found.entry(line).or_default().push(value);
        rest = &rest[8 + length + 1..];
    }
    found
}

/// A journal's socket, where none is; its directory goes with it.
struct Journal(UnixDatagram);

impl Journal {
    const SOCKET: &str = "/run/systemd/journal/socket";

    /// Why there is none, if so.
    fn new() -> Result<Self, &'static str> {
        let directory = Path::new(Self::SOCKET).parent().unwrap();
        // One that works belongs to this machine.
        fs::create_dir_all(directory.parent().unwrap())
            .and_then(|()| fs::create_dir(directory))
            .map_err(|_| "a journal runs here, or its directory cannot be made")?;
        let socket = UnixDatagram::bind(Self::SOCKET).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Ok(Self(socket))
    }

    /// The next entry. One without a byte only asks whether somebody listens.
    fn next(&self) -> BTreeMap<String, Vec<String>> {
        let mut datagram = [0; 1 << 16];
        loop {
            match self.0.recv(&mut datagram).unwrap() {
                0 => {}
                length => return fields(&datagram[..length]),
            }
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(Self::SOCKET).parent().unwrap());
    }
}

#[test]
fn the_journal_hears_of_tampering() {
    crate::skip_without_devices!();
    let journal = match Journal::new() {
        Ok(journal) => journal,
        Err(reason) => return tell_skipped(reason),
    };
    let desk = Rc::new(Desk::new());
    desk.create("");
    let old = desk.read("disk.img");
    let session = Session::attach(&desk, false);
    let file = File::options().write(true).open(&session.file).unwrap();
    file.write_all_at(&content(5, BLOCK), 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    session.detach();
    desk.write("disk.img", &old);
    assert_eq!(under_journal(&desk, "volume attach disk.img --key-file key --foreground"), Some(5));
    let entry = journal.next();
    let one = |name: &str| entry.get(name).map(|values| values.join(",")).unwrap_or_default();
    assert_eq!(one("MESSAGE_ID"), "6d68ac3b75fc44b1992387937ea2538c", "{entry:?}");
    assert_eq!((one("CVMIO_KIND").as_str(), one("CVMIO_NAME").as_str()), ("stale", "disk"));
    assert_eq!((one("PRIORITY").as_str(), one("SYSLOG_IDENTIFIER").as_str()), ("3", "cvmio"));
    assert_eq!(one("CVMIO_VOLUME").len(), 32, "{entry:?}");
    assert!(one("MESSAGE").contains("cannot be attached"), "{entry:?}");
    // What the journal has is not said twice: standard error is the journal, too.
    let said = String::from_utf8(desk.read("errors")).unwrap();
    assert!(!said.contains("CVMIO_KIND"), "{said}");

    // A daemon that serves: the block that somebody could not read.
    let desk = damaged();
    assert_eq!(under_journal(&desk, "volume attach disk.img --key-file key"), Some(0));
    let file = File::open(desk.path("run/disk/disk")).unwrap();
    let failed: Vec<u64> =
        (0..256).filter(|block| file.read_exact_at(&mut [0; BLOCK], block * BLOCK as u64).is_err()).collect();
    drop(file);
    let entry = journal.next();
    desk.done("volume detach disk");
    let one = |name: &str| entry.get(name).cloned().unwrap_or_default();
    assert_eq!(one("MESSAGE_ID"), ["725ec10aba1a4a02ba39b808c358131c"], "{entry:?}");
    assert_eq!(
        (one("CVMIO_KIND").concat().as_str(), one("CVMIO_NAME").concat().as_str()),
        ("corrupt", "disk")
    );
    let named: Vec<u64> = one("CVMIO_BLOCK").iter().map(|block| block.parse().unwrap()).collect();
    assert!(named.first().is_some_and(|block| failed.contains(block)), "{entry:?}, failed {failed:?}");
}

/// Runs a command whose standard error is the journal, as it is for what systemd starts.
fn under_journal(desk: &Desk, arguments: &str) -> Option<i32> {
    let errors = File::create(desk.path("errors")).unwrap();
    let number = errors.metadata().unwrap();
    let mut command = desk.command(arguments);
    command.env("JOURNAL_STREAM", format!("{}:{}", number.dev(), number.ino()));
    command.stdout(Stdio::null()).stderr(Stdio::from(errors)).status().unwrap().code()
}
