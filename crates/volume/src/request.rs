//! What happens to one request, from the first look at it to its completion.
//!
//! Invariants:
//! 1. A write names its new place only after the store has acknowledged it; the entry becomes visible with its sequence number. Its
//!    submitter may be told before (see [`landing`](crate::landing)).
//! 2. A reader is counted before it looks anything up and until it has opened what it read, so no place that it holds is reused.
//! 3. Bytes reach the caller only from a successful `open` (or as zeros).

use std::cell::RefCell;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use store::{BLOCK_SIZE, Buffer};

use crate::allocation::Extent;
use crate::cache::NodeKey;
use crate::commit::Want;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::{Tree, data_ad};
use crate::format::entry::{Entry, entry_at};
use crate::format::protections::Freshness;
use crate::io::{Io, Transfer};
use crate::keys::Use;
use crate::landing::Change;
use crate::mutation::{Mutation, mutated};
use crate::overlay::items_of_discard;
use crate::queue::{Request, Runs};
use crate::tree::child_slot;

impl Core {
    /// Runs a request to its end. `early` is told of a write that completes before that, once.
    pub(crate) async fn serve(
        &self,
        io: &Io,
        runs: &RefCell<Runs>,
        request: Request,
        extents: &mut Vec<Extent>,
        early: &dyn Fn(),
    ) -> (Option<Buffer>, Result<()>) {
        match request {
            Request::Read { block, mut buffer } => {
                let result = self.read(io, block, &mut buffer).await;
                (Some(buffer), result)
            }
            Request::Write { block, data, fua } => {
                (None, self.write(io, runs, block, data, fua, early).await)
            }
            Request::Flush => (None, self.flush(io).await),
            Request::Discard { block, blocks } => (None, self.discard(io, runs, block, blocks).await),
            Request::Allocation { block, blocks } => {
                let found = self.allocation(io, block, blocks).boxed_local().await;
                (None, found.map(|found| *extents = found))
            }
            Request::Commit => (None, self.commit_transaction(io).await),
        }
    }

    pub(crate) fn check_range(&self, block: u64, blocks: u64) -> Result<()> {
        let size = self.geometry.logical_blocks;
        if block.checked_add(blocks).is_some_and(|end| end <= size) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Usage,
            format!(
                "blocks {block} to {} are not in this volume of {size} blocks",
                block.saturating_add(blocks)
            ),
        ))
    }

    pub(crate) async fn read(&self, io: &Io, block: u64, buffer: &mut Buffer) -> Result<()> {
        let blocks = buffer.blocks();
        self.check_range(block, blocks as u64)?;
        self.blocks_landed(block..block + blocks as u64).await?;
        let _reading = self.readers.enter();
        let entries = self.entries(io, block, blocks).await?;
        let target = private_mut(buffer)?;
        let damaged = self.read_entries(io, block, &entries, target).await?;
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
    ) -> Result<Vec<u64>> {
        let runs = physical_runs(entries);
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
                if !self.open(io, logical, &entries[index], &sealed, at, page).await? {
                    damaged.push(logical);
                }
            }
        }
        Ok(damaged)
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
    async fn open(
        &self,
        io: &Io,
        logical: u64,
        entry: &Entry,
        sealed: &Buffer,
        at: usize,
        page: &mut [u8],
    ) -> Result<bool> {
        let keys = match self.keys.known(entry.epoch) {
            Some(keys) => keys,
            None => self.epoch_keys(io, entry.epoch).await?,
        };
        let ad = data_ad(&self.header.volume, logical);
        let from = at * BLOCK_SIZE;
        let opened = match sealed.private() {
            Some(bytes) => {
                keys.data.open(entry.nonce, &ad, &bytes[from..from + BLOCK_SIZE], &entry.tag, page)
            }
            None => {
                // The host can write here at any moment: one copy out, and only that copy is believed.
                let mut staged = [0; BLOCK_SIZE];
                sealed.copy_to(from, &mut staged);
                keys.data.open(entry.nonce, &ad, &staged, &entry.tag, page)
            }
        };
        if opened.is_err() && mutated(Mutation::BlockTagUnchecked) {
            return Ok(true);
        }
        if opened.is_err() {
            self.counters.corrupt_blocks.add(1);
        }
        Ok(opened.is_ok())
    }

    async fn write(
        &self,
        io: &Io,
        runs: &RefCell<Runs>,
        block: u64,
        data: Bytes,
        fua: bool,
        early: &dyn Fn(),
    ) -> Result<()> {
        let before = self.asked();
        if !data.len().is_multiple_of(BLOCK_SIZE) {
            let length = data.len();
            return Err(Error::new(Kind::Usage, format!("{length} bytes are not in blocks of {BLOCK_SIZE}")));
        }
        let blocks = (data.len() / BLOCK_SIZE) as u64;
        self.check_range(block, blocks)?;
        let promise = self.admit(io, blocks).await?;
        let (places, placing) = self.allocate(io, runs, block, blocks).await?;
        let give_up = |error| {
            runs.borrow_mut().put_back(self, places.clone());
            Err(error)
        };
        let (entries, transfers) = match self.seal(io, |index| block + index as u64, &data, &places) {
            Ok(sealed) => sealed,
            Err(error) => return give_up(error),
        };
        drop(data);
        let mut stored = pin!(stored(transfers));
        let (behind, ended) = self.acknowledge(block..block + blocks, fua, stored.as_mut()).await;
        if behind.is_some() {
            early();
        }
        let mut ended = match ended {
            Some(ended) => ended,
            None => stored.await,
        };
        if ended.is_ok() && behind.is_none() {
            ended = self.landed_before(before).await;
        }
        // The session may have ended meanwhile: then no commit would ever hold this, and it must not be called done.
        if let Err(error) = ended.and_then(|()| self.check_alive()) {
            if let Some(behind) = behind {
                behind.lose(&error);
            }
            return give_up(error);
        }
        placing.keep();
        self.counters.written_blocks.add(blocks);
        let change = Change::Write { block, entries, places };
        match behind {
            Some(behind) => self.arrive_behind(runs, behind, change, promise),
            None => self.arrive(runs, change, promise),
        }
        let durable =
            fua && self.header.freshness != Freshness::Transaction && !mutated(Mutation::FuaNotDurable);
        if durable || self.header.freshness == Freshness::Write {
            self.commit(io, Want { data: true, ..Want::default() }).boxed_local().await?;
        }
        Ok(())
    }

    /// Seals blocks and writes them to their places; their entries. `logical` says where the block with this index belongs.
    pub(crate) async fn place(
        &self,
        io: &Io,
        logical: impl Fn(usize) -> u64,
        plaintext: &[u8],
        places: &[Range<u64>],
    ) -> Result<Vec<Entry>> {
        let (entries, transfers) = self.seal(io, logical, plaintext, places)?;
        stored(transfers).await.map(|()| entries)
    }

    /// Seals blocks and sends them to their places: their entries, and what is on its way.
    fn seal(
        &self,
        io: &Io,
        logical: impl Fn(usize) -> u64,
        plaintext: &[u8],
        places: &[Range<u64>],
    ) -> Result<(Vec<Entry>, Vec<Transfer>)> {
        let total = plaintext.len() / BLOCK_SIZE;
        let (epoch, first_nonce) = self.keys.nonces(Use::Data, total as u64)?;
        let mut entries = Vec::with_capacity(total);
        let mut transfers = Vec::with_capacity(places.len());
        for place in places {
            let mut sealed = io.buffer(usize::try_from(place.end - place.start).unwrap_or(0));
            for (at, physical) in place.clone().enumerate() {
                let index = entries.len();
                let nonce = first_nonce + index as u64;
                let ad = data_ad(&self.header.volume, logical(index));
                let page = &plaintext[index * BLOCK_SIZE..(index + 1) * BLOCK_SIZE];
                let tag = seal_into(&epoch.keys.data, nonce, &ad, page, &mut sealed, at);
                entries.push(Entry { physical, epoch: epoch.number, nonce, flags: 0, tag });
            }
            transfers.push(io.begin_write(place.start, sealed));
        }
        if mutated(Mutation::VisibleBeforeStored) {
            entries
                .iter()
                .enumerate()
                .for_each(|(index, entry)| self.overlay.insert(logical(index), &[*entry]));
        }
        Ok((entries, transfers))
    }

    async fn flush(&self, io: &Io) -> Result<()> {
        self.counters.flushes.add(1);
        if self.header.freshness == Freshness::Transaction {
            return self.check_alive();
        }
        if self.read_only {
            return Ok(());
        }
        self.all_landed().await?;
        self.commit(io, Want { data: true, ..Want::default() }).boxed_local().await.map(drop)
    }

    async fn discard(&self, io: &Io, runs: &RefCell<Runs>, block: u64, blocks: u64) -> Result<()> {
        let before = self.asked();
        self.check_range(block, blocks)?;
        if blocks == 0 {
            return Ok(());
        }
        let promise = self.admit(io, items_of_discard(blocks)).await?;
        // Elsewhere a checkpoint gets its blocks back; a transaction keeps all of them to its end.
        if self.header.freshness == Freshness::Transaction && self.space.free() < self.node_reserve() {
            return Err(Error::new(
                Kind::NoSpace,
                "this transaction has used up the space for the volume's own map; commit it before you go on",
            ));
        }
        self.landed_before(before).await?;
        // As a write: after the last commit nothing holds this any more.
        self.check_alive()?;
        self.arrive(runs, Change::Discard(block..block + blocks), promise);
        self.counters.discarded_blocks.add(blocks);
        if self.header.freshness == Freshness::Write {
            self.commit(io, Want { data: true, ..Want::default() }).boxed_local().await?;
        }
        Ok(())
    }

    async fn commit_transaction(&self, io: &Io) -> Result<()> {
        self.check_writable()?;
        self.all_landed().await?;
        if self.header.freshness != Freshness::Transaction {
            return self
                .commit(io, Want { data: true, anchor: true, ..Want::default() })
                .boxed_local()
                .await
                .map(drop);
        }
        // One that began after us: the one under way may have made its cut before our last write.
        let number = self.publish_wanted.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            let progress = self.progress.listen();
            self.check_alive()?;
            if self.publish_done.load(Ordering::SeqCst) >= number {
                return Ok(());
            }
            self.work.notify(usize::MAX);
            progress.await;
        }
    }
}

/// All of them must have ended, also when one fails: their blocks may be used again after that.
async fn stored(transfers: Vec<Transfer>) -> Result<()> {
    let mut result = Ok(());
    for ended in join_all(transfers).await {
        result = result.and(ended.result);
    }
    Ok(result?)
}

/// Seals one block into a store's buffer.
fn seal_into(
    key: &seal::BlockKey,
    nonce: u64,
    ad: &[u8],
    page: &[u8],
    buffer: &mut Buffer,
    at: usize,
) -> [u8; 16] {
    let from = at * BLOCK_SIZE;
    if let Some(bytes) = buffer.private_mut() {
        return key.seal(nonce, ad, page, &mut bytes[from..from + BLOCK_SIZE]);
    }
    // The host can read and write here at any moment: sealed in private, then copied once.
    let mut staged = [0; BLOCK_SIZE];
    let tag = key.seal(nonce, ad, page, &mut staged);
    buffer.copy_from(from, &staged);
    tag
}

/// Stretches of entries whose physical blocks follow one another.
fn physical_runs(entries: &[Entry]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry.is_absent() {
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
