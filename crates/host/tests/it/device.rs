//! A block device as a disk. A loop device stands for it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use host::{DiskSettings, Server, Settings};
use virtqueue::block::Kind;

use crate::guest::DATA;
use crate::serve::{OK, Place, SIZE, one};

/// A loop device with sectors of 4096 bytes. It goes when this is dropped.
struct Loop(String);

impl Loop {
    fn on(file: &Path) -> Option<Self> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--sector-size", "4096", "--direct-io=on"]).arg(file);
        let made = command.stderr(Stdio::null()).output().ok()?;
        made.status.success().then(|| Self(String::from_utf8_lossy(&made.stdout).trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_a_disk_and_is_held_alone() {
    let place = Place::new();
    let file = place.disk("disk").file;
    let Some(device) = Loop::on(&file) else {
        let _ = writeln!(
            std::io::stderr(),
            "\nSKIPPED a_block_device_is_a_disk_and_is_held_alone: no loop device to be had"
        );
        return;
    };
    let settings = DiskSettings::new(place.at("device.sock"), &device.0);
    let (server, machine) = one(&place, &settings, 1);
    assert_eq!((machine.config.sectors, machine.config.block_size), (SIZE / 512, 4096));
    let mut disk = machine.driver(0);
    machine.memory.copy_from(DATA, &[0x5a; 8192]);
    assert_eq!(disk.ask(Kind::Write, 8, &[(DATA, 8192)]), OK);
    assert_eq!(disk.ask(Kind::Flush, 0, &[]), OK);
    let mut found = [0; 16384];
    fs::File::open(&file).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert!(found[..4096] == [0; 4096] && found[4096..12288] == [0x5a; 8192] && found[12288..] == [0; 4096]);
    machine.memory.copy_from(DATA, &[0; 8192]);
    assert_eq!(disk.ask(Kind::Read, 8, &[(DATA, 8192)]), OK);
    let mut read = [0; 8192];
    machine.memory.copy_to(DATA, &mut read);
    assert_eq!(read, [0x5a; 8192]);
    // Half a sector of the device is none, and behind its end there is nothing.
    assert_ne!(disk.ask(Kind::Read, 1, &[(DATA, 4096)]), OK);
    assert_ne!(disk.ask(Kind::Read, SIZE / 512, &[(DATA, 4096)]), OK);

    // Only to be read, so that nobody waits for a late write.
    let again = DiskSettings { read_only: true, ..DiskSettings::new(place.at("again.sock"), &device.0) };
    let settings = Settings { cores: Vec::new(), disks: vec![again] };
    let error = Server::start(&settings).unwrap_err().to_string();
    assert!(error.contains("another program has it open"), "{error}");
    drop((disk, machine, server));
    drop(Server::start(&settings).unwrap());
}
