//! What happens when the host was caught, or another session took the volume: what the device still does, and who is told. Also when it was
//! caught before there was a device: then only the last.
//!
//! Invariants:
//! 1. Nobody who serves requests waits here: they count, and hand a note to a channel that has room for it or not. Programs are started,
//!    and waited for, on a thread of their own.
//! 2. What the device does only becomes less.
//! 3. One program runs at a time. Notes that come while one runs, or soon after, become one; a program that does not end is ended.

mod program;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use export::Request;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::events;
use crate::sign::Sign;
use cli::failure::Failure;

/// What the device does after the first block that is not what was written, or after another session has claimed the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnTamper {
    /// Go on: what is damaged fails, the rest works
    #[default]
    Continue,
    /// Refuse writes from then on
    ReadOnly,
    /// Refuse everything from then on
    Stop,
}

impl OnTamper {
    /// All of them, from the mildest on.
    pub const ALL: [Self; 3] = [Self::Continue, Self::ReadOnly, Self::Stop];

    /// As on the command line, and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::ReadOnly => "read-only",
            Self::Stop => "stop",
        }
    }
}

/// What was ordered.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Orders {
    /// What the device does.
    pub on: OnTamper,
    /// The program that is run.
    pub hook: Option<PathBuf>,
}

impl Orders {
    /// The hook by its whole path, that it can be found when it is needed.
    ///
    /// # Errors
    /// When there is no such file, or the kernel would not run it.
    pub fn new(on: OnTamper, hook: Option<&Path>) -> Result<Self, Failure> {
        let whole = |path: &Path| {
            path.canonicalize().ok().filter(|path| path.is_file()).ok_or_else(|| {
                let path = path.display();
                Failure::usage(format!("the tamper hook {path} is no file; name a program by its path"))
            })
        };
        let hook = hook.map(whole).transpose()?;
        // Found out now, and not by an alarm that does not come.
        if let Some(path) = &hook
            && let Err(why) = program::check(path)
        {
            return Err(Failure::usage(format!(
                "the tamper hook {} cannot be run: {why}. Mend it, or name another program",
                path.display()
            )));
        }
        Ok(Self { on, hook })
    }
}

/// What a status shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Standing {
    /// What was ordered.
    pub on_tamper: OnTamper,
    /// How often something was caught.
    pub caught: u64,
}

/// One or more catches.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Note {
    kind: &'static str,
    operation: &'static str,
    message: String,
    blocks: Vec<u64>,
    count: u64,
}

/// Watches over one attached volume.
pub struct Tamper {
    on: OnTamper,
    caught: AtomicU64,
    tripped: AtomicBool,
    /// Catches that the channel had no room for.
    missed: Arc<AtomicU64>,
    hook: Mutex<Option<Telling>>,
}

/// The way to the hook's thread.
struct Telling {
    notes: SyncSender<Note>,
    thread: JoinHandle<()>,
}

/// Notes that wait for the hook.
const WAITING: usize = 16;
/// Blocks that a note names.
const NAMED: usize = 64;
/// How long after a program's start the next one is started, at the soonest.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a program may run.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the daemon's end waits for it.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often it is looked whether it has ended.
const GLANCE: Duration = Duration::from_millis(20);

impl Tamper {
    /// Begins to watch the volume that is attached under this name.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(orders: &Orders, name: &str, store: &str) -> Result<Self, Failure> {
        Self::with_pause(orders, name, store, PAUSE)
    }

    fn with_pause(orders: &Orders, name: &str, store: &str, pause: Duration) -> Result<Self, Failure> {
        let missed = Arc::<AtomicU64>::default();
        let start = |program: &PathBuf| {
            let (notes, heard) = sync_channel(WAITING);
            let hook = Hook {
                program: program.clone(),
                name: name.into(),
                store: store.into(),
                pause,
                missed: Arc::clone(&missed),
            };
            let thread = std::thread::Builder::new().name("tamper-hook".into());
            let thread = thread.spawn(move || hook.run(&heard));
            let fail = |error| Failure::io(format!("no thread can be started: {error}"));
            Ok::<_, Failure>(Telling { notes, thread: thread.map_err(fail)? })
        };
        Ok(Self {
            on: orders.on,
            caught: AtomicU64::new(0),
            tripped: AtomicBool::new(false),
            hook: Mutex::new(orders.hook.as_ref().map(start).transpose()?),
            missed,
        })
    }

    /// Whether a request may go on to the volume.
    ///
    /// # Errors
    /// What the front end says if not.
    pub fn admit(&self, request: &Request) -> Result<(), Errno> {
        if !self.tripped.load(Ordering::Relaxed) {
            return Ok(());
        }
        let writes = !matches!(request, Request::Read { .. } | Request::Flush);
        match self.on {
            OnTamper::ReadOnly if writes => Err(Errno::ROFS),
            OnTamper::Stop => Err(Errno::IO),
            OnTamper::Continue | OnTamper::ReadOnly => Ok(()),
        }
    }

    /// Takes note of an error, if it is one of these.
    pub fn note(&self, operation: &'static str, error: &volume::Error) {
        let Some(sign) = Sign::of(error.kind()) else { return };
        let blocks = error.blocks().iter().take(NAMED).copied().collect();
        self.catch(Note { kind: sign.name(), operation, message: error.to_string(), blocks, count: 1 });
    }

    /// Takes note of why there is no device, if that is a sign of tampering.
    pub fn refused(&self, failure: &Failure) {
        let Some(sign) = Sign::of(failure.kind()) else { return };
        let message = failure.to_string();
        self.caught.fetch_add(1, Ordering::Relaxed);
        self.pass_on(Note { kind: sign.name(), operation: "attach", message, blocks: Vec::new(), count: 1 });
    }

    fn catch(&self, note: Note) {
        self.caught.fetch_add(1, Ordering::Relaxed);
        if !self.tripped.swap(true, Ordering::Relaxed) {
            match self.on {
                OnTamper::Continue => {}
                OnTamper::ReadOnly => {
                    events::tell("this volume takes no more writes (--on-tamper read-only)")
                }
                OnTamper::Stop => events::tell("this volume answers no more requests (--on-tamper stop)"),
            }
        }
        self.pass_on(note);
    }

    fn pass_on(&self, note: Note) {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(hook) = hook.as_ref() else { return };
        if hook.notes.try_send(note).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes no more notes; leaves the hook some time for those that it has.
    pub fn finish(&self) {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Telling { notes, thread }) = hook else { return };
        drop(notes);
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < FAREWELL {
            std::thread::sleep(GLANCE);
        }
    }

    /// What a status shows.
    pub fn standing(&self) -> Standing {
        Standing { on_tamper: self.on, caught: self.caught.load(Ordering::Relaxed) }
    }
}

/// The thread that runs the program.
struct Hook {
    program: PathBuf,
    name: String,
    store: String,
    pause: Duration,
    missed: Arc<AtomicU64>,
}

impl Hook {
    fn run(&self, notes: &Receiver<Note>) {
        let mut waiting: Option<Note> = None;
        while let Some(mut note) = waiting.take().or_else(|| notes.recv().ok()) {
            let begun = Instant::now();
            note.count += self.missed.swap(0, Ordering::Relaxed);
            if let Err(error) = self.tell(&note) {
                events::tell(&format!("the tamper hook {} cannot be run: {error}", self.program.display()));
            }
            // After the last note there is no pause.
            while let Ok(more) = notes.recv_timeout(self.pause.saturating_sub(begun.elapsed())) {
                match &mut waiting {
                    Some(waiting) => waiting.add(more),
                    None => waiting = Some(more),
                }
            }
        }
    }

    /// No shell: a message has words of the host's in it.
    fn tell(&self, note: &Note) -> std::io::Result<()> {
        let blocks: Vec<String> = note.blocks.iter().map(u64::to_string).collect();
        let mut child = Command::new(&self.program)
            .env("CVMIO_NAME", &self.name)
            .env("CVMIO_STORE", &self.store)
            .env("CVMIO_KIND", note.kind)
            .env("CVMIO_OPERATION", note.operation)
            .env("CVMIO_BLOCKS", blocks.join(","))
            .env("CVMIO_COUNT", note.count.to_string())
            .env("CVMIO_MESSAGE", &note.message)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let begun = Instant::now();
        while child.try_wait()?.is_none() {
            if begun.elapsed() >= PATIENCE {
                events::tell(&format!(
                    "the tamper hook {} does not end, and is ended",
                    self.program.display()
                ));
                child.kill()?;
                child.wait()?;
                break;
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }
}

impl Note {
    /// The first one's words stay; blocks and number are of all.
    fn add(&mut self, more: Self) {
        self.count += more.count;
        let room = NAMED.saturating_sub(self.blocks.len());
        self.blocks.extend(more.blocks.into_iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::Kind;

    const NOW: Duration = Duration::ZERO;

    fn requests() -> [Request; 5] {
        [
            Request::Read { offset: 0, length: 4096 },
            Request::Flush,
            Request::Write { offset: 0, data: vec![0; 4096].into(), fua: false },
            Request::Discard { offset: 0, length: 4096 },
            Request::WriteZeroes { offset: 0, length: 4096 },
        ]
    }

    fn corrupt() -> volume::Error {
        volume::Error::new(Kind::Corrupt, "block 7; $(rm -rf /) is not what was written there")
    }

    #[test]
    fn from_the_first_catch_on_the_device_does_what_was_ordered() {
        let (ok, io, rofs) = (Ok(()), Err(Errno::IO), Err(Errno::ROFS));
        for (on, expected) in [
            (OnTamper::Continue, [ok; 5]),
            (OnTamper::ReadOnly, [ok, ok, rofs, rofs, rofs]),
            (OnTamper::Stop, [io; 5]),
        ] {
            let tamper = Tamper::new(&Orders { on, hook: None }, "disk", "disk.img").unwrap();
            tamper.note("read", &volume::Error::new(Kind::Io, "the disk failed"));
            tamper.note("write", &volume::Error::new(Kind::NoSpace, "full"));
            assert_eq!(requests().map(|request| tamper.admit(&request)), [ok; 5], "{on:?}");
            tamper.note("read", &corrupt());
            assert_eq!(requests().map(|request| tamper.admit(&request)), expected, "{on:?}");
            tamper.note("flush", &volume::Error::new(Kind::Fenced, "another session"));
            assert_eq!(tamper.standing(), Standing { on_tamper: on, caught: 2 });
        }
    }

    /// A program that appends its surroundings to a file, and how often it has.
    fn hook(directory: &std::path::Path, more: &str) -> (Orders, PathBuf) {
        let (program, told) = (directory.join("hook"), directory.join("told"));
        let line = "$CVMIO_NAME|$CVMIO_KIND|$CVMIO_OPERATION|$CVMIO_COUNT|$CVMIO_MESSAGE";
        let text = format!("#!/bin/sh\necho \"{line}\" >> {}\n{more}\n", told.display());
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        (Orders { on: OnTamper::Continue, hook: Some(program) }, told)
    }

    fn lines(path: &std::path::Path) -> Vec<String> {
        std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_hook_is_told_what_happened_and_no_shell_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let (orders, told) = hook(directory.path(), "");
        let tamper = Tamper::with_pause(&orders, "disk", "disk.img", NOW).unwrap();
        tamper.note("read", &corrupt());
        tamper.finish();
        assert_eq!(lines(&told), ["disk|corrupt|read|1|block 7; $(rm -rf /) is not what was written there"]);
        // After the end nobody is told, and nobody waits.
        tamper.note("read", &corrupt());
        assert_eq!(lines(&told).len(), 1);
    }

    #[test]
    fn many_catches_are_few_programs_and_no_request_waits_for_one() {
        let directory = tempfile::tempdir().unwrap();
        let (orders, told) = hook(directory.path(), "sleep 1");
        let tamper = Tamper::with_pause(&orders, "disk", "disk.img", Duration::from_secs(600)).unwrap();
        let begun = Instant::now();
        for _ in 0..1000 {
            tamper.note("read", &corrupt());
        }
        assert!(begun.elapsed() < Duration::from_millis(500), "requests waited for the hook");
        tamper.finish();
        let counts: Vec<u64> =
            lines(&told).iter().map(|line| line.split('|').nth(3).unwrap().parse().unwrap()).collect();
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (2, 1000), "{counts:?}");
        assert_eq!(tamper.standing().caught, 1000);
    }

    #[test]
    fn a_hook_that_is_not_there_is_no_trouble() {
        let orders = Orders { on: OnTamper::Continue, hook: Some("/nowhere/hook".into()) };
        let tamper = Tamper::new(&orders, "disk", "disk.img").unwrap();
        tamper.note("read", &corrupt());
        tamper.finish();
        assert_eq!(tamper.standing().caught, 1);
    }
}
