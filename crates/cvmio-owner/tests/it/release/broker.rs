//! The program with releases, and guests of a simulated platform.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use attest::simulated::{Issuer, Launch, Root, measure};
use attest::{Evidence, Hex, ReportData};
use http1::{Connection, Endpoint, Outgoing};
use kbs::{Address, COOKIE, PublicKey, Resource, RuntimeData, Session, Tee, report_data, to_wire};
use rustls::ClientConfig;
use seal::jwe::KeyPair;
use serde_json::{Value, json};

use crate::room::Room;

pub const KERNEL: &[u8] = b"a kernel";
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A guest, as its launcher made it.
pub struct Guest(Issuer);

impl Guest {
    pub fn measurement(kernel: &[u8]) -> Hex<48> {
        measure(&[("kernel", kernel)])
    }

    pub fn evidence(&self, report_data: ReportData) -> Evidence {
        self.0.evidence(report_data).unwrap()
    }
}

pub struct Broker {
    pub room: Room,
    pub root: Root,
    child: Option<(Child, JoinHandle<()>)>,
    said: Arc<Mutex<String>>,
    port: u16,
}

/// The catalogue of the tests: a volume with all that belongs to it, and a plain key for another guest.
pub fn catalogue() -> String {
    let files = "'guest/ca.pem', 'guest/client.pem', 'guest/client.key'";
    format!(
        "version = 1\n\n[[release]]\nname = 'ledger'\nresource = 'default/volume/ledger'\n\
         evidence-policy = 'evidence.toml'\nkey = 'ledger.key'\nattach-policy = 'attach.toml'\nfiles = [{files}]\n\n\
         [[release]]\nname = 'plain'\nresource = 'default/key/plain'\nevidence-policy = 'other.toml'\nkey = 'plain.key'\n"
    )
}

pub fn policy(kernel: &[u8], tcb: u64) -> String {
    format!(
        "version = 1\n[simulated]\nmeasurements = ['{}']\nminimum-tcb = {tcb}\n",
        Guest::measurement(kernel)
    )
}

impl Broker {
    /// With the catalogue of the tests.
    pub fn new() -> Broker {
        Broker::with(&[], |_| {})
    }

    /// With more options of the program, and whatever else is done before it starts.
    pub fn with(more: &[&str], prepare: impl FnOnce(&Broker)) -> Broker {
        let room = Room::new().with_ledger_at_rest();
        let root = Root::generate().unwrap();
        let mut broker = Broker { room, root, child: None, said: Arc::default(), port: 0 };
        broker.write("releases.toml", catalogue().as_bytes());
        broker.write("evidence.toml", policy(KERNEL, 2).as_bytes());
        broker.write("other.toml", policy(b"another kernel", 2).as_bytes());
        broker.write("ledger.key", &[7; 64]);
        broker.write("plain.key", &[8; 32]);
        broker.write("attach.toml", b"an attach policy");
        prepare(&broker);
        let root = broker.root.key().unwrap().to_string();
        let more: Vec<&str> = if more.contains(&"--no-simulated") {
            more.iter().copied().filter(|word| *word != "--no-simulated").collect()
        } else {
            [more, &["--allow-simulated", &root]].concat()
        };
        broker.start(&more);
        broker
    }

    fn start(&mut self, more: &[&str]) {
        let mut command = self.room.command("state", "serve");
        command.args(["--listen", "127.0.0.1:0", "--release-listen", "0.0.0.0:0", "--releases"]);
        command.arg(self.room.path("releases.toml")).args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut errors, said) = (child.stderr.take().unwrap(), Arc::clone(&self.said));
        let collect = move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = errors.read(&mut bytes) {
                said.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        };
        let collect = std::thread::spawn(collect);
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.starts_with("releasing")));
        let line = line.unwrap_or_else(|| panic!("the service did not start: {}", self.said()));
        self.port = line.rsplit_once(':').unwrap().1.parse().unwrap();
        drop(lines);
        self.child = Some((child, collect));
    }

    /// Everything that the program has written on standard error so far.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has written this: it writes before it answers, and we read beside that.
    pub fn tells(&self, words: &str) {
        let begun = Instant::now();
        while !self.said().contains(words) {
            assert!(begun.elapsed() < PATIENCE, "{words}: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn write(&self, name: &str, content: &[u8]) {
        let path = self.room.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn launch(kernel: &[u8]) -> Launch {
        let measurement = Guest::measurement(kernel);
        Launch { measurement, host_data: Hex([0; 32]), machine_id: Hex([3; 32]), tcb: 2, is_debug: false }
    }

    pub fn guest(&self, kernel: &[u8]) -> Guest {
        Broker::guest_of(&self.root, &Broker::launch(kernel))
    }

    pub fn guest_of(root: &Root, launch: &Launch) -> Guest {
        Guest(Issuer::read(&root.launch(launch).unwrap()).unwrap())
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint { tls: true, host: "127.0.0.1".into(), port: self.port }
    }

    pub fn resource(&self, name: &str) -> Resource {
        Address::parse(&format!("kbs+{}/{name}", self.endpoint())).unwrap().resource
    }

    /// A client's side of TLS that trusts the authority of this service alone.
    pub fn tls(&self) -> Arc<ClientConfig> {
        tls(&self.room)
    }

    pub fn session(&self) -> Result<Session, kbs::Error> {
        Session::begin(&self.endpoint(), self.tls(), Tee::CvmioSimulated, PATIENCE)
    }

    /// A session in which this guest's evidence was accepted.
    pub fn attested(&self, guest: &Guest) -> Session {
        let mut session = self.session().unwrap();
        session.attest(&guest.evidence(session.report_data())).unwrap();
        session
    }

    /// A client that sends what a good one never sends.
    pub fn raw(&self) -> Raw {
        let connection = Connection::open(&self.endpoint(), Some(self.tls()), PATIENCE).unwrap();
        Raw {
            connection,
            pair: KeyPair::generate(),
            cookie: String::new(),
            nonce: String::new(),
            token: String::new(),
        }
    }

    pub fn log(&self) -> String {
        self.room.done("audit show", &[])
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some((mut child, collect)) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = collect.join();
        }
    }
}

pub fn tls(room: &Room) -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(tls_files::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(tls_files::authorities(&room.path("state/tls/authority.pem")).unwrap())
        .with_no_client_auth();
    Arc::new(config)
}

/// The protocol by hand, as its document has it.
pub struct Raw {
    connection: Connection,
    pub pair: KeyPair,
    pub cookie: String,
    pub nonce: String,
    pub token: String,
}

impl Raw {
    pub fn send(&mut self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> (u16, Value) {
        let cookie = format!("{COOKIE}={}", self.cookie);
        let mut fields = fields.to_vec();
        if !self.cookie.is_empty() {
            fields.push(("Cookie", &cookie));
        }
        let request = Outgoing { method, path, fields: &fields, body, most: 1 << 20 };
        let response = self.connection.ask(&request, PATIENCE).unwrap();
        if let Some(cookie) = response.field("set-cookie") {
            let value = cookie.strip_prefix("kbs-session-id=").unwrap();
            self.cookie = value.split(';').next().unwrap().to_string();
        }
        (response.status, serde_json::from_slice(&response.body).unwrap_or(Value::Null))
    }

    pub fn challenged(&mut self) {
        let request = json!({ "version": "0.4.0", "tee": "cvmio-simulated", "extra-params": {} });
        let (status, challenge) = self.send("POST", "/kbs/v0/auth", &[], &request.to_string());
        assert_eq!(status, 200, "{challenge}");
        self.nonce = challenge["nonce"].as_str().unwrap().to_string();
    }

    pub fn runtime_data(&self) -> RuntimeData {
        RuntimeData { nonce: self.nonce.clone(), tee_pubkey: PublicKey::new(&self.pair.public()) }
    }

    /// Report data of this session, without additional evidence.
    pub fn report_data(&self) -> ReportData {
        report_data(&self.runtime_data(), "", kbs::Hash::Sha384)
    }

    /// Sends evidence with this additional evidence beside it.
    pub fn attest(&mut self, evidence: &Evidence, additional: &str) -> (u16, Value) {
        let body = json!({
            "runtime-data": self.runtime_data(),
            "tee-evidence": { "primary_evidence": to_wire(evidence).unwrap().1, "additional_evidence": additional },
        });
        self.send("POST", "/kbs/v0/attest", &[], &body.to_string())
    }

    pub fn attested(&mut self, guest: &Guest) {
        self.challenged();
        let (status, said) = self.attest(&guest.evidence(self.report_data()), "");
        assert_eq!(status, 200, "{said}");
        self.token = said["token"].as_str().unwrap().to_string();
    }

    /// The status, and the answer as text.
    pub fn get(&mut self, resource: &str, fields: &[(&str, &str)]) -> (u16, String) {
        let (status, said) = self.send("GET", &format!("/kbs/v0/resource/{resource}"), fields, "");
        (status, said.to_string())
    }
}
