//! Checking: everything that the map reaches is read and opened.
//!
//! The work is cut by subtrees, so that several threads, each with its own store queue, share it without talking. Nothing is held for longer
//! than a leaf, so a volume may be checked while it is in use.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::LocalBoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use store::Buffer;

use crate::cache::NodeKey;
use crate::core::Core;
use crate::error::{Kind, Result};
use crate::format::ad::Tree;
use crate::format::entry::entry_at;
use crate::io::Io;

/// Leaves that are read at a time.
const LEAVES_AT_ONCE: usize = 8;
/// Damaged stretches that are listed; more are only counted.
const LISTED: usize = 4096;

/// How far a check has come; shared with whoever shows it.
#[derive(Debug, Default)]
pub struct CheckProgress {
    /// Blocks opened so far.
    pub blocks: AtomicU64,
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
}

impl CheckReport {
    /// Adds what another part found.
    pub fn merge(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.damaged_blocks += other.damaged_blocks;
        self.damaged.extend(other.damaged);
        self.damaged.sort_by_key(|range| range.start);
        self.damaged.truncate(LISTED);
    }

    pub(crate) fn damage(&mut self, range: Range<u64>) {
        self.damaged_blocks += range.end - range.start;
        let room = self.damaged.len() < LISTED;
        match self.damaged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if room => self.damaged.push(range),
            _ => {}
        }
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
        let (entry, level) = self.core.top(Tree::Map);
        let root = NodeKey { tree: Tree::Map, level, index: 0 };
        let report = RefCell::new(CheckReport::default());
        if !entry.is_absent() {
            self.subtree(&io, root, &report).await?;
        }
        if self.part == 0 {
            self.changes(&io, &report).await?;
        }
        let mut report = report.into_inner();
        report.damaged.sort_by_key(|range| range.start);
        Ok(report)
    }

    /// What the overlay has, and the tree does not yet.
    async fn changes(&self, io: &Io, report: &RefCell<CheckReport>) -> Result<()> {
        for logical in self.core.overlay.logical_blocks() {
            self.blocks(io, logical..logical + 1, 1, report).await?;
        }
        Ok(())
    }

    fn span(&self, key: NodeKey) -> Range<u64> {
        let bits = self.core.geometry.fan_out_bits * (key.level + 1);
        let end = ((key.index + 1) << bits).min(self.core.geometry.logical_blocks);
        key.index << bits..end
    }

    fn subtree<'a>(
        &'a self,
        io: &'a Io,
        key: NodeKey,
        report: &'a RefCell<CheckReport>,
    ) -> LocalBoxFuture<'a, Result<()>> {
        async move {
            let page = match self.core.node(io, key).await {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == Kind::Corrupt => {
                    if self.part == 0 {
                        report.borrow_mut().damage(self.span(key));
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let bits = self.core.geometry.fan_out_bits;
            if key.level == 0 {
                let present = (0..1usize << bits)
                    .filter(|slot| entry_at(page.as_slice(), *slot).is_ok_and(|entry| !entry.is_absent()));
                let present = present.count() as u64;
                return self.blocks(io, self.span(key), present, report).await;
            }
            let mut children = Vec::new();
            for slot in 0..1usize << bits {
                let index = (key.index << bits) + slot as u64;
                let mine = key.level > 1 || index % self.parts == self.part;
                if mine && !entry_at(page.as_slice(), slot)?.is_absent() {
                    children.push(NodeKey { level: key.level - 1, index, ..key });
                }
            }
            let width = if key.level == 1 { LEAVES_AT_ONCE } else { 1 };
            futures::stream::iter(children)
                .map(|child| self.subtree(io, child, report))
                .buffer_unordered(width)
                .try_collect::<()>()
                .await
        }
        .boxed_local()
    }

    /// Reads a stretch of at most a leaf; what fails is read again block by block, so that only the damaged ones are named.
    async fn blocks(
        &self,
        io: &Io,
        span: Range<u64>,
        present: u64,
        report: &RefCell<CheckReport>,
    ) -> Result<()> {
        let blocks = usize::try_from(span.end - span.start).unwrap_or(0);
        let mut buffer = Buffer::private_zeroed(blocks);
        if !self.is_damaged(self.core.read(io, span.start, &mut buffer).await)? {
            self.count(report, present);
            return Ok(());
        }
        for logical in span {
            let mut buffer = Buffer::private_zeroed(1);
            if self.is_damaged(self.core.read(io, logical, &mut buffer).await)? {
                report.borrow_mut().damage(logical..logical + 1);
            }
        }
        self.count(report, present);
        Ok(())
    }

    fn is_damaged(&self, result: Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == Kind::Corrupt => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn count(&self, report: &RefCell<CheckReport>, blocks: u64) {
        report.borrow_mut().blocks += blocks;
        self.progress.blocks.fetch_add(blocks, Ordering::Relaxed);
    }
}
