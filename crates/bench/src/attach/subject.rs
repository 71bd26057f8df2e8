//! The volume that is attached again and again.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;
use store::BLOCK_SIZE;

use super::client::{Client, Door};
use crate::program;
use cli::failure::Failure;
use cli::interrupt::Interrupt;
use daemon::runtime::{Daemon, Peer, Place};

/// How the session before ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Before {
    Detach,
    Crash,
}

impl Before {
    pub fn name(self) -> &'static str {
        match self {
            Self::Detach => "detach",
            Self::Crash => "crash",
        }
    }
}

/// How long a killed process may take to end.
const PATIENCE: Duration = Duration::from_secs(20);
const GLANCE: Duration = Duration::from_millis(5);
const NAME: &str = "disk";

/// The volume.
pub struct Subject {
    /// The program `cvmio`.
    program: PathBuf,
    directory: PathBuf,
    place: Place,
    blocks: u64,
    /// Blocks that are written before a kill.
    written: u64,
}

impl Subject {
    /// Creates it.
    ///
    /// # Errors
    /// When that fails, or the end was asked for.
    pub fn create(directory: &Path, size: u64, written: u64, interrupt: &Interrupt) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::io(format!("{}: {error}", directory.display()));
        let directory = directory.canonicalize().map_err(failed)?;
        let mut key = [0; 64];
        seal::Random::fill(&seal::SystemRandom, &mut key);
        fs::write(directory.join("key"), key).map_err(failed)?;
        let place = Place::new(&directory.join("run"), NAME);
        let blocks = |mebibytes: u64| (mebibytes << 20) / BLOCK_SIZE as u64;
        let program = cli::find::cvmio()?;
        let subject = Self { program, directory, place, blocks: blocks(size), written: blocks(written) };
        let anchor = format!("file:{}", subject.directory.join("anchor").display());
        let mut create = subject.command("create");
        create.args([NAME, "--key-file=key", "--anchor", &anchor, "--size", &format!("{size}M")]);
        program::run(&mut create, interrupt)?;
        Ok(subject)
    }

    /// One turn: how long it took, and how many changes were in the journal only.
    ///
    /// # Errors
    /// When a command fails, or the first block is not what was written there.
    pub fn turn(&self, door: Door, before: Before) -> Result<(Duration, u64), Failure> {
        let (mut mark, mut changes) = (None, 0);
        if before == Before::Crash {
            let (written, left) = self.crash(door)?;
            (mark, changes) = (Some(written), left);
        }
        let begun = Instant::now();
        let attached = self.attach(door)?;
        let found = attached.client().and_then(|mut client| client.read(0));
        let took = begun.elapsed();
        let found = found.map_err(|error| lost(&error))?;
        if mark.is_some_and(|mark| mark != found) {
            return Err(Failure::io(
                "the first block does not read as it was written before the kill; this is a defect",
            ));
        }
        attached.detach()?;
        Ok((took, changes))
    }

    /// Attaches, writes, flushes, and kills the process; what the first block holds, and how many changes the journal has that no checkpoint
    /// covers.
    fn crash(&self, door: Door) -> Result<(Vec<u8>, u64), Failure> {
        let attached = self.attach(door)?;
        let mark = attached
            .client()
            .and_then(|mut client| scatter(&mut client, self.blocks, self.written))
            .map_err(|error| lost(&error))?;
        let changes = attached.kill()?;
        Ok((mark, changes))
    }

    fn attach(&self, door: Door) -> Result<Attached<'_>, Failure> {
        let mut attach = self.command("attach");
        attach.args([NAME, "--key-file=key", "--as", door.name()]);
        let guard = Attached { subject: self, door, ended: false };
        execute(&mut attach)?;
        Ok(guard)
    }

    fn command(&self, command: &str) -> Command {
        let mut us = Command::new(&self.program);
        us.args(["volume", command]).env("CVMIO_RUNTIME_DIR", self.directory.join("run"));
        us.current_dir(&self.directory);
        us
    }

    /// The last threads of a killed process have its files a moment longer. That is not what is measured.
    fn wait_until_free(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let store = File::open(self.directory.join(NAME)).map_err(|error| lost(&error))?;
        while self.place.is_taken() || flock(&store, FlockOperation::NonBlockingLockShared).is_err() {
            if begun.elapsed() > PATIENCE {
                return Err(Failure::io("the store of a killed process does not become free"));
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }
}

/// Runs one of our own commands to its end. Nobody looks meanwhile whether it has ended: that would be measured, too.
fn execute(command: &mut Command) -> Result<(), Failure> {
    // In a process group of its own: the terminal's interrupt is for us, who then put everything away.
    let ran = command.stdin(Stdio::null()).process_group(0).output();
    let ran = ran.map_err(|error| Failure::io(format!("cvmio cannot be run: {error}")))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(Failure::io(String::from_utf8_lossy(&ran.stderr).trim())),
    }
}

fn lost(error: &io::Error) -> Failure {
    Failure::io(format!("the volume cannot be used: {error}"))
}

/// Writes so many blocks at random, and the first one; what that holds.
fn scatter(client: &mut Client, blocks: u64, count: u64) -> io::Result<Vec<u8>> {
    let mut random = fastrand::Rng::new();
    let mut bytes = vec![0; BLOCK_SIZE];
    random.fill(&mut bytes);
    for _ in 1..count {
        client.write(random.u64(1..blocks), &bytes)?;
    }
    client.write(0, &bytes)?;
    client.flush()?;
    Ok(bytes)
}

/// An attached volume, put away with this.
struct Attached<'a> {
    subject: &'a Subject,
    door: Door,
    ended: bool,
}

impl Attached<'_> {
    fn client(&self) -> io::Result<Client> {
        self.door.open(&self.subject.place)
    }

    fn detach(mut self) -> Result<(), Failure> {
        execute(self.subject.command("detach").arg(NAME))?;
        self.ended = true;
        Ok(())
    }

    /// Kills the process; how many changes it had made since its last checkpoint. The dead mount of FUSE is left to who comes next.
    fn kill(mut self) -> Result<u64, Failure> {
        let daemon =
            self.subject.place.status()?.ok_or_else(|| Failure::io("the volume's process is gone"))?;
        let status = daemon.said?;
        end(&status, &daemon.peer)?;
        self.ended = true;
        self.subject.wait_until_free()?;
        Ok(status["report"]["volume"]["overlay-changes"].as_u64().unwrap_or(0))
    }
}

/// Ends a process that has said its number.
fn end(status: &Value, peer: &Peer) -> Result<(), Failure> {
    let process =
        status["report"]["process"].as_i64().and_then(|number| Pid::from_raw(i32::try_from(number).ok()?));
    let process = process.ok_or_else(|| Failure::internal("the volume's process has no number"))?;
    kill_process(process, Signal::KILL).map_err(|error| lost(&error.into()))?;
    peer.wait(NAME, PATIENCE)
}

impl Drop for Attached<'_> {
    /// Reached after another failure, which is the one to tell.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let detach = || execute(self.subject.command("detach").arg(NAME));
        if detach().is_err()
            && let Ok(Some(Daemon { said: Ok(status), peer })) = self.subject.place.status()
        {
            // It refuses; then what it leaves is taken away.
            let _ = end(&status, &peer).and_then(|()| detach());
        }
    }
}
