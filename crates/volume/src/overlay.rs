//! What changed since the last checkpoint, in private memory.
//!
//! Invariants:
//! 1. Every change gets its sequence number under the lock under which it becomes visible, so for one logical block
//!    the highest number is the latest change, and a cut at number `n` taken with [`Overlay::cut`] holds exactly the
//!    changes below `n`, from all queues.
//! 2. A change is in `active`, then in `frozen`, then in the tree, and at each moment in at least one of them.
//!    Readers look in that order, so they never miss it; ranges are looked up before blocks (see [`Overlay::find`]).
//! 3. The physical block of an entry that was superseded while it was active belongs to nobody; it is handed to the cut
//!    that holds the superseding change.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustc_hash::FxHashMap;

use crate::format::entry::Entry;
use crate::format::item::Item;
use crate::mutation::{Mutation, mutated};

const SHARDS: usize = 64;
/// So many changes of a shard are copied within a cut; a longer list is taken away whole, and a new one must grow.
const SHORT: usize = 32;
/// Room for so many changes a shard may keep for the next generation, however few its last one had.
const SMALL: usize = 64;
/// Discards shorter than this are kept block by block.
const RANGE_BLOCKS: u64 = 64;

/// Items that a discard of so many blocks adds to the journal.
pub(crate) fn items_of_discard(blocks: u64) -> u64 {
    if blocks < RANGE_BLOCKS { blocks } else { 1 }
}

type Map = FxHashMap<u64, Slot>;

#[derive(Clone, Copy)]
struct Slot {
    entry: Entry,
    sequence: u64,
}

#[derive(Default)]
struct Shard {
    active: Map,
    frozen: Arc<Map>,
    /// Empty, with the room that the last generation had: the next one need not grow to it step by step.
    spare: Map,
    pending: Vec<(u64, Item)>,
    superseded: Vec<(u64, u64)>,
}

/// Discarded stretches: start -> (end, sequence); they do not overlap, the newest wins.
#[derive(Default, Clone)]
struct Ranges(BTreeMap<u64, (u64, u64)>);

#[derive(Default)]
struct Discards {
    active: Ranges,
    frozen: Arc<Ranges>,
    pending: Vec<(u64, Item)>,
}

/// The changes since the last checkpoint, in two generations.
pub(crate) struct Overlay {
    shards: Box<[Mutex<Shard>]>,
    discards: RwLock<Discards>,
    ranges: AtomicU64,
    sequence: AtomicU64,
    active: AtomicU64,
    frozen: AtomicU64,
    pending: AtomicU64,
    superseded: AtomicU64,
    /// Frozen generations dropped, or about to be.
    thaws: AtomicU64,
}

/// What a cut took out for the journal.
pub(crate) struct Cut {
    /// Changes in the order of their sequence numbers.
    pub(crate) items: Vec<Item>,
    /// Physical blocks that nothing names once these changes are committed.
    pub(crate) superseded: Vec<u64>,
    /// Changes below this sequence number are in this cut, or in an earlier one.
    pub(crate) end: u64,
}

/// A frozen generation, for the merge: changes by logical block, and discards to apply before them.
pub(crate) struct Frozen {
    pub(crate) entries: Vec<(u64, Entry)>,
    pub(crate) discards: Vec<Range<u64>>,
    /// Blocks of entries that a later discard made void before they reached the tree.
    pub(crate) void: Vec<u64>,
}

impl Overlay {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            discards: RwLock::default(),
            ranges: AtomicU64::new(0),
            sequence: AtomicU64::new(1),
            active: AtomicU64::new(0),
            frozen: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            superseded: AtomicU64::new(0),
            thaws: AtomicU64::new(0),
        }
    }

    fn shard(&self, logical: u64) -> MutexGuard<'_, Shard> {
        // Neighbours share a shard, so that a large request takes one lock.
        let index = usize::try_from((logical >> 7) % SHARDS as u64).unwrap_or(0);
        lock(&self.shards[index])
    }

    /// Makes `entries` the content of the logical blocks from `first` on.
    pub(crate) fn insert(&self, first: u64, entries: &[Entry]) {
        let mut at = 0;
        while at < entries.len() {
            let logical = first + at as u64;
            let room = usize::try_from(128 - logical % 128).unwrap_or(1).min(entries.len() - at);
            let mut shard = self.shard(logical);
            for (logical, entry) in (logical..).zip(&entries[at..at + room]) {
                self.put(&mut shard, logical, *entry);
            }
            at += room;
        }
    }

    /// How often a generation has left this overlay: to be asked before entries are looked up that [`replace`](Self::replace) compares.
    pub(crate) fn thaws(&self) -> u64 {
        self.thaws.load(Ordering::SeqCst)
    }

    /// Makes `new` the content of a logical block if its entry is still `old`, which was looked up when `thaws` was what it is. False if it
    /// may have changed: any write or discard wins against this.
    pub(crate) fn replace(&self, logical: u64, old: &Entry, new: Entry, thaws: u64) -> bool {
        let mut shard = self.shard(logical);
        // Held to the end, and taken in this order, as in a cut: no discard of a stretch comes in between.
        let discards = self.discards.read().unwrap_or_else(PoisonError::into_inner);
        let discarded = discards.active.find(logical).or_else(|| discards.frozen.find(logical));
        let slot = shard.active.get(&logical).or_else(|| shard.frozen.get(&logical)).copied();
        // Neither here nor merged and gone since the look-up: the tree still has it.
        let unchanged = self.thaws() == thaws
            && match (slot, discarded) {
                (Some(slot), Some(sequence)) => slot.sequence > sequence && slot.entry == *old,
                (Some(slot), None) => slot.entry == *old,
                (None, discarded) => discarded.is_none(),
            };
        if unchanged || mutated(Mutation::RekeyDropsOverwrite) {
            self.put(&mut shard, logical, new);
        }
        unchanged || mutated(Mutation::RekeyDropsOverwrite)
    }

    fn put(&self, shard: &mut Shard, logical: u64, entry: Entry) {
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst);
        match shard.active.insert(logical, Slot { entry, sequence }) {
            None => drop(self.active.fetch_add(1, Ordering::Relaxed)),
            Some(old) if !old.entry.is_absent() => {
                shard.superseded.push((sequence, old.entry.physical));
                self.superseded.fetch_add(1, Ordering::Relaxed);
            }
            Some(_) => {}
        }
        let item = if entry.is_absent() {
            Item::Discard { logical, blocks: 1 }
        } else {
            Item::Write { logical, entry }
        };
        if !(entry.is_absent() && mutated(Mutation::DiscardNotJournalled)) {
            shard.pending.push((sequence, item));
        }
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a stretch of logical blocks absent.
    pub(crate) fn discard(&self, range: Range<u64>) {
        if range.end - range.start < RANGE_BLOCKS {
            for logical in range {
                self.put(&mut self.shard(logical), logical, Entry::ABSENT);
            }
            return;
        }
        let mut discards = write(&self.discards);
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst);
        let item = Item::Discard { logical: range.start, blocks: range.end - range.start };
        discards.active.insert(range, sequence);
        if !mutated(Mutation::DiscardNotJournalled) {
            discards.pending.push((sequence, item));
        }
        self.ranges.store((discards.active.0.len() + discards.frozen.0.len()) as u64, Ordering::SeqCst);
        self.active.fetch_add(1, Ordering::Relaxed);
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// The entry of a logical block, if it changed since the last checkpoint.
    pub(crate) fn find(&self, logical: u64) -> Option<Entry> {
        // Ranges first. A generation that is merged and dropped between the two look-ups then is seen either with its range
        // (and the range's number decides) or not at all (and the tree has it). The other way round, an old block entry could
        // outlive the discard that voided it.
        let discarded = self.discarded(logical);
        let shard = self.shard(logical);
        let slot = shard.active.get(&logical).or_else(|| shard.frozen.get(&logical));
        match (slot, discarded) {
            (Some(slot), Some(sequence)) if slot.sequence < sequence => Some(Entry::ABSENT),
            (Some(slot), _) => Some(slot.entry),
            (None, Some(_)) => Some(Entry::ABSENT),
            (None, None) => None,
        }
    }

    fn discarded(&self, logical: u64) -> Option<u64> {
        if self.ranges.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let discards = self.discards.read().unwrap_or_else(PoisonError::into_inner);
        discards.active.find(logical).or_else(|| discards.frozen.find(logical))
    }

    /// Takes what waits for the journal. With `freeze` the active generation becomes the frozen one, at the same cut.
    pub(crate) fn cut(&self, freeze: bool) -> Cut {
        // All locks at once: the cut is one moment for all queues. Held for the length of a few swaps and short copies.
        let mut shards: Vec<_> = self.shards.iter().map(lock).collect();
        let mut discards = write(&self.discards);
        let mut items = std::mem::take(&mut discards.pending);
        let mut superseded = Vec::new();
        let mut long = Vec::new();
        for shard in &mut shards {
            if shard.pending.len() > SHORT {
                long.push(std::mem::take(&mut shard.pending));
            } else {
                items.append(&mut shard.pending);
            }
            superseded.push(std::mem::take(&mut shard.superseded));
        }
        if freeze {
            for shard in &mut shards {
                debug_assert!(shard.frozen.is_empty(), "one merge at a time");
                let next = std::mem::take(&mut shard.spare);
                shard.frozen = Arc::new(std::mem::replace(&mut shard.active, next));
            }
            discards.frozen = Arc::new(std::mem::take(&mut discards.active));
            // In this order: what moves on counts twice.
            self.frozen.store(self.active.load(Ordering::SeqCst), Ordering::SeqCst);
            self.active.store(0, Ordering::SeqCst);
        }
        self.pending.store(0, Ordering::Relaxed);
        self.superseded.store(0, Ordering::Relaxed);
        let end = self.next_sequence();
        drop(discards);
        drop(shards);
        items.extend(long.into_iter().flatten());
        items.sort_unstable_by_key(|(sequence, _)| *sequence);
        Cut {
            items: items.into_iter().map(|(_, item)| item).collect(),
            superseded: superseded.into_iter().flatten().map(|(_, physical)| physical).collect(),
            end,
        }
    }

    /// The sequence number that the next change gets.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.load(Ordering::SeqCst)
    }

    /// Logical blocks whose last change has this sequence number or a higher one, as stretches in any order, which may overlap.
    pub(crate) fn changed_since(&self, sequence: u64) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let slots = shard.active.iter().chain(shard.frozen.iter());
            let changed = slots.filter(|(_, slot)| slot.sequence >= sequence);
            all.extend(changed.map(|(logical, _)| *logical..*logical + 1));
        }
        let discards = self.discards.read().unwrap_or_else(PoisonError::into_inner);
        let ranges = discards.active.0.iter().chain(discards.frozen.0.iter());
        let changed = ranges.filter(|(_, (_, changed))| *changed >= sequence);
        all.extend(changed.map(|(start, (end, _))| *start..*end));
        all
    }

    /// The frozen generation, sorted for the merge.
    pub(crate) fn frozen(&self) -> Frozen {
        let ranges = Arc::clone(&write(&self.discards).frozen);
        let mut entries = Vec::new();
        let mut void = Vec::new();
        for shard in &self.shards {
            let map = Arc::clone(&lock(shard).frozen);
            for (logical, slot) in map.iter() {
                match ranges.find(*logical) {
                    Some(sequence) if slot.sequence < sequence => {
                        if !slot.entry.is_absent() {
                            void.push(slot.entry.physical);
                        }
                    }
                    _ => entries.push((*logical, slot.entry)),
                }
            }
        }
        entries.sort_unstable_by_key(|(logical, _)| *logical);
        let discards = ranges.0.iter().map(|(start, (end, _))| *start..*end).collect();
        Frozen { entries, discards, void }
    }

    /// Drops the frozen generation: the tree has all of it now.
    pub(crate) fn thaw(&self) {
        // First: who finds a shard empty from now on sees that it may have been another one before (see `replace`).
        self.thaws.fetch_add(1, Ordering::SeqCst);
        let generation: Vec<_> =
            self.shards.iter().map(|shard| std::mem::take(&mut lock(shard).frozen)).collect();
        let even = generation.iter().map(|frozen| frozen.len()).sum::<usize>() / SHARDS;
        for (shard, frozen) in self.shards.iter().zip(generation) {
            // Emptied or freed without the lock: readers and writers of these blocks should not wait for it.
            let Ok(mut spare) = Arc::try_unwrap(frozen) else { continue };
            // Only the share of one generation: else, with changes that go to few shards, and always to others, each would keep all.
            if spare.capacity() <= SMALL.max(4 * even) {
                spare.clear();
                lock(shard).spare = spare;
            }
        }
        let mut discards = write(&self.discards);
        discards.frozen = Arc::default();
        self.frozen.store(0, Ordering::SeqCst);
        self.ranges.store(discards.active.0.len() as u64, Ordering::SeqCst);
    }

    /// The logical blocks that have an entry of their own in here.
    pub(crate) fn logical_blocks(&self) -> Vec<u64> {
        let blocks = |shard: &Mutex<Shard>| -> Vec<u64> {
            let shard = lock(shard);
            shard.active.keys().chain(shard.frozen.keys()).copied().collect()
        };
        let mut all: Vec<u64> = self.shards.iter().flat_map(blocks).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Every physical block that an entry in here names.
    pub(crate) fn physical_blocks(&self) -> Vec<u64> {
        let blocks = |shard: &Mutex<Shard>| -> Vec<u64> {
            let shard = lock(shard);
            let entries = shard.active.values().chain(shard.frozen.values()).map(|slot| slot.entry);
            entries.filter(|entry| !entry.is_absent()).map(|entry| entry.physical).collect()
        };
        self.shards.iter().flat_map(blocks).collect()
    }

    /// Changes in the active generation.
    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::Relaxed)
    }

    /// Changes that are not in the map yet.
    pub(crate) fn unmerged(&self) -> u64 {
        let active = self.active.load(Ordering::SeqCst);
        active + self.frozen.load(Ordering::SeqCst)
    }

    /// Leaves of the map that the changes of the active generation touch at most. A stretch that was discarded leaves a part of two.
    pub(crate) fn touched(&self) -> u64 {
        self.active() + self.ranges.load(Ordering::SeqCst)
    }

    /// Changes that no cut has taken yet.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Superseded blocks that no cut has taken yet.
    pub(crate) fn superseded(&self) -> u64 {
        self.superseded.load(Ordering::Relaxed)
    }
}

impl Ranges {
    /// Adds a range that is newer than all in here.
    fn insert(&mut self, range: Range<u64>, sequence: u64) {
        let overlapping: Vec<_> = self
            .0
            .range(..range.end)
            .rev()
            .take_while(|(_, (end, _))| *end > range.start)
            .map(|(start, (end, sequence))| (*start, *end, *sequence))
            .collect();
        for (start, end, old) in overlapping {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, (range.start, old));
            }
            if end > range.end {
                self.0.insert(range.end, (end, old));
            }
        }
        self.0.insert(range.start, (range.end, sequence));
    }

    fn find(&self, logical: u64) -> Option<u64> {
        let (_, (end, sequence)) = self.0.range(..=logical).next_back()?;
        (logical < *end).then_some(*sequence)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere cannot leave these maps half-changed in a way that matters more than losing them all.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
