//! A volume that gets more room: from the command line, to the file system on it.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::Desk;
use crate::common::machine::{content, sh, wait_for};
use crate::common::session::Session;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn length(desk: &Desk) -> u64 {
    fs::metadata(desk.path("disk.img")).unwrap().len()
}

#[test]
fn a_file_becomes_longer_and_the_policy_follows() {
    let desk = Desk::new();
    desk.create("");
    let before = length(&desk);
    desk.done("volume header backup disk.img old.header --key-file key");
    let said = desk.done("volume grow disk.img --size 64M --key-file key");
    assert!(said.contains("grown from 16 MiB to 64 MiB") && said.contains("resize2fs"), "{said}");
    assert!(length(&desk) > before + 48 * MIB);
    let allocated = fs::metadata(desk.path("disk.img")).unwrap().blocks() * 512;
    assert!(allocated >= length(&desk), "with full provisioning the space is there");
    let policy = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
    assert!(policy.contains(&format!("size = {}", 64 * MIB)), "{policy}");
    desk.done("volume check disk.img --key-file key");
    let dump = desk.done("volume dump disk.img --key-file key");
    assert!(dump.contains("  grown from 4,096 logical and 5,262 physical blocks to 16,384 and "), "{dump}");
    let stale = desk.run("volume header restore disk.img old.header --key-file key");
    assert_eq!((stale.code, stale.error.contains("policy")), (11, true), "{stale:?}");

    let again = json(&desk.done("volume grow disk.img --size 64M --key-file key --json"));
    assert_eq!((&again["grown"], &again["size"]), (&false.into(), &(64 * MIB).into()));
    let more = json(&desk.done("volume grow disk.img --size 100M --key-file key --json"));
    assert_eq!((&more["grown"], &more["growths"]), (&true.into(), &2.into()));
    assert_eq!((&more["size-before"], &more["size"]), (&(64 * MIB).into(), &(100 * MIB).into()));
    assert_eq!(more["store-size"].as_u64(), Some(length(&desk)));
    desk.done("volume header backup disk.img new.header --key-file key");
    desk.done("volume header restore disk.img new.header --key-file key");
    desk.done("volume reanchor disk.img --key-file key");
}

/// On a file system that has no room for it.
#[test]
fn a_growth_that_is_refused_leaves_the_file_as_long_as_it_was() {
    crate::skip_without_devices!();
    for provision in ["full", "thin"] {
        let desk = Desk::new();
        let host = desk.path("host");
        fs::create_dir(&host).unwrap();
        sh(&format!("mount -t tmpfs -o size=40M none {}", host.display()));
        let create = format!(
            "volume create host/v.img --size 16M --provision {provision} --buffered --key-file key --policy policy --anchor file:{}",
            desk.path("anchor").display()
        );
        let made = desk.run(&create);
        let before = ["host/v.img", "anchor", "policy"].map(|name| desk.read(name));
        // More than there is room for, and more than any volume may grow.
        let refused = ["64M", "900T"].map(|size| {
            desk.run(&format!(
                "volume grow host/v.img --size {size} --buffered --key-file key --policy policy"
            ))
        });
        let after = ["host/v.img", "anchor", "policy"].map(|name| desk.read(name));
        sh(&format!("umount {}", host.display()));
        assert_eq!(made.code, 0, "{made:?}");
        assert_eq!(refused[1].code, 2, "{refused:?}");
        if provision == "full" {
            assert!(refused[0].code == 2 && refused[0].error.contains("lacks"), "{refused:?}");
            assert!(before == after, "{} and {} bytes", before[0].len(), after[0].len());
        }
    }
}

/// By whom, does not matter: the header says how much of it is the volume's.
#[test]
fn a_file_that_was_made_longer_holds_the_same_volume() {
    crate::skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let (mut image, more) = (desk.read("disk.img"), content(1, 1 << 20));
    let end = image.len();
    image.extend(&more);
    desk.write("disk.img", &image);
    assert!(desk.done("volume check disk.img --key-file key").contains("all whole"));
    let session = Session::attach(&desk, false);
    assert_eq!(fs::metadata(&session.file).unwrap().len(), 16 * MIB);
    fs::OpenOptions::new().write(true).open(&session.file).unwrap().write_all_at(&more[..8192], 0).unwrap();
    session.detach();
    assert!(desk.read("disk.img")[end..] == more, "what is behind the volume is not its own");
}

#[test]
fn refusals_say_why_and_change_nothing() {
    let desk = Desk::new();
    desk.create("");
    let before = (desk.read("disk.img"), desk.read("anchor"), desk.read("disk.img.policy.toml"));
    let refused = |arguments: &str, code: i32, what: &str| {
        let said = desk.run(&format!("volume grow {arguments}"));
        assert_eq!(said.code, code, "{arguments}: {}", said.error);
        assert!(said.error.contains(what), "{arguments}: {}", said.error);
        let now = (desk.read("disk.img"), desk.read("anchor"), desk.read("disk.img.policy.toml"));
        assert!(now == before, "{arguments} changed something");
    };
    refused("disk.img --size 8M --key-file key", 2, "does not shrink");
    refused("disk.img --size 64M --key-file other", 10, "no key slot opens");
    refused("disk.img --size 1000T --key-file key", 2, "not possible");
    refused("disk.img --size 1T --key-file key", 2, "copy its content to a new volume");
    refused("disk.img --size 20000001 --key-file key", 2, "whole number of blocks");
    refused("nothing.img --size 64M --key-file key", 2, "no volume is attached as nothing.img");
    refused("./nothing.img --size 64M --key-file key", 11, "there is no attach policy");
    let same = desk.done("volume grow disk.img --key-file key");
    assert!(same.contains("there is nothing to do"), "{same}");
}

/// What is written between the header and the policy is cut off there: the policy of before is put back.
#[test]
fn what_was_cut_short_is_finished_by_the_next() {
    let desk = Desk::new();
    desk.create("");
    let policy = desk.read("disk.img.policy.toml");
    desk.done("volume grow disk.img --size 64M --key-file key");
    desk.write("disk.img.policy.toml", &policy);
    let said = desk.run("volume check disk.img --key-file key");
    assert_eq!(said.code, 11, "{}", said.error);
    assert!(said.error.contains("`cvmio volume grow`"), "{}", said.error);
    let said = desk.run("volume grow disk.img --size 32M --key-file key");
    assert!(said.code == 2 && said.error.contains("does not shrink"), "{}", said.error);
    let done = json(&desk.done("volume grow disk.img --size 64M --key-file key --json"));
    assert_eq!((&done["size-before"], &done["growths"]), (&(16 * MIB).into(), &1.into()));
    desk.done("volume check disk.img --key-file key");
}

#[test]
fn a_thin_volume_takes_what_its_store_has_more() {
    let desk = Desk::new();
    desk.create("--provision thin");
    let before = length(&desk);
    fs::OpenOptions::new().write(true).open(desk.path("disk.img")).unwrap().set_len(256 * MIB).unwrap();
    let said = desk.done("volume grow disk.img --key-file key");
    assert!(
        said.contains("256 MiB of the store are used") && said.contains("the size stays 16 MiB"),
        "{said}"
    );
    let more = json(&desk.done("volume grow disk.img --size 1G --key-file key --json"));
    assert_eq!((&more["size"], &more["growths"]), (&(1024 * MIB).into(), &2.into()));
    assert!(length(&desk) > before);
    let allocated = fs::metadata(desk.path("disk.img")).unwrap().blocks() * 512;
    assert!(allocated < 32 * MIB, "it is sparse: {allocated}");
}

#[test]
fn a_file_system_grows_with_its_volume() {
    crate::skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let session = Session::attach(&desk, true);
    sh(&format!("mkfs.ext4 -q {}", session.device.as_ref().unwrap().display()));
    let at = session.mount();
    let small = content(1, 3 << 20);
    fs::write(at.join("small"), &small).unwrap();
    session.unmount();
    let attached = desk.run("volume grow disk.img --size 64M --key-file key");
    assert_eq!(attached.code, 2, "{}", attached.error);
    assert!(attached.error.contains("attached"), "{}", attached.error);
    session.detach();

    desk.done("volume grow disk.img --size 64M --key-file key");
    let session = Session::attach(&desk, true);
    let device: PathBuf = session.device.clone().unwrap();
    sh(&format!("e2fsck -fp {0} > /dev/null && resize2fs {0} 2> /dev/null > /dev/null", device.display()));
    let at = session.mount();
    let large = content(2, 40 << 20);
    fs::write(at.join("large"), &large).unwrap();
    session.unmount();
    session.detach();

    // A killed daemon is no growth's business, but its claim is in the way.
    let session = Session::attach(&desk, true);
    session.kill();
    crate::common::session::leave_nothing(&desk);
    let said = desk.run("volume grow disk.img --size 128M --key-file key");
    assert!(said.code == 2 && said.error.contains("--force"), "{said:?}");
    desk.done("volume grow disk.img --size 128M --key-file key --force");
    let session = Session::attach(&desk, true);
    let at = session.mount();
    assert!(fs::read(at.join("small")).unwrap() == small && fs::read(at.join("large")).unwrap() == large);
    session.unmount();
    session.detach();
    desk.done("volume check disk.img --key-file key");
}

/// Beside a writer who never notices more than a slow disk.
#[test]
fn a_file_system_grows_while_it_is_mounted() {
    crate::skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let session = Session::attach(&desk, true);
    let device = session.device.clone().unwrap();
    sh(&format!("mkfs.ext4 -q {}", device.display()));
    let at = session.mount();
    let refused = desk.run("volume grow disk --size 64M --key-file other");
    assert_eq!(refused.code, 10, "{}", refused.error);
    let refused = desk.run("volume grow disk --size 64M --key-file key --policy disk.img.policy.toml");
    assert_eq!((refused.code, refused.error.contains("--policy")), (2, true), "{refused:?}");

    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = std::thread::spawn({
        let (stop, written, path) = (Arc::clone(&stop), Arc::clone(&written), at.join("numbers"));
        move || {
            let file = fs::File::create(path).unwrap();
            while !stop.load(Ordering::SeqCst) {
                let number = written.load(Ordering::SeqCst);
                file.write_all_at(&number.to_le_bytes(), number % 10_000 * 8).unwrap();
                file.sync_data().unwrap();
                written.store(number + 1, Ordering::SeqCst);
            }
        }
    });
    wait_for("a write before the growth", || written.load(Ordering::SeqCst) > 0);
    let said = desk.done("volume grow disk --size 64M --key-file key");
    assert!(said.contains("grown from 16 MiB to 64 MiB") && said.contains("resize2fs"), "{said}");
    let size = sh(&format!("blockdev --getsize64 {}", device.display()));
    assert_eq!(size.trim().parse(), Ok(64 * MIB));
    assert_eq!(fs::metadata(&session.file).unwrap().len(), 64 * MIB);
    let grown = written.load(Ordering::SeqCst);
    wait_for("a write behind the growth", || written.load(Ordering::SeqCst) > grown);
    stop.store(true, Ordering::SeqCst);
    writer.join().unwrap();
    // ext4 grows while it is mounted, too, but wants a capability for it that containers lack; a guest does it (`guest::volume`).
    session.unmount();
    sh(&format!("e2fsck -fp {0} > /dev/null && resize2fs {0} 2> /dev/null > /dev/null", device.display()));
    let at = session.mount();
    let large = content(2, 40 << 20);
    fs::write(at.join("large"), &large).unwrap();
    let again = json(&desk.done("volume grow disk --size 64M --key-file key --json"));
    assert_eq!((&again["grown"], &again["size"]), (&false.into(), &(64 * MIB).into()));
    session.unmount();
    session.detach();

    // By the policy file as it is now.
    desk.done("volume check disk.img --key-file key");
    let session = Session::attach(&desk, true);
    let at = session.mount();
    let last = written.load(Ordering::SeqCst) - 1;
    let numbers = fs::read(at.join("numbers")).unwrap();
    let place = usize::try_from(last % 10_000 * 8).unwrap();
    assert_eq!(numbers[place..place + 8], last.to_le_bytes());
    assert!(fs::read(at.join("large")).unwrap() == large);
    session.unmount();
    session.detach();
}
