//! The long jobs themselves, driven as the daemon drives them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use volume::{CheckProgress, Error, Kind, ResealProgress, Result, Volume};

use super::super::died;
use crate::daemon::{rekey, scrub};

/// A long job, which may run beside users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Reads and opens everything.
    Scrub,
    /// Seals everything anew.
    Rekey,
}

impl Job {
    pub const ALL: [Self; 2] = [Self::Scrub, Self::Rekey];

    pub fn name(self) -> &'static str {
        match self {
            Self::Scrub => "scrub",
            Self::Rekey => "rekey",
        }
    }

    /// Runs it once to its end, with nobody beside it; how long it took.
    pub fn alone(self, volume: &Volume) -> Result<Duration> {
        let began = Instant::now();
        Running::new(self, volume).once()?;
        Ok(began.elapsed())
    }

    /// Runs `load` beside it. Also, how many blocks a second it got done meanwhile. A scrub begins again when it has ended; a change of key
    /// is brought to its end afterwards, when it has the volume to itself.
    pub fn beside<T>(self, volume: &Volume, load: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        let running = Running::new(self, volume);
        thread::scope(|scope| {
            let thread = thread::Builder::new().name(self.name().into());
            let run = || {
                running.wait_for_users();
                running.on_and_on()
            };
            let thread = thread.spawn_scoped(scope, run).expect("a thread can be started");
            let (began, before) = (Instant::now(), running.blocks());
            let loaded = load();
            let (blocks, took) = (running.blocks() - before, began.elapsed());
            let cut_short = self == Self::Rekey && !volume.is_rekeying();
            running.stop.store(true, Ordering::SeqCst);
            thread.join().unwrap_or_else(|_| Err(died()))?;
            if cut_short {
                let why = "the change of key ended before the load beside it; give it more to do with --size";
                return Err(Error::new(Kind::Usage, why));
            }
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let speed = blocks as f64 / took.as_secs_f64();
            Ok((loaded?, speed))
        })
    }
}

struct Running<'a> {
    job: Job,
    volume: &'a Volume,
    checked: Arc<CheckProgress>,
    resealed: Arc<ResealProgress>,
    stop: AtomicBool,
}

impl<'a> Running<'a> {
    fn new(job: Job, volume: &'a Volume) -> Self {
        Self { job, volume, checked: Arc::default(), resealed: Arc::default(), stop: AtomicBool::new(false) }
    }

    fn blocks(&self) -> u64 {
        match self.job {
            Job::Scrub => self.checked.blocks.load(Ordering::Relaxed),
            Job::Rekey => self.resealed.resealed.load(Ordering::Relaxed),
        }
    }

    fn once(&self) -> Result<()> {
        let damaged = match self.job {
            Job::Scrub => {
                let mut damaged = 0;
                scrub::drive(self.volume, u64::MAX, &self.checked, &self.stop, |report| {
                    damaged += report.lost();
                })?;
                damaged
            }
            Job::Rekey => {
                // What would stop it also stops the volume.
                let never = AtomicBool::new(false);
                rekey::drive(self.volume, &self.resealed, &never, || ())?.damage.lost()
            }
        };
        match damaged {
            0 => Ok(()),
            _ => Err(Error::new(
                Kind::Corrupt,
                format!("{damaged} blocks are damaged; this is a defect, and the figures would be worthless"),
            )),
        }
    }

    /// Waits for the load, so that the job has users from its beginning.
    fn wait_for_users(&self) {
        let before = self.volume.uses();
        while self.volume.uses() == before && !self.stop.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn on_and_on(&self) -> Result<()> {
        loop {
            self.once()?;
            if self.job == Job::Rekey || self.stop.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
    }
}
