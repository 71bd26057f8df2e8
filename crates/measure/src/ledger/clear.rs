//! Finding and clearing what a process that was killed has left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use super::place::remove_left;
use super::{Entry, Line, MARK, directory, is_at, own_name};
use crate::machine::process_began;

/// How long servers may take to end by themselves.
const PATIENCE: Duration = Duration::from_secs(20);
const GLANCE: Duration = Duration::from_millis(20);
/// A ledger has a few lines for each turn.
const LARGEST: u64 = 64 << 20;

/// Clears what processes that are no more have left, and says so. What cannot be cleared now stays recorded.
pub fn clear() {
    for said in clear_in(directory().ok().as_deref()) {
        let _ = writeln!(std::io::stderr(), "cvmio: {said}");
    }
}

fn clear_in(directory: Option<&Path>) -> Vec<String> {
    let entries = directory.and_then(|path| fs::read_dir(path).ok()).into_iter().flatten().flatten();
    let own = own_name();
    let mut said = Vec::new();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == own || !is_name(&name) {
            continue;
        }
        let path = entry.path();
        let Ok(mut file) = OpenOptions::new().read(true).open(&path) else { continue };
        // Whoever lives has it locked.
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() || !is_at(&file, &path) {
            continue;
        }
        let left = Left::read(&mut file, name);
        let (cleared, failed) = left.clear();
        if failed.is_empty() {
            let _ = fs::remove_file(&path);
        }
        if !cleared.is_empty() {
            said.push(format!("cleared what a run that was killed has left: {}", cleared.join(", ")));
        }
        said.extend(failed.into_iter().map(|what| format!("a run that was killed has left {what}")));
    }
    said
}

/// Whether a file's name is that of a ledger: two numbers.
fn is_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-').is_some_and(|(number, began)| is_number(number) && is_number(began))
}

/// What a process has left.
struct Left {
    name: String,
    entries: Vec<Entry>,
}

impl Left {
    /// Reads a ledger. A last line that is cut is about something that did not exist yet.
    fn read(file: &mut File, name: String) -> Self {
        let mut text = String::new();
        let _ = file.take(LARGEST).read_to_string(&mut text);
        let mut entries = BTreeMap::new();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            match line.entry {
                Some(entry) => drop(entries.insert(line.number, entry)),
                None => drop(entries.remove(&line.number)),
            }
        }
        Self { name, entries: entries.into_values().collect() }
    }

    fn places(&self) -> impl Iterator<Item = &Path> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Place(path) => Some(path.as_path()),
            _ => None,
        })
    }

    /// Clears it: what was cleared, and what could not be.
    fn clear(&self) -> (Vec<String>, Vec<String>) {
        let (mut cleared, mut failed) = (Vec::new(), Vec::new());
        let mut count = |number: usize, one: &str, more: &str| match number {
            0 => {}
            1 => cleared.push(format!("1 {one}")),
            number => cleared.push(format!("{number} {more}")),
        };
        // While what they stand on is mounted, and its server lives: of a file whose file system is gone the kernel forgets the directories.
        let devices = self.loop_devices();
        count(self.end_processes(&mut failed), "program", "programs");
        count(self.unmount(&mut failed), "mount", "mounts");
        count(self.close(devices, &mut failed), "device", "devices");
        let mut removed = 0;
        for entry in &self.entries {
            let (path, done) = match entry {
                Entry::Place(path) => (path, remove_left(path, &self.name)),
                Entry::File(path) => (path, fs::remove_file(path)),
                _ => continue,
            };
            let there = fs::symlink_metadata(path).is_ok();
            match done {
                Ok(()) if !there => removed += 1,
                Err(error) if there => failed.push(format!("{}: {error}; remove it", path.display())),
                _ => {}
            }
        }
        count(removed, "directory", "directories");
        (cleared, failed)
    }

    /// The processes of that one: those that have its mark, and servers that were recorded.
    fn processes(&self) -> BTreeSet<u32> {
        let mark = format!("{MARK}={}", self.name);
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let marked = numbers.filter(|number| {
            let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        });
        let recorded = self.entries.iter().filter_map(|entry| match entry {
            Entry::Process { number, began } => (process_began(*number) == Some(*began)).then_some(*number),
            _ => None,
        });
        marked.chain(recorded).filter(|number| *number != std::process::id()).collect()
    }

    fn end_processes(&self, failed: &mut Vec<String>) -> usize {
        let found = self.processes();
        for signal in [Signal::TERM, Signal::KILL] {
            let started = Instant::now();
            // Not their groups: a recorded server's children are marked.
            let mut left = self.processes();
            left.iter().filter_map(|number| Pid::from_raw(i32::try_from(*number).ok()?)).for_each(
                |process| {
                    let _ = kill_process(process, signal);
                },
            );
            while !left.is_empty() && started.elapsed() < PATIENCE {
                thread::sleep(GLANCE);
                left = self.processes();
            }
        }
        failed.extend(self.processes().iter().map(|number| format!("process {number}, which does not end")));
        found.len()
    }

    fn unmount(&self, failed: &mut Vec<String>) -> usize {
        let mut mounts: Vec<PathBuf> = self.places().flat_map(mounts_below).collect();
        // What was mounted last goes first.
        mounts.reverse();
        for mount in &mounts {
            if !done("umount", &[mount.as_os_str()]) && !done("umount", &["-l".as_ref(), mount.as_os_str()]) {
                failed.push(format!("{}, where something is mounted; unmount it", mount.display()));
            }
        }
        mounts.len()
    }

    /// Closes mappings, and then detaches the loop devices below them.
    fn close(&self, devices: BTreeSet<PathBuf>, failed: &mut Vec<String>) -> usize {
        let mut closed = 0;
        for entry in &self.entries {
            let Entry::Mapping(name) = entry else { continue };
            if Path::new("/dev/mapper").join(name).exists() {
                closed += 1;
                if !done("cryptsetup", &["close".as_ref(), name.as_ref()]) {
                    failed.push(format!("/dev/mapper/{name}; close it by cryptsetup close {name}"));
                }
            }
        }
        for device in devices {
            closed += 1;
            if !done("losetup", &["--detach".as_ref(), device.as_os_str()]) {
                let shown = device.display();
                failed.push(format!("{shown}; detach it by losetup --detach {shown}"));
            }
        }
        closed
    }

    /// Loop devices that were recorded, and those on files in its directories.
    fn loop_devices(&self) -> BTreeSet<PathBuf> {
        let devices =
            fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.file_name());
        let ours = |device: &Path, behind: &Path| {
            self.entries.iter().any(|entry| match entry {
                Entry::Attached { device: recorded, file } => recorded == device && file == behind,
                Entry::Loop(file) => file == behind && self.places().any(|place| file.starts_with(place)),
                _ => false,
            })
        };
        devices
            .filter_map(|name| {
                let behind = fs::read(Path::new("/sys/block").join(&name).join("loop/backing_file")).ok()?;
                let behind = behind.strip_suffix(b"\n").unwrap_or(&behind);
                let behind = behind.strip_suffix(b" (deleted)").unwrap_or(behind);
                let behind = PathBuf::from(std::ffi::OsStr::from_bytes(behind));
                let device = Path::new("/dev").join(name);
                ours(&device, &behind).then_some(device)
            })
            .collect()
    }
}

fn done(program: &str, arguments: &[&std::ffi::OsStr]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// What is mounted on a directory or below it, in the order in which it was mounted.
pub fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n');
    let places = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped);
    places.filter(|place| place.starts_with(directory)).collect()
}

/// A path of mountinfo, in which blanks and their like are three octal digits. Source: proc_pid_mountinfo(5).
pub fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::place::SIGN;

    fn left(directory: &Path, lines: &[&str]) {
        fs::write(directory.join("1-1"), lines.join("\n")).unwrap();
    }

    fn place(path: &Path) -> String {
        serde_json::to_string(&Line { number: 1, entry: Some(Entry::Place(path.into())) }).unwrap()
    }

    #[test]
    fn a_directory_is_removed_with_its_content_only_if_it_is_signed() {
        let (state, room) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ours = room.path().join("ours");
        fs::create_dir(&ours).unwrap();
        fs::write(ours.join("disk"), "x").unwrap();
        left(state.path(), &[&place(&ours)]);
        // Somebody else's directory of that name.
        let said = clear_in(Some(state.path()));
        assert!(ours.join("disk").exists() && said[0].contains("remove it"), "{said:?}");
        fs::write(ours.join(SIGN), "1-1").unwrap();
        let said = clear_in(Some(state.path()));
        assert!(
            !ours.exists() && said == ["cleared what a run that was killed has left: 1 directory"],
            "{said:?}"
        );
        assert!(fs::read_dir(state.path()).unwrap().next().is_none(), "the ledger goes, too");
        // An empty one is one that was just made; a link is none.
        let linked = room.path().join("linked");
        fs::create_dir(&linked).unwrap();
        fs::write(linked.join(SIGN), "1-1").unwrap();
        std::os::unix::fs::symlink(&linked, &ours).unwrap();
        left(state.path(), &[&place(&ours), "{\"number\": 2, \"ent"]);
        clear_in(Some(state.path()));
        assert!(linked.join(SIGN).exists());
    }

    #[test]
    fn what_is_crossed_out_or_in_use_is_left_alone() {
        let (state, room) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ours = room.path().join("ours");
        fs::create_dir(&ours).unwrap();
        fs::write(ours.join(SIGN), "1-1").unwrap();
        left(state.path(), &[&place(&ours), "{\"number\": 1, \"entry\": null}"]);
        assert_eq!(clear_in(Some(state.path())), [""; 0]);
        left(state.path(), &[&place(&ours)]);
        let lock = File::open(state.path().join("1-1")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert_eq!(clear_in(Some(state.path())), [""; 0]);
        assert!(ours.exists());
    }

    #[test]
    fn mounts_are_found_by_their_real_names() {
        assert_eq!(unescaped(br"/a\040b\134"), Path::new(r"/a b\"));
        assert_eq!(unescaped(br"/a\9"), Path::new(r"/a\9"));
        assert!(mounts_below(Path::new("/")).contains(&"/proc".into()));
        assert!(mounts_below(Path::new("/pro")).is_empty());
    }
}
