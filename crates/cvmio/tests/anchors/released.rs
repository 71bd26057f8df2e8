//! Volumes whose key the owner's service releases to an attested guest; evidence is a simulated platform's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use ::owner::{Authority, Files, Limits, Office, Releasing, Service, Setup, fingerprint};
use attest::Hex;
use attest::simulated::{Launch, Root, measure};
use serde_json::{Value, json};

use super::common::{Desk, Said};

/// The owner's service in this process: stamps of one volume, and releases.
struct Owner<'a> {
    desk: &'a Desk,
    root: Root,
    service: Option<Service>,
    stamps: String,
    releases: String,
}

impl<'a> Owner<'a> {
    fn new(desk: &'a Desk) -> Self {
        let state = desk.path("owner");
        ::owner::make(&state, None).unwrap();
        let authority = Authority::make(&state.join(::owner::TLS), &["127.0.0.1".into()]).unwrap();
        let made = authority.make_client("ledger", &desk.path("client")).unwrap();
        let mut office = Office::open(&state, || Ok(None), Arc::new(|_| {})).unwrap();
        let clients = vec![fingerprint(&made.certificate).unwrap()];
        office.order(::owner::Command::Add { name: "ledger".into(), clients }).unwrap();
        drop(office);
        let root = Root::generate().unwrap();
        let mut owner = Self { desk, root, service: None, stamps: String::new(), releases: String::new() };
        let policy = |kernel| {
            format!("version = 1\n[simulated]\nmeasurements = ['{}']\nminimum-tcb = 2\n", measured(kernel))
        };
        owner.secret("evidence.toml", policy("kernel").as_bytes());
        owner.secret("ledger.secret", &[9; 64]);
        owner.secret("releases.toml", b"version = 1\n[[release]]\nname = 'ledger'\nresource = 'default/key/ledger'\nevidence-policy = 'evidence.toml'\nkey = 'ledger.secret'\n");
        owner.seat("seat", "kernel", 2);
        owner.start();
        owner
    }

    fn secret(&self, name: &str, content: &[u8]) {
        self.desk.write(name, content);
        fs::set_permissions(self.desk.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// What a launcher hands to a guest with this kernel.
    fn seat(&self, name: &str, kernel: &str, tcb: u64) {
        let measurement = measured(kernel);
        let launch =
            Launch { measurement, host_data: Hex([0; 32]), machine_id: Hex([3; 32]), tcb, is_debug: false };
        self.secret(name, &self.root.launch(&launch).unwrap());
    }

    fn start(&mut self) {
        let tls = self.desk.path("owner").join(::owner::TLS);
        let service = Service::start(Setup {
            directory: self.desk.path("owner"),
            listen: "127.0.0.1:0".parse().unwrap(),
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
        let releases = service.release(Releasing {
            listen: "127.0.0.1:0".parse().unwrap(),
            catalogue: self.desk.path("releases.toml"),
            cache: None,
            simulated: vec![self.root.key().unwrap()],
            certificate: tls.join("server.pem"),
            key: tls.join("server.key"),
            lifetime: Duration::from_secs(60),
            report: Arc::new(|_| {}),
        });
        (self.stamps, self.releases) = (service.address().to_string(), releases.unwrap().to_string());
        self.service = Some(service);
    }

    fn stop(&mut self) {
        self.service.take().unwrap().stop().unwrap();
    }

    /// The options of a guest with this seat.
    fn key_from(&self, resource: &str, seat: &str) -> String {
        format!(
            "--key-from kbs+https://{}/{resource} --key-from-ca owner/tls/authority.pem --simulated-seat {seat}",
            self.releases
        )
    }
}

fn measured(kernel: &str) -> Hex<48> {
    measure(&[("kernel", kernel.as_bytes())])
}

fn no(said: Said, code: i32, words: &str) {
    assert!(said.code == code && said.error.contains(words), "{words}: {said:?}");
}

#[test]
fn a_volume_attaches_with_a_key_that_is_released_to_this_guest_and_to_no_other() {
    let desk = Desk::new();
    let mut owner = Owner::new(&desk);
    let key_from = owner.key_from("default/key/ledger", "seat");
    let anchor = format!("--anchor file:{}", desk.path("anchor").display());
    let attach = |key: &str| desk.run(&format!("volume attach disk.img --as nbd {key}"));

    let created = desk.run(&format!("volume create disk.img --size 16M {anchor} {key_from}"));
    assert_eq!(created.code, 0, "{created:?}");
    assert!(created.error.contains("no chip vouches"), "a simulated platform is named: {created:?}");
    let slots: Value = serde_json::from_str(&desk.done("volume key list disk.img --json")).unwrap();
    assert!(slots.to_string().contains("\"released\""), "{slots}");
    let attached = attach(&format!("{key_from} --json"));
    assert_eq!(attached.code, 0, "{attached:?}");
    let ready: Value = serde_json::from_str(&attached.out).unwrap();
    assert!(ready["warnings"].to_string().contains("no chip vouches"), "{ready}");
    desk.done("volume detach disk");

    // The secret in a file is no credential of this kind, and opens nothing.
    no(attach("--key-file ledger.secret"), 10, "key slot");
    // Another kernel, and old firmware.
    owner.seat("other-seat", "another kernel", 2);
    no(attach(&owner.key_from("default/key/ledger", "other-seat")), 11, "measurement");
    owner.seat("old-seat", "kernel", 1);
    no(attach(&owner.key_from("default/key/ledger", "old-seat")), 11, "reported-tcb");
    no(attach(&owner.key_from("default/key/other", "seat")), 11, "PolicyDeny");
    // Without a seat the chip is asked; there is none here, or it is not the one of the policy.
    let real = key_from.replace("--simulated-seat seat", "");
    assert_ne!(attach(&real).code, 0);
    // Another authority, and a certificate in its place.
    desk.done(&format!("volume check disk.img {key_from}"));
    let strange = key_from.replace("owner/tls/authority.pem", "client/client.pem");
    no(attach(&strange), 3, "is not trusted");
    no(
        attach(&key_from.replace("--key-from-ca owner/tls/authority.pem", "--key-from-ca nowhere.pem")),
        2,
        "--key-from-ca",
    );
    // The owner has changed the policy.
    owner.secret(
        "evidence.toml",
        format!("version = 1\n[simulated]\nmeasurements = ['{}']\n", measured("new")).as_bytes(),
    );
    no(attach(&key_from), 11, "measurement");
    owner.stop();
    no(attach(&key_from), 3, "does not answer");
    assert!(desk.done("volume list").lines().all(|line| !line.contains("disk")), "nothing was attached");
}

#[test]
fn key_policy_and_anchor_credentials_come_together() {
    let desk = Desk::new();
    let mut owner = Owner::new(&desk);
    // The owner prepares the volume: with a slot for what will be released, and a policy whose paths are where the guest will have them.
    let directory = desk.path("released");
    fs::create_dir(&directory).unwrap();
    for name in ["ca.pem", "client.pem", "client.key"] {
        fs::copy(desk.path("client").join(name), directory.join(name)).unwrap();
    }
    let at = directory.display();
    let options = format!(
        "--anchor owner:{}/ledger --anchor-option ca-file={at}/ca.pem --anchor-option cert-file={at}/client.pem --anchor-option key-file={at}/client.key",
        owner.stamps
    );
    desk.done(&format!("volume create disk.img --size 16M --key-file key --policy attach.toml {options}"));
    let add = "volume key add disk.img --policy attach.toml --key-file key --new-released-file ledger.secret --label guest";
    desk.done(add);
    fs::remove_dir_all(&directory).unwrap();
    let catalogue =
        fs::read_to_string(desk.path("releases.toml")).unwrap().replace("default/key/", "default/volume/");
    let files = "attach-policy = 'attach.toml'\nfiles = ['client/ca.pem', 'client/client.pem', 'client/client.key']\n";
    owner.secret("releases.toml", (catalogue + files).as_bytes());

    let key_from = format!("{} --release-dir {at}", owner.key_from("default/volume/ledger", "seat"));
    let attach = format!("volume attach disk.img --as nbd {key_from}");
    desk.done(&attach);
    assert_eq!(fs::read(directory.join("policy.toml")).unwrap(), desk.read("attach.toml"));
    desk.done("volume detach disk");
    no(desk.run(&format!("{attach} --policy attach.toml")), 2, "leave --policy out");
    no(desk.run(&attach.replace(&format!("--release-dir {at}"), "")), 2, "--release-dir");
    // A guest that is refused has none of it, and what it had before stays.
    fs::remove_dir_all(&directory).unwrap();
    owner.seat("other-seat", "another kernel", 2);
    no(desk.run(&attach.replace("--simulated-seat seat", "--simulated-seat other-seat")), 11, "measurement");
    assert!(!directory.exists());

    // As a service: by a configuration, and by the table.
    let whole = |name: &str| desk.path(name).display().to_string();
    let config = json!({
        "name": "disk", "store": whole("disk.img"), "policy": format!("{at}/policy.toml"), "as": "nbd",
        "key-from": format!("kbs+https://{}/default/volume/ledger", owner.releases),
        "key-from-ca": whole("owner/tls/authority.pem"), "release-dir": at.to_string(), "simulated-seat": whole("seat"),
    });
    desk.write("config.json", config.to_string().as_bytes());
    desk.done("volume activate --config config.json");
    desk.done("volume activate --config config.json");
    desk.done("volume deactivate disk");
    let line = format!(
        "disk {} {at}/policy.toml key-from:{} as=nbd,key-from-ca={},release-dir={at},simulated-seat={}\n",
        whole("disk.img"),
        config["key-from"].as_str().unwrap(),
        whole("owner/tls/authority.pem"),
        whole("seat")
    );
    desk.write("tab", line.as_bytes());
    desk.done(&format!("volume activate disk --tab {}", whole("tab")));
    desk.done("volume deactivate disk");
    owner.stop();
    no(desk.run("volume activate --config config.json"), 3, "does not answer");
}
