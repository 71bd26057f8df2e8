//! A host that leaves requests without an answer. A frozen file system stands for it: the kernel keeps what is written there until it thaws.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use store::{Completion, ErrorKind, FileStore, Operation, Options, Queue, Store};

use super::{directory, run, skipped};

const DEADLINE: Duration = Duration::from_millis(400);
/// Far longer than any deadline here: the machine may be busy.
const LONG: Duration = Duration::from_secs(60);
const ALONE: Options =
    Options { direct: true, read_only: false, create: None, exclusive: true, deadline: DEADLINE };

/// A file system in a file, which can be frozen.
struct FileSystem {
    directory: tempfile::TempDir,
    /// A loop device on a file there, which goes silent with it.
    device: Option<String>,
}

fn shell(command: &str) -> Option<String> {
    let output = Command::new("sh").args(["-c", command]).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl FileSystem {
    fn new() -> Option<Self> {
        let system = Self { directory: directory(), device: None };
        let at = system.directory.path().display();
        shell(&format!(
            "cd {at} && truncate -s 32M image && mkfs.ext4 -q -F image && mkdir at && mount -o loop image at && \
             dd if=/dev/zero of=at/store bs=1M count=8 conv=fsync && fsfreeze -f at && fsfreeze -u at"
        ))?;
        Some(system)
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("at/store")
    }

    fn freeze(&self, frozen: bool) {
        let option = if frozen { "-f" } else { "-u" };
        shell(&format!("fsfreeze {option} {}/at", self.directory.path().display()))
            .expect("it freezes and thaws");
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let at = self.directory.path().display();
        shell(&format!("fsfreeze -u {at}/at"));
        if let Some(device) = &self.device {
            shell(&format!("losetup -d {device}"));
        }
        // A store that has ended keeps its file open to the end of its process.
        shell(&format!("umount -l {at}/at"));
    }
}

fn write(queue: &mut dyn Queue, block: u64) -> Operation {
    let mut buffer = queue.buffer(1);
    buffer.copy_from(0, &[9; 4096]);
    Operation::Write { block, buffer }
}

/// What a store does whose host is silent from now on, and what comes of it.
fn falls_silent(store: FileStore, path: &Path, freeze: impl Fn(bool)) {
    let (mut queue, mut other) = (store.queue(8).unwrap(), store.queue(8).unwrap());
    let first = write(&mut *queue, 1);
    run(&mut *queue, vec![first]).remove(0).result.unwrap();
    freeze(true);
    let begun = Instant::now();
    let all = vec![write(&mut *queue, 2), write(&mut *queue, 5), write(&mut *queue, 3)];
    for Completion { result, .. } in run(&mut *queue, all) {
        let error = result.unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.message.contains("has not answered a "), "{error}");
    }
    assert!(begun.elapsed() >= DEADLINE, "it has had its time");
    // Nothing is asked of it any more, by nobody.
    assert!(store.ended().is_some_and(|reason| reason.contains("in 0.4 s")));
    let read = Operation::Read { block: 0, buffer: other.buffer(1) };
    assert!(run(&mut *other, vec![read]).remove(0).result.is_err() && store.queue(1).is_err());
    drop((queue, other, store));
    assert!(begun.elapsed() < LONG, "its end waits for nobody");
    // What is in flight may still happen, so nobody else gets it as long as this process is there.
    assert_eq!(FileStore::open(path, ALONE).unwrap_err().kind, ErrorKind::InUse);
    freeze(false);
}

#[test]
fn a_file_whose_host_is_silent_ends_within_its_deadline() {
    let Some(system) = FileSystem::new() else {
        return skipped("a_file_whose_host_is_silent_ends_within_its_deadline");
    };
    let store = FileStore::open(system.store(), ALONE).unwrap();
    falls_silent(store, &system.store(), |frozen| system.freeze(frozen));
}

#[test]
fn a_device_whose_host_is_silent_ends_within_its_deadline() {
    let Some(mut system) = FileSystem::new() else {
        return skipped("a_device_whose_host_is_silent_ends_within_its_deadline");
    };
    let Some(device) = shell(&format!("losetup -f --show {}", system.store().display())) else {
        return skipped("a_device_whose_host_is_silent_ends_within_its_deadline");
    };
    system.device = Some(device.clone());
    let store = FileStore::open(&device, ALONE).unwrap();
    falls_silent(store, Path::new(&device), |frozen| system.freeze(frozen));
}

#[test]
fn a_host_that_is_only_slow_is_told_of_and_waited_for() {
    let Some(system) = FileSystem::new() else {
        return skipped("a_host_that_is_only_slow_is_told_of_and_waited_for");
    };
    let store = FileStore::open(system.store(), Options { deadline: LONG * 10, ..ALONE }).unwrap();
    let mut queue = store.queue(8).unwrap();
    system.freeze(true);
    let slow = write(&mut *queue, 1);
    queue.submit(0, slow);
    let (begun, mut completions) = (Instant::now(), Vec::new());
    while store.silent_for().is_none() {
        assert!(begun.elapsed() < LONG && completions.is_empty());
        queue.wait(Some(Duration::from_millis(50)), &mut completions);
    }
    system.freeze(false);
    while completions.is_empty() {
        queue.wait(None, &mut completions);
    }
    assert_eq!(completions.remove(0).result, Ok(()));
    assert!(store.silent_for().is_none() && store.ended().is_none());

    // Its user may end it before the deadline.
    system.freeze(true);
    let slow = write(&mut *queue, 2);
    queue.submit(1, slow);
    queue.poll(&mut completions);
    assert!(completions.is_empty());
    store.give_up();
    queue.poll(&mut completions);
    assert!(completions.remove(0).result.is_err_and(|error| error.message.contains("waited for no longer")));
}
