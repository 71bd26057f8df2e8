//! A device as `/dev/ublkbN`, by the kernel's ublk driver.
//!
//! Each queue of the device has a thread here, which takes requests from the kernel through io_uring and is woken when the device has ended one.
//! Data is copied once, between the pages of who asked and the request's own memory, by reading and writing the driver's character device.
//!
//! A device with a [`Recovery`] outlives a server that is killed: its users wait until the next server goes on where the last one ended, and
//! nothing that they were told is done is lost (see `recovery_log.rs`).
//!
//! **A server must not share its mount namespace with the users of its device**: see [`leave_mounts`].
//!
//! Source: the kernel's `Documentation/block/ublk.rst`.

mod abi;
mod control;
mod mounts;
mod queue;
mod recovery_log;

use crate::budget::{Budget, IN_FLIGHT};
use crate::{Device, Error};
pub use mounts::leave as leave_mounts;

use abi::{Command, Info, State};
use control::Control;
use queue::Queue;
use recovery_log::{Log, Record, RecoveryLog};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How to show the device.
#[derive(Debug, Clone)]
pub struct Options {
    /// Queues of the device, each with a thread. At least 1.
    pub queues: u16,
    /// Requests that each queue may have in flight. At least 1.
    pub depth: u16,
    /// Whether the device refuses all that would change it.
    pub read_only: bool,
    /// Whether the device outlives this process. One that is read-only does not: there is nothing that would be lost.
    pub recovery: Option<Recovery>,
}

/// What the next server needs, should this one be killed.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// A file in memory (tmpfs) that others cannot read. It has the last changes in it, in plaintext, as long as the device is there.
    pub path: PathBuf,
    /// What the device shows. Who comes with another name does not get it.
    pub owner: [u8; 16],
}

impl Options {
    fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref().filter(|_| !self.read_only)
    }
}

/// How long the kernel may take to notice that a server has died, and the system to make a device's node.
const PATIENCE: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(20);

/// A device that is shown. Dropping it takes it away, even while it is in use.
pub struct Ublk {
    path: PathBuf,
    number: u32,
    recovered: bool,
    recovery: Option<RecoveryLog>,
    running: Mutex<Option<Running>>,
}

struct Running {
    control: Control,
    queues: Vec<JoinHandle<()>>,
}

/// Is told why a queue is not served any more, though nobody has taken the device away.
pub type Failed = Arc<dyn Fn(Error) + Send + Sync>;

/// Whether devices can be shown here.
///
/// # Errors
/// [`Error::Usage`] says why not, and what to do.
pub fn available() -> Result<(), Error> {
    Control::open().map(drop)
}

/// Whether a file at `path` would be in memory, as [`Recovery`] needs it.
#[must_use]
pub fn is_in_memory(path: &Path) -> bool {
    path.parent().is_some_and(|directory| {
        rustix::fs::statfs(directory).is_ok_and(|found| recovery_log::is_memory(&found))
    })
}

/// Takes away the device that a killed server has left, by what it left at `path`. Its users get errors. Whether there was one.
///
/// # Errors
/// [`Error::Busy`] if it is served, [`Error::System`] if the kernel refuses, or nobody has left anything at `path`.
pub fn remove_left(path: &Path) -> Result<bool, Error> {
    let mut found = None;
    // Without the driver there is no device either.
    if let (Some((_, record)), true) = (Log::open(path)?, control::is_there()) {
        let mut control = Control::open()?;
        found = left(&mut control, &record)?;
        if let Some(info) = found {
            control.stop(info.number)?;
            control.delete(info.number)?;
        }
    }
    let removed = std::fs::remove_file(path);
    removed.map_err(|error| Error::io(format!("removing {}", path.display()), &error))?;
    Ok(found.is_some())
}

impl Ublk {
    /// Shows `device`, or goes on with the device that a killed server of it has left.
    ///
    /// # Errors
    /// [`Error::Usage`] if there can be no such device here, or what was left is of another; [`Error::System`] if the kernel refuses.
    pub fn show(device: Arc<dyn Device>, options: &Options, failed: &Failed) -> Result<Self, Error> {
        let mut control = Control::open()?;
        let left = match options.recovery() {
            Some(recovery) => claim(&mut control, recovery, device.size())?,
            None => None,
        };
        match left {
            Some((info, log)) => Self::go_on(control, info, log, device, failed),
            None => Self::begin(control, device, options, failed),
        }
    }

    fn begin(
        mut control: Control,
        device: Arc<dyn Device>,
        options: &Options,
        failed: &Failed,
    ) -> Result<Self, Error> {
        let recoverable = options.recovery().is_some();
        let info = control.add(options.queues.max(1), options.depth.max(1), recoverable)?;
        let mut recovery = None;
        let shown = (|| {
            let device: Arc<dyn Device> = match options.recovery() {
                Some(Recovery { path, owner }) => {
                    let record =
                        Record { number: info.number, servers: [std::process::id(); 2], owner: *owner };
                    Arc::new(recovery.insert(RecoveryLog::new(device, Log::create(path, &record)?)?).clone())
                }
                None => device,
            };
            control.describe(info.number, device.size(), options.read_only)?;
            serve(&mut control, info, &device, (options.read_only, Command::Start), failed)
        })();
        match shown {
            Ok(queues) => Ok(Self::new(control, queues, info.number, false, recovery)),
            Err(error) => {
                // The reason counts; that there was nothing to stop would only hide it.
                let _ = control.stop(info.number);
                let _ = control.delete(info.number);
                recovery.iter().for_each(RecoveryLog::remove);
                Err(error)
            }
        }
    }

    /// On errors, all stays as it was left.
    fn go_on(
        mut control: Control,
        info: Info,
        log: Log,
        device: Arc<dyn Device>,
        failed: &Failed,
    ) -> Result<Self, Error> {
        wait_while_busy(|| control.start_recovery(info.number))?;
        let recovery = RecoveryLog::new(device, log)?;
        let device: Arc<dyn Device> = Arc::new(recovery.clone());
        let queues = serve(&mut control, info, &device, (false, Command::EndRecovery), failed)?;
        Ok(Self::new(control, queues, info.number, true, Some(recovery)))
    }

    fn new(
        control: Control,
        queues: Vec<JoinHandle<()>>,
        number: u32,
        recovered: bool,
        recovery: Option<RecoveryLog>,
    ) -> Self {
        let path = PathBuf::from(format!("/dev/ublkb{number}"));
        Self { path, number, recovered, recovery, running: Mutex::new(Some(Running { control, queues })) }
    }

    /// The block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was there before, and goes on.
    #[must_use]
    pub fn recovered(&self) -> bool {
        self.recovered
    }

    /// Takes the device away, even while it is in use; what is in flight ends before. Does nothing if that was done before.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn stop(&self) -> Result<(), Error> {
        let mut running = self.running();
        let Some(Running { control, .. }) = running.as_mut() else { return Ok(()) };
        control.stop(self.number)?;
        let Some(Running { mut control, queues }) = running.take() else { return Ok(()) };
        // The kernel has ended all requests, so the threads end.
        let defect = queues.into_iter().map(JoinHandle::join).any(|end| end.is_err());
        let deleted = control.delete(self.number);
        self.recovery.iter().for_each(RecoveryLog::remove);
        if defect {
            return Err(Error::system(format!("serving {}", self.path.display()), Errno::IO));
        }
        deleted
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ublk {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// What a killed server of this very device has left, ready to go on. `None` if there is nothing, or nothing that could.
fn claim(control: &mut Control, recovery: &Recovery, size: u64) -> Result<Option<(Info, Log)>, Error> {
    let Some((log, mut record)) = Log::open(&recovery.path)? else { return Ok(None) };
    let Some(info) = left(control, &record)? else { return Ok(None) };
    if info.state != State::Quiesced {
        // It was never shown.
        control.delete(info.number)?;
        return Ok(None);
    }
    if record.owner != recovery.owner || control.size(info.number)? != size {
        return Err(Error::Usage(format!(
            "/dev/ublkb{} is there still, of another volume whose daemon was killed: attach that one again, or detach it",
            info.number
        )));
    }
    // Both, until the kernel knows us: this process may be killed before, or right behind.
    record.servers = [info.server, std::process::id()];
    let noted = log.set_record(&record);
    noted.map_err(|error| Error::io(format!("writing {}", recovery.path.display()), &error))?;
    Ok(Some((info, log)))
}

/// The device of a server that has died. `None` if there is none, or one that somebody else has made since.
fn left(control: &mut Control, record: &Record) -> Result<Option<Info>, Error> {
    let begun = Instant::now();
    loop {
        let info = match control.info(record.number) {
            Ok(info) => info,
            Err(Errno::NODEV) => return Ok(None),
            Err(errno) => {
                return Err(Error::system(format!("asking for ublk device {}", record.number), errno));
            }
        };
        if !record.servers.contains(&info.server) {
            return Ok(None);
        }
        // It takes the kernel a moment to see that the server is gone.
        if info.state != State::Live {
            return Ok(Some(info));
        }
        if begun.elapsed() > PATIENCE {
            return Err(Error::Busy(format!(
                "/dev/ublkb{} is served by process {}",
                info.number, info.server
            )));
        }
        std::thread::sleep(GLANCE);
    }
}

/// Starts the threads, and then the device.
fn serve(
    control: &mut Control,
    info: Info,
    device: &Arc<dyn Device>,
    (read_only, start): (bool, Command),
    failed: &Failed,
) -> Result<Vec<JoinHandle<()>>, Error> {
    let file = Arc::new(open_character_device(info.number)?);
    let share = Budget::of_one(IN_FLIGHT);
    let mut threads = Vec::new();
    for number in 0..info.queues {
        let (sender, fetched) = channel();
        let (file, device, share) = (Arc::clone(&file), Arc::clone(device), Arc::clone(&share));
        let tell = Arc::clone(failed);
        let serve = move || {
            // Without the right to do this the device still works; see `set_io_flusher`.
            let _ = crate::set_io_flusher();
            let mut queue = match Queue::new((number, info.depth), file, device, share, read_only) {
                Ok(queue) => queue,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let fetched = queue.fetch();
            let refused = fetched.is_err();
            if sender.send(fetched).is_ok()
                && !refused
                && let Err(error) = queue.run()
            {
                tell(error);
            }
        };
        let thread = std::thread::Builder::new().name(format!("ublk-{number}")).spawn(serve);
        threads.push(thread.map_err(|error| Error::io("starting a thread for a ublk device", &error))?);
        let gone = |_| Error::system("starting a thread for a ublk device", Errno::IO);
        fetched.recv().map_err(gone)??;
    }
    control.start(info.number, start)?;
    Ok(threads)
}

fn open_character_device(number: u32) -> Result<File, Error> {
    let path = PathBuf::from(format!("/dev/ublkc{number}"));
    wait_while_busy(|| {
        rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map(File::from)
            .map_err(|errno| Error::at("opening", &path, errno))
    })
}

/// Tries again for a while: a device's node may not be there yet, and the server before us not quite gone.
fn wait_while_busy<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(Error::System { errno: Errno::BUSY | Errno::NOENT, .. }) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(GLANCE);
            }
            result => return result,
        }
    }
}
