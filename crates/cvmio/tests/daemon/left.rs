//! What a killed daemon leaves on the machine, and who puts it away.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::Desk;
use crate::common::machine::{has_ended, quietly, sh, wait_for};
use crate::common::session::{Session, leave_nothing, loop_devices};

/// One test at a time: the kernel gives the next attach the first loop device that is free, and a test that has just freed one means to
/// take it itself.
static TURN: Mutex<()> = Mutex::new(());

/// A desk that leaves nothing behind, whatever the test did.
struct Clean(
    Rc<Desk>,
    Cell<Option<u32>>,
    #[expect(dead_code, reason = "held until the test has ended")] MutexGuard<'static, ()>,
);

impl Clean {
    fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let desk = Rc::new(Desk::new());
        desk.create("");
        Self(desk, Cell::new(None), turn)
    }

    /// Attaches with a loop device, and kills the daemon; the device that is left.
    fn killed(&self) -> PathBuf {
        let session = Session::attach(&self.0, true);
        session.kill();
        self.wait_for_the_lock();
        session.device.clone().unwrap()
    }

    /// The last threads of a killed daemon hold its files a moment longer.
    fn wait_for_the_lock(&self) {
        let lock = self.0.path("run/disk/lock");
        wait_for("the lock", || quietly(&format!("flock -n {} true", lock.display())));
    }

    /// The loop devices that were made of its file.
    fn loops(&self) -> Vec<PathBuf> {
        loop_devices(&self.0.path("run"))
    }

    /// Attaches again; the new device, and what was said.
    fn attach(&self) -> (PathBuf, u32, String) {
        let said = self.0.run("volume attach disk.img --key-file key --loop --json");
        assert_eq!(said.code, 0, "{}", said.error);
        let ready: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let process = u32::try_from(ready["process"].as_u64().unwrap()).unwrap();
        self.1.set(Some(process));
        (PathBuf::from(ready["loop-device"].as_str().unwrap()), process, ready["warnings"].to_string())
    }

    fn detach(&self, process: u32) {
        self.0.done("volume detach disk");
        wait_for("the daemon's end", || has_ended(process));
        self.1.set(None);
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        if let Some(process) = self.1.get() {
            quietly(&format!("kill -9 {process}"));
        }
        leave_nothing(&self.0);
    }
}

#[test]
fn the_next_attach_takes_a_dead_loop_device_away() {
    crate::skip_without_devices!();
    let clean = Clean::new();
    let dead = clean.killed();
    assert_eq!(clean.loops(), [dead], "the device outlives the daemon");
    let (device, process, _) = clean.attach();
    assert_eq!(clean.loops(), std::slice::from_ref(&device));
    sh(&format!("head -c 4096 {}", device.display()));
    clean.detach(process);
    assert!(clean.loops().is_empty());
}

#[test]
fn detach_puts_away_what_a_killed_daemon_left() {
    crate::skip_without_devices!();
    let clean = Clean::new();
    clean.killed();
    let said = clean.0.done("volume detach disk");
    assert!(said.contains("killed daemon"), "{said}");
    assert!(clean.loops().is_empty());
    assert!(!clean.0.path("run/disk").exists(), "the directory is gone");
    let said = clean.0.run("volume detach disk");
    assert_eq!(said.code, 2, "nothing is left: {}", said.error);
}

#[test]
fn what_is_mounted_from_a_dead_device_is_left_alone_and_named() {
    crate::skip_without_devices!();
    let clean = Clean::new();
    let session = Session::attach(&clean.0, true);
    let old = session.device.clone().unwrap();
    sh(&format!("mkfs.ext4 -q {}", old.display()));
    session.mount();
    session.kill();
    clean.wait_for_the_lock();
    let said = clean.0.run("volume detach disk");
    assert_eq!(said.code, 2, "{}", said.error);
    assert!(
        said.error.contains(old.to_str().unwrap()) && said.error.contains("losetup -d"),
        "{}",
        said.error
    );
    let (new, process, warnings) = clean.attach();
    assert_ne!(new, old);
    assert!(warnings.contains(old.to_str().unwrap()), "{warnings}");
    quietly(&format!("umount -l {}", clean.0.path("at").display()));
    clean.detach(process);
    wait_for("the old device", || quietly(&format!("losetup -d {}", old.display())));
}

/// It has the same name, and another thing is on it by now.
#[test]
fn a_device_that_somebody_else_has_taken_since_is_not_touched() {
    crate::skip_without_devices!();
    let clean = Clean::new();
    let device = clean.killed();
    let device = device.to_str().unwrap();
    let foreign = clean.0.path("foreign");
    sh(&format!("losetup -d {device}"));
    // Whoever looks at the device at this moment is the one who ends it (losetup(8), lazy destruction).
    wait_for("the old device", || !quietly(&format!("losetup {device}")));
    sh(&format!("truncate -s 1M {0} && losetup {device} {0}", foreign.display()));
    let (_, process, _) = clean.attach();
    assert_eq!(sh(&format!("losetup -n -O BACK-FILE {device}")).trim(), foreign.to_str().unwrap());
    sh(&format!("losetup -d {device}"));
    clean.detach(process);
}
