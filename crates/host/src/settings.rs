//! What is served to whom, as a file (TOML) or a command line says it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most queues of a disk.
pub(crate) const MOST_QUEUES: u16 = 64;
/// Most disks of a server.
const MOST_DISKS: usize = 1024;
/// Longest that a queue is looked at without anything coming.
const LONGEST_SPIN: u64 = 1_000_000;

/// How a server learns of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It looks at the rings all the time, and never asks for a notification.
    Poll,
    /// It sleeps until it is notified.
    Interrupt,
    /// It looks for a bounded time after the last request, then sleeps until it is notified.
    #[default]
    Adaptive,
}

/// One disk for one guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DiskSettings {
    /// Where the VMM connects: a path that does not exist yet.
    pub socket: PathBuf,
    /// A file or block device.
    pub file: PathBuf,
    /// How its requests are noticed.
    #[serde(default)]
    pub mode: Mode,
    /// For how long `adaptive` looks, in microseconds.
    #[serde(default = "spin")]
    pub spin_us: u64,
    /// How many queues a guest may use.
    #[serde(default = "queues")]
    pub queues: u16,
    /// Whether it is only to be read.
    #[serde(default)]
    pub read_only: bool,
    /// Past the page cache of this machine.
    #[serde(default = "yes")]
    pub direct: bool,
    /// What the guest sees as its serial number, up to 20 bytes; without it the file's name.
    #[serde(default)]
    pub id: Option<String>,
    /// Most requests in a second.
    #[serde(default)]
    pub requests_per_second: Option<u32>,
    /// Most bytes in a second.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
}

fn spin() -> u64 {
    50
}

/// Queues of a disk of which nothing else is said. What a guest does not use costs nothing. A volume that drives its own queues has one for each of
/// its threads.
const QUEUES: u16 = 16;
/// What a VMM is told then: some refuse more queues than their guest has processors.
const QUEUES_OF_A_GUEST: u16 = 4;

fn queues() -> u16 {
    QUEUES
}

fn yes() -> bool {
    true
}

impl DiskSettings {
    /// A disk with everything else as it is by default.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, file: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            file: file.into(),
            mode: Mode::default(),
            spin_us: spin(),
            queues: queues(),
            read_only: false,
            direct: yes(),
            id: None,
            requests_per_second: None,
            bytes_per_second: None,
        }
    }

    /// Queues that a VMM should ask for.
    #[must_use]
    pub fn queues_of_a_guest(&self) -> u16 {
        if self.queues == QUEUES { QUEUES_OF_A_GUEST } else { self.queues }
    }

    /// For how long a queue without requests is looked at; `None` for ever.
    pub(crate) fn spin(&self) -> Option<Duration> {
        match self.mode {
            Mode::Poll => None,
            Mode::Interrupt => Some(Duration::ZERO),
            Mode::Adaptive => Some(Duration::from_micros(self.spin_us)),
        }
    }
}

/// All that one server serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// The cores of its workers, one thread on each. None means one thread that no core is chosen for.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// The disks.
    #[serde(rename = "disk", default)]
    pub disks: Vec<DiskSettings>,
}

/// Settings that can't be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError(String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// Reads a file's text.
    ///
    /// # Errors
    /// When it is no TOML, has keys that are not known, or values that can't be.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let settings: Self = toml::from_str(text).map_err(|error| SettingsError(error.to_string()))?;
        settings.check()?;
        Ok(settings)
    }

    /// Whether all values can be, whoever has made them.
    ///
    /// # Errors
    /// Names the first that can't.
    pub fn check(&self) -> Result<(), SettingsError> {
        let bad = |message: String| Err(SettingsError(message));
        if self.disks.is_empty() {
            return bad(
                "there is no disk to serve: give at least one [[disk]] with its socket and file".into()
            );
        }
        if self.disks.len() > MOST_DISKS {
            return bad(format!("{} disks; one server has at most {MOST_DISKS}", self.disks.len()));
        }
        let mut sockets = BTreeSet::new();
        for disk in &self.disks {
            let name = disk.socket.display();
            if !sockets.insert(&disk.socket) {
                return bad(format!("two disks have the socket {name}"));
            }
            if disk.socket.as_os_str().len() > 107 {
                return bad(format!("{name}: a socket's path has at most 107 bytes"));
            }
            if !(1..=MOST_QUEUES).contains(&disk.queues) {
                return bad(format!("{name}: {} queues; it can have 1 to {MOST_QUEUES}", disk.queues));
            }
            if disk.spin_us > LONGEST_SPIN {
                return bad(format!(
                    "{name}: it would spin for {} us; at most {LONGEST_SPIN}, or mode poll",
                    disk.spin_us
                ));
            }
            if disk.requests_per_second == Some(0) || disk.bytes_per_second == Some(0) {
                return bad(format!(
                    "{name}: a limit of zero would let nothing through; leave it out for no limit"
                ));
            }
            if disk.id.as_ref().is_some_and(|id| id.len() > virtqueue::block::ID_LENGTH || !id.is_ascii()) {
                return bad(format!("{name}: an id has at most 20 ASCII characters"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_it_all() {
        let text = r#"
            cores = [2, 3]
            [[disk]]
            socket = "/run/a.sock"
            file = "/dev/vg/a"
            [[disk]]
            socket = "/run/b.sock"
            file = "b.img"
            mode = "poll"
            queues = 1
            read-only = true
            direct = false
            requests-per-second = 1000
        "#;
        let settings = Settings::parse(text).unwrap();
        assert_eq!((settings.cores.as_slice(), settings.disks.len()), ([2, 3].as_slice(), 2));
        assert_eq!(settings.disks[0], DiskSettings::new("/run/a.sock", "/dev/vg/a"));
        assert_eq!(settings.disks[1].spin(), None);
        assert_eq!(settings.disks[0].spin(), Some(Duration::from_micros(50)));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let disk = "[[disk]]\nsocket = \"/s\"\nfile = \"f\"\n";
        for (text, expected) in [
            (String::new(), "no disk"),
            (format!("{disk}{disk}"), "two disks have the socket /s"),
            (format!("{disk}queues = 0"), "0 queues"),
            (format!("{disk}queues = 65"), "65 queues"),
            (format!("{disk}spin-us = 1000001"), "mode poll"),
            (format!("{disk}bytes-per-second = 0"), "let nothing through"),
            (format!("{disk}id = \"{}\"", "x".repeat(21)), "20 ASCII"),
            (format!("{disk}mode = \"fast\""), "fast"),
            (format!("{disk}speed = 1"), "speed"),
            ("[[disk]]\nsocket = \"/s\"".into(), "file"),
            (format!("[[disk]]\nsocket = \"/{}\"\nfile = \"f\"", "s".repeat(107)), "107 bytes"),
        ] {
            let error = Settings::parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
