//! A new volume key: everything that is under the old one is sealed anew, while the volume is in use; then the old key is given up.
//!
//! Invariants:
//! 1. A block is read and opened as any user would, sealed under the new key, and written like any write; its entry takes the place of the
//!    old one only if that is still the one that was read. So a write or discard that came in between wins.
//! 2. Nothing needs to remember how far it has come: what is done has an entry of a new epoch. Whoever goes on walks the map again, and reads
//!    its nodes only.
//! 3. The old key is given up when a walk found nothing of it, a checkpoint behind that walk is published, and all of the bitmap and the salt
//!    table are under the new key. Then no superblock that opens leads to anything that needs it.
//! 4. It holds nothing that a request waits for: while it waits for room itself it is no reader, what it has under way is bounded, and it gives
//!    way to users as [`tour`](crate::tour) says.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory::BLOCK_SIZE;

use crate::check::CheckReport;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::entry::Entry;
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::node_room::Changes;
use crate::queue::Runs;
use crate::read::Via;
use crate::tour::{Buffers, Lent, Sharing, Tour, Visitor};

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
    /// How it gives way to users.
    pub sharing: Sharing,
}

/// How re-sealing ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResealReport {
    /// Whether the old key is given up. If not, the session was told to stop, or something is damaged.
    pub ended: bool,
    /// Data blocks that were sealed anew.
    pub resealed: u64,
    /// What could not be opened, or read: it keeps the old key needed until it is overwritten or discarded.
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
    buffers: Buffers,
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
            let stuck = resealed == 0 && damage.lost() > 0;
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
            buffers: Buffers::new(1 << core.geometry.fan_out_bits),
        }
    }

    fn end(self) -> (u64, u64, CheckReport) {
        (self.found.get(), self.resealed.get(), self.damage.take())
    }

    /// Looks at everything that the map reaches. False when the session is to end.
    async fn all(&self) -> Result<bool> {
        Tour { core: self.core, io: self.io, sharing: &self.progress.sharing, visitor: self }.all().await
    }

    fn is_old(&self, entry: &Entry) -> bool {
        !entry.is_absent() && self.core.keys.is_old(entry.epoch)
    }

    /// A stretch of blocks that were under the old key a moment ago. False if a checkpoint ended in between, so that nobody can tell whether
    /// they have changed.
    async fn stretch(&self, first: u64, blocks: usize) -> Result<bool> {
        let core = self.core;
        let claim = core.keep_node_places(blocks as u64, Changes::Writes).await?;
        let promise = core.admit(self.io, blocks as u64).await?;
        drop(claim);
        let (mut places, placing) = core.allocate(self.io, &self.runs, first, &promise).await?;
        let read = self.read(first, blocks).await;
        let OldBlocks { thaws, old, mut plaintext, bad } = match read {
            Ok(read) => read,
            Err(error) => {
                self.runs.borrow_mut().put_back(core, places);
                return Err(error);
            }
        };
        let spare = blocks - old.len();
        self.runs.borrow_mut().put_back(core, split_off(&mut places, spare));
        let placed = match plaintext.pages(old.len()) {
            Ok(pages) => core.place(self.io, |index| old[index].0, pages, &places).await,
            Err(error) => Err(error),
        };
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
            let mut damage = self.damage.borrow_mut();
            bad.into_iter().try_for_each(|(logical, error)| damage.bad(logical, error))?;
        }
        Ok(ended)
    }

    /// What is under the old key of these blocks.
    async fn read(&self, first: u64, blocks: usize) -> Result<OldBlocks<'_>> {
        let _reading = self.core.readers.enter();
        let thaws = self.core.overlay.thaws();
        let mut entries = self.core.entries(self.io, first, blocks).await?;
        for entry in &mut entries {
            if !self.is_old(entry) {
                *entry = Entry::ABSENT;
            }
        }
        let mut plaintext = self.buffers.take(blocks);
        let target = plaintext.pages(blocks)?;
        let bad = self.open(first, &entries, target).await?;
        for (logical, _) in &bad {
            entries[usize::try_from(*logical - first).unwrap_or(0)] = Entry::ABSENT;
        }
        let mut old = Vec::with_capacity(blocks);
        for (index, entry) in entries.into_iter().enumerate().filter(|(_, entry)| !entry.is_absent()) {
            if index > old.len() {
                let from = index * BLOCK_SIZE;
                target.copy_within(from..from + BLOCK_SIZE, old.len() * BLOCK_SIZE);
            }
            old.push((first + index as u64, entry));
        }
        Ok(OldBlocks { thaws, old, plaintext, bad })
    }

    /// Reads and opens what entries name; the blocks that do not open or cannot be read. One of these must not keep all others under the
    /// old key.
    async fn open(&self, first: u64, entries: &[Entry], target: &mut [u8]) -> Result<Vec<(u64, Error)>> {
        let corrupt = |logical: &u64| (*logical, Error::corrupt_block(*logical));
        match self.core.read_entries(self.io, first, entries, target, Via::Store).await {
            Ok(damaged) => return Ok(damaged.iter().map(corrupt).collect()),
            Err(error) if error.kind() != Kind::Io => return Err(error),
            Err(_) => {}
        }
        let mut bad = Vec::new();
        for (index, page) in target.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            let logical = first + index as u64;
            match self.core.read_entries(self.io, logical, &entries[index..=index], page, Via::Store).await {
                Ok(damaged) => bad.extend(damaged.iter().map(corrupt)),
                Err(error) if error.kind() == Kind::Io => bad.push((logical, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(bad)
    }
}

impl Visitor for Walk<'_> {
    fn wants(&self, _: u64) -> bool {
        true
    }

    /// What is under the old key.
    async fn look(&self, span: Range<u64>) -> Result<Vec<Range<u64>>> {
        let entries = {
            let _reading = self.core.readers.enter();
            let blocks = usize::try_from(span.end - span.start).unwrap_or(0);
            match self.core.entries(self.io, span.start, blocks).await {
                Ok(entries) => entries,
                Err(error) => return self.damaged(span, error).map(|()| Vec::new()),
            }
        };
        let old: Vec<u64> = (span.start..)
            .zip(&entries)
            .filter(|(_, entry)| self.is_old(entry))
            .map(|(logical, _)| logical)
            .collect();
        self.found.set(self.found.get() + old.len() as u64);
        let present = entries.iter().filter(|entry| !entry.is_absent()).count();
        self.progress.blocks.fetch_add((present - old.len()) as u64, Ordering::Relaxed);
        Ok(old.chunk_by(|one, next| one + 1 == *next).map(|run| run[0]..run[0] + run.len() as u64).collect())
    }

    fn most(&self) -> u64 {
        self.core.largest_request()
    }

    async fn work(&self, stretch: Range<u64>) -> Result<()> {
        let blocks = usize::try_from(stretch.end - stretch.start).unwrap_or(0);
        for _ in 0..ATTEMPTS {
            match self.stretch(stretch.start, blocks).await {
                Err(_) if self.stops() => return Ok(()),
                ended => {
                    if ended? {
                        break;
                    }
                }
            }
        }
        self.progress.blocks.fetch_add(blocks as u64, Ordering::Relaxed);
        Ok(())
    }

    fn damaged(&self, span: Range<u64>, error: Error) -> Result<()> {
        if error.kind() != Kind::Corrupt {
            return Err(error);
        }
        self.found.set(self.found.get() + 1);
        self.damage.borrow_mut().damage(span);
        Ok(())
    }

    fn stops(&self) -> bool {
        self.core.stopping.load(Ordering::SeqCst)
    }
}

/// Blocks under the old key, as they were found.
struct OldBlocks<'a> {
    /// The overlay's number of thaws, from before the look-up.
    thaws: u64,
    /// Logical blocks and their entries.
    old: Vec<(u64, Entry)>,
    /// What they hold, one after the other.
    plaintext: Lent<'a>,
    /// Those that do not open or cannot be read, and why; they are in no other list.
    bad: Vec<(u64, Error)>,
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
