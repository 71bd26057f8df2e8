//! The long jobs themselves, driven as the daemon drives them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use volume::{CheckProgress, Error, Kind, ResealProgress, Result, Volume};

use super::super::died;
use super::super::gate::Gate;
use daemon::{rekey, scrub};

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

    /// Runs `load`, whose measured time is `gate`'s, with this beside it from the opening on: the warm-up leaves the job the users that it is
    /// to have from its beginning. Also, how many blocks a second it got done meanwhile. A scrub begins again when it has ended. A change of
    /// key can't, and closes the gate: all that is measured was beside it. What is left of it afterwards it does with the volume to itself.
    pub fn beside<T>(
        self,
        volume: &Volume,
        gate: &Gate,
        load: impl FnOnce() -> Result<T>,
    ) -> Result<(T, f64)> {
        let running = Running::new(self, volume);
        thread::scope(|scope| {
            let thread = thread::Builder::new().name(self.name().into());
            let run = || {
                let result = match gate.wait_for_opening(|| running.is_stopped()) {
                    true => running.on_and_on(),
                    false => Ok(()),
                };
                gate.close();
                result
            };
            let thread = thread.spawn_scoped(scope, run).expect("a thread can be started");
            let loaded = load();
            let (blocks, end) = (running.blocks(), gate.closed().unwrap_or_else(Instant::now));
            running.stop.store(true, Ordering::SeqCst);
            thread.join().unwrap_or_else(|_| Err(died()))?;
            let took = gate.opened().map_or(Duration::ZERO, |opened| end - opened);
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

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn on_and_on(&self) -> Result<()> {
        loop {
            self.once()?;
            if self.job == Job::Rekey || self.is_stopped() {
                return Ok(());
            }
        }
    }
}
