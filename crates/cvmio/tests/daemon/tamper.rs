//! What the device does, and who is told, once the host was caught.

use std::fs::{self, File};
use std::io::Result;
use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::common::Desk;
use crate::common::machine::{content, quietly, wait_for};
use rustix::io::Errno;
use serde_json::Value;

/// A volume whose daemon ends with the test, whatever happens.
struct Attached<'a> {
    desk: &'a Desk,
    process: u64,
}

impl<'a> Attached<'a> {
    fn new(desk: &'a Desk, more: &str) -> Self {
        let said =
            desk.done(&format!("volume attach disk.img --key-file key --tamper-hook hook --json {more}"));
        let ready: Value = serde_json::from_str(&said).unwrap();
        Self { desk, process: ready["process"].as_u64().unwrap() }
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        // What was damaged may keep the last checkpoint from being made; the daemon ends all the same.
        let said = self.desk.run("volume detach disk");
        if said.code == 2 {
            quietly(&format!("kill {}", self.process));
        }
    }
}

fn hook(desk: &Desk) {
    let told = desk.path("told");
    desk.write(
        "hook",
        format!(
            "#!/bin/sh\necho \"$CVMIO_NAME $CVMIO_KIND $CVMIO_OPERATION $CVMIO_BLOCKS\" >> {}\n",
            told.display()
        )
        .as_bytes(),
    );
    fs::set_permissions(desk.path("hook"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Where the data blocks begin, as long as nobody has the volume attached.
fn data_start(desk: &Desk) -> u64 {
    let dump: Value = serde_json::from_str(&desk.done("volume dump disk.img --json")).unwrap();
    dump["copies"][0]["header"]["ok"]["data-start"].as_u64().unwrap()
}

/// Everything that is in use among the data blocks, changed on the store.
fn tamper(desk: &Desk, start: u64) {
    let bytes = desk.read("disk.img");
    let file = File::options().write(true).open(desk.path("disk.img")).unwrap();
    for (index, block) in (0..).zip(bytes.chunks(4096)).skip(usize::try_from(start).unwrap()) {
        if block.iter().any(|&byte| byte != 0) {
            file.write_all_at(&[block[100] ^ 1], index * 4096 + 100).unwrap();
        }
    }
    file.sync_all().unwrap();
}

fn errno(result: Result<()>) -> Option<i32> {
    result.err().map(|error| error.raw_os_error().unwrap_or(0))
}

#[test]
fn the_device_does_what_was_ordered_and_the_hook_is_run() {
    crate::skip_without_devices!();
    let [io, rofs] = [Errno::IO, Errno::ROFS].map(|errno| Some(errno.raw_os_error()));
    for (order, read, write) in [("continue", None, None), ("read-only", None, rofs), ("stop", io, io)] {
        let desk = Desk::new();
        desk.create("");
        hook(&desk);
        let start = data_start(&desk);
        let attached = Attached::new(&desk, &format!("--on-tamper {order}"));
        let device = File::options().read(true).write(true).open(desk.path("run/disk/disk")).unwrap();
        device.write_all_at(&content(5, 64 * 4096), 0).unwrap();
        device.sync_all().unwrap();
        tamper(&desk, start);
        assert!(!desk.path("told").exists(), "{order}: the hook was run for nothing");
        assert_eq!(errno(device.read_exact_at(&mut [0; 4096], 7 * 4096)), io, "{order}: not caught");
        wait_for("the hook", || fs::read(desk.path("told")).is_ok_and(|told| told.ends_with(b"\n")));
        let told = String::from_utf8(desk.read("told")).unwrap();
        assert!(told.starts_with("disk corrupt read ") && told.contains('7'), "{order}: {told}");
        // A block that was never written is whole.
        assert_eq!(errno(device.read_exact_at(&mut [0; 4096], 8 << 20)), read, "{order}");
        assert_eq!(errno(device.write_all_at(&[1; 4096], 8 << 20)), write, "{order}");
        let status = desk.done("volume status disk");
        assert!(status.contains("TAMPERING"), "{order}: {status}");
        // More of the same within the pause starts nothing.
        let _ = device.read_exact_at(&mut [0; 4096], 9 * 4096);
        assert_eq!(desk.read("told").iter().filter(|byte| **byte == b'\n').count(), 1, "{order}");
        drop(device);
        drop(attached);
    }
}

#[test]
fn a_volume_that_is_refused_is_told_of_too() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    hook(&desk);
    let attach = "volume attach disk.img --tamper-hook hook --on-tamper stop --key-file";
    let old = desk.read("disk.img");
    {
        let _attached = Attached::new(&desk, "");
        let device = File::options().write(true).open(desk.path("run/disk/disk")).unwrap();
        device.write_all_at(&[1; 4096], 0).unwrap();
        device.sync_all().unwrap();
    }
    assert_eq!(desk.run(&format!("{attach} other")).code, 10);
    assert!(!desk.path("told").exists(), "a wrong key is no sign of tampering");
    desk.write("disk.img", &old);
    let refused = desk.run(&format!("{attach} key"));
    assert_eq!(refused.code, 5, "{}", refused.error);
    // It has ended before the refusal is told.
    assert_eq!(String::from_utf8(desk.read("told")).unwrap(), "disk stale attach \n");
    assert!(!refused.error.contains("answers no more requests"), "{}", refused.error);
}

#[test]
fn a_hook_that_is_no_file_is_refused_before_anything_is_claimed() {
    let desk = Desk::new();
    desk.create("");
    let anchor = desk.read("anchor");
    let said = desk.run("volume attach disk.img --key-file key --tamper-hook nowhere");
    assert!(said.code == 2 && said.error.contains("the tamper hook nowhere is no file"), "{said:?}");
    assert!(desk.read("anchor") == anchor);
}

fn scrub(desk: &Desk) -> Value {
    serde_json::from_str::<Value>(&desk.done("volume status disk --json")).unwrap()["scrub"].clone()
}

#[test]
fn a_scrub_reads_everything_no_faster_than_it_may_and_names_what_is_damaged() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    hook(&desk);
    let start = data_start(&desk);
    let _attached = Attached::new(&desk, "");
    let device = File::options().read(true).write(true).open(desk.path("run/disk/disk")).unwrap();
    device.write_all_at(&content(6, 12 << 20), 0).unwrap();
    device.sync_all().unwrap();
    assert!(scrub(&desk).is_null());
    assert_eq!(desk.run("volume scrub disk --stop").code, 2, "there is none");

    // 8 MiB more than it may be ahead by, at 64 KiB a second: it is there to be stopped, however slow the machine is.
    desk.done("volume scrub disk --rate 64K");
    assert_eq!(desk.run("volume scrub disk").code, 2, "one is under way");
    wait_for("some progress", || scrub(&desk)["blocks"].as_u64() > Some(0));
    assert_eq!(scrub(&desk)["stage"], "running");
    // Requests go on beside it.
    device.read_exact_at(&mut [0; 4096], 0).unwrap();
    desk.done("volume scrub disk --stop");
    let stopped = scrub(&desk);
    assert_eq!(stopped["stage"], "stopped");
    assert!(stopped["blocks"].as_u64() < Some(3072), "{stopped}");

    let done = || scrub(&desk)["stage"] == "done";
    desk.done("volume scrub disk --rate 1G");
    wait_for("the scrub's end", done);
    let whole = scrub(&desk);
    // What was changed since the last checkpoint may be read twice.
    assert!(whole["blocks"].as_u64() >= Some(3072) && whole["damaged-blocks"] == 0, "{whole}");
    assert!(!desk.path("told").exists());

    tamper(&desk, start);
    desk.done("volume scrub disk --rate 1G");
    wait_for("the scrub's end", done);
    let found = scrub(&desk);
    assert!(found["damaged-blocks"].as_u64() >= Some(3000) && !found["damaged"][0].is_null(), "{found}");
    assert!(desk.done("volume status disk").contains("DAMAGED: "));
    wait_for("the hook", || fs::read(desk.path("told")).is_ok_and(|told| told.ends_with(b"\n")));
    assert!(String::from_utf8(desk.read("told")).unwrap().starts_with("disk corrupt scrub "));
    // One that is under way is no reason to stay.
    desk.done("volume scrub disk --rate 1");
}
