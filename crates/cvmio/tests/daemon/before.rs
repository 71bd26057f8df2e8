//! Nothing durable moves before it is known that the rest can be done: each of these is refused with exit code 2, leaves store, anchor and
//! policy as they were, and works when what was missing is there.

use std::fs;
use std::path::Path;

use crate::common::machine::{quietly, sh, tell_skipped};
use crate::common::{Desk, Said};
use crate::skip_without_devices;
use serde_json::Value;

/// Store, anchor and policy.
fn all(desk: &Desk) -> [Vec<u8>; 3] {
    ["disk.img", "anchor", "disk.img.policy.toml"].map(|name| desk.read(name))
}

fn refused(command: &str, said: &Said, why: &str) {
    assert!(said.code == 2 && said.error.contains(why), "{command}: {said:?}");
}

#[test]
fn nothing_claims_a_volume_on_a_write_protected_device() {
    skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    desk.done("volume header backup disk.img backup --key-file key");
    let before = all(&desk);
    let made = sh(&format!("losetup --find --show --read-only {}", desk.path("disk.img").display()));
    let device = made.trim();
    let new = desk.path("new-anchor");
    let commands = [
        format!("volume key add {device} --new-key-file other"),
        format!("volume key remove {device} 0"),
        format!("volume rekey {device} --begin"),
        format!("volume header restore {device} {}", desk.path("backup").display()),
        format!("volume grow {device}"),
        format!("volume reanchor {device} --to latest"),
        format!("anchor migrate {device} --to file:{}", new.display()),
    ];
    let said: Vec<Said> = commands
        .iter()
        .map(|command| desk.run(&format!("{command} --policy disk.img.policy.toml --key-file key")))
        .collect();
    sh(&format!("losetup --detach {device}"));
    for (command, said) in commands.iter().zip(said) {
        refused(command, &said, "write-protected");
    }
    assert!(all(&desk) == before && !new.exists());
    desk.done("volume check disk.img --key-file key");
}

/// As a container has it that was given the file only.
fn bind_read_only(path: &Path) -> bool {
    quietly(&format!("mount --bind {0} {0} && mount -o remount,bind,ro {0}", path.display()))
}

#[test]
fn a_volume_moves_to_no_anchor_that_its_policy_cannot_name() {
    let desk = Desk::new();
    desk.create("");
    let (before, policy) = (all(&desk), desk.path("disk.img.policy.toml"));
    if !bind_read_only(&policy) {
        quietly(&format!("umount {}", policy.display()));
        return tell_skipped("mounts cannot be made");
    }
    let new = desk.path("new-anchor");
    let migrate = format!("anchor migrate disk.img --key-file key --to file:{}", new.display());
    let shown: Value =
        serde_json::from_str(&desk.done("volume reanchor disk.img --key-file key --json")).unwrap();
    let state = shown["chosen"].as_str().unwrap();
    let reanchor = format!(
        "volume reanchor disk.img --key-file key --to latest --confirm {state} --anchor file:{}",
        new.display()
    );
    let said = [&migrate, &reanchor].map(|command| desk.run(command));
    sh(&format!("umount {}", policy.display()));
    for (command, said) in [&migrate, &reanchor].into_iter().zip(said) {
        refused(command, &said, "cannot be written");
    }
    assert!(all(&desk) == before && !new.exists());
    desk.done(&migrate);
    desk.done("volume check disk.img --key-file key");
}

#[test]
fn an_anchor_that_cannot_be_written_ends_everything_before_it_begins() {
    let desk = Desk::new();
    desk.create("");
    let (before, anchor) = (all(&desk), desk.path("anchor"));
    if !bind_read_only(&anchor) {
        quietly(&format!("umount {}", anchor.display()));
        return tell_skipped("mounts cannot be made");
    }
    let commands = [
        "volume attach disk.img",
        "volume key add disk.img --new-key-file other",
        "volume rekey disk.img --begin",
        "volume grow disk.img --size 32M",
    ];
    let said = commands.map(|command| desk.run(&format!("{command} --key-file key")));
    let reading = desk.run("volume check disk.img --key-file key");
    sh(&format!("umount {}", anchor.display()));
    for (command, said) in commands.iter().zip(said) {
        assert!(said.code == 8 && said.error.contains("writable"), "{command}: {said:?}");
    }
    assert_eq!(reading.code, 0, "{reading:?}");
    assert!(all(&desk) == before);
}

#[test]
fn no_anchor_is_prepared_for_a_policy_that_cannot_be_written() {
    let desk = Desk::new();
    let anchor = desk.path("anchor");
    let prepare = |policy: &str| {
        desk.run(&format!("volume prepare {policy} --size 16M --anchor file:{}", anchor.display()))
    };
    refused("a directory that is not there", &prepare("none/policy"), "cannot be written");
    refused("a directory of the kernel's", &prepare("/proc/policy"), "cannot be written");
    assert!(!anchor.exists());
    assert_eq!(prepare("policy").code, 0);
}

/// A first use makes a volume, a file system, and a mount.
#[test]
fn no_volume_is_made_whose_file_system_could_not_be() {
    skip_without_devices!();
    let desk = Desk::new();
    let at = |name: &str| desk.path(name).display().to_string();
    desk.done(&format!("volume prepare policy --size 32M --anchor file:{}", at("anchor")));
    fs::File::create(desk.path("store")).unwrap().set_len(64 << 20).unwrap();
    let before = (desk.read("store"), desk.read("anchor"));
    let configure = |mountpoint: &str| {
        let config = serde_json::json!({
            "name": "disk", "store": at("store"), "policy": at("policy"), "key-file": at("key"),
            "fs": "ext4", "mountpoint": at(mountpoint), "memory": "64M",
        });
        desk.write("config", config.to_string().as_bytes());
    };
    configure("key/below");
    refused("below a file", &desk.run("volume activate --config config"), "below a file");
    configure("at");
    let mut without = desk.command("volume activate --config config");
    let output = without.env("PATH", desk.path("none")).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("install it"), "{error}");
    assert!((desk.read("store"), desk.read("anchor")) == before, "a volume was made");
    let done = desk.run("volume activate --config config");
    let down = desk.run("volume deactivate disk");
    assert_eq!((done.code, down.code), (0, 0), "{done:?} {down:?}");
}
