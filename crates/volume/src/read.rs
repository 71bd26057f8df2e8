//! How blocks are read: their entries, and what these name.
//!
//! Invariants:
//! 1. A reader is counted before it looks anything up and until it has opened what it read, so no place that it holds is reused.
//! 2. Bytes reach the caller only from a successful `open` (or as zeros).

use std::ops::Range;

use futures::FutureExt;
use futures::future::join_all;
use memory::{BLOCK_SIZE, Buffer};
use seal::EpochKeys;

use crate::cache::NodeKey;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::{Tree, data_ad};
use crate::format::entry::{Entry, entry_at};
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::tree::child_slot;

/// How data blocks are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// The cache has what it may hold, and is asked first: for users.
    Cache,
    /// Past it: for whoever looks whether the store has them, or goes over all of them once.
    Store,
}

impl Core {
    pub(crate) async fn read(&self, io: &Io, block: u64, buffer: &mut Buffer) -> Result<()> {
        let blocks = buffer.blocks();
        self.check_range(block, blocks as u64)?;
        self.blocks_landed(block..block + blocks as u64).await?;
        let _reading = self.readers.enter();
        let entries = self.entries(io, block, blocks).await?;
        let target = private_mut(buffer)?;
        let damaged = self.read_entries(io, block, &entries, target, Via::Cache).await?;
        self.counters.read_blocks.add(blocks as u64);
        match damaged.first() {
            None => Ok(()),
            Some(logical) => Err(Error::corrupt_block(*logical)),
        }
    }

    /// Reads what entries name, of logical blocks from `block` on; those that are not what was written there.
    pub(crate) async fn read_entries(
        &self,
        io: &Io,
        block: u64,
        entries: &[Entry],
        target: &mut [u8],
        via: Via,
    ) -> Result<Vec<u64>> {
        let found = match via {
            Via::Cache => self.open_cached(block, entries, target),
            Via::Store => Vec::new(),
        };
        let runs = physical_runs(entries, |index| found.get(index) != Some(&true));
        let read = join_all(runs.iter().map(|run| io.read(entries[run.start].physical, run.len()))).await;
        let mut damaged = Vec::new();
        for (entry, page) in entries.iter().zip(target.chunks_exact_mut(BLOCK_SIZE)) {
            if entry.is_absent() {
                page.fill(0);
            }
        }
        for (run, sealed) in runs.into_iter().zip(read) {
            let sealed = sealed?;
            for (at, index) in run.enumerate() {
                let page = &mut target[index * BLOCK_SIZE..(index + 1) * BLOCK_SIZE];
                let logical = block + index as u64;
                let epoch = entries[index].epoch;
                let keys = match self.keys.known(epoch) {
                    Some(keys) => keys,
                    None => self.epoch_keys(io, epoch).boxed_local().await?,
                };
                if !self.open(&keys, logical, &entries[index], &sealed, at, page, via) {
                    damaged.push(logical);
                }
            }
        }
        Ok(damaged)
    }

    /// Opens what the cache has; for each entry whether it did, or nothing if there is no cache.
    fn open_cached(&self, block: u64, entries: &[Entry], target: &mut [u8]) -> Vec<bool> {
        if self.blocks.is_off() {
            return Vec::new();
        }
        let pages = (block..).zip(entries).zip(target.chunks_exact_mut(BLOCK_SIZE));
        pages
            .map(|((logical, entry), page)| {
                // Without the epoch's keys nothing of it was read or written yet.
                let Some(keys) = self.keys.known(entry.epoch).filter(|_| !entry.is_absent()) else {
                    return false;
                };
                let ad = data_ad(&self.header.volume, logical);
                self.blocks
                    .open(entry, |sealed| keys.data.open(entry.nonce, &ad, sealed, &entry.tag, page).is_ok())
            })
            .collect()
    }

    /// The entries of a stretch of logical blocks, from the overlay or the map.
    pub(crate) async fn entries(&self, io: &Io, block: u64, blocks: usize) -> Result<Vec<Entry>> {
        let bits = self.geometry.fan_out_bits;
        let end = block + blocks as u64;
        let mut entries = Vec::with_capacity(blocks);
        let mut at = block;
        while at < end {
            let index = at >> bits;
            let stop = end.min((index + 1) << bits);
            // First the overlay, for all blocks of the leaf, then the leaf: if a change is merged in between, the leaf is the newer of
            // the two. A leaf that was looked up before the overlay could be older than a change that has left it.
            let changed: Vec<_> = (at..stop).map(|logical| self.overlay.find(logical)).collect();
            let page = if changed.iter().all(Option::is_some) {
                None
            } else {
                self.node(io, NodeKey { tree: Tree::Map, level: 0, index }).await?
            };
            for (logical, changed) in (at..stop).zip(changed) {
                entries.push(match (changed, &page) {
                    (Some(entry), _) => entry,
                    (None, Some(page)) => entry_at(page.as_slice(), child_slot(logical, bits))?,
                    (None, None) => Entry::ABSENT,
                });
            }
            at = stop;
        }
        Ok(entries)
    }

    /// Opens block `at` of what was read into the caller's page; false if it is not what was written.
    #[expect(
        clippy::too_many_arguments,
        reason = "what was read and where, what it should be, and where it goes"
    )]
    fn open(
        &self,
        keys: &EpochKeys,
        logical: u64,
        entry: &Entry,
        sealed: &Buffer,
        at: usize,
        page: &mut [u8],
        via: Via,
    ) -> bool {
        let ad = data_ad(&self.header.volume, logical);
        let source = sealed.source(at * BLOCK_SIZE..(at + 1) * BLOCK_SIZE);
        let keep = |bytes: &[u8]| {
            if via == Via::Cache {
                self.blocks.keep(entry, bytes);
            }
        };
        let opened = keys.data.open_from(entry.nonce, &ad, source, &entry.tag, page, keep).is_ok();
        if opened || mutated(Mutation::BlockTagUnchecked) {
            return true;
        }
        self.counters.corrupt_blocks.add(1);
        false
    }
}

/// Stretches of entries that are `wanted`, whose physical blocks follow one another.
fn physical_runs(entries: &[Entry], wanted: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry.is_absent() || !wanted(index) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == index && entries[index - 1].physical + 1 == entry.physical => {
                run.end += 1
            }
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

pub(crate) fn private_mut(buffer: &mut Buffer) -> Result<&mut [u8]> {
    buffer.private_mut().ok_or_else(|| {
        Error::new(Kind::Usage, "plaintext belongs in private memory; this buffer is shared with the host")
    })
}
