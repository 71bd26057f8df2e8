//! What the owner keeps of a job while its machine runs: a directory of its own, which nobody else reads.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
use crate::guest::Setup;
use crate::volume::Route;

/// How long a machine may take to be gone.
const GRACE: Duration = Duration::from_secs(10);
/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(50);

/// A job's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Record {
    /// The job's name.
    pub name: String,
    /// The job file's directory.
    pub base: PathBuf,
    /// What the guest was told.
    pub setup: Setup,
    /// QEMU's process id.
    pub process: i32,
    /// When that process began, in the kernel's ticks since boot: another one may get its number.
    pub process_began: u64,
    /// The port here that leads to the guest's SSH.
    pub port: u16,
    /// How the guest reaches the anchors of its volumes.
    pub routes: Vec<Route>,
    /// The volumes' ids.
    pub volumes: Vec<String>,
    /// How far the job is.
    pub stage: Stage,
    /// Whether results may replace what is there.
    pub replace: bool,
}

/// How far a job is, as its owner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The machine was started.
    Launched,
    /// Its evidence has passed.
    Attested,
    /// The work was begun.
    Begun,
}

/// A job's directory.
#[derive(Debug, Clone)]
pub struct Place(PathBuf);

impl Place {
    /// Where jobs are kept: `$XDG_STATE_HOME/cvmio/jobs`, or `~/.local/state/cvmio/jobs`.
    ///
    /// # Errors
    /// If neither is known.
    pub fn all() -> Result<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
        let state = state.ok_or_else(|| {
            Error::usage(
                "HOME is not set, so there is no place for the job's state; set HOME or XDG_STATE_HOME",
            )
        })?;
        Ok(state.join("cvmio/jobs"))
    }

    /// A new directory for a job of this name.
    ///
    /// # Errors
    /// If a job of this name has one already.
    pub fn create(name: &str) -> Result<Self> {
        let all = Self::all()?;
        DirBuilder::new().recursive(true).mode(0o700).create(&all).of(&all)?;
        let path = all.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::usage(format!(
                "a job {name} is there already; `cvmio job resume {name}` goes on with it, `cvmio job stop {name}` ends it"
            ))),
            made => made.of(&path).map(|()| Self(path)),
        }
    }

    /// The directory of a job that is there.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn find(name: &str) -> Result<Self> {
        crate::file::Name::parse(name).map_err(|error| Error::usage(error.to_string()).because(error))?;
        let path = Self::all()?.join(name);
        if path.is_dir() {
            Ok(Self(path))
        } else {
            Err(Error::usage(format!("there is no job {name}; `cvmio job list` shows those that are there")))
        }
    }

    /// Each job that is there.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list() -> Result<Vec<Self>> {
        let all = Self::all()?;
        let entries = match fs::read_dir(&all) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.of(&all)?,
        };
        let mut places: Vec<Self> =
            entries.filter_map(|entry| entry.ok().map(|entry| Self(entry.path()))).collect();
        places.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(places)
    }

    /// A file of it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its record.
    ///
    /// # Errors
    /// If it has none yet, or none that can be read.
    pub fn record(&self) -> Result<Record> {
        let path = self.file("record");
        let bytes = fs::read(&path).map_err(|error| {
            let name = self.0.file_name().unwrap_or_default().display().to_string();
            Error::usage(format!(
                "the job {name} has not got as far as a machine; `cvmio job stop {name}` clears it away"
            ))
            .because(error)
        })?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::usage(format!("{}: {error}", path.display())).because(error))
    }

    /// Writes its record: a reader sees the old one or the new one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, record: &Record) -> Result<()> {
        let (path, fresh) = (self.file("record"), self.file("record.new"));
        let text = serde_json::to_vec(record).map_err(|error| Error::io(error.to_string()))?;
        fs::write(&fresh, text).of(&fresh)?;
        fs::rename(&fresh, &path).of(&path)
    }

    /// Ends the machine if it runs, and forgets the job.
    ///
    /// # Errors
    /// If the machine does not end, or the directory cannot be removed.
    pub fn forget(&self) -> Result<()> {
        if let Ok(record) = self.record() {
            record.end_machine()?;
        }
        fs::remove_dir_all(&self.0).of(&self.0)
    }
}

impl Record {
    /// Whether its machine runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let process = Pid::from_raw(self.process);
        process.is_some_and(|process| test_kill_process(process).is_ok())
            && began(self.process) == Some(self.process_began)
    }

    /// Waits until its machine has powered off by itself. Whether it has within `limit`.
    #[must_use]
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        while self.is_alive() {
            if begun.elapsed() > limit {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    fn end_machine(&self) -> Result<()> {
        let process = Pid::from_raw(self.process).filter(|_| self.is_alive());
        if let Some(process) = process {
            let _ = kill_process(process, Signal::KILL);
            if !self.wait_for_end(GRACE) {
                return Err(Error::io(format!("the machine (process {}) does not end", self.process)));
            }
        }
        Ok(())
    }
}

/// When a process began, in ticks since boot; `None` when there is none of this number, or it has ended and was not waited for yet.
///
/// Source: proc_pid_stat(5), fields 3 and 22.
#[must_use]
pub fn began(process: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name is in parentheses, and may have some of its own.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_beginning() {
        let me = i32::try_from(std::process::id()).unwrap();
        let began = began(me).unwrap();
        let setup = Setup { name: "a".into(), file: String::new(), container: 1 };
        let record = Record {
            name: "a".into(),
            base: "/".into(),
            setup,
            process: me,
            process_began: began,
            port: 1,
            routes: Vec::new(),
            volumes: Vec::new(),
            stage: Stage::Launched,
            replace: false,
        };
        assert!(record.is_alive());
        assert!(
            !Record { process_began: began + 1, ..record.clone() }.is_alive(),
            "another process of the same number"
        );
        assert!(!Record { process: 0, ..record }.is_alive());
    }
}
