//! A new volume key: everything that is under the old one is sealed anew, while the volume is in use; then the old key is given up.
//!
//! Invariants:
//! 1. A block is read and opened as any user would, sealed under the new key, and written like any write; its entry takes the place of the
//!    old one only if that is still the one that was read. So a write or discard that came in between wins.
//! 2. Nothing needs to remember how far it has come: what is done has an entry of a new epoch. Whoever goes on walks the map again, and reads
//!    its nodes only.
//! 3. The old key is given up when a walk found nothing of it, a checkpoint behind that walk is published, and all of the bitmap and the salt
//!    table are under the new key. Then no superblock that opens leads to anything that needs it.
//! 4. It holds nothing that a request waits for: while it waits for room itself it is no reader, and what it has under way is bounded.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use event_listener::Event;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, try_join_all};
use store::{BLOCK_SIZE, Buffer};

use crate::cache::NodeKey;
use crate::check::CheckReport;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::Tree;
use crate::format::entry::{Entry, entry_at};
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::queue::Runs;

/// Leaves of the map that are worked on at a time when nobody uses the volume.
const LEAVES_AT_ONCE: usize = 8;
/// So often a stretch is tried in one walk when checkpoints end in between.
const ATTEMPTS: usize = 4;

/// How far a change of key has come; shared with whoever shows it.
#[derive(Debug, Default)]
pub struct ResealProgress {
    /// Data blocks that this session has found under the new key or put there, in this walk.
    pub blocks: AtomicU64,
    /// Data blocks that it has sealed anew.
    pub resealed: AtomicU64,
    /// Walks that have ended. The first does the work, the others see whether anything is left.
    pub walks: AtomicU64,
    sharing: AtomicBool,
    resting: AtomicBool,
    go: Event,
}

impl ResealProgress {
    /// For whoever drives the job: whether somebody else uses the volume now. Then it works on one leaf of the map (128 blocks) at a time, and
    /// rests after each until [`go_on`](Self::go_on).
    pub fn share(&self, sharing: bool) {
        self.sharing.store(sharing, Ordering::Relaxed);
    }

    /// Whether it rests. It holds nothing then that anybody else could wait for.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.resting.load(Ordering::SeqCst)
    }

    /// It has rested enough.
    pub fn go_on(&self) {
        self.resting.store(false, Ordering::SeqCst);
        self.go.notify(usize::MAX);
    }
}

/// How re-sealing ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResealReport {
    /// Whether the old key is given up. If not, the session was told to stop, or something is damaged.
    pub ended: bool,
    /// Data blocks that were sealed anew.
    pub resealed: u64,
    /// What could not be opened: it keeps the old key needed until it is overwritten or discarded.
    pub damage: CheckReport,
}

/// The job of one session.
pub(crate) struct Reseal {
    pub(crate) core: Arc<Core>,
    pub(crate) progress: Arc<ResealProgress>,
}

/// One walk.
struct Walk<'a> {
    core: &'a Core,
    io: &'a Io,
    progress: &'a ResealProgress,
    runs: RefCell<Runs>,
    /// Blocks that were found under the old key.
    found: Cell<u64>,
    resealed: Cell<u64>,
    damage: RefCell<CheckReport>,
}

impl Reseal {
    pub(crate) async fn run(self, io: Io) -> Result<ResealReport> {
        let core = &*self.core;
        let mut report = ResealReport { ended: core.keys.boundary().is_none(), ..ResealReport::default() };
        if report.ended {
            return Ok(report);
        }
        core.check_writable()?;
        // What the journal brought back is in the map afterwards, and entries under the old key are nowhere else.
        let mut going = self.checkpointed().await?;
        while going && !mutated(Mutation::RekeyEndsEarly) {
            self.progress.blocks.store(0, Ordering::Relaxed);
            let walk = Walk::new(core, &io, &self.progress);
            going = walk.all().await? && self.checkpointed().await?;
            self.progress.walks.fetch_add(1, Ordering::Relaxed);
            let (found, resealed, damage) = walk.end();
            report.resealed += resealed;
            let stuck = resealed == 0 && damage.damaged_blocks > 0;
            report.damage = damage;
            if stuck {
                return Ok(report);
            }
            if found == 0 && core.bitmap_is_new(&io).await? {
                break;
            }
        }
        if going {
            core.resealing.is_over_now();
            report.ended = self.wait_for(|core| core.keys.boundary().is_none()).await?;
        }
        Ok(report)
    }

    /// Waits for a checkpoint that begins now. False when the session is to end.
    async fn checkpointed(&self) -> Result<bool> {
        let number = self.core.want_checkpoint();
        self.wait_for(|core| core.checkpoint_done.load(Ordering::SeqCst) >= number).await
    }

    async fn wait_for(&self, reached: impl Fn(&Core) -> bool) -> Result<bool> {
        loop {
            let progress = self.core.progress.listen();
            if reached(&self.core) {
                return Ok(true);
            }
            if self.core.stopping.load(Ordering::SeqCst) {
                return Ok(false);
            }
            self.core.check_alive()?;
            self.core.work.notify(usize::MAX);
            progress.await;
        }
    }
}

impl<'a> Walk<'a> {
    fn new(core: &'a Core, io: &'a Io, progress: &'a ResealProgress) -> Self {
        Self {
            core,
            io,
            progress,
            runs: RefCell::default(),
            found: Cell::new(0),
            resealed: Cell::new(0),
            damage: RefCell::default(),
        }
    }

    fn end(self) -> (u64, u64, CheckReport) {
        (self.found.get(), self.resealed.get(), self.damage.take())
    }

    /// Looks at everything that the map reaches, in logical order. False when the session is to end.
    async fn all(&self) -> Result<bool> {
        let (root, level) = self.core.top(Tree::Map);
        if !root.is_absent() {
            self.subtree(NodeKey { tree: Tree::Map, level, index: 0 }).await?;
        }
        Ok(!self.stops())
    }

    fn is_shared(&self) -> bool {
        self.progress.sharing.load(Ordering::Relaxed)
    }

    /// Leaves the volume to its users for a while. Nothing is held meanwhile: no place, no promise, and this is no reader.
    async fn rest(&self) {
        if !self.is_shared() {
            return;
        }
        self.progress.resting.store(true, Ordering::SeqCst);
        loop {
            let (go, progress) = (self.progress.go.listen(), self.core.progress.listen());
            if !self.progress.rests() || self.stops() {
                return self.progress.resting.store(false, Ordering::SeqCst);
            }
            futures::future::select(go, progress).await;
        }
    }

    fn stops(&self) -> bool {
        self.core.stopping.load(Ordering::SeqCst)
    }

    fn span(&self, key: NodeKey) -> Range<u64> {
        let bits = self.core.geometry.fan_out_bits * (key.level + 1);
        key.index << bits..((key.index + 1) << bits).min(self.core.geometry.logical_blocks)
    }

    fn subtree(&self, key: NodeKey) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            if self.stops() {
                return Ok(());
            }
            if key.level == 0 {
                return self.leaf(self.span(key)).await;
            }
            let page = {
                // The nodes that are read must not be written over meanwhile.
                let _reading = self.core.readers.enter();
                match self.core.node(self.io, key).await {
                    Ok(Some(page)) => page,
                    Ok(None) => return Ok(()),
                    Err(error) => return self.damaged(self.span(key), error),
                }
            };
            let mut children = Vec::new();
            for slot in 0..1usize << self.core.geometry.fan_out_bits {
                if !entry_at(page.as_slice(), slot)?.is_absent() {
                    let index = (key.index << self.core.geometry.fan_out_bits) + slot as u64;
                    children.push(NodeKey { level: key.level - 1, index, ..key });
                }
            }
            let mut rest = children.as_slice();
            while !rest.is_empty() {
                // Asked anew each time: users come and go.
                let width = if key.level > 1 || self.is_shared() { 1 } else { LEAVES_AT_ONCE };
                let (now, later) = rest.split_at(width.min(rest.len()));
                let found = self.found.get();
                try_join_all(now.iter().map(|child| self.subtree(*child))).await?;
                rest = later;
                if key.level == 1 && self.found.get() > found {
                    self.rest().await;
                }
            }
            Ok(())
        }
        .boxed_local()
    }

    fn damaged(&self, span: Range<u64>, error: Error) -> Result<()> {
        if error.kind() != Kind::Corrupt {
            return Err(error);
        }
        self.found.set(self.found.get() + 1);
        self.damage.borrow_mut().damage(span);
        Ok(())
    }

    /// Seals anew what is under the old key in one leaf.
    async fn leaf(&self, span: Range<u64>) -> Result<()> {
        let entries = {
            let _reading = self.core.readers.enter();
            let blocks = usize::try_from(span.end - span.start).unwrap_or(0);
            match self.core.entries(self.io, span.start, blocks).await {
                Ok(entries) => entries,
                Err(error) => return self.damaged(span, error),
            }
        };
        let old: Vec<u64> = (span.start..)
            .zip(&entries)
            .filter(|(_, entry)| self.is_old(entry))
            .map(|(logical, _)| logical)
            .collect();
        self.found.set(self.found.get() + old.len() as u64);
        let most = usize::try_from(self.core.largest_request()).unwrap_or(usize::MAX);
        for blocks in old.chunk_by(|one, next| one + 1 == *next).flat_map(|run| run.chunks(most)) {
            if self.stops() {
                return Ok(());
            }
            for _ in 0..ATTEMPTS {
                match self.stretch(blocks[0], blocks.len()).await {
                    Err(_) if self.stops() => return Ok(()),
                    ended => {
                        if ended? {
                            break;
                        }
                    }
                }
            }
        }
        let present = entries.iter().filter(|entry| !entry.is_absent()).count();
        self.progress.blocks.fetch_add(present as u64, Ordering::Relaxed);
        Ok(())
    }

    fn is_old(&self, entry: &Entry) -> bool {
        !entry.is_absent() && self.core.keys.is_old(entry.epoch)
    }

    /// A stretch of blocks that were under the old key a moment ago. False if a checkpoint ended in between, so that nobody can tell whether
    /// they have changed.
    async fn stretch(&self, first: u64, blocks: usize) -> Result<bool> {
        let core = self.core;
        let _promise = core.admit(self.io, blocks as u64).await?;
        let mut places = core.allocate(self.io, &self.runs, first, blocks as u64).await?;
        let read = self.read(first, blocks).await;
        let OldBlocks { thaws, old, plaintext, damaged } = match read {
            Ok(read) => read,
            Err(error) => {
                self.runs.borrow_mut().put_back(core, places);
                return Err(error);
            }
        };
        let spare = blocks - old.len();
        self.runs.borrow_mut().put_back(core, split_off(&mut places, spare));
        let placing = crate::request::Placing::begin(core);
        let placed = core.place(self.io, |index| old[index].0, &plaintext, &places).await;
        let entries = match placed.and_then(|entries| core.check_alive().map(|()| entries)) {
            Ok(entries) => entries,
            Err(error) => {
                self.runs.borrow_mut().put_back(core, places);
                return Err(error);
            }
        };
        let mut kept = 0;
        for ((logical, old), new) in old.iter().zip(entries) {
            let place = new.physical..new.physical + 1;
            if core.overlay.replace(*logical, old, new, thaws) {
                self.runs.borrow_mut().place(core, vec![place]);
                kept += 1;
            } else {
                self.runs.borrow_mut().put_back(core, vec![place]);
            }
        }
        drop(placing);
        core.counters.resealed_blocks.add(kept);
        self.progress.resealed.fetch_add(kept, Ordering::Relaxed);
        self.resealed.set(self.resealed.get() + kept);
        core.nudge();
        let ended = kept == old.len() as u64 || core.overlay.thaws() == thaws;
        if ended {
            damaged.iter().for_each(|logical| self.damage.borrow_mut().damage(*logical..*logical + 1));
        }
        Ok(ended)
    }

    /// What is under the old key of these blocks.
    async fn read(&self, first: u64, blocks: usize) -> Result<OldBlocks> {
        let _reading = self.core.readers.enter();
        let thaws = self.core.overlay.thaws();
        let mut entries = self.core.entries(self.io, first, blocks).await?;
        for entry in &mut entries {
            if !self.is_old(entry) {
                *entry = Entry::ABSENT;
            }
        }
        let mut buffer = Buffer::private_zeroed(blocks);
        let target = crate::request::private_mut(&mut buffer)?;
        let damaged = self.core.read_entries(self.io, first, &entries, target).await?;
        for logical in &damaged {
            entries[usize::try_from(*logical - first).unwrap_or(0)] = Entry::ABSENT;
        }
        let mut old = Vec::with_capacity(blocks);
        let mut plaintext = Vec::with_capacity(blocks * BLOCK_SIZE);
        for ((logical, entry), page) in (first..).zip(entries).zip(target.chunks_exact(BLOCK_SIZE)) {
            if !entry.is_absent() {
                old.push((logical, entry));
                plaintext.extend_from_slice(page);
            }
        }
        Ok(OldBlocks { thaws, old, plaintext, damaged })
    }
}

/// Blocks under the old key, as they were found.
struct OldBlocks {
    /// The overlay's number of thaws, from before the look-up.
    thaws: u64,
    /// Logical blocks and their entries.
    old: Vec<(u64, Entry)>,
    /// What they hold, one after the other.
    plaintext: Vec<u8>,
    /// Those that do not open; they are in no other list.
    damaged: Vec<u64>,
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.runs.borrow_mut().give_all_back(self.core);
    }
}

/// The last `count` blocks of these places.
fn split_off(places: &mut Vec<Range<u64>>, mut count: usize) -> Vec<Range<u64>> {
    let mut off = Vec::new();
    while count > 0 {
        let Some(mut last) = places.pop() else { break };
        let length = usize::try_from(last.end - last.start).unwrap_or(usize::MAX);
        if length > count {
            let at = last.end - count as u64;
            off.push(at..last.end);
            last.end = at;
            places.push(last);
            break;
        }
        count -= length;
        off.push(last);
    }
    off
}
