//! The directory of the running volumes: where each has its socket, its device and its log.
//!
//! `DIR/NAME/` holds `lock` (held by the daemon as long as it lives), `control` (socket), `mnt/` (FUSE), `disk` (link to the device), `loop` (which loop
//! device was made), `ublk` (what outlives the daemon of a ublk device), `nbd.sock` (NBD) and `log`.

mod peer;

use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use seal::slot::Credential;
use serde_json::Value;

use crate::cli::RuntimeArgs;
use crate::daemon::control::{Reply, Request};
use crate::failure::Failure;
use crate::input;
pub use peer::Peer;

/// Most bytes of a request or an answer on a control socket.
pub const MAX_LINE: u64 = 1 << 20;
/// How long a daemon may take for a word about itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often others who just end may take the directory away while it is claimed.
const TRIES: u32 = 100;

/// Where the running volumes are.
pub fn directory(args: &RuntimeArgs) -> Result<PathBuf, Failure> {
    let path = match &args.runtime_dir {
        Some(path) => path.clone(),
        None if rustix::process::geteuid().is_root() => PathBuf::from("/run/cvmio"),
        None => match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(path) => PathBuf::from(path).join("cvmio"),
            None => {
                return Err(Failure::usage(
                    "there is no runtime directory for this user; name one with --runtime-dir",
                ));
            }
        },
    };
    std::path::absolute(&path)
        .map_err(|error| Failure::usage(format!("{} is no usable path: {error}", path.display())))
}

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

    /// Makes the directory, for its owner only.
    fn make(&self) -> std::io::Result<()> {
        let refuse = |why: &str| Err(std::io::Error::other(why));
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        // Where others can write, a socket or a link may be theirs.
        let metadata = fs::symlink_metadata(&self.0)?;
        if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return refuse("it is not a directory of this user");
        }
        if metadata.mode() & 0o022 != 0 {
            return refuse("others can write to it");
        }
        Ok(())
    }

    /// Takes the lock; `None` if somebody has it. "Not found" if whoever had it before took it away between two calls.
    fn lock(&self) -> std::io::Result<Option<File>> {
        self.make()?;
        let path = self.0.join("lock");
        let file = File::create(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // On a file that nobody else finds, a lock is worth nothing.
        match fs::metadata(&path)?.ino() == file.metadata()?.ino() {
            true => Ok(Some(file)),
            false => Err(ErrorKind::NotFound.into()),
        }
    }

    /// Takes the name for this process.
    pub fn claim(&self) -> Result<Claim, Failure> {
        let gone =
            |error: &std::io::Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists);
        let mut tries = 0;
        let file = loop {
            match self.lock() {
                Ok(Some(file)) => break file,
                Ok(None) => return Err(self.taken()),
                Err(error) if gone(&error) && tries < TRIES => tries += 1,
                Err(error) => {
                    return Err(Failure::usage(format!(
                        "the directory {} cannot be used: {error}; choose another with --runtime-dir",
                        self.0.display()
                    )));
                }
            }
        };
        // What a daemon left that was killed.
        for file in [self.control(), self.disk(), self.nbd()] {
            let _ = fs::remove_file(file);
        }
        Ok(Claim { place: self.clone(), _lock: file })
    }

    /// Whether some process has the name.
    pub fn is_taken(&self) -> bool {
        let lock = File::open(self.0.join("lock"));
        lock.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Takes the name for this process if a daemon had it that was killed, or could not take its device away.
    pub fn claim_left(&self) -> Option<Claim> {
        let left = self.0.join("lock").exists() || self.noted_loop().exists();
        left.then(|| self.claim().ok()).flatten()
    }

    fn taken(&self) -> Failure {
        let name = self.name();
        Failure::usage(format!(
            "a volume is attached as {name} already; choose another name with --name, or `cvmio volume detach {name}` first"
        ))
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

    /// Has the volume put away, and returns when the daemon's process is gone, and everything that it had open.
    ///
    /// # Errors
    /// The daemon's own; one that refuses stays. When it does not end.
    pub fn detach(&self) -> Result<(), Failure> {
        let mut stream = self.connect()?;
        let peer = self.peer(&stream)?;
        let answer = self.talk(&mut stream, &Request::Detach, &[], None);
        // It gives up its name before it answers, also where the volume could not be put away cleanly.
        if answer.is_err() && self.is_taken() {
            return answer.map(drop);
        }
        let ended = peer.wait(&self.name(), peer::PATIENCE);
        match answer? {
            // Asked at its very end, when it had answered whoever came first.
            None if !self.0.exists() => Err(being_put_away()),
            answer => self.answered(answer).and(ended),
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
        self.answered(self.talk(&mut self.connect()?, request, credentials, patience)?)
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
            _ => Failure::usage(format!("no volume is attached as {name}; see `cvmio volume list`")),
        }
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
        let fail =
            |error: std::io::Error| Failure::io(format!("the daemon of {name} does not answer: {error}"));
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

/// A daemon that was asked for its status.
pub struct Daemon {
    /// What it said.
    pub said: Result<Value, Failure>,
    /// Itself, to be waited for.
    pub peer: Peer,
}

/// What whoever comes second is told.
pub fn being_put_away() -> Failure {
    Failure::usage("the volume is being put away already")
}

/// The name's owner. What is in the directory goes when this does.
pub struct Claim {
    place: Place,
    _lock: File,
}

impl Claim {
    /// The places.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Notes which loop device was made (its [`export::loopdev::identity`]), for who comes after a daemon that is killed.
    pub fn note_loop(&self, identity: &str) -> Result<(), Failure> {
        let path = self.place.noted_loop();
        fs::write(&path, identity).map_err(|error| Failure::io(format!("{}: {error}", path.display())))
    }

    /// The loop device that was noted, by a daemon that was killed, and has not been used otherwise since.
    pub fn left_loop(&self) -> Option<PathBuf> {
        let noted = fs::read_to_string(self.place.noted_loop()).ok()?;
        let device = PathBuf::from(noted.split(' ').next()?);
        (export::loopdev::identity(&device)? == noted).then_some(device)
    }

    /// Leaves the directory as it is.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// What this process says on standard error goes to the log from now on. Whoever starts it must not make that file: only the owner of the name
    /// knows that nobody is just taking the directory away.
    pub fn take_log(&self) -> Result<(), Failure> {
        let path = self.place.log();
        let log = File::options().create(true).append(true).open(&path);
        log.and_then(|log| Ok(rustix::stdio::dup2_stderr(log)?))
            .map_err(|error| Failure::io(format!("the log {} cannot be made: {error}", path.display())))
    }

    /// Makes the control socket.
    pub fn listen(&self) -> Result<UnixListener, Failure> {
        let path = self.place.control();
        let fail = |error: std::io::Error| {
            Failure::io(format!("the socket {} cannot be made: {error}", path.display()))
        };
        let listener = UnixListener::bind(&path).map_err(fail)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(fail)?;
        Ok(listener)
    }

    /// Makes the link to the device.
    pub fn link(&self, file: &Path) -> Result<(), Failure> {
        std::os::unix::fs::symlink(file, self.place.disk())
            .map_err(|error| Failure::io(format!("{}: {error}", self.place.disk().display())))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        for file in [self.place.control(), self.place.disk(), self.place.nbd()] {
            let _ = fs::remove_file(file);
        }
        // One that was still mounted when the daemon had to go is left to who comes next.
        if self.left_loop().is_none() {
            let _ = fs::remove_file(self.place.noted_loop());
        }
        if !std::thread::panicking() {
            let _ = fs::remove_file(self.place.log());
        }
        let _ = fs::remove_dir(self.place.mountpoint());
        // The lock last: until then nobody else takes the name.
        let _ = fs::remove_file(self.place.0.join("lock"));
        let _ = fs::remove_dir(&self.place.0);
    }
}

/// The names of the volumes that have a directory, running or not.
pub fn names(runtime: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(runtime) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| crate::input::parse_name(name).is_ok()).collect();
    names.sort();
    names
}

/// The same with what their daemons say.
pub fn running(runtime: &Path) -> Vec<(String, Result<Value, Failure>)> {
    names(runtime)
        .into_iter()
        .map(|name| {
            let status = Place::new(runtime, &name).ask_soon(&Request::Status);
            (name, status)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Whoever ends takes the directory away while others claim it: they have the name or are told that it is taken, and nothing else.
    #[test]
    fn a_name_that_is_being_given_up_is_had_or_taken() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(directory.path(), "disk");
        let (held, claimed) = (AtomicBool::new(false), std::sync::atomic::AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        match place.claim() {
                            Ok(claim) => {
                                assert!(!held.swap(true, Ordering::SeqCst), "two have it");
                                claimed.fetch_add(1, Ordering::SeqCst);
                                assert!(claim.place().0.join("lock").exists());
                                held.store(false, Ordering::SeqCst);
                            }
                            Err(failure) => assert!(failure.to_string().contains("already"), "{failure}"),
                        }
                    }
                });
            }
        });
        assert!(claimed.into_inner() > 0);
        assert!(!place.0.exists(), "something is left");
    }
}
