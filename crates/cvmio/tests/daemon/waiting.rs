//! What was acknowledged, and waits for a host without room: it is seen, and can be given up.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::limits::{Clean, process};
use crate::common::Desk;
use crate::common::machine::{content, has_ended, quietly, sh, wait_for};
use crate::skip_without_devices;

/// A volume that believes to have its room: its file had holes made into it, and lies where there is none left.
struct Crowded(Rc<Desk>);

impl Crowded {
    fn new() -> Self {
        let desk = Rc::new(Desk::new());
        fs::create_dir(desk.path("small")).unwrap();
        let anchor = desk.path("anchor");
        desk.done(&format!(
            "volume create whole.img --size 64M --policy policy --key-file key --anchor file:{}",
            anchor.display()
        ));
        sh(&format!(
            "cd {} && mount -t tmpfs -o size=40M none small && cp --sparse=always whole.img small/disk.img",
            desk.path("").display()
        ));
        Self(desk)
    }

    /// Others take what is left, or give it back.
    fn crowd(&self, crowded: bool) {
        let others = self.0.path("small/others");
        if crowded {
            quietly(&format!("dd if=/dev/zero bs=64k of={} status=none", others.display()));
        } else {
            quietly(&format!("rm -f {}", others.display()));
        }
    }

    /// Attaches it, has a flush wait, and whoever asked for it.
    fn stuck(&self, first: &[u8]) -> (u32, Child) {
        self.crowd(false);
        self.0.done("volume attach small/disk.img --policy policy --key-file key --memory 64M");
        let disk = fs::File::options().write(true).open(self.disk()).unwrap();
        disk.write_all_at(first, 0).unwrap();
        disk.sync_all().unwrap();
        drop(disk);
        self.crowd(true);
        let mut writer = Command::new("dd");
        writer.args(["if=/dev/urandom", "bs=1M", "count=24", "seek=16", "conv=notrunc,fsync", "status=none"]);
        writer.arg(format!("of={}", self.disk().display())).stderr(Stdio::null());
        let writer = writer.spawn().unwrap();
        wait_for("a flush that waits", || !self.status()["volume"]["waits-for-room"].is_null());
        (process(&self.0), writer)
    }

    fn disk(&self) -> PathBuf {
        self.0.path("run/disk/disk")
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.0.done("volume status disk --json")).unwrap()
    }

    /// What was flushed before is there.
    fn is_whole(&self, first: &[u8]) {
        self.crowd(false);
        self.0.done("volume attach small/disk.img --policy policy --key-file key --memory 64M");
        assert!(fs::read(self.disk()).unwrap()[..first.len()] == *first);
        self.0.done("volume detach disk");
        self.0.done("volume check small/disk.img --policy policy --key-file key");
    }
}

#[test]
fn a_flush_that_waits_for_room_is_seen_and_can_be_given_up() {
    skip_without_devices!();
    let crowded = Crowded::new();
    let desk = &crowded.0;
    let _clean = Clean(Rc::clone(desk));
    let first = content(3, 8 << 20);

    let (process, mut writer) = crowded.stuck(&first);
    let text = desk.done("volume status disk");
    assert!(text.contains("NO ROOM") && text.contains("No space left on device"), "{text}");
    let said = desk.run("volume detach disk");
    assert!(said.code == 2 && said.error.contains("--force"), "{}", said.error);
    assert!(!has_ended(process) && !crowded.status()["volume"]["waits-for-room"].is_null());
    let said = desk.run("volume detach disk --force");
    assert!(said.code == 0 && said.error.contains("warning"), "{said:?}");
    assert!(has_ended(process) && !writer.wait().unwrap().success());
    crowded.is_whole(&first);

    // Room comes: what was acknowledged is stored. Writes behind the first refusal had an error.
    let (_, mut writer) = crowded.stuck(&first);
    crowded.crowd(false);
    writer.wait().unwrap();
    wait_for("the last one", || crowded.status()["volume"]["waits-for-room"].is_null());
    desk.done("volume detach disk");
    crowded.is_whole(&first);

    // A service manager says it with a signal.
    let (process, mut writer) = crowded.stuck(&content(4, 8 << 20));
    sh(&format!("kill -TERM {process}"));
    let begun = Instant::now();
    while !has_ended(process) {
        assert!(begun.elapsed() < Duration::from_secs(90), "SIGTERM does not end it");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!writer.wait().unwrap().success());
    crowded.is_whole(&content(4, 8 << 20));
    wait_for("its end", || quietly(&format!("umount {}", desk.path("small").display())));
}
