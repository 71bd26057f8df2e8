//! A client that shares no code with ours.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use attest::{Evidence, Hex};
use base64ct::{Base64, Encoding};

use super::broker::{Broker, KERNEL};

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
    let there = Command::new("python3").args(["-c", "import cryptography"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!("\nSKIPPED a client from the document: python3 has no module cryptography");
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
