//! A check: every block that the map reaches is read and opened.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use volume::{CheckProgress, CheckReport, Volume};

use super::thread::Thread;

use cli::failure::Failure;

/// How often it is seen how far a check has come.
const GLANCE: Duration = Duration::from_millis(20);

/// Most threads of a check that has the machine to itself.
pub const THREADS: usize = 16;

/// What a check found, as it goes through a socket too.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Data blocks that were opened.
    pub blocks: u64,
    /// Logical blocks that are damaged or cannot be reached.
    pub damaged_blocks: u64,
    /// The first stretches of them: first block, and how many.
    pub damaged: Vec<(u64, u64)>,
    /// Logical blocks that the store could not read.
    pub unreadable_blocks: u64,
    /// The first stretches of them.
    pub unreadable: Vec<(u64, u64)>,
}

impl Report {
    /// Logical blocks that nobody gets back from here, whatever the reason.
    pub fn lost(&self) -> u64 {
        self.damaged_blocks + self.unreadable_blocks
    }
}

/// Checks a volume with as many threads as there are processors, but no more than `most`: each takes 4 MiB of buffers. `show` is told now
/// and then how many blocks are done.
///
/// # Errors
/// When the store fails, or the system refuses a thread.
pub fn check(
    volume: &Volume,
    progress: &Arc<CheckProgress>,
    most: usize,
    show: impl Fn(u64),
) -> Result<Report, Failure> {
    let parts = std::thread::available_parallelism().map_or(1, usize::from).min(most) as u64;
    let start = |part| {
        let (volume, progress) = (volume.clone(), Arc::clone(progress));
        let job = move || -> volume::Result<CheckReport> { volume.check(part, parts, progress)?.block() };
        Thread::start(format!("check-{part}"), job)
    };
    let threads = (0..parts).map(start).collect::<std::io::Result<Vec<_>>>();
    let threads = threads.map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
    while !threads.iter().all(Thread::has_ended) {
        show(progress.blocks.load(Ordering::Relaxed));
        std::thread::sleep(GLANCE);
    }
    let defect = |_| Failure::internal("a checking thread ended by a defect");
    // All of them, whatever one says: each has the store open.
    let ends: Vec<_> = threads.into_iter().map(|thread| thread.end().map_err(defect)).collect();
    let mut report = CheckReport::default();
    for end in ends {
        report.merge(end??);
    }
    Ok(Report {
        blocks: report.blocks,
        damaged_blocks: report.damaged_blocks,
        damaged: lengths(&report.damaged),
        unreadable_blocks: report.unreadable_blocks,
        unreadable: lengths(&report.unreadable),
    })
}

/// Stretches by their first block, and how many they are.
fn lengths(ranges: &[Range<u64>]) -> Vec<(u64, u64)> {
    ranges.iter().map(|range| (range.start, range.end - range.start)).collect()
}
