//! Data blocks in memory, so that reading them again need not ask the store.
//!
//! A block's place on the store says which few slots it may be in, so that a look-up touches one line of a table; of these, the next one
//! goes that was not used for a while.
//!
//! Invariants:
//! 1. A block is held as it was sealed. So memory that is swapped out or dumped shows no more than the store does, and a block is opened
//!    each time that it is read: one that has changed here is found out as one that has changed there.
//! 2. A block is found by place, epoch and nonce of its entry, and a nonce is used once under its key: a place that is used again is never
//!    taken for what was there before. Without integrity nothing else would tell.
//! 3. What does not open was not found, and the store is asked.
//! 4. No more is held than was allowed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memory::{BLOCK_SIZE, Buffer, Pool};

use crate::error::{Error, Kind, Result};
use crate::format::entry::Entry;
use crate::mutation::{Mutation, mutated};

/// Slots that a place has.
const WAYS: usize = 8;
/// Sets whose blocks share a lock and a huge page: with small pages, nearly every look-up would need another translation.
const PIECE_SETS: usize = 64;

/// Bytes that a block takes with all that is kept about it.
const HELD_BYTES: u64 = BLOCK_SIZE as u64 + 32;

/// Whose block is in a slot; no place is 0.
#[derive(Debug, Clone, Copy, Default)]
struct Tag {
    place: u64,
    nonce: u64,
    epoch: u32,
    /// Since the hand came by.
    used: bool,
}

impl Tag {
    fn of(entry: &Entry) -> Self {
        Self { place: entry.physical, nonce: entry.nonce, epoch: entry.epoch, used: false }
    }

    fn is_of(&self, entry: &Entry) -> bool {
        self.place == entry.physical
            && (self.nonce == entry.nonce && self.epoch == entry.epoch || mutated(Mutation::StaleBlockCached))
    }
}

/// The slots of the places that share them.
#[derive(Debug, Clone, Default)]
struct Set {
    tags: [Tag; WAYS],
    hand: usize,
}

impl Set {
    /// The way for a block that is at `place`: where it was before, an empty one, or the next that was not used since the hand came by.
    fn way_for(&mut self, place: u64) -> usize {
        let Self { tags, hand } = self;
        let at = |wanted| tags.iter().position(|tag| tag.place == wanted);
        if let Some(way) = at(place).or_else(|| at(0)) {
            return way;
        }
        while std::mem::take(&mut tags[*hand].used) {
            *hand = (*hand + 1) % WAYS;
        }
        let way = *hand;
        *hand = (way + 1) % WAYS;
        way
    }
}

/// Some of the sets.
struct Piece {
    sets: Vec<Set>,
    /// Their blocks, sealed.
    sealed: Buffer,
    held: usize,
}

/// The cache. Off, it holds nothing and costs nothing.
pub(crate) struct BlockCache {
    pieces: Box<[Mutex<Piece>]>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl BlockCache {
    /// A cache of no more than about `bytes`, most of which the system gives as blocks come. Too few for a set, and it is off.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the system would never give so many.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let refused = || format!("there is no memory for {bytes} bytes of cached blocks; allow fewer");
        let pieces = usize::try_from(bytes / HELD_BYTES / WAYS as u64).ok().and_then(pieces);
        let pieces = pieces.ok_or_else(|| Error::new(Kind::Usage, refused()))?;
        Ok(Self { pieces, hits: AtomicU64::new(0), misses: AtomicU64::new(0) })
    }

    pub(crate) fn is_off(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The piece of a place, and the set in it: neighbours are in different pieces.
    fn piece(&self, entry: &Entry) -> Option<(MutexGuard<'_, Piece>, usize)> {
        let pieces = self.pieces.len() as u64;
        let piece = self.pieces.get(usize::try_from(entry.physical.checked_rem(pieces)?).ok()?)?;
        let piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
        let set = usize::try_from(entry.physical / pieces % piece.sets.len() as u64).ok()?;
        Some((piece, set))
    }

    /// Has `open` open the block of this entry. False if it is not here, or if that fails.
    pub(crate) fn open(&self, entry: &Entry, open: impl FnOnce(&[u8]) -> bool) -> bool {
        let Some((mut piece, set)) = self.piece(entry) else { return false };
        let opened = piece.find(set, entry).is_some_and(open);
        drop(piece);
        let counter = if opened { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        opened
    }

    /// Holds a block, a whole one, as it was sealed under this entry.
    pub(crate) fn keep(&self, entry: &Entry, sealed: &[u8]) {
        if let Some((mut piece, set)) = self.piece(entry) {
            piece.put(set, entry, sealed);
        }
    }

    /// Blocks held.
    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.lock().unwrap_or_else(PoisonError::into_inner).held).sum()
    }
}

/// Memory for so many sets, in whole pieces if there is one. None if there can't be so much.
fn pieces(sets: usize) -> Option<Box<[Mutex<Piece>]>> {
    if sets == 0 {
        return Some(Box::default());
    }
    let each = sets.min(PIECE_SETS);
    let count = sets / each;
    let pool = Pool::new(count * each * WAYS).ok()?;
    let mut pieces = Vec::new();
    pieces.try_reserve_exact(count).ok()?;
    for _ in 0..count {
        let mut sets = Vec::new();
        sets.try_reserve_exact(each).ok()?;
        sets.resize(each, Set::default());
        pieces.push(Mutex::new(Piece { sets, sealed: pool.buffer(each * WAYS), held: 0 }));
    }
    Some(pieces.into())
}

impl Piece {
    /// The memory of a slot.
    fn slot(&mut self, set: usize, way: usize) -> Option<&mut [u8]> {
        let from = (set * WAYS + way) * BLOCK_SIZE;
        self.sealed.private_mut()?.get_mut(from..from + BLOCK_SIZE)
    }

    fn find(&mut self, set: usize, entry: &Entry) -> Option<&[u8]> {
        let tags = &mut self.sets[set].tags;
        let way = tags.iter().position(|tag| tag.is_of(entry))?;
        tags[way].used = true;
        self.slot(set, way).map(|slot| &*slot)
    }

    fn put(&mut self, set: usize, entry: &Entry, sealed: &[u8]) {
        let way = self.sets[set].way_for(entry.physical);
        let before = self.sets[set].tags[way].place;
        if before == entry.physical && mutated(Mutation::StaleBlockCached) {
            return;
        }
        if let Some(slot) = self.slot(set, way) {
            slot.copy_from_slice(sealed);
            self.sets[set].tags[way] = Tag::of(entry);
            self.held += usize::from(before == 0);
        }
    }
}

#[cfg(test)]
mod tests;
