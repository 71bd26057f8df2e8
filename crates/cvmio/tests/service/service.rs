//! Volumes as a service: `prepare`, `activate` and `deactivate`, again and again, also after a kill.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::machine::{has_ended, quietly, sh, wait_for};
use crate::common::session::leave_nothing;
use crate::common::{Desk, Said};
use serde_json::{Value, json};

/// A prepared volume for a blank store, and its configuration. Whatever happens, nothing stays mounted.
pub struct Service {
    pub desk: Desk,
}

impl Service {
    pub fn new() -> Self {
        let service = Self { desk: Desk::new() };
        let anchor = service.desk.path("anchor").display().to_string();
        service.desk.done(&format!("volume prepare policy.toml --size 32M --anchor file:{anchor}"));
        service.blank_store();
        service.write_config();
        service
    }

    fn blank_store(&self) {
        let file = fs::File::create(self.desk.path("store")).unwrap();
        file.set_len(64 << 20).unwrap();
    }

    /// With a front end, and no file system; what else is wanted comes as JSON.
    fn write_config_as(&self, front_end: &str, more: &Value) {
        self.write_config();
        let mut config: Value = serde_json::from_slice(&self.desk.read("config.json")).unwrap();
        let fields = config.as_object_mut().unwrap();
        fields.retain(|name, _| !["fs", "mountpoint", "mount-options"].contains(&name.as_str()));
        fields.insert("as".into(), front_end.into());
        fields.extend(more.as_object().unwrap().clone());
        self.desk.write("config.json", config.to_string().as_bytes());
    }

    fn write_config(&self) {
        let path = |name: &str| self.desk.path(name).display().to_string();
        let config = json!({
            "name": "disk", "store": path("store"), "policy": path("policy.toml"), "key-file": path("key"),
            "fs": "ext4", "mountpoint": path("at"), "mount-options": "noatime", "memory": "64M",
        });
        self.desk.write("config.json", config.to_string().as_bytes());
    }

    pub fn change_config(&self, more: &Value) {
        let mut config: Value = serde_json::from_slice(&self.desk.read("config.json")).unwrap();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.desk.write("config.json", config.to_string().as_bytes());
    }

    pub fn activate(&self) -> Said {
        self.desk.run("volume activate --config config.json")
    }

    /// What is there, and the text of it.
    fn up(&self) -> (Value, String) {
        let said = self.activate();
        assert_eq!(said.code, 0, "{}", said.error);
        (serde_json::from_str(&said.out).unwrap(), said.out)
    }

    pub fn at(&self) -> PathBuf {
        self.desk.path("at")
    }

    pub fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/mounts").unwrap().contains(&format!(" {} ", self.at().display()))
    }

    fn process(&self) -> u32 {
        let status: Value = serde_json::from_str(&self.desk.done("volume status disk --json")).unwrap();
        u32::try_from(status["process"].as_u64().unwrap()).unwrap()
    }

    pub fn down(&self) -> String {
        self.desk.done("volume deactivate disk")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            quietly(&format!("umount -l {}", self.at().display()));
            if let Some(process) =
                self.desk.run("volume status disk --json").out.split("\"process\": ").nth(1)
            {
                quietly(&format!("kill {}", process.split(',').next().unwrap_or_default()));
                std::thread::sleep(std::time::Duration::from_secs(3));
            }
            leave_nothing(&self.desk);
        }
    }
}

#[test]
fn activate_says_the_same_again_and_deactivate_too() {
    crate::skip_without_devices!();
    let service = Service::new();
    let (found, text) = service.up();
    assert_eq!((found["name"].as_str(), found["state"].as_str()), (Some("disk"), Some("active")));
    assert_eq!(found["size"], 32 << 20);
    assert!(service.is_mounted());
    fs::write(service.at().join("note"), "kept").unwrap();
    assert_eq!(service.up().1, text);
    // The same by standard input.
    let mut again = service.desk.command("volume activate --config -");
    let mut again = again.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    again.stdin.take().unwrap().write_all(&service.desk.read("config.json")).unwrap();
    let again = again.wait_with_output().unwrap();
    assert!(again.status.success());
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap()["state"], "active");

    let process = service.process();
    // In use, it stays.
    let busy = fs::File::open(service.at().join("note")).unwrap();
    let refused = service.desk.run("volume deactivate disk");
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(refused.error.contains("busy"), "{}", refused.error);
    let config = String::from_utf8(service.desk.read("config.json")).unwrap();
    service.desk.write("config.json", config.replace("/at\"", "/elsewhere\"").as_bytes());
    let moved = service.activate();
    assert_eq!(moved.code, 2, "{}", moved.error);
    assert!(moved.error.contains("is mounted on [DIR]/at now"), "{}", moved.error);
    service.desk.write("config.json", config.as_bytes());
    drop(busy);
    let down = service.down();
    assert_eq!(serde_json::from_str::<Value>(&down).unwrap(), json!({ "name": "disk", "state": "inactive" }));
    wait_for("the daemon's end", || has_ended(process));
    assert!(!service.is_mounted());
    assert_eq!(service.down(), down);
    // Again by standard input, which has the name alone.
    let mut again = service.desk.command("volume deactivate --config -");
    let mut again = again.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    again.stdin.take().unwrap().write_all(b"{\"name\": \"disk\"}").unwrap();
    let again = again.wait_with_output().unwrap();
    assert!(again.status.success());
    assert_eq!(String::from_utf8(again.stdout).unwrap(), down);

    // The second time nothing is made.
    service.up();
    assert_eq!(fs::read_to_string(service.at().join("note")).unwrap(), "kept");
    service.down();
}

#[test]
fn after_a_kill_activate_brings_it_up_again() {
    crate::skip_without_devices!();
    let service = Service::new();
    service.up();
    fs::write(service.at().join("note"), "kept").unwrap();
    sh(&format!("sync {}", service.at().join("note").display()));
    let process = service.process();
    sh(&format!("kill -9 {process}"));
    wait_for("the daemon's end", || has_ended(process));
    let (found, text) = service.up();
    assert_eq!(found["state"], "active");
    assert_eq!(fs::read_to_string(service.at().join("note")).unwrap(), "kept");
    assert_eq!(service.up().1, text);

    // And one that is taken down after a kill is down, and clean.
    let process = service.process();
    sh(&format!("kill -9 {process}"));
    wait_for("the daemon's end", || has_ended(process));
    service.down();
    assert!(!service.is_mounted());
    service.up();
    assert_eq!(fs::read_to_string(service.at().join("note")).unwrap(), "kept");
    service.down();
}

#[test]
fn the_front_end_is_chosen_and_stays() {
    crate::skip_without_devices!();
    let service = Service::new();
    let others = |front_end: &str, refused: &[&str]| {
        let before = service.up();
        for other in refused {
            let said = service.desk.run(&format!("volume activate --config config.json --as {other}"));
            assert_eq!(said.code, 2, "{front_end}, {other}: {said:?}");
            assert!(said.error.contains("in another way than is asked for: by "), "{}", said.error);
        }
        assert_eq!(service.up(), before, "{front_end}");
        before.0
    };
    service.write_config_as("nbd", &json!({}));
    let found = others("nbd", &["fuse", "auto"]);
    assert_eq!(
        (&found["front-end"], &found["file"], &found["device"]),
        (&json!("nbd"), &Value::Null, &Value::Null)
    );
    let uri = found["uri"].as_str().unwrap();
    assert_eq!(uri, "nbd+unix:///?socket=[DIR]/run/disk/nbd.sock");
    let socket = service.desk.path("run/disk/nbd.sock");
    // A client keeps it.
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    std::io::Read::read_exact(&mut client, &mut [0; 18]).unwrap();
    client.write_all(&3_u32.to_be_bytes()).unwrap();
    client.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").unwrap();
    std::io::Read::read_exact(&mut client, &mut [0; 10]).unwrap();
    let refused = service.desk.run("volume deactivate disk");
    assert!(refused.code == 2 && refused.error.contains("is connected"), "{refused:?}");
    drop(client);
    wait_for("the client to be gone", || service.desk.run("volume deactivate disk").code == 0);
    assert_eq!(service.down(), "{\n  \"name\": \"disk\",\n  \"state\": \"inactive\"\n}\n");

    service.write_config_as("fuse", &json!({}));
    let found = others("fuse", &["nbd", "auto", "ublk"]);
    assert_eq!((&found["front-end"], &found["device"]), (&json!("fuse"), &Value::Null));
    assert!(found["file"].as_str().unwrap().ends_with("/run/disk/disk"), "{found}");
    service.down();

    service.write_config_as("fuse", &json!({ "loop": true }));
    let said = service.desk.run("volume activate --config config.json --as nbd");
    assert!(
        said.code == 2 && said.error.contains("--as is not usable here: loop goes with fuse"),
        "{said:?}"
    );
    assert_eq!(service.desk.run("volume status disk").code, 2);
}

/// Without ublk, `auto` is a loop device, and says so; what asks for ublk only is refused before anything is made.
#[test]
fn the_choice_may_be_left_to_the_machine() {
    crate::skip_without_devices!();
    if std::path::Path::new("/dev/ublk-control").exists() {
        return crate::common::machine::tell_skipped("this kernel has ublk; see the tests in guests");
    }
    let service = Service::new();
    service.write_config_as("ublk", &json!({}));
    let refused = service.activate();
    assert!(refused.code == 2 && refused.error.contains("ublk"), "{refused:?}");
    assert!(service.desk.read("store").iter().all(|&byte| byte == 0), "the volume was made for nothing");
    let at = service.at().display().to_string();
    service.write_config_as("auto", &json!({ "fs": "ext4", "mountpoint": at }));
    let first = service.activate();
    assert!(
        first.code == 0 && first.error.contains("a loop device on a file, and no ublk device"),
        "{first:?}"
    );
    let (found, text) = service.up();
    assert_eq!(text, first.out);
    assert!(found["device"].as_str().unwrap().starts_with("/dev/loop"), "{found}");
    assert!(service.is_mounted());
    let said = service.desk.run("volume activate --config config.json --as fuse");
    assert_eq!((said.code, said.out), (0, text), "it is what fuse would be");
    service.down();
}

#[test]
fn what_is_activated_many_times_at_once_is_up_once() {
    crate::skip_without_devices!();
    let service = Service::new();
    for round in 0..3 {
        let all: Vec<_> = (0..6)
            .map(|_| {
                let mut command = service.desk.command("volume activate --config config.json");
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let all: Vec<_> = all.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let text = service.up().1;
        let here = service.desk.path("").display().to_string();
        for said in all {
            let error = String::from_utf8_lossy(&said.stderr);
            assert!(said.status.success(), "round {round}: {error}");
            let out = String::from_utf8(said.stdout).unwrap();
            assert_eq!(out.replace(here.trim_end_matches('/'), "[DIR]"), text, "round {round}");
        }
        service.down();
    }
}

/// Whoever is killed leaves programs that go on: nobody else has the turn before they have ended.
#[test]
fn an_activation_that_is_killed_at_any_time_is_done_by_the_next() {
    crate::skip_without_devices!();
    let service = Service::new();
    for round in 1..=10 {
        let mut first = service.desk.command("volume activate --config config.json");
        let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(25 * round));
        first.kill().unwrap();
        first.wait().unwrap();
        service.up();
        assert!(service.is_mounted());
        fs::write(service.at().join("note"), "kept").unwrap();
        service.down();
        if round < 5 {
            // From the beginning.
            for file in ["policy.toml", "anchor"] {
                fs::remove_file(service.desk.path(file)).unwrap();
            }
            let anchor = service.desk.path("anchor").display().to_string();
            service.desk.done(&format!("volume prepare policy.toml --size 32M --anchor file:{anchor}"));
            service.blank_store();
        }
    }
}

/// An activation that is killed leaves a daemon behind that has the name for a moment, and does not answer yet.
#[test]
fn a_daemon_that_has_just_begun_is_waited_for() {
    crate::skip_without_devices!();
    let service = Service::new();
    let place = service.desk.path("run/disk");
    let lock = place.join("lock").display().to_string();
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&place).unwrap();
    let mut other = std::process::Command::new("flock").args([&lock, "sleep", "1.5"]).spawn().unwrap();
    wait_for("the lock", || place.join("lock").exists());
    std::thread::sleep(std::time::Duration::from_millis(100));
    service.up();
    assert!(other.wait().unwrap().success());
    service.down();
}

#[test]
fn a_daemon_that_is_leaving_is_waited_for() {
    crate::skip_without_devices!();
    let service = Service::new();
    let device = service.up().0["device"].as_str().unwrap().replace("/dev/", "/sys/block/");
    // The kernel counts what is behind a device.
    let sequence = || fs::read_to_string(format!("{device}/diskseq")).unwrap();
    let before = sequence();
    fs::write(service.at().join("note"), "kept").unwrap();
    sh(&format!("sync {}", service.at().join("note").display()));
    // What is mounted keeps it for ten seconds; nobody may take it for one that stays.
    let process = service.process();
    sh(&format!("kill {process}"));
    wait_for("the daemon to leave", || {
        service.desk.done("volume status disk --json").contains("\"leaving\": true")
    });
    service.up();
    assert_ne!(service.process(), process);
    assert!(service.is_mounted());
    assert_eq!(fs::read_to_string(service.at().join("note")).unwrap(), "kept");
    assert_ne!(sequence(), before, "its loop device is gone, too");
    service.down();
}

#[test]
fn a_name_that_another_volume_has_is_not_touched() {
    crate::skip_without_devices!();
    let service = Service::new();
    service.up();
    let anchor = service.desk.path("anchor2").display().to_string();
    service.desk.done(&format!("volume create disk.img --size 16M --key-file key --anchor file:{anchor}"));
    let other = service.desk.read("disk.img.policy.toml");
    let policy = service.desk.read("policy.toml");
    service.desk.write("policy.toml", &other);
    let refused = service.activate();
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(refused.error.contains("another volume is attached as disk"), "{}", refused.error);
    service.desk.write("policy.toml", &policy);
    assert!(service.is_mounted());
    service.down();
}

#[test]
fn data_that_is_not_ours_is_left_alone() {
    crate::skip_without_devices!();
    let service = Service::new();
    sh(&format!("mkfs.ext4 -q {}", service.desk.path("store").display()));
    let before = service.desk.read("store");
    let refused = service.activate();
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(
        refused.error.contains("ext4 file system") && refused.error.contains("nothing was written"),
        "{}",
        refused.error
    );
    assert!(service.desk.read("store") == before);

    // Another volume of ours is not the right one either.
    let desk = &service.desk;
    fs::remove_file(desk.path("store")).unwrap();
    let anchor = desk.path("anchor2").display().to_string();
    desk.done(&format!("volume create store --size 32M --key-file key --anchor file:{anchor}"));
    let before = desk.read("store");
    assert_eq!(service.activate().code, 2);
    assert!(desk.read("store") == before);
}

#[test]
fn many_read_what_one_has_written() {
    crate::skip_without_devices!();
    let service = Service::new();
    service.change_config(&json!({ "read-only": true }));
    let none = service.activate();
    assert!(none.code == 2 && none.error.contains("there is no volume yet"), "{}", none.error);
    service.change_config(&json!({ "read-only": false, "on-tamper": "stop" }));
    service.up();
    fs::write(service.at().join("note"), "kept").unwrap();
    service.change_config(&json!({ "read-only": true }));
    let otherwise = service.activate();
    assert!(otherwise.error.contains("for writing, and wanted for reading only"), "{}", otherwise.error);
    service.down();

    let (store, anchor) = (service.desk.read("store"), service.desk.read("anchor"));
    let readers = ["disk", "second", "third"];
    for name in readers {
        let at = service.desk.path(&format!("at-{name}"));
        service.change_config(&json!({ "name": name, "mountpoint": at, "as": "auto" }));
        let (_, text) = service.up();
        assert_eq!(service.up().1, text, "{name}");
        assert_eq!(fs::read(at.join("note")).unwrap(), b"kept", "{name}");
        let refused = fs::write(at.join("note"), "changed").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{name}");
        let status: Value =
            serde_json::from_str(&service.desk.done(&format!("volume status {name} --json"))).unwrap();
        assert_eq!(status["tamper"]["on-tamper"], "stop", "{name}");
    }
    // One that is to write has to wait until nobody reads.
    service.change_config(&json!({ "name": "writer", "read-only": false }));
    let busy = service.activate();
    assert!(busy.code == 2 && busy.error.contains("attached already"), "{}", busy.error);
    for name in readers {
        service.desk.done(&format!("volume deactivate {name}"));
    }
    assert!(service.desk.read("store") == store && service.desk.read("anchor") == anchor);
}

#[test]
fn a_blank_store_under_a_claimed_anchor_is_a_rollback() {
    crate::skip_without_devices!();
    let service = Service::new();
    service.up();
    service.down();
    service.blank_store();
    let before = service.desk.read("store");
    service.desk.write("hook", b"#!/bin/sh\necho $CVMIO_NAME $CVMIO_KIND $CVMIO_OPERATION > ${0%hook}told\n");
    fs::set_permissions(service.desk.path("hook"), fs::Permissions::from_mode(0o755)).unwrap();
    service.change_config(&json!({ "tamper-hook": service.desk.path("hook") }));
    let refused = service.activate();
    assert_eq!(refused.code, 5, "{}", refused.error);
    assert_eq!(service.desk.read("told"), b"disk stale attach\n");
    assert!(refused.error.contains("the store was blanked"), "{}", refused.error);
    assert!(service.desk.read("store") == before);
    assert_eq!(service.desk.run("volume status disk").code, 2);
}

#[test]
fn without_leave_nothing_is_made() {
    crate::skip_without_devices!();
    let service = Service::new();
    let policy = String::from_utf8(service.desk.read("policy.toml")).unwrap();
    let strict = policy.replace("format-if-blank = true", "format-if-blank = false");
    assert_ne!(policy, strict);
    service.desk.write("policy.toml", strict.as_bytes());
    let refused = service.activate();
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(refused.error.contains("does not allow"), "{}", refused.error);
    // A lost anchor cannot say that there never was a volume.
    service.desk.write("policy.toml", policy.as_bytes());
    fs::remove_file(service.desk.path("anchor")).unwrap();
    assert_eq!(service.activate().code, 8);
    assert!(service.desk.read("store").iter().all(|&byte| byte == 0));
}

#[test]
fn prepare_replaces_nothing() {
    let desk = Desk::new();
    let anchor = desk.path("anchor").display().to_string();
    let prepare = |more: &str| {
        desk.run(&format!("volume prepare policy.toml --size 32M --anchor file:{anchor} {more}"))
    };
    assert_eq!(prepare("--freshness off").code, 2);
    assert_eq!(prepare("--size 1000").code, 2);
    assert!(!desk.path("anchor").exists());
    assert_eq!(prepare("").code, 0);
    let policy = desk.read("policy.toml");
    assert_eq!(prepare("").code, 2);
    fs::remove_file(desk.path("policy.toml")).unwrap();
    fs::remove_file(desk.path("anchor")).unwrap();
    desk.create("");
    let refused = prepare("");
    assert_eq!(refused.code, 8);
    assert!(refused.error.contains("belongs to a volume already"), "{}", refused.error);
    assert!(!desk.path("policy.toml").exists());
    assert!(String::from_utf8(policy).unwrap().contains("format-if-blank = true"));
}

#[test]
fn the_table_says_what_all_are() {
    crate::skip_without_devices!();
    let service = Service::new();
    let path = |name: &str| service.desk.path(name).display().to_string();
    let (store, policy, key, at) = (path("store"), path("policy.toml"), path("key"), path("at"));
    let line = format!("disk {store} {policy} key-file:{key} fs=ext4,mountpoint={at},memory=64M");
    let table = format!("# a comment\n{line}\nother {store}2 {policy}2 key-file:{key} noauto\n");
    service.desk.write("tab", table.as_bytes());
    let all: Value = serde_json::from_str(&service.desk.done("volume activate --all --tab tab")).unwrap();
    assert_eq!((all.as_array().unwrap().len(), &all[0]["state"]), (1, &json!("active")));
    let one: Value = serde_json::from_str(&service.desk.done("volume activate disk --tab tab")).unwrap();
    assert_eq!(one, all[0]);
    assert_ne!(service.desk.run("volume activate other --tab tab").code, 0);
    let unknown = service.desk.run("volume activate dsik --tab tab");
    assert!(unknown.code == 2 && unknown.error.contains("did you mean `disk`?"), "{}", unknown.error);
    let all: Value = serde_json::from_str(&service.desk.done("volume deactivate --all --tab tab")).unwrap();
    assert_eq!(
        all,
        json!([{ "name": "other", "state": "inactive" }, { "name": "disk", "state": "inactive" }])
    );
    service.desk.write("tab", format!("{line},colour\n").as_bytes());
    let wrong = service.desk.run("volume activate --all --tab tab");
    assert!(wrong.code == 2 && wrong.error.contains("tab:1:"), "{}", wrong.error);
}

#[test]
fn a_store_that_has_not_the_space_is_refused_each_time() {
    use std::os::unix::fs::MetadataExt;
    let service = Service::new();
    service.write_config_as("nbd", &json!({ "provision": "full" }));
    let store = service.desk.path("store");
    fs::OpenOptions::new().write(true).open(&store).unwrap().set_len(8 << 40).unwrap();
    for _ in 0..2 {
        let refused = service.activate();
        assert!(refused.code == 2 && refused.error.contains("bytes"), "{refused:?}");
        assert_eq!(fs::metadata(&store).unwrap().blocks(), 0, "nothing was written");
    }
    // With the space it has all that it needs.
    fs::OpenOptions::new().write(true).open(&store).unwrap().set_len(64 << 20).unwrap();
    assert_eq!(service.up().0["state"], "active");
    assert!(fs::metadata(&store).unwrap().blocks() * 512 >= 64 << 20);
    service.down();
}
