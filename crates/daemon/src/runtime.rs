//! The directory of the running volumes: where each has its socket, its device and its log.
//!
//! `DIR/NAME/` holds `lock` (held by the daemon as long as it lives), `control` (socket), `mnt/` (FUSE), `disk` (link to the device),
//! `loop` (which loop device was made), `ublk` (what outlives the daemon of a ublk device), `nbd.sock` (NBD) and `log`.

mod claim;
mod peer;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use seal::slot::Credential;
use serde_json::Value;
use store::Address;

use crate::LastWrites;
use crate::control::{Reply, Request};
use crate::input;
pub use claim::Claim;
use cli::failure::Failure;
pub use peer::Peer;

/// Most bytes of a request or an answer on a control socket.
pub const MAX_LINE: u64 = 1 << 20;
/// How long a daemon may take for a word about itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// The places of one running volume.
#[derive(Debug, Clone)]
pub struct Place(PathBuf);

impl Place {
    /// The place of the volume `name`.
    pub fn new(runtime: &Path, name: &str) -> Self {
        Self(runtime.join(name))
    }

    /// Where its FUSE file system goes unless the user says otherwise.
    pub fn mountpoint(&self) -> PathBuf {
        self.0.join("mnt")
    }

    /// The link to the device's file.
    pub fn disk(&self) -> PathBuf {
        self.0.join("disk")
    }

    /// Where NBD clients connect unless the user says otherwise.
    pub fn nbd(&self) -> PathBuf {
        self.0.join("nbd.sock")
    }

    /// What a ublk device needs to outlive its daemon. It is there as long as the device is.
    pub fn ublk(&self) -> PathBuf {
        self.0.join("ublk")
    }

    /// What the daemon has to say.
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn noted_loop(&self) -> PathBuf {
        self.0.join("loop")
    }

    fn control(&self) -> PathBuf {
        self.0.join("control")
    }

    /// Whether a volume of this name is attached, or was and its daemon has left something.
    pub fn exists(&self) -> bool {
        self.0.is_dir()
    }

    /// The volume's name.
    pub fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Asks the daemon.
    ///
    /// # Errors
    /// Its own, and when there is none.
    pub fn ask(&self, request: &Request) -> Result<Value, Failure> {
        self.ask_within(request, &[], None)
    }

    /// The same with credentials, as many as the request says.
    ///
    /// # Errors
    /// The daemon's own.
    pub fn ask_with(&self, request: &Request, credentials: &[Credential]) -> Result<Value, Failure> {
        self.ask_within(request, credentials, None)
    }

    /// The daemon, and what it says about its volume; `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn status(&self) -> Result<Option<Daemon>, Failure> {
        match UnixStream::connect(self.control()) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) => Err(self.unreachable(&error)),
            Ok(mut stream) => {
                let peer = self.peer(&stream)?;
                let said = self.talk(&mut stream, &Request::Status, &[], Some(PATIENCE));
                Ok(Some(Daemon { said: said.and_then(|said| self.answered(said)), peer }))
            }
        }
    }

    /// Has the volume put away, and returns when the daemon's process is gone, and everything that it had open. At level `transaction` what was
    /// not committed is committed, or forgotten if `discard_uncommitted`. By `force` also while somebody uses it, or something waits for room.
    ///
    /// # Errors
    /// The daemon's own; one that refuses stays. When it does not end.
    pub fn detach(&self, discard_uncommitted: bool, force: bool) -> Result<Option<LastWrites>, Failure> {
        let mut stream = self.connect()?;
        let peer = self.peer(&stream)?;
        // On a connection of its own: who does not answer this does not answer the other.
        self.ask_soon(&Request::Status).or_else(|failure| match failure.is_silent() {
            true => Err(failure),
            false => Ok(Value::Null),
        })?;
        let answer = self.talk(&mut stream, &Request::Detach { discard_uncommitted, force }, &[], None);
        // It gives up its name before it answers, also where the volume could not be put away cleanly.
        if answer.is_err() && self.is_taken() {
            return answer.map(|_| None);
        }
        // Where the store's host is silent, the kernel keeps the process until that answers.
        let patience = if answer.is_err() { peer::SHORT } else { peer::PATIENCE };
        let ended = peer.wait(&self.name(), patience);
        let answer = answer.map_err(|failure| match &ended {
            Err(late) => failure.with(late),
            Ok(()) => failure,
        });
        match answer? {
            // Asked at its very end, when it had answered the first client.
            None if !self.0.exists() => Err(being_put_away()),
            answer => {
                let last = self.answered(answer)?;
                ended?;
                serde_json::from_value(last).map_err(|error| Failure::internal(error.to_string()))
            }
        }
    }

    fn peer(&self, stream: &UnixStream) -> Result<Peer, Failure> {
        Peer::of(stream)
            .map_err(|error| Failure::io(format!("who serves {} cannot be found out: {error}", self.name())))
    }

    /// The same as [`ask`](Self::ask) for somebody who cannot wait for ever.
    ///
    /// # Errors
    /// The daemon's own, and when it takes too long.
    pub fn ask_soon(&self, request: &Request) -> Result<Value, Failure> {
        self.ask_within(request, &[], Some(PATIENCE))
    }

    fn ask_within(
        &self,
        request: &Request,
        credentials: &[Credential],
        patience: Option<Duration>,
    ) -> Result<Value, Failure> {
        if patience.is_none() {
            // What takes its time is asked only of one that answers at all.
            self.ask_soon(&Request::Status)?;
        }
        self.answered(self.talk(&mut self.connect()?, request, credentials, patience)?)
    }

    /// Why the daemon cannot be asked, when it cannot.
    pub fn absence(&self) -> Absence {
        match UnixStream::connect(self.control()) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Absence::Foreign,
            // It has the name before its socket, and gives it up behind that.
            _ if self.is_taken() => Absence::Passing,
            _ => Absence::Dead,
        }
    }

    /// What is known of a daemon that does not answer: its process, whether that was stopped, and since when nothing was heard of it.
    pub fn silent(&self) -> Option<Silent> {
        let stream = UnixStream::connect(self.control()).ok()?;
        let process = Peer::of(&stream).ok()?.process();
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Its third field, behind the name in parentheses (proc_pid_stat(5)).
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        let heard = fs::metadata(self.0.join("lock")).and_then(|lock| lock.modified()).ok();
        let seconds = heard.and_then(|at| at.elapsed().ok()).map_or(0, |time| time.as_secs());
        Some(Silent { process, stopped: matches!(state, Some('T' | 't')), seconds })
    }

    /// Notes that the daemon is alive. For the daemon.
    pub fn beat(&self) -> std::io::Result<()> {
        fs::File::options().write(true).open(self.0.join("lock"))?.set_modified(std::time::SystemTime::now())
    }

    fn connect(&self) -> Result<UnixStream, Failure> {
        UnixStream::connect(self.control()).map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &std::io::Error) -> Failure {
        let name = self.name();
        match error.kind() {
            ErrorKind::PermissionDenied => {
                Failure::usage(format!("{name} was attached by another user; ask as that user, or as root"))
            }
            ErrorKind::ConnectionRefused => Failure::usage(format!(
                "the daemon of {name} was killed; attach the volume again, or clear away what is left with `cvmio volume detach {name}`"
            )),
            _ if self.is_taken() => {
                Failure::usage(format!("{name} is being attached or put away at this moment; ask again"))
            }
            _ => Failure::usage(format!("no volume is attached as {name}; see `cvmio volume list`")),
        }
    }

    fn no_answer(&self) -> Failure {
        let name = self.name();
        let Some(Silent { process, stopped, seconds }) = self.silent() else {
            return Failure::silent(format!("the daemon of {name} does not answer; see its log"));
        };
        let state = if stopped { ", which was stopped (kill -CONT lets it go on)" } else { "" };
        Failure::silent(format!(
            "the daemon of {name} does not answer since {seconds} s, process {process}{state}; see its log, {}",
            self.log().display()
        ))
    }

    /// An answer that was waited for.
    fn answered(&self, answer: Option<Value>) -> Result<Value, Failure> {
        answer.ok_or_else(|| {
            Failure::io(format!(
                "the daemon of {} ended without an answer; see its log, {}",
                self.name(),
                self.log().display()
            ))
        })
    }

    /// Says a request, and hears the answer; `None` if the daemon ends instead.
    fn talk(
        &self,
        stream: &mut UnixStream,
        request: &Request,
        credentials: &[Credential],
        patience: Option<Duration>,
    ) -> Result<Option<Value>, Failure> {
        let name = self.name();
        let fail = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.no_answer(),
            _ => Failure::io(format!("the daemon of {name} cannot be asked: {error}")),
        };
        stream.set_write_timeout(Some(PATIENCE)).map_err(fail)?;
        stream.set_read_timeout(patience).map_err(fail)?;
        let mut line = serde_json::to_vec(request).map_err(|error| Failure::internal(error.to_string()))?;
        line.push(b'\n');
        let mut answer = String::new();
        let mut exchange = || {
            stream.write_all(&line)?;
            credentials.iter().try_for_each(|one| input::to_pipe(one, stream))?;
            BufReader::new(Read::by_ref(stream).take(MAX_LINE)).read_line(&mut answer).map(drop)
        };
        match exchange() {
            Ok(()) => {}
            // What it was asked, it has not read.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(None);
            }
            Err(error) => return Err(fail(error)),
        }
        if answer.is_empty() {
            return Ok(None);
        }
        match serde_json::from_str(&answer) {
            Ok(Reply::Ok(value)) => Ok(Some(value)),
            Ok(Reply::Error(failure)) => Err(failure),
            Err(error) => Err(Failure::internal(format!("the daemon of {name} speaks otherwise: {error}"))),
        }
    }
}

/// A daemon that is there and says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Silent {
    /// Its process, as this one sees it.
    pub process: i32,
    /// Whether somebody has stopped that (SIGSTOP, a debugger, the freezer).
    pub stopped: bool,
    /// Since it was last known to be well, or began.
    pub seconds: u64,
}

/// Why there is nobody to be asked about a volume that has a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// It belongs to another user.
    Foreign,
    /// It is just being attached, or put away.
    Passing,
    /// Its daemon was killed. `detach` clears away what it has left.
    Dead,
}

/// A daemon that was asked for its status.
pub struct Daemon {
    /// What it said.
    pub said: Result<Value, Failure>,
    /// Itself, to be waited for.
    pub peer: Peer,
}

/// What a second client is told.
pub fn being_put_away() -> Failure {
    Failure::usage("the volume is being put away already")
}

/// The names of the volumes that have a directory, running or not.
pub fn names(runtime: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(runtime) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| cli::input::parse_name(name).is_ok()).collect();
    names.sort();
    names
}

/// The volume that is attached from a store, if its daemon says so.
pub fn attached_from(runtime: &Path, store: &Path) -> Option<Place> {
    let canonical = |store: &Path| Address::of(store).ok()?.canonical().ok();
    let store = canonical(store)?;
    running(runtime).into_iter().find_map(|(name, status)| {
        let held = status.ok()?;
        let held = held.get("report")?.get("volume")?.get("store")?.as_str()?;
        (canonical(Path::new(held))? == store).then(|| Place::new(runtime, &name))
    })
}

/// The same with what their daemons say. All are asked at once: one that does not answer holds up no other.
pub fn running(runtime: &Path) -> Vec<(String, Result<Value, Failure>)> {
    std::thread::scope(|scope| {
        let ask = |name: String| {
            let place = Place::new(runtime, &name);
            (name, scope.spawn(move || place.ask_soon(&Request::Status)))
        };
        let asked: Vec<_> = names(runtime).into_iter().map(ask).collect();
        let defect = |_| Err(Failure::internal("a thread ended by a defect"));
        asked.into_iter().map(|(name, answer)| (name, answer.join().unwrap_or_else(defect))).collect()
    })
}
