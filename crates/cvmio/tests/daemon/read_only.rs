//! A volume that is attached for reading: by several at once, from files that nobody can write to.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use crate::common::machine::{content, has_ended, quietly, sh, wait_for};
use crate::common::{Desk, Said};
use serde_json::Value;

/// A directory that cannot be written to while this lives.
struct Frozen(PathBuf);

impl Frozen {
    fn new(path: PathBuf) -> Self {
        sh(&format!("mount --bind {0} {0} && mount -o remount,ro,bind {0}", path.display()));
        Self(path)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        quietly(&format!("umount -l {}", self.0.display()));
    }
}

/// The daemons that a test has started are told to end, whatever happens.
struct Readers<'a>(&'a Desk, Vec<&'static str>);

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        for name in &self.1 {
            let _ = self.0.run(&format!("volume detach {name}"));
        }
    }
}

/// A volume with data in `host/`.
fn filled() -> (Desk, Vec<u8>) {
    let desk = Desk::new();
    fs::create_dir(desk.path("host")).unwrap();
    let anchor = desk.path("host/anchor");
    desk.done(&format!(
        "volume create host/disk.img --size 16M --key-file key --anchor file:{}",
        anchor.display()
    ));
    desk.done("volume attach host/disk.img --key-file key");
    let data = content(3, 64 * 4096);
    let device = File::options().write(true).open(desk.path("run/disk/disk")).unwrap();
    device.write_all_at(&data, 8192).unwrap();
    device.sync_all().unwrap();
    drop(device);
    (desk, data)
}

fn ready(said: &Said) -> Value {
    assert_eq!(said.code, 0, "{}", said.error);
    serde_json::from_str(&said.out).unwrap()
}

#[test]
fn several_read_one_image_that_nobody_can_write_to() {
    crate::skip_without_devices!();
    let (desk, data) = filled();
    desk.done("volume detach disk");
    let before = ["host/disk.img", "host/anchor"].map(|name| desk.read(name));
    let _frozen = Frozen::new(desk.path("host"));
    let _readers = Readers(&desk, vec!["one", "two"]);
    let attach = "volume attach host/disk.img --key-file key --read-only --json";
    ready(&desk.run(&format!("{attach} --name one")));
    let two = ready(&desk.run(&format!("{attach} --name two --loop")));
    for name in ["one", "two"] {
        let path = desk.path(&format!("run/{name}/disk"));
        let mut found = vec![0; data.len()];
        let file = File::open(&path).unwrap();
        file.read_exact_at(&mut found, 8192).unwrap();
        assert!(found == data, "{name}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o444);
        let refused = File::options().write(true).open(&path).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()), "{name}");
        assert!(desk.done(&format!("volume status {name}")).contains("attached for reading only"));
        assert_eq!(desk.run(&format!("volume commit {name}")).code, 2);
    }
    let device = two["loop-device"].as_str().unwrap();
    assert_eq!(sh(&format!("blockdev --getro {device}")).trim(), "1");
    // The kernel lets it be opened for writing, and refuses the writes.
    let written = File::options().write(true).open(device).and_then(|file| {
        file.write_all_at(&[1; 4096], 0)?;
        file.sync_all()
    });
    assert!(written.is_err(), "{device} can be written to");
    // Who wants to write is in the way of those who read, and is told.
    let writer = desk.run("volume attach host/disk.img --key-file key --name three");
    assert_ne!(writer.code, 0);
    for name in ["one", "two"] {
        desk.done(&format!("volume detach {name}"));
    }
    assert!(["host/disk.img", "host/anchor"].map(|name| desk.read(name)) == before, "something was written");
}

#[test]
fn a_volume_that_was_not_detached_is_read_by_force_only() {
    crate::skip_without_devices!();
    let (desk, data) = filled();
    let status: Value = serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
    let process = u32::try_from(status["process"].as_u64().unwrap()).unwrap();
    sh(&format!("kill -9 {process}"));
    wait_for("the daemon's end", || has_ended(process));
    let attach = "volume attach host/disk.img --key-file key --name late --read-only";
    let said = desk.run(attach);
    assert!(said.code == 2 && said.error.contains("--force"), "{said:?}");
    let _readers = Readers(&desk, vec!["late"]);
    desk.done(&format!("{attach} --force"));
    let mut found = vec![0; data.len()];
    File::open(desk.path("run/late/disk")).unwrap().read_exact_at(&mut found, 8192).unwrap();
    assert!(found == data);
}
