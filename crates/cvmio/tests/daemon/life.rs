//! A volume's life as root: with FUSE, a loop device, and a file system on it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Desk;
use crate::common::machine::{content, has_ended, is_mounted, quietly, sh, wait_for};
use serde_json::Value;

/// An attached volume with a loop device. Whatever happens, nothing stays mounted.
struct Attached<'a> {
    desk: &'a Desk,
    name: &'static str,
    process: u32,
    device: PathBuf,
    at: PathBuf,
}

impl<'a> Attached<'a> {
    fn new(desk: &'a Desk) -> Self {
        Self::named(desk, "disk", "volume attach disk.img --key-file key --loop --json")
    }

    fn named(desk: &'a Desk, name: &'static str, command: &str) -> Self {
        let ready: Value = serde_json::from_str(&desk.done(command)).unwrap();
        let at = desk.path("at");
        fs::create_dir_all(&at).unwrap();
        let device = ready["loop-device"].as_str().or(ready["device"].as_str()).unwrap();
        let device =
            PathBuf::from(device.replace("[DIR]", desk.path("").to_str().unwrap().trim_end_matches('/')));
        Self { desk, name, process: u32::try_from(ready["process"].as_u64().unwrap()).unwrap(), device, at }
    }

    fn mount(&self) {
        sh(&format!("mount {} {}", self.device.display(), self.at.display()));
    }

    fn unmount(&self) {
        sh(&format!("umount {}", self.at.display()));
    }

    fn detach(self) {
        self.desk.done(&format!("volume detach {}", self.name));
        wait_for("the daemon's end", || has_ended(self.process));
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        quietly(&format!("umount -l {}", self.at.display()));
        if !has_ended(self.process) {
            quietly(&format!("losetup -d {}", self.device.display()));
            quietly(&format!("kill {}", self.process));
            // No panic here: this may be the end of a test that has failed.
            let begun = Instant::now();
            while !has_ended(self.process) && begun.elapsed() < Duration::from_secs(15) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// A loop device with a file system that is mounted. It goes with this.
struct Mounted<'a> {
    desk: &'a Desk,
    device: String,
}

impl<'a> Mounted<'a> {
    fn new(desk: &'a Desk) -> Self {
        let (image, at) = (desk.path("fs.img"), desk.path("at"));
        sh(&format!("truncate -s 64M {0} && mkfs.ext4 -q {0}", image.display()));
        fs::create_dir(&at).unwrap();
        let device = sh(&format!("losetup --show -f {}", image.display())).trim().to_owned();
        let this = Self { desk, device };
        sh(&format!("mount {} {}", this.device, at.display()));
        this
    }

    fn unmount(&self) {
        sh(&format!("umount {}", self.desk.path("at").display()));
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        quietly(&format!("umount -l {}", self.desk.path("at").display()));
        quietly(&format!("losetup -d {}", self.device));
    }
}

#[test]
fn a_disk_that_somebody_uses_is_left_alone() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    let disk = Mounted::new(&desk);
    let create =
        format!("volume create {} --key-file key --freshness off --policy policy --force", disk.device);
    let refused = desk.run(&create);
    assert_eq!(refused.code, 2, "{}", refused.error);
    assert!(refused.error.contains("it is mounted, or another program has it open"), "{}", refused.error);
    assert!(!desk.path("policy").exists());
    disk.unmount();
    sh(&format!("fsck.ext4 -fn {}", disk.device));
    desk.done(&create);
    desk.done(&format!("volume check {} --key-file key --policy policy", disk.device));
}

#[test]
fn a_file_system_lives_through_detach_and_attach() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    let first = desk.read("disk.img");
    let volume = Attached::new(&desk);
    sh(&format!("mkfs.ext4 -q {}", volume.device.display()));
    volume.mount();
    let (small, large) = (content(1, 5000), content(2, 3 << 20));
    fs::write(volume.at.join("small"), &small).unwrap();
    let file = fs::File::create(volume.at.join("large")).unwrap();
    std::io::Write::write_all(&mut &file, &large).unwrap();
    file.sync_all().unwrap();
    drop(file);

    // While it is in use it stays, and says where.
    let said = desk.run("volume detach disk");
    assert_eq!(said.code, 2, "{}", said.error);
    assert!(said.error.contains("is mounted on [DIR]/at"), "{}", said.error);
    let again = desk.run("volume attach disk.img --key-file key --name again");
    assert_eq!(again.code, 2, "{}", again.error);
    assert!(
        again.error.contains(&format!("attached as disk, by process {}", volume.process)),
        "{}",
        again.error
    );
    assert_eq!(desk.run("volume attach disk.img --key-file key").code, 2);
    let key = desk.run("volume key add disk.img --key-file key --new-key-file other");
    assert_eq!(key.code, 2, "{}", key.error);

    let status: Value = serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
    assert!(status["volume"]["written-blocks"].as_u64().unwrap() >= 770, "{status}");
    assert!(
        status["latency"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["kind"] == "write" && one["p999"].as_u64() > Some(0)),
        "{status}"
    );
    let text = desk.done("volume status disk");
    for word in ["anchored", "aes-256-gcm", "sealing", "private", "cache", "% full", "on the store", "p99.9"]
    {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
    let list: Value = serde_json::from_str(&desk.done("volume list --json")).unwrap();
    assert_eq!((&list[0]["name"], &list[0]["state"]), (&"disk".into(), &"attached".into()));
    assert!(desk.done("volume check disk").contains("all whole"));
    desk.done("volume commit disk");

    volume.unmount();
    volume.detach();
    assert!(
        fs::read_dir(desk.path("run")).unwrap().next().is_none(),
        "something is left in the runtime directory"
    );
    assert!(desk.done("volume check disk.img --key-file key").contains("all whole"));
    let last = desk.read("disk.img");
    assert!(!last.windows(64).any(|window| window == &large[4096..4160]), "data is on the disk as it is");

    let volume = Attached::new(&desk);
    volume.mount();
    assert!(fs::read(volume.at.join("small")).unwrap() == small);
    assert!(fs::read(volume.at.join("large")).unwrap() == large);
    volume.unmount();
    sh(&format!("fsck.ext4 -fn {}", volume.device.display()));
    volume.detach();

    // The disk as it was at first: the anchor knows better.
    desk.write("disk.img", &first);
    let said = desk.run("volume attach disk.img --key-file key");
    assert_eq!(said.code, 5, "{}", said.error);
    assert!(desk.read("disk.img") == first, "a stale store was written to");
}

#[test]
fn a_daemon_that_is_killed_loses_nothing_that_was_synced() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::new(&desk);
    sh(&format!("mkfs.ext4 -q {}", volume.device.display()));
    volume.mount();
    let kept = content(3, 1 << 20);
    let file = fs::File::create(volume.at.join("kept")).unwrap();
    std::io::Write::write_all(&mut &file, &kept).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let at = volume.at.display();
    let load = format!(
        "i=0; while dd if=/dev/urandom of={at}/load$((i % 4)) bs=64k count=16 conv=fsync; do i=$((i+1)); done"
    );
    let mut load = Load(Command::new("sh").args(["-c", &load]).stderr(Stdio::null()).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(700));
    assert!(load.0.try_wait().unwrap().is_none(), "the load ended by itself");
    sh(&format!("kill -9 {}", volume.process));
    wait_for("the load's end", || load.ended());
    wait_for("the unmounting", || {
        sh(&format!("umount {at} 2>/dev/null; grep -c ' {at} ' /proc/mounts || true")).trim() == "0"
    });
    sh(&format!("losetup -d {}", volume.device.display()));
    wait_for("the daemon's end", || has_ended(volume.process));
    drop(volume);

    let volume = Attached::new(&desk);
    volume.mount();
    assert!(fs::read(volume.at.join("kept")).unwrap() == kept, "a synced file was lost");
    volume.unmount();
    sh(&format!("fsck.ext4 -fn {}", volume.device.display()));
    volume.detach();
    assert!(desk.done("volume check disk.img --key-file key").contains("all whole"));
}

/// A process that must not outlive the test.
struct Load(Child);

impl Load {
    fn ended(&self) -> bool {
        has_ended(self.0.id())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// SIGTERM is flush, commit, stop.
#[test]
fn a_signal_puts_the_volume_away() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("--freshness interval");
    for foreground in [false, true] {
        let (mut child, process) = if foreground {
            let child = desk
                .command("volume attach disk.img --key-file key --foreground")
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let process = child.id();
            wait_for("the device", || desk.path("run/disk/disk").exists());
            (Some(child), process)
        } else {
            let volume = Attached::new(&desk);
            let process = volume.process;
            std::mem::forget(volume);
            (None, process)
        };
        // Written, and not flushed: a minute's window, and less than makes a commit by itself.
        let seed = if foreground { 4 } else { 5 };
        let file = fs::OpenOptions::new().write(true).open(desk.path("run/disk/disk")).unwrap();
        file.write_all_at(&content(seed, 1 << 20), 0).unwrap();
        drop(file);
        sh(&format!("kill {process}"));
        match &mut child {
            Some(child) => assert!(child.wait().unwrap().success()),
            None => wait_for("the daemon's end", || has_ended(process)),
        }
        assert!(
            fs::read_dir(desk.path("run")).unwrap().next().is_none(),
            "something is left in the runtime directory"
        );
        let dump: Value = serde_json::from_str(&desk.done("volume dump disk.img --json")).unwrap();
        assert_eq!(dump["stamp"]["state"], "released");
        let volume = Attached::named(&desk, "disk", ATTACH);
        assert!(
            fs::read(&volume.device).unwrap()[..1 << 20] == content(seed, 1 << 20),
            "foreground: {foreground}"
        );
        volume.detach();
    }
}

/// Attaches without a loop device: the file is enough.
const ATTACH: &str = "volume attach disk.img --key-file key --json";

#[test]
fn damage_is_named_and_never_read() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    let volume = Attached::named(&desk, "disk", ATTACH);
    fs::File::options()
        .write(true)
        .open(&volume.device)
        .unwrap()
        .write_all_at(&content(5, 64 * 4096), 0)
        .unwrap();
    volume.detach();
    let dump: Value = serde_json::from_str(&desk.done("volume dump disk.img --key-file key --json")).unwrap();
    let start = usize::try_from(dump["copies"][0]["header"]["ok"]["data-start"].as_u64().unwrap()).unwrap();
    let newest =
        dump["superblocks"].as_array().unwrap().iter().max_by_key(|one| one["generation"].as_u64()).unwrap();
    let roots = ["map", "salts"].map(|name| newest[name]["physical"].as_u64());
    let mut bytes = desk.read("disk.img");
    for (index, block) in bytes.chunks_mut(4096).enumerate().skip(start) {
        if block.iter().any(|&byte| byte != 0) && !roots.contains(&Some(index as u64)) {
            block[100] ^= 1;
        }
    }
    desk.write("disk.img", &bytes);

    let check = desk.run("volume check disk.img --key-file key --json");
    assert_eq!(check.code, 4, "{}", check.error);
    let report: Value = serde_json::from_str(&check.out).unwrap();
    assert!(report["damaged-blocks"].as_u64() >= Some(64), "{report}");
    assert_eq!(report["damaged"][0]["block"], 0);
    assert!(desk.read("disk.img") == bytes, "a check has written");

    let volume = Attached::named(&desk, "disk", ATTACH);
    let file = fs::File::open(&volume.device).unwrap();
    let error = file.read_exact_at(&mut [0; 4096], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    drop(file);
    let status: Value = serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
    assert!(status["failed-requests"].as_u64() > Some(0), "{status}");
    let log = fs::read_to_string(desk.path("run/disk/log")).unwrap();
    assert!(log.contains("read failed: ") && log.contains("is not what was written there"), "{log}");
}

#[test]
fn a_clone_takes_the_volume_over_and_the_first_session_says_so() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    let first = Attached::named(&desk, "disk", ATTACH);
    let file = fs::File::options().write(true).open(&first.device).unwrap();
    file.write_all_at(&content(6, 4096), 0).unwrap();
    file.sync_all().unwrap();
    desk.write("clone.img", &desk.read("disk.img"));
    let attach = "volume attach clone.img --policy disk.img.policy.toml --key-file key --json";
    let second = Attached::named(&desk, "clone", attach);
    file.write_all_at(&content(7, 4096), 0).unwrap();
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert!(file.write_all_at(&content(7, 4096), 0).is_err());
    drop(file);
    assert!(desk.done("volume status disk").contains("FAILED"));
    assert!(desk.done("volume list").contains("failed"));
    let said = desk.run("volume detach disk");
    assert_eq!(said.code, 7, "{}", said.error);
    drop(first);
    assert_eq!(fs::read(&second.device).unwrap()[..4096], content(6, 4096));
    second.detach();
}

#[test]
fn a_thin_volume_that_is_full_says_so_and_can_still_be_read() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    fs::File::create(desk.path("disk.img")).unwrap().set_len(24 << 20).unwrap();
    let anchor = desk.path("anchor");
    desk.done(&format!(
        "volume create disk.img --size 64M --provision thin --key-file key --anchor file:{}",
        anchor.display()
    ));
    let volume = Attached::named(&desk, "disk", ATTACH);
    let file = fs::File::options().read(true).write(true).open(&volume.device).unwrap();
    let piece = content(8, 1 << 20);
    let full =
        (0..64).find_map(|number| file.write_all_at(&piece, number << 20).err().map(|error| (number, error)));
    let (written, error) = full.expect("64 MiB went into 24");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    assert!(written >= 8, "only {written} MiB went into 24");
    let mut back = vec![0; piece.len()];
    for number in 0..written {
        file.read_exact_at(&mut back, number << 20).unwrap();
        assert!(back == piece, "{number}");
    }
    file.write_all_at(&piece[..8192], 0).expect("an overwrite");
    drop(file);
    volume.detach();
}

#[test]
fn a_block_device_can_be_the_store() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    fs::File::create(desk.path("raw")).unwrap().set_len(32 << 20).unwrap();
    let device = sh(&format!("losetup -f --show {}", desk.path("raw").display())).trim().to_string();
    let undo = Undo(format!("losetup -d {device}"));
    let anchor = desk.path("anchor");
    let create = format!("volume create {device} --key-file key --anchor file:{}", anchor.display());
    let said = desk.run(&create);
    assert_eq!(said.code, 2, "{}", said.error);
    assert!(said.error.contains("name the file with --policy"), "{}", said.error);
    desk.done(&format!("{create} --policy policy"));
    let attach = format!("volume attach {device} --policy policy --name disk --key-file key --json");
    let volume = Attached::named(&desk, "disk", &attach);
    let bytes = content(9, 1 << 20);
    fs::File::options().write(true).open(&volume.device).unwrap().write_all_at(&bytes, 4096).unwrap();
    let again = desk.run(&format!("volume attach {device} --policy policy --name two --key-file key"));
    assert_eq!(again.code, 2, "{}", again.error);
    volume.detach();
    let check = format!("volume check {device} --policy policy --key-file key");
    assert_eq!(desk.done(&check), "256 blocks checked, all whole\n");
    drop(undo);
}

/// Runs a command at the end, whatever happens before.
struct Undo(String);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = Command::new("sh").args(["-c", &self.0]).status();
    }
}

#[test]
fn after_a_crash_a_transaction_is_there_as_a_whole_or_not_at_all() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("--freshness transaction");
    let volume = Attached::named(&desk, "disk", ATTACH);
    let file = fs::File::options().write(true).open(&volume.device).unwrap();
    let (before, after) = (content(10, 1 << 20), content(11, 1 << 20));
    file.write_all_at(&before, 0).unwrap();
    desk.done("volume commit disk");
    file.write_all_at(&after, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    sh(&format!("kill -9 {}", volume.process));
    wait_for("the unmounting", || !is_mounted(&desk.path("run/disk/mnt")));
    assert!(desk.done("volume list").contains("dead"));
    drop(volume);

    let volume = Attached::named(&desk, "disk", ATTACH);
    assert!(fs::read(&volume.device).unwrap()[..1 << 20] == before);
    volume.detach();
}

#[test]
fn every_protection_carries_data_through_a_restart() {
    crate::skip_without_devices!();
    for protections in [
        "--freshness off",
        "--freshness write",
        "--freshness interval --suite aegis-128x2",
        "--suite aegis-256x2",
        "--no-confidentiality",
        "--no-integrity --freshness off",
        "--no-integrity --no-confidentiality --freshness off",
    ] {
        let desk = Desk::new();
        desk.create(protections);
        let bytes = content(12, 1 << 20);
        let volume = Attached::named(&desk, "disk", ATTACH);
        fs::File::options().write(true).open(&volume.device).unwrap().write_all_at(&bytes, 12_288).unwrap();
        volume.detach();
        let disk = desk.read("disk.img");
        let shown = disk.chunks(4096).any(|block| block == &bytes[8192..12_288]);
        assert_eq!(shown, protections.contains("no-confidentiality"), "{protections}");
        let volume = Attached::named(&desk, "disk", ATTACH);
        assert!(fs::read(&volume.device).unwrap()[12_288..][..1 << 20] == bytes, "{protections}");
        volume.detach();
    }
}

#[test]
fn a_file_that_has_not_the_space_is_left_as_it_was() {
    use std::os::unix::fs::MetadataExt;
    let desk = Desk::new();
    std::fs::File::create(desk.path("sparse.img")).unwrap().set_len(8 << 40).unwrap();
    let create =
        format!("volume create sparse.img --key-file key --anchor file:{}", desk.path("it").display());
    let refused = desk.run(&create);
    assert!(refused.code == 2 && refused.error.contains("--provision thin"), "{refused:?}");
    assert_eq!(std::fs::metadata(desk.path("sparse.img")).unwrap().blocks(), 0);
    assert!(!desk.path("it").exists() && !desk.path("sparse.img.policy.toml").exists());
    // As it advises, and with the same anchor.
    desk.done(&format!("{create} --size 16M --provision thin"));
}
