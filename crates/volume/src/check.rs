//! Checking: everything that the map reaches is read and opened.
//!
//! The work is cut by subtrees, so that several threads, each with its own store queue, share it without talking. Nothing is held for longer
//! than a leaf, so a volume may be checked while it is in use, and put away; it gives way to users as [`tour`](crate::tour) says.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::io::Io;
use crate::read::Via;
use crate::tour::{Buffers, Sharing, Tour, Visitor};

/// Damaged stretches that are listed; more are only counted.
const LISTED: usize = 4096;

/// How far a check has come; shared with whoever shows it.
#[derive(Debug, Default)]
pub struct CheckProgress {
    /// Blocks opened so far.
    pub blocks: AtomicU64,
    /// How it gives way to users. Nobody needs to make use of it: then it goes on as if there were none.
    pub sharing: Sharing,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckReport {
    /// Data blocks that were read and opened.
    pub blocks: u64,
    /// Logical blocks that are damaged, or that a damaged node makes unreachable.
    pub damaged_blocks: u64,
    /// The first stretches of them: first block and the one after the last.
    pub damaged: Vec<Range<u64>>,
    /// Logical blocks that the store could not read.
    pub unreadable_blocks: u64,
    /// The first stretches of them.
    pub unreadable: Vec<Range<u64>>,
}

impl CheckReport {
    /// Adds what another part found.
    pub fn merge(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.damaged_blocks += other.damaged_blocks;
        self.unreadable_blocks += other.unreadable_blocks;
        self.damaged.extend(other.damaged);
        self.unreadable.extend(other.unreadable);
        self.sort();
        self.damaged.truncate(LISTED);
        self.unreadable.truncate(LISTED);
    }

    /// Logical blocks that nobody gets back from here, whatever the reason.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.damaged_blocks + self.unreadable_blocks
    }

    fn sort(&mut self) {
        self.damaged.sort_by_key(|range| range.start);
        self.unreadable.sort_by_key(|range| range.start);
    }

    pub(crate) fn damage(&mut self, range: Range<u64>) {
        self.damaged_blocks += range.end - range.start;
        list(&mut self.damaged, range);
    }

    /// Notes a block that is damaged, or cannot be read. When there are very many of these, it is the store that has failed.
    ///
    /// # Errors
    /// Then, and for an error of another kind.
    pub(crate) fn bad(&mut self, logical: u64, error: Error) -> Result<()> {
        match error.kind() {
            Kind::Corrupt => self.damage(logical..logical + 1),
            Kind::Io if self.unreadable_blocks < LISTED as u64 => {
                self.unreadable_blocks += 1;
                list(&mut self.unreadable, logical..logical + 1);
            }
            _ => return Err(error),
        }
        Ok(())
    }
}

fn list(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    let room = ranges.len() < LISTED;
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ if room => ranges.push(range),
        _ => {}
    }
}

/// One thread's part of a check.
pub(crate) struct Check {
    pub(crate) core: Arc<Core>,
    pub(crate) part: u64,
    pub(crate) parts: u64,
    pub(crate) progress: Arc<CheckProgress>,
}

impl Check {
    pub(crate) async fn run(self, io: Io) -> Result<CheckReport> {
        // What the map does not reach yet is in the overlay; afterwards it may be in the map.
        let bits = self.core.geometry.fan_out_bits;
        let changed = self.core.overlay.logical_blocks().into_iter().map(|logical| logical >> bits);
        let changed = changed.filter(|index| self.is_mine(*index)).collect();
        let buffers = Buffers::new(1 << bits);
        let visit = Visit {
            buffers,
            check: &self,
            io: &io,
            changed: RefCell::new(changed),
            report: RefCell::default(),
        };
        let tour = Tour { core: &self.core, io: &io, sharing: &self.progress.sharing, visitor: &visit };
        if !(tour.all().await? && tour.only(visit.changed.take().into_iter()).await?) {
            return Err(Core::stopped());
        }
        let mut report = visit.report.into_inner();
        report.sort();
        Ok(report)
    }

    fn is_mine(&self, index: u64) -> bool {
        index % self.parts == self.part
    }
}

/// One part's way.
struct Visit<'a> {
    check: &'a Check,
    io: &'a Io,
    /// Leaves in which there were changes when it began, as far as it has not been there.
    changed: RefCell<BTreeSet<u64>>,
    report: RefCell<CheckReport>,
    buffers: Buffers,
}

impl Visitor for Visit<'_> {
    fn wants(&self, index: u64) -> bool {
        self.check.is_mine(index)
    }

    /// From the first block that is there to the last.
    async fn look(&self, span: Range<u64>) -> Result<Vec<Range<u64>>> {
        let core = &self.check.core;
        self.changed.borrow_mut().remove(&(span.start >> core.geometry.fan_out_bits));
        let _reading = core.readers.enter();
        let blocks = usize::try_from(span.end - span.start).unwrap_or(0);
        let entries = match core.entries(self.io, span.start, blocks).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == Kind::Corrupt => {
                self.report.borrow_mut().damage(span);
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let first = entries.iter().position(|entry| !entry.is_absent());
        let last = entries.iter().rposition(|entry| !entry.is_absent());
        let stretch =
            first.zip(last).map(|(first, last)| span.start + first as u64..span.start + last as u64 + 1);
        Ok(stretch.into_iter().collect())
    }

    fn most(&self) -> u64 {
        u64::MAX
    }

    /// What fails altogether is read again block by block, so that only those are named that do.
    async fn work(&self, stretch: Range<u64>) -> Result<()> {
        let present = match self.open(stretch.clone()).await {
            Ok(present) => present,
            Err(_) => {
                let mut present = 0;
                for logical in stretch.clone() {
                    match self.open(logical..logical + 1).await {
                        Ok(opened) => present += opened,
                        Err(error) => self.report.borrow_mut().bad(logical, error)?,
                    }
                }
                present
            }
        };
        self.report.borrow_mut().blocks += present;
        self.check.progress.blocks.fetch_add(present, Ordering::Relaxed);
        Ok(())
    }

    /// All parts come along a node above the leaves; one of them reports it.
    fn damaged(&self, span: Range<u64>, error: Error) -> Result<()> {
        if error.kind() != Kind::Corrupt {
            return Err(error);
        }
        if self.check.part == 0 {
            self.report.borrow_mut().damage(span);
        }
        Ok(())
    }

    /// A session that comes next knows nothing of these readers, and would use again what they read.
    fn stops(&self) -> bool {
        self.check.core.stopping.load(Ordering::SeqCst)
    }
}

impl Visit<'_> {
    /// Reads and opens a stretch of at most a leaf, and notes the blocks that do not open; how many there are.
    async fn open(&self, stretch: Range<u64>) -> Result<u64> {
        let core = &self.check.core;
        // A reader as any other, but no user: who asks whether there are users must not hear of this.
        let _reading = core.readers.enter();
        let blocks = usize::try_from(stretch.end - stretch.start).unwrap_or(0);
        let entries = core.entries(self.io, stretch.start, blocks).await?;
        let mut buffer = self.buffers.take(blocks);
        let target = buffer.pages(blocks)?;
        let damaged = core.read_entries(self.io, stretch.start, &entries, target, Via::Store).await?;
        for logical in damaged {
            self.report.borrow_mut().damage(logical..logical + 1);
        }
        Ok(entries.iter().filter(|entry| !entry.is_absent()).count() as u64)
    }
}
