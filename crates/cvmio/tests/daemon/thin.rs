//! Thin volumes on stores that have less room than they show: what is free goes back, and a full host is no end.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::limits::{Clean, process};
use crate::common::Desk;
use crate::common::machine::{has_ended, quietly, sh, wait_for};
use crate::skip_without_devices;
use serde_json::Value;

/// The first MiB of a file.
fn head(file: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    fs::File::open(file).unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

/// Where a thin volume of 512 MiB lies that has 150 MiB: how that is made in the directory `small`, the volume's store, and the file whose room it
/// takes.
struct Host {
    name: &'static str,
    make: &'static str,
    store: fn(&Desk) -> String,
    file: &'static str,
}

const HOSTS: [Host; 4] = [
    Host {
        name: "ext4",
        make: "truncate -s 150M fs && mkfs.ext4 -q fs && mount -o loop fs small",
        store: |_| "small/disk.img".into(),
        file: "small/disk.img",
    },
    // It needs 300 MiB to be made.
    Host {
        name: "xfs",
        make: "truncate -s 300M fs && mkfs.xfs -q fs && mount -o loop fs small && fallocate -l 90M small/others",
        store: |_| "small/disk.img".into(),
        file: "small/disk.img",
    },
    Host {
        name: "memory",
        make: "mount -t tmpfs -o size=150M none small",
        store: |_| "small/disk.img".into(),
        file: "small/disk.img",
    },
    Host {
        name: "a thin device",
        make: "truncate -s 160M fs && mkfs.ext4 -q fs && mount -o loop fs small && truncate -s 600M small/raw && \
               losetup -f --show small/raw > device",
        store: |desk| String::from_utf8(desk.read("device")).unwrap().trim().into(),
        file: "small/raw",
    },
];

/// 30 MiB of it, overwritten again and again, more than there is room for, and what was too much discarded.
#[test]
fn a_thin_volume_lives_on_a_small_file_system() {
    skip_without_devices!();
    for host in &HOSTS {
        let desk = Rc::new(Desk::new());
        let _clean = Clean(Rc::clone(&desk));
        fs::create_dir(desk.path("small")).unwrap();
        desk.write("key", &[7; 32]);
        sh(&format!("cd {} && {}", desk.path("").display(), host.make));
        let store = (host.store)(&desk);
        let lived = catch_unwind(AssertUnwindSafe(|| live_on(&desk, &store, host.file)));
        let _ = desk.run("volume detach disk");
        if store.starts_with("/dev") {
            quietly(&format!("losetup -d {store}"));
        }
        wait_for("its end", || quietly(&format!("umount {}", desk.path("small").display())));
        if let Err(why) = lived {
            eprintln!("on {}", host.name);
            resume_unwind(why);
        }
    }
}

fn live_on(desk: &Desk, store: &str, takes_room: &str) {
    let anchor = format!("file:{}", desk.path("anchor").display());
    let options = format!("--policy policy --key-file key --anchor {anchor} --provision thin");
    desk.done(&format!("volume create {store} --size 512M {options}"));
    let attach = format!("volume attach {store} --policy policy --key-file key --name disk --json");
    desk.done(&attach);
    let file = desk.path("run/disk/disk");
    let taken = || fs::metadata(desk.path(takes_room)).unwrap().blocks() * 512;
    let status = || -> Value { serde_json::from_str(&desk.done("volume status disk --json")).unwrap() };
    let write = |megabytes: u32, at: u32| {
        quietly(&format!(
            "dd if=/dev/urandom of={} bs=1M count={megabytes} seek={at} conv=notrunc,fsync status=none",
            file.display()
        ))
    };
    for round in 0..12 {
        assert!(write(30, 0), "round {round}");
    }
    assert!(taken() < 130 << 20, "{}", taken());
    let left = &status()["volume"]["store-left"];
    assert!(left.is_null() == store.starts_with("/dev") && left.as_u64() != Some(0), "{left}");
    // More than there is: refused, and nothing worse.
    assert!(!write(200, 64));
    let after = status();
    assert!(after["volume"]["failure"].is_null(), "{after}");
    let before = head(&file);
    desk.done("volume detach disk");
    desk.done(&attach);
    assert!(head(&file) == before);
    // What was too much goes again, and there is room, also for others.
    let full = taken();
    sh(&format!("fallocate -p -o 64M -l 200M {}", file.display()));
    sh(&format!("sync {}", file.display()));
    wait_for("room", || write(8, 300));
    // A full XFS makes no hole before somebody else has given it some blocks.
    quietly(&format!("truncate -c -s 80M {}", desk.path("small/others").display()));
    // What is kept for overwrites stays.
    wait_for("room for others", || taken() < full - (40 << 20));
    desk.done("volume detach disk");
}

/// The store is a block device, here one that hands discards on to its file: what users discard goes down to it.
#[test]
fn what_is_discarded_goes_down_to_the_device() {
    skip_without_devices!();
    let desk = Rc::new(Desk::new());
    let _clean = Clean(Rc::clone(&desk));
    fs::File::create(desk.path("raw")).unwrap().set_len(256 << 20).unwrap();
    let device = sh(&format!("losetup -f --show {}", desk.path("raw").display())).trim().to_owned();
    let taken = || fs::metadata(desk.path("raw")).unwrap().blocks() * 512;
    let (anchor, disk) = (desk.path("anchor"), desk.path("run/disk/disk"));
    let made = desk.run(&format!(
        "volume create {device} --size 192M --provision thin --policy policy --key-file key --anchor file:{}",
        anchor.display()
    ));
    let attach =
        format!("volume attach {device} --policy policy --name disk --key-file key --memory 64M --as fuse");
    // As it is by default, and as it is when it was refused.
    let rounds = ["", "--discard off"].map(|more| {
        let attached = desk.run(&format!("{attach} {more}"));
        let before = taken();
        let written = quietly(&format!(
            "dd if=/dev/urandom of={} bs=1M count=64 conv=notrunc,fsync status=none",
            disk.display()
        ));
        let full = taken();
        let discarded = quietly(&format!("fallocate -p -o 0 -l 64M {0} && sync {0}", disk.display()));
        let begun = Instant::now();
        while taken() > before + (16 << 20)
            && begun.elapsed() < Duration::from_secs(if more.is_empty() { 30 } else { 3 })
        {
            std::thread::sleep(Duration::from_millis(50));
        }
        let after = taken();
        let detached = desk.run("volume detach disk");
        (attached, written && discarded, detached, [before, full, after])
    });
    let checked = desk.run(&format!("volume check {device} --policy policy --key-file key"));
    sh(&format!("losetup -d {device}"));
    assert_eq!((made.code, checked.code), (0, 0), "{made:?} {checked:?}");
    for ((attached, done, detached, [before, full, after]), on) in rounds.into_iter().zip([true, false]) {
        assert!(attached.code == 0 && done && detached.code == 0, "{attached:?} {done} {detached:?}");
        assert!(full >= before + (60 << 20), "on {on}: {before} {full} {after}");
        assert_eq!(after <= before + (16 << 20), on, "{before} {full} {after}");
    }
}

/// A thin volume on a file system without a block to spare, whose daemon was killed while it wrote: the next one attaches, reads, discards and
/// goes on.
#[test]
fn a_crowded_volume_on_a_full_host_is_attached_after_a_kill() {
    skip_without_devices!();
    let desk = Rc::new(Desk::new());
    let _clean = Clean(Rc::clone(&desk));
    let small = desk.path("small");
    fs::create_dir(&small).unwrap();
    sh(&format!(
        "truncate -s 150M {0}/fs && mkfs.ext4 -q {0}/fs && mount -o loop {0}/fs {0}/small",
        desk.path("").display()
    ));
    let anchor = desk.path("anchor");
    desk.done(&format!(
        "volume create small/disk.img --size 512M --provision thin --policy policy --key-file key --anchor file:{}",
        anchor.display()
    ));
    let attach = "volume attach small/disk.img --policy policy --key-file key --memory 32M";
    let disk = desk.path("run/disk/disk");
    let mut codes = Vec::new();
    for round in 0..4 {
        codes.push(desk.run(attach));
        if codes.last().is_some_and(|said| said.code != 0) {
            break;
        }
        let process = process(&desk);
        // In small pieces, all over the volume, until there is no room; then the rest of the host's is taken by somebody else.
        for at in 0..200 {
            let written = quietly(&format!(
                "dd if=/dev/urandom of={} bs=64k count=16 seek={} conv=notrunc status=none",
                disk.display(),
                (at * 37 + round * 11) % 500 * 16
            ));
            if !written {
                break;
            }
        }
        fill(&small);
        quietly(&format!("timeout 5 sync {}", disk.display()));
        sh(&format!("kill -9 {process}"));
        wait_for("the daemon's end", || has_ended(process));
    }
    let last = desk.run(attach);
    let read = quietly(&format!("dd if={} of=/dev/null bs=1M status=none", disk.display()));
    let discarded = quietly(&format!("fallocate -p -o 0 -l 480M {0} && sync {0}", disk.display()));
    fs::remove_file(small.join("others")).unwrap();
    // The host's file system gives back what was freed when its own journal has it.
    let write =
        format!("dd if=/dev/urandom of={} bs=1M count=8 conv=notrunc,fsync status=none", disk.display());
    let begun = Instant::now();
    let mut goes_on = quietly(&write);
    while !goes_on && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
        goes_on = quietly(&write);
    }
    let detached = desk.run("volume detach disk");
    let checked = desk.run("volume check small/disk.img --policy policy --key-file key");
    sh(&format!("umount {}", small.display()));
    assert!(codes.iter().all(|said| said.code == 0), "{codes:?}");
    assert_eq!((last.code, detached.code, checked.code), (0, 0, 0), "{last:?} {detached:?} {checked:?}");
    assert!(read && discarded && goes_on, "read {read}, discarded {discarded}, goes on {goes_on}");
}

/// A file system on it is filled until its host is full: what is there can be written again, and the file system is unmounted, mounted, emptied and
/// trimmed, as on a full disk.
#[test]
fn a_file_system_on_it_lives_on_when_its_host_is_full() {
    skip_without_devices!();
    let host = &HOSTS[0];
    let desk = Rc::new(Desk::new());
    let _clean = Clean(Rc::clone(&desk));
    let (small, top) = (desk.path("small"), desk.path("top"));
    fs::create_dir(&small).unwrap();
    fs::create_dir(&top).unwrap();
    desk.write("key", &[7; 32]);
    sh(&format!("cd {} && {}", desk.path("").display(), host.make));
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let anchor = format!("file:{}", desk.path("anchor").display());
        let options = format!("--policy policy --key-file key --anchor {anchor} --provision thin");
        desk.done(&format!("volume create {} --size 512M {options}", host.file));
        let attached = desk.done(&format!(
            "volume attach {} --policy policy --key-file key --name disk --loop --json",
            host.file
        ));
        let attached: Value = serde_json::from_str(&attached).unwrap();
        let device = attached["loop-device"].as_str().unwrap_or_else(|| panic!("{attached}")).to_string();
        let in_top = |script: &str| quietly(&format!("cd {} && {script}", top.display()));
        let write = |name: &str, count: u32| {
            in_top(&format!(
                "dd if=/dev/urandom of={name} bs=1M count={count} conv=notrunc,fsync status=none"
            ))
        };
        sh(&format!("mkfs.ext4 -q -F {device} && mount -o discard {device} {}", top.display()));
        assert!(write("first", 8));
        let filled = (0..100).find(|at| !write(&format!("file-{at}"), 4)).expect("the host is full");
        assert!(filled > 5, "{filled}");
        for _ in 0..4 {
            assert!(write("first", 8), "an overwrite");
        }
        sh(&format!("umount {0} && mount {device} {0}", top.display()));
        assert!(in_top("rm file-* && sync -f .") && quietly(&format!("fstrim {}", top.display())));
        wait_for("room", || write("again", 4));
        sh(&format!("umount {} && e2fsck -fn {device}", top.display()));
    }));
    quietly(&format!("umount {}", top.display()));
    let detached = desk.run("volume detach disk");
    wait_for("its end", || quietly(&format!("umount {}", small.display())));
    if let Err(why) = lived {
        resume_unwind(why);
    }
    assert_eq!(detached.code, 0, "{detached:?}");
}

/// Leaves no room in a file system.
fn fill(directory: &Path) {
    let file = directory.join("others");
    for size in ["1M", "4k"] {
        quietly(&format!("dd if=/dev/zero bs={size} status=none >> {}", file.display()));
    }
}
