//! Who owns a volume's name on this machine: the process that has the lock.

use std::cell::Cell;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::Place;
use cli::failure::Failure;

/// How often others who just end may take the directory away while it is claimed.
const TRIES: u32 = 100;
/// Files that a session may make beside its log, and bytes of each: the loop device, sockets, what a ublk device needs.
const NOTES: usize = 3;
/// Where the link to the device leads while there is none: to open it fails, for everybody.
const NOWHERE: &str = "no-volume-is-attached-here/disk";
const NOTE: usize = 4096;

impl Place {
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

    /// Takes the lock; `None` if another process has it. "Not found" if its former holder took it away between two calls.
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
        for file in [self.control(), self.nbd()] {
            let _ = fs::remove_file(file);
        }
        let left = fs::read_link(self.disk()).ok().filter(|file| is_below_a_mount(file));
        let claim = Claim { place: self.clone(), left: Cell::new(left), _lock: file };
        if claim.left_directory().is_none() {
            claim.link(Path::new(NOWHERE)).map_err(|failure| {
                Failure::usage(format!(
                    "{failure}. Nothing was changed; make room there, or choose another directory with --runtime-dir"
                ))
            })?;
        }
        Ok(claim)
    }

    /// Whether some process has the name.
    pub fn is_taken(&self) -> bool {
        let lock = File::open(self.0.join("lock"));
        lock.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Takes the name for this process if a daemon had it that was killed, or could not take its device away.
    pub fn claim_left(&self) -> Option<Claim> {
        self.exists().then(|| self.claim().ok()).flatten()
    }

    /// What is in the directory though no daemon has left it there.
    pub fn strange_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    fn taken(&self) -> Failure {
        let name = self.name();
        Failure::usage(format!(
            "a volume is attached as {name} already; choose another name with --name, or `cvmio volume detach {name}` first"
        ))
    }
}

/// The name's owner. What is in the directory goes when this does.
pub struct Claim {
    place: Place,
    /// The file of a daemon that was killed, as long as nobody has cleared away what covered its directory. The link leads there still, and
    /// tells the next one, should this process be killed as well.
    left: Cell<Option<PathBuf>>,
    _lock: File,
}

impl Claim {
    /// The places.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Makes as much in the directory as a session may come to need there, and takes it away again: that it is full must not be found out when
    /// the volume is claimed.
    ///
    /// # Errors
    /// When there is no room; nothing was changed then.
    pub fn rehearse(&self) -> Result<(), Failure> {
        let made = self.place.0.join("room");
        let _ = fs::remove_dir_all(&made);
        let make = || {
            fs::create_dir(&made)?;
            std::os::unix::fs::symlink(&made, made.join("disk"))?;
            (0..NOTES).try_for_each(|number| fs::write(made.join(number.to_string()), [1; NOTE]))
        };
        let ended = make();
        let _ = fs::remove_dir_all(&made);
        ended.map_err(|error| {
            Failure::usage(format!(
                "the directory {} has no room for what a session notes there: {error}. Nothing was changed; make room there, or choose another with --runtime-dir",
                self.place.0.display()
            ))
        })
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

    /// What this process says on standard error goes to the log from now on. The process that starts it must not make that file: only the
    /// owner of the name knows that nobody is just taking the directory away.
    pub fn take_log(&self) -> Result<(), Failure> {
        let path = self.place.log();
        let log = File::options().create(true).append(true).open(&path);
        log.and_then(|log| Ok(rustix::stdio::dup2_stderr(log)?))
            .map_err(|error| Failure::usage(format!("the log {} cannot be made: {error}", path.display())))
    }

    /// Makes the control socket.
    pub fn listen(&self) -> Result<UnixListener, Failure> {
        let path = self.place.control();
        let fail = |error: std::io::Error| {
            Failure::usage(format!("the socket {} cannot be made: {error}", path.display()))
        };
        let listener = UnixListener::bind(&path).map_err(fail)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(fail)?;
        Ok(listener)
    }

    /// Makes the link to the device, in the place of the one that is there: at no moment can a file be made under its name.
    pub fn link(&self, file: &Path) -> Result<(), Failure> {
        let (new, disk) = (self.place.0.join("disk.new"), self.place.disk());
        let _ = fs::remove_file(&new);
        std::os::unix::fs::symlink(file, &new)
            .and_then(|()| fs::rename(&new, &disk))
            .map_err(|error| Failure::io(format!("{}: {error}", disk.display())))
    }

    /// Opens the directory that a killed daemon has closed below its mount, unless it is `covered` again.
    ///
    /// # Errors
    /// When the system refuses; it stays closed then.
    pub fn open_left(&self, covered: Option<&Path>) -> Result<(), Failure> {
        let Some((directory, name)) = self.left_directory() else { return Ok(()) };
        if covered != Some(&directory) {
            export::fuse::open_left(&directory, &name)?;
        }
        self.left.set(None);
        Ok(())
    }

    fn left_directory(&self) -> Option<(PathBuf, String)> {
        let left = self.left.take();
        self.left.set(left.clone());
        let left = left?;
        Some((left.parent()?.to_path_buf(), left.file_name()?.to_str()?.to_owned()))
    }
}

/// Whether a link leads to a file of ours: others lead to a device, or nowhere.
fn is_below_a_mount(file: &Path) -> bool {
    file != Path::new(NOWHERE) && !file.starts_with("/dev")
}

impl Drop for Claim {
    fn drop(&mut self) {
        for file in [self.place.control(), self.place.nbd()] {
            let _ = fs::remove_file(file);
        }
        if self.left_directory().is_some() {
            // Nothing has come of this session: what is left of the killed one is still there.
            return;
        }
        let _ = fs::remove_file(self.place.disk());
        // One that was still mounted when the daemon had to go is left to who comes next.
        if self.left_loop().is_none() {
            let _ = fs::remove_file(self.place.noted_loop());
        }
        if !std::thread::panicking() {
            let _ = fs::remove_file(self.place.log());
        }
        // It is closed where the mount was made, and no link to it yet.
        let _ = export::fuse::open_left(&self.place.mountpoint(), "disk");
        let _ = fs::remove_dir(self.place.mountpoint());
        // The lock last: until then nobody else takes the name.
        let _ = fs::remove_file(self.place.0.join("lock"));
        let _ = fs::remove_dir(&self.place.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A daemon that ends takes the directory away while others claim it: they have the name or are told that it is taken, and nothing else.
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
