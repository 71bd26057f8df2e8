//! A volume whose stamp an owner's service keeps (`owner:`), from its creation to a rollback that is caught.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::common::Desk;
use super::common::machine::{has, has_ended, quietly, tell_skipped, wait_for};
use ::owner::{Authority, Files, Limits, Office, Service, Setup, fingerprint};
use serde_json::Value;

/// An owner's service in this process, with one volume and its client.
pub struct Owner<'a> {
    desk: &'a Desk,
    service: Option<Service>,
    address: SocketAddr,
}

impl<'a> Owner<'a> {
    pub fn new(desk: &'a Desk) -> Self {
        let state = desk.path("owner");
        ::owner::make(&state, None).unwrap();
        let authority = Authority::make(&state.join(::owner::TLS), &["127.0.0.1".into()]).unwrap();
        let made = authority.make_client("ledger", &desk.path("client")).unwrap();
        let mut office = Office::open(&state, || Ok(None), Arc::new(|_| {})).unwrap();
        let clients = vec![fingerprint(&made.certificate).unwrap()];
        office.order(::owner::Command::Add { name: "ledger".into(), clients }).unwrap();
        drop(office);
        let mut owner = Self { desk, service: None, address: "127.0.0.1:0".parse().unwrap() };
        owner.start();
        owner
    }

    fn start(&mut self) {
        let (state, tls) = (self.desk.path("owner"), self.desk.path("owner").join(::owner::TLS));
        let service = Service::start(Setup {
            directory: state,
            listen: self.address,
            tls: Files {
                certificate: tls.join("server.pem"),
                key: tls.join("server.key"),
                clients: tls.join("authority.pem"),
            },
            own: None,
            limits: Limits::default(),
            report: Arc::new(|_| {}),
        })
        .unwrap();
        self.address = service.address();
        self.service = Some(service);
    }

    pub fn stop(&mut self) {
        self.service.take().unwrap().stop().unwrap();
    }

    /// What a volume is created with.
    pub fn options(&self) -> String {
        let client = self.desk.path("client").display().to_string();
        format!(
            "--anchor owner:{}/ledger --anchor-option ca-file={client}/ca.pem --anchor-option cert-file={client}/client.pem --anchor-option key-file={client}/client.key",
            self.address
        )
    }
}

/// A daemon that serves a volume to NBD clients.
struct Attached<'a> {
    desk: &'a Desk,
    name: &'static str,
    process: u32,
}

impl<'a> Attached<'a> {
    fn new(desk: &'a Desk, name: &'static str, store: &str) -> Self {
        let command = format!(
            "volume attach {store} --policy disk.img.policy.toml --key-file key --as nbd --name {name} --json"
        );
        let ready: Value = serde_json::from_str(&desk.done(&command)).unwrap();
        Self { desk, name, process: u32::try_from(ready["process"].as_u64().unwrap()).unwrap() }
    }

    /// A client that runs these commands of `qemu-io`, and then ends.
    fn client(&self, commands: &[&str]) -> Child {
        let uri = format!(
            "nbd+unix:///?socket={}",
            self.desk.path(&format!("run/{}/nbd.sock", self.name)).display()
        );
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]);
        // When it closes what it could have written to, it flushes.
        if commands.iter().all(|text| text.starts_with("read")) {
            command.arg("-r");
        }
        for text in commands {
            command.args(["-c", text]);
        }
        command.arg(uri).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs commands; whether all went well.
    fn works(&self, commands: &[&str]) -> bool {
        let output = self.client(commands).wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
        output.status.success() && !text.contains("failed") && !text.contains("error")
    }

    fn detach(self) {
        wait_for("the volume to be put away", || {
            self.desk.run(&format!("volume detach {}", self.name)).code == 0
        });
        wait_for("the daemon's end", || has_ended(self.process));
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if !has_ended(self.process) {
            quietly(&format!("kill -9 {}", self.process));
        }
    }
}

#[test]
fn a_disk_that_was_rolled_back_is_caught_by_the_owners_service() {
    if !has("qemu-io") {
        return tell_skipped("no qemu-io");
    }
    let desk = Desk::new();
    let mut owner = Owner::new(&desk);
    desk.done(&format!(
        "volume create disk.img --size 16M --key-file key --freshness strict {}",
        owner.options()
    ));
    let volume = Attached::new(&desk, "disk", "disk.img");
    assert!(volume.works(&["write -P 17 0 64k", "flush"]));

    // While the service is away a flush waits, and reads go on. Back again, nothing is missing.
    owner.stop();
    let mut waiting = volume.client(&["write -P 34 64k 64k", "flush"]);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(waiting.try_wait().unwrap(), None, "a flush was acknowledged without the anchor");
    assert!(volume.works(&["read -P 17 0 64k"]));
    owner.start();
    assert!(waiting.wait().unwrap().success());
    volume.detach();

    let old = fs::read(desk.path("disk.img")).unwrap();
    let volume = Attached::new(&desk, "disk", "disk.img");
    assert!(volume.works(&["read -P 17 0 64k", "read -P 34 64k 64k", "write -P 51 0 4k", "flush"]));
    volume.detach();
    let new = fs::read(desk.path("disk.img")).unwrap();
    fs::write(desk.path("disk.img"), old).unwrap();
    let said = desk.run("volume attach disk.img --key-file key --as nbd");
    assert_eq!(said.code, 5, "a rollback was not called stale: {}", said.error);

    fs::write(desk.path("disk.img"), new).unwrap();
    let volume = Attached::new(&desk, "disk", "disk.img");
    assert!(volume.works(&["read -P 51 0 4k", "read -P 34 64k 64k"]));
    volume.detach();
    owner.stop();
}

#[test]
fn of_two_guests_on_one_volume_the_older_one_is_fenced() {
    if !has("qemu-io") {
        return tell_skipped("no qemu-io");
    }
    let desk = Desk::new();
    let mut owner = Owner::new(&desk);
    desk.done(&format!(
        "volume create disk.img --size 16M --key-file key --freshness strict {}",
        owner.options()
    ));
    let first = Attached::new(&desk, "disk", "disk.img");
    assert!(first.works(&["write -P 17 0 64k", "flush"]));
    fs::copy(desk.path("disk.img"), desk.path("copy.img")).unwrap();
    let second = Attached::new(&desk, "copy", "copy.img");
    assert!(second.works(&["read -P 17 0 64k", "write -P 34 0 4k", "flush"]));
    assert!(!first.works(&["write -P 51 0 4k", "flush"]), "the older guest went on");
    let status = desk.run("volume status disk --json");
    assert!(status.out.contains("another session has claimed this volume"), "{status:?}");
    let status: Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!(status["volume"]["unanchored"]["stretches"], serde_json::json!([[0, 1]]), "{status}");
    assert!(second.works(&["read -P 34 0 4k"]));
    second.detach();
    owner.stop();
}

#[test]
fn a_service_that_does_not_know_the_volume_is_named_before_anything_is_made() {
    let desk = Desk::new();
    let mut owner = Owner::new(&desk);
    let wrong = owner.options().replace("/ledger", "/other");
    let said = desk.run(&format!("volume create disk.img --size 16M --key-file key {wrong}"));
    assert_eq!(said.code, 8, "{}", said.error);
    assert!(said.error.contains("has no such volume for this client"), "{}", said.error);
    assert!(!desk.path("disk.img").exists());
    let missing = owner.options().replace("key-file", "cert-file");
    assert_ne!(desk.run(&format!("volume create disk.img --size 16M --key-file key {missing}")).code, 0);
    owner.stop();
}
