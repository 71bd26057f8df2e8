//! Key slots, from the command line: of a volume that is attached, beside those who use it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::Desk;
use serde_json::Value;

const BLOCK: usize = 4096;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The numbers and labels of a list of slots.
fn named(slots: &str) -> Vec<(u64, String)> {
    let slots = json(slots);
    let slot = |slot: &Value| (slot["index"].as_u64().unwrap(), slot["label"].as_str().unwrap().to_string());
    slots.as_array().unwrap().iter().map(slot).collect()
}

/// Numbers in one place, one after the other; how many.
fn count_up(device: &File, stop: &AtomicBool) -> u64 {
    let (mut number, mut bytes) = (0_u64, vec![0; BLOCK]);
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        device.write_all_at(&bytes, 9 * BLOCK as u64).unwrap();
        if number.is_multiple_of(16) {
            device.sync_data().unwrap();
        }
    }
    number
}

#[test]
fn slots_come_and_go_beside_users() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    desk.write("wrong", &[9; 64]);
    desk.write("passphrase", b"correct horse battery staple\n");
    let before = desk.read("disk.img");
    desk.done("volume attach disk.img --key-file key");
    let device = File::options().read(true).write(true).open(desk.path("run/disk/disk")).unwrap();
    let session = || json(&desk.done("volume status disk --json"))["volume"]["claims"].clone();
    let (claims, stop) = (session(), AtomicBool::new(false));
    let number = std::thread::scope(|scope| {
        let user = scope.spawn(|| count_up(&device, &stop));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let refused = |arguments: &str, code, why: &str| {
                let said = desk.run(&format!("volume key {arguments}"));
                assert!(said.code == code && said.error.contains(why), "{arguments}: {said:?}");
            };
            refused("add disk --key-file wrong --new-key-file key", 10, "");
            refused("remove disk 0 --key-file key", 2, "last");
            refused("remove disk 7 --key-file key", 2, "no key in slot 7");
            refused("add disk --key-file key --new-key-file wrong --force", 2, "--force is for a volume");
            refused("list disk --policy disk.img.policy.toml", 2, "--policy is for a volume");
            refused("list nobody", 2, "no volume is attached as nobody");
            let first = (0, "first".to_string());
            assert_eq!(named(&desk.done("volume key list disk --json")), std::slice::from_ref(&first));
            let added = desk.done(
                "volume key add disk --key-file key --new-passphrase-file passphrase --label paper --json",
            );
            let paper = (1, "paper".to_string());
            assert_eq!(named(&added), [first, paper.clone()]);
            let text = desk.done("volume key list disk");
            assert!(text.contains("slot  1  passphrase (Argon2id: "), "{text}");
            let removed = desk.done("volume key remove disk 0 --passphrase-file passphrase --json");
            assert_eq!(named(&removed), [paper]);
            refused("remove disk 1 --key-file key", 10, "");
        }));
        stop.store(true, Ordering::SeqCst);
        let number = user.join().unwrap();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        number
    });
    assert_eq!(session(), claims, "it is the same session");
    drop(device);
    let known = desk.done("volume key list disk");
    desk.done("volume detach disk");
    assert_eq!(known, desk.done("volume key list disk.img"), "the store says something else");
    assert_eq!(desk.run("volume attach disk.img --key-file key").code, 10, "its slot is gone");
    desk.done("volume attach disk.img --passphrase-file passphrase");
    let device = File::open(desk.path("run/disk/disk")).unwrap();
    let mut bytes = [0; 8];
    device.read_exact_at(&mut bytes, 9 * BLOCK as u64).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), number);
    drop(device);
    desk.done("volume detach disk");
    let now = desk.read("disk.img");
    desk.write("disk.img", &[&before[..4 * BLOCK], &now[4 * BLOCK..]].concat());
    assert_eq!(desk.run("volume attach disk.img --key-file key").code, 5, "the old header was put back");
}

#[test]
fn a_volume_that_is_only_read_keeps_its_slots() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    desk.done("volume attach disk.img --key-file key --read-only");
    for arguments in ["list disk", "remove disk 0 --key-file key"] {
        let said = desk.run(&format!("volume key {arguments}"));
        assert!(said.code == 2 && said.error.contains("for reading only"), "{said:?}");
    }
    assert_eq!(desk.done("volume key list disk.img"), "slot  0  key-file  first\n");
    desk.done("volume detach disk");
}

/// What was done is what was asked for; that it may not be what was meant is said.
#[test]
fn who_locks_himself_out_or_adds_a_secret_twice_is_told() {
    let desk = Desk::new();
    desk.create("");
    let said = |arguments: &str| {
        let said = desk.run(&format!("volume key {arguments}"));
        assert_eq!(said.code, 0, "{arguments}: {said:?}");
        said.error
    };
    for (store, attach) in [("disk.img", false), ("disk", true)] {
        if attach {
            desk.done("volume attach disk.img --key-file key --as nbd --memory 32M");
        }
        // Slot 0 is opened by `key`.
        let twice = said(&format!("add {store} --key-file key --new-key-file key"));
        assert!(twice.contains("warning: the new secret opens slot 0 as well"), "{twice}");
        // The same secret opens the other slot still.
        assert_eq!(said(&format!("remove {store} 1 --key-file key")), "");
        assert_eq!(said(&format!("add {store} --key-file key --new-key-file other")), "");
        assert_eq!(said(&format!("remove {store} 1 --key-file key")), "", "somebody else's");
        assert_eq!(said(&format!("add {store} --key-file key --new-key-file other")), "");
        let out = said(&format!("remove {store} 0 --key-file key"));
        assert!(out.contains("warning: slot 0 was the one that you have opened the volume with"), "{out}");
        assert_eq!(said(&format!("add {store} --key-file other --new-key-file key")), "");
        assert!(!said(&format!("remove {store} 1 --key-file other")).is_empty());
        if attach {
            desk.done("volume detach disk");
        }
    }
    desk.done("volume check disk.img --key-file key");
}
