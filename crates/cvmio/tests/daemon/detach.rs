//! What is true at the moment at which `detach` and `deactivate` return: the daemon is gone, and what it had open is free.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::machine::{content, damage_middle, has, has_ended, quietly, sh, tell_skipped, wait_for};
use crate::common::session::Session;
use crate::common::{Desk, Said};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

const ATTACH: &str = "volume attach disk.img --key-file key --memory 32M --as nbd --json";

/// A desk with a volume of 16 MiB; whatever the test did, no daemon stays.
struct Clean(Desk);

impl Clean {
    fn new() -> Self {
        let desk = Desk::new();
        desk.create("");
        Self(desk)
    }

    /// Attaches; the daemon's process.
    fn attach(&self, more: &str) -> u32 {
        let ready: Value = serde_json::from_str(&self.0.done(&format!("{ATTACH} {more}"))).unwrap();
        u32::try_from(ready["process"].as_u64().unwrap()).unwrap()
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        self.0.run("volume detach disk");
        quietly(&format!("umount {}", self.0.path("at").display()));
    }
}

/// Looked at once, with no pause and no second try.
fn check_gone(process: u32, store: &Path) {
    assert!(has_ended(process), "the daemon still runs");
    let store = File::open(store).unwrap();
    // The daemon's is exclusive; another test of the same may hold this one.
    flock(&store, FlockOperation::NonBlockingLockShared).expect("the store is free");
}

#[test]
fn a_daemon_is_gone_when_detach_returns() {
    let clean = Clean::new();
    for round in 0..30 {
        let process = clean.attach(if round % 3 == 0 { "--for-root" } else { "" });
        clean.0.done("volume detach disk");
        check_gone(process, &clean.0.path("disk.img"));
    }
}

#[test]
fn a_daemon_is_gone_when_deactivate_returns() {
    let clean = Clean::new();
    for _ in 0..15 {
        let process = clean.attach("");
        clean.0.done("volume deactivate disk");
        check_gone(process, &clean.0.path("disk.img"));
    }
}

/// Whoever hears that the volume is being put away already can rely on that, too.
#[test]
fn of_two_who_detach_both_wait_for_the_end() {
    let clean = Clean::new();
    let mut refused = 0;
    for round in 0..16 {
        let process = clean.attach("");
        let store = clean.0.path("disk.img");
        let detach = &|pause: u64| {
            std::thread::sleep(Duration::from_millis(pause));
            let said = clean.0.run("volume detach disk");
            let told_of_it = said.code == 0 || said.error.contains("being put away already");
            let gone = ["no volume is attached", "put away at this moment"];
            assert!(
                told_of_it || gone.iter().any(|gone| said.error.contains(gone)),
                "round {round}: {said:?}"
            );
            if told_of_it {
                check_gone(process, &store);
            }
            said.code
        };
        let codes = std::thread::scope(|scope| {
            let both = [0, 2 * round].map(|pause| scope.spawn(move || detach(pause)));
            both.map(|one| one.join().unwrap())
        });
        assert!(codes.contains(&0), "round {round}: {codes:?}");
        refused += codes.iter().filter(|code| **code != 0).count();
    }
    assert!(refused > 0, "nobody came second");
}

/// A check has queues of its own, which the kernel keeps a while for a process that was cut off.
#[test]
fn a_check_that_is_under_way_lets_go_too() {
    if !has("nbdcopy") {
        return tell_skipped("no nbdcopy");
    }
    let desk = Desk::new();
    let anchor = desk.path("anchor");
    desk.done(&format!(
        "volume create disk.img --size 192M --key-file key --anchor file:{}",
        anchor.display()
    ));
    let clean = Clean(desk);
    clean.attach("");
    let socket = clean.0.path("run/disk/nbd.sock");
    fill(&socket, 160 << 20);
    clean.0.done("volume detach disk");
    let mut cut = 0;
    for round in 0..10 {
        let process = clean.attach("");
        let mut command = clean.0.command("volume check disk");
        let check = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(10 + 4 * round));
        clean.0.done("volume detach disk");
        check_gone(process, &clean.0.path("disk.img"));
        cut += u32::from(!check.wait_with_output().unwrap().status.success());
    }
    assert!(cut > 0, "no check was under way");
}

/// Writes so many bytes over NBD, with the few words of it that this needs.
fn fill(socket: &Path, bytes: usize) {
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let source = socket.with_file_name("source");
    fs::write(&source, content(5, bytes)).unwrap();
    sh(&format!("nbdcopy {} '{uri}'", source.display()));
    fs::remove_file(source).unwrap();
}

#[test]
fn what_the_store_lies_on_can_be_unmounted_at_once() {
    crate::skip_without_devices!();
    let clean = Clean(Desk::new());
    let at = clean.0.path("at");
    let image = clean.0.path("fs.img");
    fs::create_dir(&at).unwrap();
    sh(&format!("truncate -s 64M {0} && mkfs.ext4 -q {0}", image.display()));
    let mount = || sh(&format!("mount -o loop {} {}", image.display(), at.display()));
    mount();
    let anchor = clean.0.path("anchor");
    clean.0.done(&format!(
        "volume create at/disk.img --size 16M --key-file key --policy policy --anchor file:{}",
        anchor.display()
    ));
    for _ in 0..15 {
        clean.0.done("volume attach at/disk.img --policy policy --key-file key --memory 32M --as nbd");
        clean.0.done("volume detach disk");
        // No file there is opened by this process: what it has open, its other children have, too, until they begin.
        sh(&format!("umount {}", at.display()));
        mount();
    }
}

/// Of a daemon that it cannot see among the processes.
#[test]
fn detach_from_another_pid_namespace_waits_too() {
    if !quietly("unshare --pid --fork true") {
        return tell_skipped("no PID namespaces to be had");
    }
    let clean = Clean::new();
    for _ in 0..10 {
        let process = clean.attach("");
        let program = clean.0.command("volume detach disk");
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork"]).arg(program.get_program()).args(program.get_args());
        inside.env("CVMIO_RUNTIME_DIR", clean.0.path("run")).stdout(Stdio::null());
        assert!(inside.status().unwrap().success());
        check_gone(process, &clean.0.path("disk.img"));
    }
}

/// A volume of which a block is damaged, attached with this script as its hook, which has begun; the daemon's process.
fn caught(clean: &Clean, script: &str) -> u32 {
    let desk = &clean.0;
    let begun = desk.path("begun");
    desk.write("hook", format!("#!/bin/sh\ntouch {}\n{script}", begun.display()).as_bytes());
    fs::set_permissions(desk.path("hook"), fs::Permissions::from_mode(0o755)).unwrap();
    let before = desk.read("disk.img");
    clean.attach("");
    fill(&desk.path("run/disk/nbd.sock"), 2 << 20);
    desk.done("volume detach disk");
    damage_middle(desk, &before);
    let process = clean.attach("--tamper-hook hook");
    let Said { code, error, .. } = desk.run("volume check disk");
    assert_eq!(code, 4, "{error}");
    wait_for("the hook", || begun.exists());
    process
}

/// Its volume is put away long before.
#[test]
fn a_daemon_that_waits_for_its_hook_is_waited_for() {
    if !has("nbdcopy") {
        return tell_skipped("no nbdcopy");
    }
    let clean = Clean::new();
    let process = caught(&clean, "sleep 2\n");
    clean.0.done("volume detach disk");
    check_gone(process, &clean.0.path("disk.img"));
}

/// The daemon waits for its hook, and the hook for the daemon.
#[test]
fn a_tamper_hook_may_detach() {
    if !has("nbdcopy") {
        return tell_skipped("no nbdcopy");
    }
    let clean = Clean::new();
    let told = clean.0.path("told");
    let hook = format!(
        "{} volume detach disk 2> {told}.error\necho $? > {told}.new\nmv {told}.new {told}\n",
        env!("CARGO_BIN_EXE_cvmio"),
        told = told.display()
    );
    let begun = Instant::now();
    let process = caught(&clean, &hook);
    wait_for("the hook's end", || told.exists());
    let error = String::from_utf8_lossy(&clean.0.read("told.error")).into_owned();
    assert_eq!(clean.0.read("told"), b"0\n", "{error}");
    check_gone(process, &clean.0.path("disk.img"));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Its mount is in no table that this process can see by itself.
#[test]
fn a_mount_of_another_namespace_is_named() {
    crate::skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let session = Session::attach(&desk, true);
    let (device, at) = (session.device.clone().unwrap(), desk.path("at"));
    fs::create_dir(&at).unwrap();
    sh(&format!("mkfs.ext4 -q {}", device.display()));
    let (mounted, line) = (desk.path("mounted"), "mount \"$0\" \"$1\" && touch \"$2\" && exec sleep 300");
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", line])
        .args([&device, &at, &mounted])
        .spawn()
        .unwrap();
    wait_for("the mount", || mounted.exists());
    let refused = desk.run("volume detach disk");
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.error.contains("is mounted on [DIR]/at"), "{refused:?}");
    session.detach();
}
