//! What this machine lacks, and running its programs.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Desk;

/// Why this machine cannot show a volume as a block device with a file system, if so.
pub fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("no /dev/fuse");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("no loop devices");
    }
    (!has("mkfs.ext4") || !has("fsck.ext4")).then_some("no mkfs.ext4")
}

pub fn has(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// A line that is seen although the test passes; `eprintln!` would show it only when it fails.
pub fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "\n{line}");
}

/// Says that a test did not run. `scripts/test` counts these lines.
pub fn tell_skipped(reason: &str) {
    let thread = std::thread::current();
    tell(&format!("SKIPPED {}: {reason}", thread.name().unwrap_or("a test")));
}

/// Ends a test that this machine cannot run.
#[macro_export]
macro_rules! skip_without_devices {
    () => {
        if let Some(reason) = $crate::common::machine::missing() {
            $crate::common::machine::tell_skipped(reason);
            return;
        }
    };
}

/// Runs what must succeed; what it printed.
pub fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Runs what may fail.
pub fn quietly(command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

/// Also when nobody has asked how it ended yet.
pub fn has_ended(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

pub fn is_mounted(path: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {} ", path.display()))
}

pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes that are neither all alike nor the same for two seeds.
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length.div_ceil(8)).flat_map(|_| step()).take(length).collect()
}

/// Changes the block in the middle of what a megabyte of data has become on the store `disk.img`, which was like `before`.
pub fn damage_middle(desk: &Desk, before: &[u8]) {
    let after = desk.read("disk.img");
    let changed: Vec<bool> =
        before.chunks(4096).zip(after.chunks(4096)).map(|(before, after)| before != after).collect();
    let mut longest = 0..0;
    let mut start = 0;
    for (index, changed) in changed.iter().enumerate() {
        if !changed {
            start = index + 1;
        } else if index + 1 - start > longest.len() {
            longest = start..index + 1;
        }
    }
    assert!(longest.len() >= 256, "{longest:?}");
    let middle = (longest.start + longest.len() / 2) * 4096;
    let store = fs::File::options().write(true).open(desk.path("disk.img")).unwrap();
    store.write_all_at(&[!after[middle]], middle as u64).unwrap();
}
