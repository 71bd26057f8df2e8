//! Volumes in the guest: brought up by `cvmio` before the container, put away behind it. The module [`crate::volume`] has the invariants.

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cli::failure::Failure;
use error_kind::{HasKind, Kind};
use serde_json::{Value, json};

use super::boot::private;
use super::place;
use crate::error::{Context, Error, Result};
use crate::file::Job;
use crate::program::unstarted;
use crate::volume::{Grant, KEY, MAX_GRANT, POLICY, RELEASED, Stamp, Used};

/// The program that brings volumes up.
const PROGRAM: &str = "cvmio";
/// Memory of a volume's daemon for changes and map.
const MEMORY: &str = "32M";
/// How long a file system may stay in use behind the container's end: the kernel takes its mounts away when the last process is gone.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Takes what opens a volume, and writes it where nobody else reads it.
///
/// # Errors
/// If the job has no such volume, it has another form, or there is one already.
pub fn receive(job: &Job, number: usize, from: impl Read) -> Result<()> {
    if number >= job.volumes.len() {
        return Err(Error::protocol(format!("the job has no volume {number}")));
    }
    let mut bytes = zeroize::Zeroizing::new(Vec::new());
    from.take(MAX_GRANT).read_to_end(&mut bytes).of("what opens a volume")?;
    let grant = Grant::parse(&bytes)?;
    let directory = place::volume(number);
    DirBuilder::new().mode(0o700).create(&directory).of(&directory)?;
    for file in grant.files(&directory)? {
        private(&directory.join(&file.name), &file.content)?;
    }
    let hosts: String = grant.names().iter().map(|name| format!("127.0.0.1 {name}\n")).collect();
    let table = "/etc/hosts";
    File::options().append(true).open(table).and_then(|mut file| file.write_all(hosts.as_bytes())).of(table)
}

/// Whether what opens a volume has arrived.
#[must_use]
pub fn has_arrived(number: usize) -> bool {
    place::volume(number).join(POLICY).exists()
}

/// Volumes that are up, with what their anchors held before.
#[derive(Debug, Default)]
pub struct Volumes {
    up: Vec<(String, Option<Stamp>)>,
}

impl Volumes {
    /// Brings each volume of a job up. A new one is made, with its file system.
    ///
    /// # Errors
    /// If one cannot be: an older disk than its anchor vouches for, another volume's, a key that opens nothing. Then none is up.
    pub fn bring_up(job: &Job) -> Result<Self> {
        let mut volumes = Self::default();
        for (number, volume) in job.volumes.iter().enumerate() {
            let up = stamp(number).and_then(|before| activate(number).map(|()| before));
            match up {
                Ok(before) => volumes.up.push((volume.to.to_string(), before)),
                Err(error) => {
                    // The first reason counts.
                    let _ = volumes.put_away();
                    return Err(error.about(format!("the volume for {}", volume.to)));
                }
            }
        }
        Ok(volumes)
    }

    /// Puts them all away, and says what their anchors hold then. While an anchor is away it waits for it (V6).
    ///
    /// # Errors
    /// If one cannot be put away in order; the others are all the same.
    pub fn put_away(self) -> Result<Vec<Used>> {
        let ended: Vec<Result<Used>> =
            self.up.into_iter().enumerate().map(|(number, (to, before))| end(number, to, before)).collect();
        ended.into_iter().collect()
    }
}

fn end(number: usize, to: String, before: Option<Stamp>) -> Result<Used> {
    let about = |error: Error| error.about(format!("the volume for {to}"));
    deactivate(number).map_err(about)?;
    let after = loop {
        match stamp(number) {
            Err(error) if error.kind() == Kind::Anchor => std::thread::sleep(PAUSE),
            after => break after.map_err(about)?,
        }
    };
    // Somebody else may have claimed it since, or its session was not the last.
    let after = after.filter(|after| after.state == RELEASED).ok_or_else(|| {
        about(Error::new(
            Kind::Fenced,
            "its anchor does not say that this guest has put it away; another one has claimed it",
        ))
    })?;
    Ok(Used { volume: after.volume.clone(), to, before, after })
}

/// What a volume is called in the guest.
fn name(number: usize) -> String {
    format!("volume-{number}")
}

fn activate(number: usize) -> Result<()> {
    let directory = place::volume(number);
    let order = json!({
        "name": name(number),
        "store": disk(number),
        "policy": directory.join(POLICY),
        "key-file": directory.join(KEY),
        "fs": "ext4",
        "mountpoint": place::mounted(number),
        "mount-options": "nosuid,nodev",
        "memory": MEMORY,
    });
    cvmio(&["volume", "activate", "--config", "-"], Some(&order)).map(drop)
}

fn deactivate(number: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        match cvmio(&["volume", "deactivate", &name(number)], None) {
            Err(error) if error.kind() == Kind::Anchor => {}
            Err(error) if error.kind() == Kind::Usage && begun.elapsed() < PATIENCE => {}
            ended => return ended.map(drop),
        }
        std::thread::sleep(PAUSE);
    }
}

/// What a volume's anchor holds.
fn stamp(number: usize) -> Result<Option<Stamp>> {
    let policy = place::volume(number).join(POLICY).display().to_string();
    Stamp::shown(&cvmio(&["anchor", "show", "--policy", &policy, "--json"], None)?)
}

/// The disk of a volume: the first is the root file system's. Another disk in its place has another volume's id, or none.
fn disk(number: usize) -> String {
    let letter = char::from(b'b' + u8::try_from(number).unwrap_or(u8::MAX - b'b'));
    format!("/dev/vd{letter}")
}

/// Runs `cvmio` to its end. What it printed.
fn cvmio(words: &[&str], order: Option<&Value>) -> Result<Vec<u8>> {
    let mut command = Command::new(PROGRAM);
    command.args(words).env("CVMIO_RUNTIME_DIR", place::daemons());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        unstarted(&command, error).about(
            "the guest cannot bring volumes up; build its image anew where cvmio is installed beside cvmio-job",
        )
    })?;
    if let Some(mut to) = child.stdin.take() {
        let text = order.map(Value::to_string).unwrap_or_default();
        // One that has ended says itself why.
        let _ = to.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().of(PROGRAM)?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(complaint(&output.stdout, &output.stderr, output.status.code())),
    }
}

/// What `cvmio` said: in JSON where it was asked for that, else by its exit code and in words.
fn complaint(printed: &[u8], said: &[u8], code: Option<i32>) -> Error {
    let told = serde_json::from_slice::<Value>(printed).ok();
    let told = told.and_then(|told| serde_json::from_value::<Failure>(told.get("error")?.clone()).ok());
    if let Some(failure) = told {
        return Error::new(failure.kind(), failure.to_string());
    }
    let words = String::from_utf8_lossy(said);
    let words = words.trim();
    let words = words.strip_prefix("cvmio: error: ").unwrap_or(words);
    let failure = json!({ "code": code.unwrap_or(1), "message": words });
    let kind = serde_json::from_value::<Failure>(failure).map_or(Kind::Defect, |failure| failure.kind());
    Error::new(kind, format!("cvmio ended with {code:?}: {words}"))
}

/// Gives the container's user the top of each file system.
///
/// # Errors
/// If the file system cannot be written.
pub fn hand_over(job: &Job, uid: u32, gid: u32) -> Result<()> {
    (0..job.volumes.len()).map(place::mounted).try_for_each(|top| {
        fs::metadata(&top).of(&top)?;
        std::os::unix::fs::lchown(&top, Some(uid), Some(gid)).of(&top)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_volume_is_refused_keeps_its_kind() {
        let told = br#"{"error":{"code":5,"kind":"stale","message":"the store is older"}}"#;
        let error = complaint(told, b"cvmio: error: the store is older", Some(5));
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Stale, "the store is older"));
        let error = complaint(b"", b"cvmio: error: no answer\n", Some(8));
        assert_eq!(error.kind(), Kind::Anchor);
        assert!(error.to_string().contains("no answer"));
        assert_eq!(complaint(b"{}", b"", None).kind(), Kind::Defect);
    }

    #[test]
    fn disks_follow_the_root_file_system_s() {
        assert_eq!((disk(0), disk(7)), ("/dev/vdb".into(), "/dev/vdi".into()));
    }
}
