//! The desk with a log that fails, and a catalogue that is broken in part. What it does with a program around it: `cvmio-owner/tests/it/release`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use attest::Hex;
use attest::simulated::{Issuer, Launch, Root};
use kbs::{CompositeEvidence, PublicKey, RuntimeData, to_wire};
use rustls::pki_types::CertificateDer;
use seal::jwe::KeyPair;
use serde_json::Value;

use super::*;

struct Bed {
    directory: tempfile::TempDir,
    desk: Desk,
    root: Root,
    log_works: Arc<AtomicBool>,
}

const POLICY: &str = "version = 1\n[simulated]\nmeasurements = ['";

fn write(directory: &Path, name: &str, content: &[u8]) {
    fs::write(directory.join(name), content).unwrap();
    fs::set_permissions(directory.join(name), fs::Permissions::from_mode(0o600)).unwrap();
}

impl Bed {
    fn new() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let row = |name: &str| {
            format!(
                "[[release]]\nname = '{name}'\nresource = 'a/key/{name}'\nevidence-policy = '{name}.toml'\nkey = 'key'\n"
            )
        };
        write(
            directory.path(),
            "releases.toml",
            format!("version = 1\n{}{}", row("one"), row("two")).as_bytes(),
        );
        for name in ["one.toml", "two.toml"] {
            write(directory.path(), name, format!("{POLICY}{}']\n", Hex([2; 48])).as_bytes());
        }
        write(directory.path(), "key", &[7; 32]);
        let root = Root::generate().unwrap();
        let log_works = Arc::new(AtomicBool::new(true));
        let works = Arc::clone(&log_works);
        let desk = Desk {
            catalogue: directory.path().join("releases.toml"),
            cache: None,
            roots: Roots::builtin().with_simulated(root.key().unwrap()),
            allow_simulated: true,
            sessions: Mutex::new(Sessions::new(Duration::from_secs(60))),
            mac: MacKey::generate(&SystemRandom),
            record: Box::new(move |_| works.load(Ordering::Relaxed)),
            report: Arc::new(|_| {}),
        };
        Bed { directory, desk, root, log_works }
    }

    fn ask(&self, method: &str, path: &str, cookie: &str, body: String) -> Reply {
        let fields = vec![("cookie".into(), format!("{COOKIE}={cookie}"))];
        let path = format!("{PREFIX}{path}");
        let request = Incoming { method: method.into(), path, fields, body: body.into_bytes(), keeps: true };
        self.desk.answer(&request, TlsKey::of(&CertificateDer::from(vec![1])))
    }

    /// A guest's session, once its evidence was accepted.
    fn attested(&self) -> Result<String, String> {
        let request = json!({ "version": VERSION, "tee": "cvmio-simulated", "extra-params": "" });
        let challenge = self.ask("POST", "/auth", "", request.to_string());
        let body: Value = serde_json::from_str(&challenge.body).unwrap();
        let runtime_data = RuntimeData {
            nonce: body["nonce"].as_str().unwrap().into(),
            tee_pubkey: PublicKey::new(&KeyPair::generate().public()),
        };
        let (measurement, zeros) = (Hex([2; 48]), Hex([0; 32]));
        let launch = Launch { measurement, host_data: zeros, machine_id: zeros, tcb: 0, is_debug: false };
        let issuer = Issuer::read(&self.root.launch(&launch).unwrap()).unwrap();
        let evidence = issuer.evidence(report_data(&runtime_data, "", Hash::Sha384)).unwrap();
        let tee_evidence = CompositeEvidence {
            primary_evidence: to_wire(&evidence).unwrap().1,
            additional_evidence: String::new(),
        };
        let attestation = Attestation { init_data: None, runtime_data, tee_evidence };
        let session = challenge.session.unwrap();
        let said = self.ask("POST", "/attest", &session, serde_json::to_string(&attestation).unwrap());
        if said.status == 200 { Ok(session) } else { Err(said.body) }
    }
}

#[test]
fn nothing_is_released_that_the_log_does_not_have() {
    let bed = Bed::new();
    let session = bed.attested().unwrap();
    let resource = || bed.ask("GET", "/resource/a/key/one", &session, String::new());
    assert!(resource().body.contains("ciphertext"));
    bed.log_works.store(false, Ordering::Relaxed);
    let said = resource();
    assert!(said.status == 503 && !said.body.contains("ciphertext"), "{said:?}");
}

#[test]
fn a_policy_that_is_broken_closes_its_own_release_and_no_other() {
    let bed = Bed::new();
    write(bed.directory.path(), "one.toml", b"version = 1");
    let session = bed.attested().unwrap();
    assert_eq!(bed.ask("GET", "/resource/a/key/one", &session, String::new()).status, 503);
    assert_eq!(bed.ask("GET", "/resource/a/key/two", &session, String::new()).status, 200);
    write(bed.directory.path(), "two.toml", b"");
    assert!(bed.attested().unwrap_err().contains("nothing is released here"));
}
