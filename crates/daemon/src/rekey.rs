//! The rest of a change of key, in the background of an attached volume.
//!
//! Invariants:
//! 1. It gives way to users, as `background.rs` says.
//! 2. It ends when the volume is stopped, and before that is put away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use seal::slot::SlotInfo;
use serde::{Deserialize, Serialize};
use store::BLOCK_SIZE;
use volume::{CheckReport, Kind, Rekeyed, ResealProgress, ResealReport, Volume};

use super::background::BackgroundRate;
use super::scrub::Stage;
use super::tamper::Tamper;
use super::thread::Thread;
use crate::system::SystemClock;
use cli::failure::Failure;

/// How a change of key began.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Begun {
    /// Whether one was under way already; then nothing was changed.
    pub under_way_before: bool,
    /// The slots in force.
    pub slots: Vec<Slot>,
    /// The slots that are gone.
    pub removed_slots: Vec<Slot>,
}

/// A key slot.
#[derive(Debug, Serialize, Deserialize)]
pub struct Slot {
    index: usize,
    label: String,
}

impl From<SlotInfo> for Slot {
    fn from(SlotInfo { index, label, .. }: SlotInfo) -> Self {
        Self { index, label }
    }
}

impl std::fmt::Display for Slot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(format!("{} {}", self.index, self.label).trim_end())
    }
}

impl From<Rekeyed> for Begun {
    fn from(Rekeyed { under_way, slots, removed }: Rekeyed) -> Self {
        let named = |slots: Vec<SlotInfo>| slots.into_iter().map(Slot::from).collect();
        Self { under_way_before: under_way, slots: named(slots), removed_slots: named(removed) }
    }
}

/// What a status shows of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Standing {
    /// How it stands.
    pub stage: Stage,
    /// Data blocks that were looked at: those are under the new key.
    pub blocks: u64,
    /// Data blocks that there were when it began, as of the last checkpoint.
    pub of: u64,
    /// Data blocks that this session has sealed anew.
    pub resealed_blocks: u64,
    /// Bytes a second that are looked at.
    pub rate: u64,
    /// How long it will take at that rate; `null` if nobody knows.
    pub seconds_left: Option<u64>,
    /// Blocks that do not open: until they are overwritten or discarded, the old key is needed.
    pub damaged_blocks: u64,
    /// The same of those that cannot be read.
    pub unreadable_blocks: u64,
    /// Why it failed.
    pub failure: Option<String>,
}

/// A re-sealing, under way or ended.
pub struct Rekey {
    shared: Arc<Shared>,
    thread: Option<Thread<()>>,
}

struct Shared {
    of: u64,
    begun: Instant,
    progress: Arc<ResealProgress>,
    found: Mutex<Found>,
}

struct Found {
    stage: Stage,
    damage: CheckReport,
    failure: Option<String>,
}

impl Rekey {
    /// Goes on with a change of key.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(volume: Volume, tamper: Arc<Tamper>) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            of: volume.status().mapped_blocks,
            begun: Instant::now(),
            progress: Arc::default(),
            found: Mutex::new(Found { stage: Stage::Running, damage: CheckReport::default(), failure: None }),
        });
        let ours = Arc::clone(&shared);
        let thread = Thread::start("rekey", move || ours.run(&volume, &tamper));
        let thread = thread.map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether it is at work.
    pub fn is_running(&self) -> bool {
        self.shared.found().stage == Stage::Running
    }

    /// What a status shows.
    pub fn standing(&self) -> Standing {
        self.shared.standing()
    }

    /// Returns when it has ended, and has the volume no longer: all is sealed anew, or the volume has been stopped or has failed.
    pub fn join(&mut self) {
        let _ = self.thread.take().map(Thread::end);
    }
}

impl Drop for Rekey {
    /// As [`join`](Self::join).
    fn drop(&mut self) {
        self.join();
    }
}

impl Shared {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, volume: &Volume, tamper: &Tamper) {
        let ended = drive(volume, &self.progress, &AtomicBool::new(false), || ());
        let mut found = self.found();
        match ended {
            Ok(report) if report.ended => found.stage = Stage::Done,
            Ok(report) if report.damage.lost() == 0 => found.stage = Stage::Stopped,
            Ok(report) => {
                let failure = damaged(&report);
                tamper.note("rekey", &failure);
                found.stage = Stage::Failed;
                found.failure = Some(failure.to_string());
                found.damage = report.damage;
            }
            Err(error) => (found.stage, found.failure) = (Stage::Failed, Some(error.to_string())),
        }
    }

    fn standing(&self) -> Standing {
        let found = self.found();
        let blocks = match self.progress.walks.load(Ordering::Relaxed) {
            0 => self.progress.blocks.load(Ordering::Relaxed).min(self.of),
            _ => self.of,
        };
        let (rate, seconds_left) = pace(blocks, self.of, self.begun.elapsed());
        let running = found.stage == Stage::Running;
        Standing {
            stage: found.stage,
            blocks,
            of: self.of,
            resealed_blocks: self.progress.resealed.load(Ordering::Relaxed),
            rate: if running { rate } else { 0 },
            seconds_left: seconds_left.filter(|_| running),
            damaged_blocks: found.damage.damaged_blocks,
            unreadable_blocks: found.damage.unreadable_blocks,
            failure: found.failure.clone(),
        }
    }
}

/// What keeps the old key.
pub fn damaged(report: &ResealReport) -> volume::Error {
    let CheckReport { damaged, damaged_blocks, unreadable, .. } = &report.damage;
    let (kind, what) = match damaged_blocks {
        0 => (Kind::Io, "cannot be read"),
        _ => (Kind::Corrupt, "are not what was written there, or cannot be read"),
    };
    let first: Vec<String> = damaged
        .iter()
        .chain(unreadable)
        .take(5)
        .map(|range| format!("{} from {} on", range.end - range.start, range.start))
        .collect();
    volume::Error::new(
        kind,
        format!(
            "{} blocks {what} ({}), so the old key cannot be given up; overwrite or discard them, and run `cvmio volume rekey` again",
            report.damage.lost(),
            first.join(", ")
        ),
    )
}

/// Bytes a second, and seconds that are left at that rate.
fn pace(blocks: u64, of: u64, elapsed: Duration) -> (u64, Option<u64>) {
    let milliseconds = elapsed.as_millis().max(1);
    let rate = u128::from(blocks) * BLOCK_SIZE as u128 * 1000 / milliseconds;
    let left = u128::from(of.saturating_sub(blocks)) * milliseconds / 1000;
    let seconds = left.checked_div(u128::from(blocks)).and_then(|seconds| u64::try_from(seconds).ok());
    (u64::try_from(rate).unwrap_or(u64::MAX), seconds)
}

/// Drives a re-sealing to its end on this thread, and calls `show` now and then. Once `stop` is set, it stops the volume, which ends it.
///
/// # Errors
/// As the job.
pub fn drive(
    volume: &Volume,
    progress: &Arc<ResealProgress>,
    stop: &AtomicBool,
    show: impl Fn(),
) -> volume::Result<ResealReport> {
    let mut job = volume.reseal(Arc::clone(progress))?;
    let mut rate = BackgroundRate::new(SystemClock::new(), volume.uses());
    loop {
        if stop.load(Ordering::SeqCst) {
            volume.stop();
        }
        if let Some(report) = rate.step(&mut job, volume, &progress.sharing, Duration::ZERO) {
            return report;
        }
        show();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_what_is_done() {
        const SECOND: Duration = Duration::from_secs(1);
        assert_eq!(pace(256, 1024, SECOND), (1 << 20, Some(3)));
        assert_eq!(pace(1024, 1024, 2 * SECOND), (2 << 20, Some(0)));
        // Neither at the very beginning, nor where there is nothing, is it trouble.
        assert_eq!(pace(0, 1024, Duration::ZERO), (0, None));
        assert_eq!(pace(0, 0, SECOND), (0, None));
        assert_eq!(pace(9, 4, SECOND).1, Some(0));
    }
}
