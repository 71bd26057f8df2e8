//! Where a write goes: free blocks for it, and who has to wait for them.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use futures::FutureExt;

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::protections::{Freshness, Provision};
use crate::io::Io;
use crate::queue::Runs;

impl Core {
    /// Places for new data; waits for reservations, or for a checkpoint to free what is pinned.
    pub(crate) async fn allocate(
        &self,
        io: &Io,
        runs: &RefCell<Runs>,
        block: u64,
        blocks: u64,
    ) -> Result<Vec<Range<u64>>> {
        let mut waited = None;
        let keep = self.keep_free(io, block, blocks).await?;
        if !self.checkpoint_goes_first()
            && let Some(places) = runs.borrow_mut().take(self, blocks, keep)
        {
            return Ok(places);
        }
        loop {
            let progress = self.progress.listen();
            self.check_alive()?;
            if self.checkpoint_goes_first() {
                self.counters.waits_for_checkpoint.add(1);
                progress.await;
                continue;
            }
            let keep = self.keep_free(io, block, blocks).await?;
            // Our own look-up may have been the reader that held the last checkpoint's blocks back.
            self.space.collect();
            if let Some(places) = runs.borrow_mut().take(self, blocks, keep) {
                return Ok(places);
            }
            // What this queue holds already is free no more, and not missing either.
            let short = self.space.free() + runs.borrow().held() < keep + blocks;
            if short && self.space.take_over() {
                self.work.notify(usize::MAX);
                continue;
            }
            if short {
                let idle = !self.checkpointing.load(Ordering::SeqCst)
                    && self.overlay.active() == 0
                    && self.overlay.superseded() == 0
                    && self.space.pinned() == 0;
                let done = self.checkpoint_done.load(Ordering::SeqCst);
                // What others are writing supersedes something, or comes back; a fully provisioned volume has room for all of it in the end.
                let placing = self.placing.load(Ordering::SeqCst) > 0;
                let patient = self.header.provision == Provision::Full
                    && self.header.freshness != Freshness::Transaction;
                // One checkpoint that was under way, and one that began after us.
                let tried = waited.is_some_and(|number| done > number);
                if (idle && !placing) || (tried && !patient) {
                    return Err(Error::new(
                        Kind::NoSpace,
                        "no space is left on this volume; discard something, or enlarge its backing file",
                    ));
                }
                waited.get_or_insert(done + 1);
                if !idle {
                    self.want_checkpoint();
                }
                self.counters.waits_for_space.add(1);
            } else {
                self.work.notify(usize::MAX);
            }
            progress.await;
        }
    }

    /// Whether what is free is the checkpoint's, because the journal is down to what was kept for it. Each reservation has a record: if
    /// writers took the blocks that it reserves for its nodes, it would reserve again and again, and find the journal full.
    fn checkpoint_goes_first(&self) -> bool {
        self.checkpointing.load(Ordering::SeqCst) && self.commit.free_segments() < self.kept_segments()
    }

    /// Blocks that the map may need for what is in memory now: two checkpoints in a row, the one under way and the one after it. The
    /// first gives back what it replaces, so only nodes that do not exist yet count twice; a transaction gives back nothing.
    pub(crate) fn node_reserve(&self) -> u64 {
        let all = self.geometry.map_nodes();
        let exist = match self.header.freshness {
            Freshness::Transaction => 0,
            _ => self.geometry.least_map_nodes(self.roots().mapped),
        };
        let twice = (2 * all).saturating_sub(exist);
        // What is under way comes on top of what the overlay holds, whatever its limit.
        let under_way = self.promised.load(Ordering::SeqCst);
        let most = self.limits.overlay.max(self.overlay.active()) + under_way;
        let changed = 2 * most * u64::from(self.geometry.map_levels());
        twice.min(changed) + self.limits.salt_reserve
    }

    /// How many blocks must stay free after this write: the map's, and for new data on a thin volume also what overwrites need.
    async fn keep_free(&self, io: &Io, block: u64, blocks: u64) -> Result<u64> {
        let nodes = self.node_reserve();
        let reserve = nodes + self.limits.pinned;
        if self.header.provision == Provision::Full || self.space.free() >= reserve + blocks {
            return Ok(nodes);
        }
        self.blocks_landed(block..block + blocks).boxed_local().await?;
        let _reading = self.readers.enter();
        let count = usize::try_from(blocks).unwrap_or(usize::MAX);
        let overwrite =
            self.entries(io, block, count).boxed_local().await?.iter().all(|entry| !entry.is_absent());
        Ok(if overwrite { nodes } else { reserve })
    }
}

/// A write that has places and is not in the overlay yet.
pub(crate) struct Placing<'a>(&'a Core);

impl<'a> Placing<'a> {
    pub(crate) fn begin(core: &'a Core) -> Self {
        core.placing.fetch_add(1, Ordering::SeqCst);
        Self(core)
    }
}

impl Placing<'_> {
    /// It is stored, and whoever makes it visible counts it out.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Placing<'_> {
    fn drop(&mut self) {
        self.0.placing.fetch_sub(1, Ordering::SeqCst);
        // Costs next to nothing when nobody waits.
        self.0.progress.notify(usize::MAX);
    }
}
