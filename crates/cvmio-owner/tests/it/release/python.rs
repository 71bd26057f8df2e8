//! A client and a broker that share no code with ours.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use attest::{Evidence, Hex};
use base64ct::{Base64, Encoding};
use http1::Endpoint;
use kbs::{Error, Resource, Session, Tee};

use super::broker::{Broker, KERNEL, PATIENCE, tls};
use crate::room::Room;

/// What the client got for a guest, or what it said.
fn released(broker: &Broker, way: &str, kernel: &[u8]) -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/release/client.py");
    let mut child = Command::new("python3")
        .arg(script)
        .arg(broker.endpoint().port.to_string())
        .arg(broker.room.path("state/tls/authority.pem"))
        .args(["default/key/plain", way])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let digits = lines.next().and_then(Result::ok);
    if let Some(digits) = digits {
        let evidence = broker.guest(kernel).evidence(Hex::parse(&digits).unwrap());
        let Evidence::Simulated { report } = evidence else { panic!("not simulated") };
        writeln!(child.stdin.take().unwrap(), "{}", Base64::encode_string(&report)).unwrap();
    }
    let last = lines.next().and_then(Result::ok);
    let output = child.wait_with_output().unwrap();
    match last {
        Some(last) if output.status.success() => Ok(last),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn a_client_that_was_written_from_the_document_gets_what_is_its_own() {
    if !has_python("a client from the document") {
        return;
    }
    let broker = Broker::new();
    for way in ["cookie", "token"] {
        assert_eq!(released(&broker, way, b"another kernel").as_deref(), Ok("08".repeat(32).as_str()));
    }
    let error = released(&broker, "cookie", KERNEL).unwrap_err();
    assert!(error.contains("401") && error.contains("PolicyDeny"), "{error}");
    let error = released(&broker, "cookie", b"a third kernel").unwrap_err();
    assert!(error.contains("401") && error.contains("measurement"), "{error}");
}

fn has_python(test: &str) -> bool {
    let there = Command::new("python3").args(["-c", "import cryptography"]).output();
    let is_there = there.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("\nSKIPPED {test}: python3 has no module cryptography");
    }
    is_there
}

/// A broker in Python, which behaves in one way.
struct Foreign<'a> {
    room: &'a Room,
    child: Child,
    port: u16,
}

impl<'a> Foreign<'a> {
    fn new(room: &'a Room, way: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/release/broker.py");
        let files = ["state/tls/server.pem", "state/tls/server.key"].map(|name| room.path(name));
        let mut command = Command::new("python3");
        command.arg(script).args(files).arg(way).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { room, child, port: line.trim().parse().unwrap() }
    }

    /// What our client gets, with a report that says what it has to; no chip has signed it, and this broker does not look.
    fn released(&self) -> Result<Vec<u8>, Error> {
        let endpoint = Endpoint { tls: true, host: "127.0.0.1".into(), port: self.port };
        let mut session = Session::begin(&endpoint, tls(self.room), Tee::Snp, PATIENCE)?;
        let mut report = vec![0; attest::snp::REPORT_SIZE];
        report[0] = 5;
        report[0x50..0x90].copy_from_slice(&session.report_data().0);
        session.attest(&Evidence::Snp { report, certificates: vec![vec![0x30, 0]] })?;
        Ok(session.resource(&Resource::parse("default/key/1").unwrap())?.expose().to_vec())
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn our_client_gets_its_secret_from_a_broker_that_was_written_from_the_document() {
    if !has_python("a broker from the document") {
        return;
    }
    let room = Room::new();
    for way in ["good", "sha256", "sha512"] {
        assert_eq!(Foreign::new(&room, way).released().unwrap(), b"the released secret", "{way}");
    }
    let refusals = [
        ("version", "Version Mismatch"),
        ("proxy", "HTTP 502"),
        ("no-cookie", "no cookie of a session"),
        ("sm3", "\"sm3\""),
        ("policy", "verify TEE evidence failed[31m"),
        ("no-token", "token"),
        ("other-key", "was not encrypted for this guest's key"),
        ("changed", "was changed on the way"),
        ("plain", "protected"),
    ];
    for (way, words) in refusals {
        let error = Foreign::new(&room, way).released().unwrap_err().to_string();
        assert!(error.contains(words), "{way}: {error}");
    }
}
