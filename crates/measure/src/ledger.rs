//! What this process has on the machine and must not leave there: directories, loop devices, mappings, servers.
//!
//! Each is recorded in a file before it exists. A process that is killed leaves the file, and the next one that measures finds it, ends what
//! still runs, unmounts, detaches and removes ([`clear`]). The file is locked for as long as its process lives, so what is in use is never
//! taken for what was left. What a process has is its own affair, like its number: there is one ledger for each process.

mod clear;
mod place;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};

pub use clear::{clear, unescaped};
pub use place::Place;

/// The variable that each program that is started has in its environment, so that it is found even if it was never recorded.
pub const MARK: &str = "CVMIO_BENCH_RUN";
/// Names another directory for ledgers.
const DIRECTORY: &str = "CVMIO_BENCH_STATE_DIR";

/// Something that must not be left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Entry {
    /// A directory with everything in it. A file in it says that it is ours.
    Place(PathBuf),
    /// A file of ours that is about to get its name.
    File(PathBuf),
    /// A loop device on this file, its number not known yet.
    Loop(PathBuf),
    /// The same, with its number.
    Attached { device: PathBuf, file: PathBuf },
    /// A mapping of the device mapper.
    Mapping(String),
    /// A server, by its number and when it began, in ticks since the machine did.
    Process { number: u32, began: u64 },
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    number: u64,
    /// What is about to be; none when it is gone.
    entry: Option<Entry>,
}

/// The entries of a process, open and locked.
#[derive(Debug, Default)]
struct Ledger {
    file: Option<(File, PathBuf)>,
    entries: BTreeMap<u64, Entry>,
    last: u64,
}

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger { file: None, entries: BTreeMap::new(), last: 0 });

fn ledger() -> MutexGuard<'static, Ledger> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This process as it is named in ledgers and in [`MARK`]: its number and when it began. No two of one boot are the same.
pub fn own_name() -> String {
    let number = std::process::id();
    name_of(number, crate::machine::process_began(number).unwrap_or(0))
}

fn name_of(number: u32, began: u64) -> String {
    format!("{number}-{began}")
}

/// An entry, which is crossed out when this is dropped: drop it behind what it is about.
#[derive(Debug)]
pub struct Recorded {
    number: u64,
    left: bool,
}

impl Recorded {
    /// Leaves the entry for the next process, since what it is about could not be put away.
    pub fn leave(mut self) {
        self.left = true;
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.left {
            ledger().cross_out(self.number);
        }
    }
}

impl Ledger {
    fn enter(&mut self, entry: Entry) -> Result<Recorded> {
        if self.file.is_none() {
            self.file = Some(create(&directory()?)?);
        }
        self.last += 1;
        let number = self.last;
        self.write(&Line { number, entry: Some(entry.clone()) })?;
        self.entries.insert(number, entry);
        Ok(Recorded { number, left: false })
    }

    fn cross_out(&mut self, number: u64) {
        self.entries.remove(&number);
        if !self.entries.is_empty() {
            // If this cannot be written, the next process looks for it and finds nothing.
            let _ = self.write(&Line { number, entry: None });
        } else if let Some((file, path)) = self.file.take() {
            let _ = fs::remove_file(path);
            drop(file);
        }
    }

    fn write(&mut self, line: &Line) -> Result<()> {
        let Some((file, path)) = &mut self.file else { return Ok(()) };
        let mut text = serde_json::to_vec(line).doing("a path that is no UTF-8 cannot be recorded")?;
        text.push(b'\n');
        // One call, at the end of the file: a line is there or not.
        file.write_all(&text)
            .doing(format!("{} cannot be written, and nothing is made unrecorded", path.display()))
    }
}

/// Records a file that is about to get this name.
pub fn file(path: &Path) -> Result<Recorded> {
    ledger().enter(Entry::File(path.into()))
}

/// Records that a loop device is about to be attached to a file.
pub fn loop_device(file: &Path) -> Result<Recorded> {
    ledger().enter(Entry::Loop(file.into()))
}

/// Records which one it is.
pub fn attached(device: &Path, file: &Path) -> Result<Recorded> {
    ledger().enter(Entry::Attached { device: device.into(), file: file.into() })
}

/// Records a mapping that is about to be opened.
pub fn mapping(name: &str) -> Result<Recorded> {
    ledger().enter(Entry::Mapping(name.into()))
}

/// Records a server that was started. Until then it is found by [`MARK`]; some overwrite their environment to show what they do.
pub fn process(number: u32) -> Result<Recorded> {
    let began = crate::machine::process_began(number).unwrap_or(0);
    ledger().enter(Entry::Process { number, began })
}

/// Where ledgers are: a directory that only this user can write.
fn directory() -> Result<PathBuf> {
    let user = rustix::process::geteuid();
    let named =
        |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = if let Some(path) = named(DIRECTORY) {
        path
    } else if user.is_root() {
        "/var/lib/cvmio-bench".into()
    } else if let Some(state) = named("XDG_STATE_HOME") {
        state.join("cvmio-bench")
    } else if let Some(home) = named("HOME").filter(|home| home.is_dir()) {
        home.join(".local/state/cvmio-bench")
    } else {
        std::env::temp_dir().join(format!("cvmio-bench-state-{}", user.as_raw()))
    };
    let shown = path.display();
    let advice = || {
        format!(
            "{shown}: what a run has on this machine is recorded there; name another directory with {DIRECTORY}"
        )
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&path).doing(advice())?;
    let seen = fs::symlink_metadata(&path).doing(advice())?;
    if !seen.is_dir() || seen.uid() != user.as_raw() || seen.mode() & 0o022 != 0 {
        return Err(Error::usage(format!(
            "{}, since others can write there, or it is no directory",
            advice()
        )));
    }
    path.canonicalize().doing(shown)
}

/// This process's file, locked.
fn create(directory: &Path) -> Result<(File, PathBuf)> {
    let path = directory.join(own_name());
    let shown = path.display();
    loop {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).doing(&shown)?;
        flock(&file, FlockOperation::LockExclusive).doing(&shown)?;
        // Somebody who looked between the two calls took it for one that was left.
        if is_at(&file, &path) {
            return Ok((file, path));
        }
    }
}

/// Whether an open file is the one that has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let at = |seen: fs::Metadata| (seen.dev(), seen.ino());
    let named = fs::symlink_metadata(path).map(at);
    file.metadata().map(at).is_ok_and(|own| named.is_ok_and(|named| named == own))
}
