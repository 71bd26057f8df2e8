//! A check in the background of an attached volume, no faster than it may be.
//!
//! Invariants:
//! 1. It gives way to users, as `background.rs` says.
//! 2. Over any stretch of time it reads at most what the rate allows, and `BURST` more.
//! 3. It ends when it is told to, and before the volume is put away.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use store::BLOCK_SIZE;
use volume::{CheckProgress, CheckReport, Kind, Volume};

use super::background::BackgroundRate;
use super::events;
use super::tamper::Tamper;
use super::thread::Thread;
use crate::system::SystemClock;
use cli::failure::Failure;

/// The work is done in up to so many parts, one after the other, so that what was found is known before the end.
const PARTS: u64 = 16;
/// Data blocks (1 GiB) for which a part is worth while: each has a queue of its own, and the store has little to do at its ends.
const PART_BLOCKS: u64 = 1 << 18;
/// Bytes that a check has in flight, and may be ahead by.
const BURST: u64 = 4 << 20;
/// Damaged stretches that a status lists.
const LISTED: usize = 100;

/// How a scrub stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Under way.
    Running,
    /// Everything was read.
    Done,
    /// Ended before, since somebody asked for that.
    Stopped,
    /// Ended by an error.
    Failed,
}

/// What a status shows of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Standing {
    /// How it stands.
    pub stage: Stage,
    /// Bytes a second that it may read.
    pub rate: u64,
    /// Data blocks that were opened.
    pub blocks: u64,
    /// Data blocks that there were when it began, as of the last checkpoint.
    pub of: u64,
    /// Logical blocks that are damaged or cannot be reached, in the parts that are done.
    pub damaged_blocks: u64,
    /// The first stretches of them: first block, and how many.
    pub damaged: Vec<(u64, u64)>,
    /// Logical blocks that the store could not read, in the same parts.
    pub unreadable_blocks: u64,
    /// The first stretches of them.
    pub unreadable: Vec<(u64, u64)>,
    /// Why it failed.
    pub failure: Option<String>,
}

/// A scrub, under way or ended.
pub struct Scrub {
    shared: Arc<Shared>,
    thread: Option<Thread<()>>,
}

struct Shared {
    rate: u64,
    of: u64,
    progress: Arc<CheckProgress>,
    stop: AtomicBool,
    found: Mutex<Found>,
}

struct Found {
    stage: Stage,
    report: CheckReport,
    failure: Option<String>,
}

impl Scrub {
    /// Begins to read everything, at most `rate` bytes a second.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(volume: Volume, rate: u64, tamper: Arc<Tamper>) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            rate,
            of: volume.status().mapped_blocks,
            progress: Arc::default(),
            stop: AtomicBool::new(false),
            found: Mutex::new(Found { stage: Stage::Running, report: CheckReport::default(), failure: None }),
        });
        let ours = Arc::clone(&shared);
        let run = move || ours.run(&volume, &tamper);
        let thread = Thread::start("scrub", run);
        let thread = thread.map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether it still reads.
    pub fn is_running(&self) -> bool {
        self.shared.found().stage == Stage::Running
    }

    /// Ends it, and returns when it has.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(Err(_)) = self.thread.take().map(Thread::end) {
            let mut found = self.shared.found();
            (found.stage, found.failure) =
                (Stage::Failed, Some("its thread ended by a defect; see the log, and report it".into()));
        }
    }

    /// What a status shows.
    pub fn standing(&self) -> Standing {
        let found = self.shared.found();
        let lengths = |ranges: &[Range<u64>]| -> Vec<(u64, u64)> {
            ranges.iter().take(LISTED).map(|range| (range.start, range.end - range.start)).collect()
        };
        Standing {
            stage: found.stage,
            rate: self.shared.rate,
            blocks: self.shared.progress.blocks.load(Ordering::Relaxed),
            of: self.shared.of,
            damaged_blocks: found.report.damaged_blocks,
            damaged: lengths(&found.report.damaged),
            unreadable_blocks: found.report.unreadable_blocks,
            unreadable: lengths(&found.report.unreadable),
            failure: found.failure.clone(),
        }
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, volume: &Volume, tamper: &Tamper) {
        let note = |report: CheckReport| {
            if report.damaged_blocks > 0 {
                let message = format!("{} blocks are not what was written there", report.damaged_blocks);
                tamper.note("scrub", &volume::Error::new(Kind::Corrupt, message));
            }
            if report.unreadable_blocks > 0 {
                let first = report.unreadable.first().map(|range| range.start);
                events::unreadable_found(report.unreadable_blocks, first);
            }
            self.found().report.merge(report);
        };
        let (stage, failure) = match drive(volume, self.rate, &self.progress, &self.stop, note) {
            Ok(true) => (Stage::Done, None),
            Ok(false) => (Stage::Stopped, None),
            Err(error) => (Stage::Failed, Some(error.to_string())),
        };
        let mut found = self.found();
        (found.stage, found.failure) = (stage, failure);
    }
}

/// Reads everything on this thread, at most `rate` bytes a second; whether it came to the end before `stop` was set. `found` hears of each part.
///
/// # Errors
/// As the job.
pub fn drive(
    volume: &Volume,
    rate: u64,
    progress: &Arc<CheckProgress>,
    stop: &AtomicBool,
    mut found: impl FnMut(CheckReport),
) -> volume::Result<bool> {
    let begun = Instant::now();
    let mut pace = BackgroundRate::new(SystemClock::new(), volume.uses());
    let parts = parts(volume.status().mapped_blocks);
    for part in 0..parts {
        let mut job = volume.check(part, parts, Arc::clone(progress))?;
        let report = loop {
            if stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            let read = progress.blocks.load(Ordering::Relaxed) * BLOCK_SIZE as u64;
            let early = wait(rate, read, begun.elapsed());
            if let Some(report) = pace.step(&mut job, volume, &progress.sharing, early) {
                break report?;
            }
        };
        found(report);
    }
    Ok(true)
}

fn parts(blocks: u64) -> u64 {
    (blocks / PART_BLOCKS).clamp(1, PARTS)
}

/// How long it is too early to read on, with so many bytes read in that time.
fn wait(rate: u64, read: u64, elapsed: Duration) -> Duration {
    let due = u128::from(read.saturating_sub(BURST)) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(due).unwrap_or(u64::MAX)).saturating_sub(elapsed)
}

#[cfg(test)]
mod tests {
    use volume::Request;

    use super::super::background::NAP;
    use super::*;
    use crate::session::Session;
    use crate::testing::TestVolume;

    /// Overwrites all of a volume, some times, and returns when all of it is durable.
    fn overwrite(volume: &Volume) {
        let (mut queue, mut ended) = (volume.queue(32).unwrap(), Vec::new());
        for round in 0..4 {
            for block in (0..volume.blocks()).step_by(32) {
                queue.submit(
                    round,
                    Request::Write { block, data: vec![0; 32 * BLOCK_SIZE].into(), fua: false },
                );
            }
            queue.submit(round, Request::Flush);
            while queue.pending() > 0 {
                queue.wait(Some(NAP), &mut ended);
            }
        }
        let failed = ended.iter().find_map(|completion| completion.result.as_ref().err());
        assert!(failed.is_none(), "{failed:?}");
    }

    #[test]
    fn while_it_is_too_early_nobody_waits_for_it() {
        let session = Session::begin(TestVolume::new().attach()).unwrap();
        overwrite(&session.volume);
        let (progress, stop) = (Arc::<CheckProgress>::default(), Arc::new(AtomicBool::new(false)));
        let scrub = {
            let (volume, progress, stop) = (session.volume.clone(), Arc::clone(&progress), Arc::clone(&stop));
            std::thread::spawn(move || drive(&volume, 1, &progress, &stop, |_| ()))
        };
        while progress.blocks.load(Ordering::Relaxed) * BLOCK_SIZE as u64 <= BURST {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (sender, done) = std::sync::mpsc::channel();
        let volume = session.volume.clone();
        std::thread::spawn(move || {
            overwrite(&volume);
            let _ = sender.send(());
        });
        let done = done.recv_timeout(Duration::from_secs(20));
        stop.store(true, Ordering::SeqCst);
        assert!(!scrub.join().unwrap().unwrap(), "at this rate it never ends");
        done.expect("a writer waits for a scrub that waits for the time to pass");
        session.end().unwrap();
    }

    #[test]
    fn a_part_is_worth_its_queue() {
        assert_eq!([0, 1, PART_BLOCKS, 2 * PART_BLOCKS].map(parts), [1, 1, 1, 2]);
        assert_eq!([PARTS * PART_BLOCKS, u64::MAX].map(parts), [PARTS, PARTS]);
    }

    #[test]
    fn no_more_is_read_than_the_rate_allows() {
        const SECOND: Duration = Duration::from_secs(1);
        assert_eq!(wait(1 << 20, 0, Duration::ZERO), Duration::ZERO);
        assert_eq!(wait(1 << 20, BURST, Duration::ZERO), Duration::ZERO);
        assert_eq!(wait(1 << 20, BURST + (3 << 20), SECOND), 2 * SECOND);
        assert_eq!(wait(1 << 20, BURST + (3 << 20), 3 * SECOND), Duration::ZERO);
        // Neither a rate of nothing nor a volume of all bytes is trouble.
        assert_eq!(wait(0, BURST + 2, Duration::ZERO), 2 * SECOND);
        assert_eq!(wait(1, u64::MAX, SECOND), Duration::from_nanos(u64::MAX) - SECOND);
    }
}
