//! A store whose host leaves requests without an answer: the session ends in its time, and nothing waits for ever.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::rc::Rc;

use super::limits::{Clean, process};
use crate::common::Desk;
use crate::common::machine::{content, has_ended, quietly, sh, tell_skipped, wait_for};
use crate::skip_without_devices;

/// A volume in a file system that can be frozen: the kernel keeps what is written there until it thaws.
struct Frozen(Rc<Desk>);

impl Frozen {
    fn new() -> Self {
        let frozen = Self(Rc::new(Desk::new()));
        let at = frozen.0.path("");
        sh(&format!(
            "cd {} && truncate -s 96M system && mkfs.ext4 -q -F system && mkdir small && mount -o loop system small",
            at.display()
        ));
        let anchor = frozen.0.path("anchor");
        frozen.0.done(&format!(
            "volume create small/disk.img --size 48M --policy policy --key-file key --anchor file:{}",
            anchor.display()
        ));
        frozen
    }

    fn freeze(&self, option: &str) -> bool {
        quietly(&format!("fsfreeze {option} {}", self.0.path("small").display()))
    }

    fn attach(&self, more: &str) -> u32 {
        self.0.done(&format!(
            "volume attach small/disk.img --policy policy --key-file key --memory 64M {more}"
        ));
        process(&self.0)
    }

    /// The end of a session that failed. The kernel keeps its process until the host answers, which it does when the volume's name is free.
    fn ends(&self, detach: &str, code: i32, process: u32) {
        let desk = &self.0;
        let mut detach = desk.command(detach);
        let detach = detach.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        wait_for("the end of the session", || !desk.path("run/disk/control").exists());
        assert!(self.freeze("-u"));
        let said = detach.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.code() == Some(code) && text.contains("the host "), "{text}");
        wait_for("the end of the process", || has_ended(process));
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.freeze("-u");
        quietly(&format!("umount -l {}", self.0.path("small").display()));
    }
}

#[test]
fn a_silent_host_ends_the_session_in_its_time_and_holds_up_no_end() {
    skip_without_devices!();
    if !quietly("command -v fsfreeze") {
        return tell_skipped("no fsfreeze");
    }
    let frozen = Frozen::new();
    let desk = &frozen.0;
    let _clean = Clean(Rc::clone(desk));
    let first = content(3, 4 << 20);
    let write = |bytes: &[u8]| {
        let disk = File::options().write(true).open(desk.path("run/disk/disk")).unwrap();
        disk.write_all_at(bytes, 0).and_then(|()| disk.sync_all())
    };

    // After the time that was said, its users have errors, and everybody can see why.
    let daemon = frozen.attach("--store-timeout 1s");
    write(&first).unwrap();
    assert!(frozen.freeze("-f"));
    write(&[7; 1 << 16]).unwrap_err();
    let status = desk.done("volume status disk");
    assert!(status.contains("FAILED") && status.contains("the host has not answered a"), "{status}");
    frozen.ends("volume detach disk", 3, daemon);

    // Before that time somebody may insist on the end: what that costs is a warning.
    let daemon = frozen.attach("");
    assert!(fs::read(desk.path("run/disk/disk")).unwrap()[..first.len()] == first);
    assert!(frozen.freeze("-f"));
    let mut writer = Command::new("dd");
    writer.args(["if=/dev/zero", "bs=64k", "count=64", "conv=notrunc,fsync", "status=none"]);
    writer.arg(format!("of={}", desk.path("run/disk/disk").display())).stderr(Stdio::null());
    let mut writer = writer.spawn().unwrap();
    wait_for("the silence", || desk.done("volume status disk").contains("SILENT"));
    frozen.ends("volume detach disk --force", 0, daemon);
    assert!(!writer.wait().unwrap().success());

    frozen.attach("");
    let now = fs::read(desk.path("run/disk/disk")).unwrap();
    // What was not flushed is old or new, block by block.
    assert!(now.chunks(4096).zip(first.chunks(4096)).all(|(now, then)| now == then || now == [0; 4096]));
    desk.done("volume detach disk");
    desk.done("volume check small/disk.img --policy policy --key-file key");
}
