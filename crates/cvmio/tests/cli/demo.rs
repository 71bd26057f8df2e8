//! The demonstration: what it claims, and that it leaves nothing behind, however it ends.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::Desk;
use crate::common::machine::{has, has_ended, quietly, sh, tell_skipped, wait_for};
use crate::common::session::loop_devices;

/// Whether nothing of a demonstration in `directory` is left: no file, no mount, no loop device, no process.
fn assert_nothing_is_left(directory: &Path) {
    let left: Vec<_> = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
    let name = directory.to_str().unwrap();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(name), "{mounts}");
    assert!(loop_devices(directory).is_empty());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    for process in processes {
        let command = std::fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        assert!(!command.contains(name), "{command}");
    }
}

fn demo(desk: &Desk) -> String {
    format!("demo --transactions 50 --dir {}", desk.path("d").display())
}

#[test]
fn every_attack_is_caught_and_nothing_is_left() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    std::fs::create_dir(desk.path("d")).unwrap();
    let said = desk.done(&demo(&desk));
    // A row for each attack, and a line when it was made, but for the first, which is made while the guest works.
    let rows = said.lines().filter(|line| line.ends_with("| caught")).count();
    let steps = said.lines().filter(|line| line.ends_with(": caught")).count();
    assert!(rows >= 12 && steps + 1 == rows, "{said}");
    assert!(!said.contains("GOT THROUGH"), "{said}");
    assert!(said.contains(&format!("{rows} attacks, all caught. Nothing is left mounted")), "{said}");
    assert_nothing_is_left(&desk.path("d"));
}

#[test]
fn a_rollback_of_all_that_the_host_holds_is_caught_by_each_real_anchor() {
    crate::skip_without_devices!();
    let kinds = [("etcd", &["etcd", "etcdctl"] as &[&str]), ("tpm", &["swtpm"]), ("owner", &[])];
    for (kind, programs) in kinds {
        if let Some(missing) = programs.iter().find(|program| !has(program)) {
            tell_skipped(&format!("there is no {missing}"));
            continue;
        }
        let desk = Desk::new();
        std::fs::create_dir(desk.path("d")).unwrap();
        let said = desk.done(&format!("{} --anchor {kind}", demo(&desk)));
        assert!(
            said.contains("roll the disk back: caught") && said.contains("roll all back: caught"),
            "{said}"
        );
        assert!(said.contains("every file is as it left it"), "{said}");
        assert!(said.contains("2 attacks, all caught. Nothing is left mounted"), "{said}");
        assert_nothing_is_left(&desk.path("d"));
        let left = std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("cvmio-demo-")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn an_interrupted_demonstration_leaves_nothing() {
    crate::skip_without_devices!();
    // While the database works, and while the host has its turn, which may have an attached volume or none.
    for (signal, after) in [("INT", "unpacked"), ("TERM", "move a block")] {
        let desk = Desk::new();
        std::fs::create_dir(desk.path("d")).unwrap();
        let log = std::fs::File::create(desk.path("log")).unwrap();
        let mut child = desk
            .command(&demo(&desk))
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let said = || String::from_utf8_lossy(&desk.read("log")).into_owned();
        let begun = std::time::Instant::now();
        while !said().contains(after) {
            assert!(!has_ended(child.id()) && begun.elapsed() < Duration::from_secs(120), "{}", said());
            std::thread::sleep(Duration::from_millis(5));
        }
        crate::common::machine::sh(&format!("kill -{signal} {}", child.id()));
        wait_for("the demonstration's end", || has_ended(child.id()));
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(130), "{}", said());
        assert!(said().contains("interrupted; everything was put away"), "{}", said());
        assert_nothing_is_left(&desk.path("d"));
    }
}

/// Whichever step finds no room.
#[test]
fn a_demonstration_on_a_full_disk_leaves_nothing() {
    crate::skip_without_devices!();
    for size in ["16M", "48M", "120M"] {
        let desk = Desk::new();
        let directory = desk.path("d");
        std::fs::create_dir(&directory).unwrap();
        sh(&format!(
            "truncate -s {size} {0}/fs && mkfs.ext4 -q {0}/fs && mount -o loop {0}/fs {0}/d && rmdir {0}/d/lost+found",
            desk.path("").display()
        ));
        let said = desk.run(&demo(&desk));
        let left: Vec<_> =
            std::fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.path()).collect();
        let unmounted = quietly(&format!("umount {}", directory.display()));
        if !unmounted {
            quietly(&format!("umount -l {}", directory.display()));
        }
        assert!(said.code != 0 && said.error.contains("cvmio: error: "), "{size}: {said:?}");
        assert!(left.is_empty() && unmounted, "{size}: {left:?}, behind {said:?}");
        assert_nothing_is_left(&directory);
    }
}
