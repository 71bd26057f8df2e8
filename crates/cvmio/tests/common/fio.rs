//! fio, which writes blocks that say themselves whether they are whole.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A part of a file, in MiB, that belongs to fio.
#[derive(Clone, Copy)]
pub struct Part {
    pub offset: u32,
    pub size: u32,
}

impl Part {
    fn command(self, file: &Path, mode: &str) -> Command {
        let mut fio = Command::new("fio");
        fio.arg("--name=kill").arg(format!("--filename={}", file.display())).args([
            &format!("--offset={}m", self.offset),
            &format!("--size={}m", self.size),
            &format!("--rw={mode}"),
            "--bs=4k",
            "--ioengine=psync",
            // Or its worker would outlive it when it is killed.
            "--thread",
            "--verify=crc32c",
            "--allow_file_create=0",
            "--verify_state_save=0",
            "--output-format=terse",
        ]);
        fio.stdin(Stdio::null());
        fio
    }

    /// Writes all of it, synced at the end, and reads it back.
    pub fn fill(self, file: &Path, seed: u32) {
        let mut fio = self.command(file, "randwrite");
        fio.arg(format!("--randseed={seed}")).args([
            "--fsync=16",
            "--end_fsync=1",
            "--do_verify=1",
            "--verify_fatal=1",
        ]);
        succeeded(&fio.output().unwrap());
    }

    /// Overwrites it again and again, in the background.
    pub fn overwrite(self, file: &Path, seed: u32) -> Child {
        let mut fio = self.command(file, "randwrite");
        fio.arg(format!("--randseed={seed}")).args([
            "--fsync=4",
            "--do_verify=0",
            "--time_based",
            "--runtime=60",
        ]);
        fio.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Reads all of it: each block is one that fio wrote at this place, and whole.
    pub fn check(self, file: &Path) {
        let mut fio = self.command(file, "read");
        succeeded(&fio.arg("--verify_fatal=1").output().unwrap());
    }
}

fn succeeded(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "fio: {} {}", text(&output.stdout), text(&output.stderr));
}
