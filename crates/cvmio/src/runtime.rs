//! The directory of the running volumes: where each has its socket, its device and its log.
//!
//! `DIR/NAME/` holds `lock` (held by the daemon as long as it lives), `control` (socket), `mnt/` (FUSE), `disk` (link to the device), `loop` (which loop
//! device was made), `ublk` (what outlives the daemon of a ublk device), `nbd.sock` (NBD) and `log`.

use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::cli::RuntimeArgs;
use crate::daemon::control::{Reply, Request};
use crate::failure::Failure;

/// Most bytes of a request or an answer on a control socket.
pub const MAX_LINE: u64 = 1 << 20;
/// How long a daemon may take for a word about itself.
const PATIENCE: Duration = Duration::from_secs(10);

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
    pub fn make(&self) -> Result<(), Failure> {
        let refuse = |why: &dyn std::fmt::Display| {
            Failure::usage(format!(
                "the directory {} cannot be used: {why}; choose another with --runtime-dir",
                self.0.display()
            ))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0).map_err(|error| refuse(&error))?;
        // Where others can write, a socket or a link may be theirs.
        let metadata = fs::symlink_metadata(&self.0).map_err(|error| refuse(&error))?;
        if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(refuse(&"it is not a directory of this user"));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(refuse(&"others can write to it"));
        }
        Ok(())
    }

    /// Takes the name for this process.
    pub fn claim(&self) -> Result<Claim, Failure> {
        self.make()?;
        let fail = |error: std::io::Error| Failure::io(format!("{}: {error}", self.0.display()));
        let path = self.0.join("lock");
        let file = loop {
            let file = File::create(&path).map_err(fail)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(self.taken()),
                Err(errno) => return Err(fail(errno.into())),
            }
            // A daemon that just ended may have removed the file between the two calls; then the lock is worth nothing.
            let inode = file.metadata().map_err(fail)?.ino();
            if fs::metadata(&path).is_ok_and(|metadata| metadata.ino() == inode) {
                break file;
            }
            self.make()?;
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
        self.ask_within(request, None)
    }

    /// What the daemon says about its volume; `None` when there is no daemon.
    ///
    /// # Errors
    /// Its own.
    pub fn status(&self) -> Result<Option<Value>, Failure> {
        match UnixStream::connect(self.control()) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            _ => self.ask_soon(&Request::Status).map(Some),
        }
    }

    /// The same as [`ask`](Self::ask) for somebody who cannot wait for ever.
    ///
    /// # Errors
    /// The daemon's own, and when it takes too long.
    pub fn ask_soon(&self, request: &Request) -> Result<Value, Failure> {
        self.ask_within(request, Some(PATIENCE))
    }

    fn ask_within(&self, request: &Request, patience: Option<Duration>) -> Result<Value, Failure> {
        let name = self.name();
        let mut stream = UnixStream::connect(self.control()).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                Failure::usage(format!("{name} was attached by another user; ask as that user, or as root"))
            }
            _ => Failure::usage(format!("no volume is attached as {name}; see `cvmio volume list`")),
        })?;
        let fail =
            |error: std::io::Error| Failure::io(format!("the daemon of {name} does not answer: {error}"));
        stream.set_read_timeout(patience).map_err(fail)?;
        let mut line = serde_json::to_vec(request).map_err(|error| Failure::internal(error.to_string()))?;
        line.push(b'\n');
        stream.write_all(&line).map_err(fail)?;
        let mut answer = String::new();
        BufReader::new(stream.take(MAX_LINE)).read_line(&mut answer).map_err(fail)?;
        if answer.is_empty() {
            return Err(Failure::io(format!(
                "the daemon of {name} ended without an answer; see its log, {}",
                self.log().display()
            )));
        }
        match serde_json::from_str(&answer) {
            Ok(Reply::Ok(value)) => Ok(value),
            Ok(Reply::Error(failure)) => Err(failure),
            Err(error) => Err(Failure::internal(format!("the daemon of {name} speaks otherwise: {error}"))),
        }
    }
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
