//! Decrypted tree nodes in private memory, under a limit; and the pinned ones that must not go.
//!
//! Invariants:
//! 1. A pinned node is newer than anything on the disk says; it is found before the cache is asked.
//! 2. A node that was read may enter the cache only if its parent's entry did not change since that entry was looked up.
//!    The shard's version counts such changes: the reader takes it first, then the parent's entry, and `fill` compares.
//! 3. A node leaves the pinned set only after its parent (pinned, or the root) holds its new entry.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::format::ad::Tree;
use crate::mutation::{Mutation, mutated};

/// A decrypted node.
pub(crate) type Page = [u8; memory::BLOCK_SIZE];

/// Which node: tree, level (leaf = 0), index in the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeKey {
    pub(crate) tree: Tree,
    pub(crate) level: u8,
    pub(crate) index: u64,
}

type Map<T> = FxHashMap<NodeKey, T>;

const SHARDS: usize = 32;

#[derive(Default)]
struct Shard {
    version: u64,
    pinned: Map<Arc<Page>>,
    cached: Map<usize>,
    /// The clock: slots in a ring, with a mark for "used since the hand came by".
    ring: Vec<(NodeKey, Arc<Page>, bool)>,
    hand: usize,
    evictions: u64,
}

/// The node cache.
pub(crate) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    nodes_per_shard: usize,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl Cache {
    /// A cache for about `bytes` of nodes (at least one per shard).
    pub(crate) fn new(bytes: u64) -> Self {
        let nodes = usize::try_from(bytes / memory::BLOCK_SIZE as u64).unwrap_or(usize::MAX);
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            nodes_per_shard: (nodes / SHARDS).max(1),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: NodeKey) -> MutexGuard<'_, Shard> {
        let mixed = (key.index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32)
            ^ u64::from(key.level)
            ^ ((key.tree as u64) << 3);
        let index = usize::try_from(mixed % SHARDS as u64).unwrap_or(0);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: NodeKey) -> Option<Arc<Page>> {
        let mut shard = self.shard(key);
        let found = match shard.pinned.get(&key) {
            Some(page) => Some(Arc::clone(page)),
            None => shard.cached.get(&key).copied().map(|slot| {
                shard.ring[slot].2 = true;
                Arc::clone(&shard.ring[slot].1)
            }),
        };
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// The number to give to `fill`; take it before the parent's entry is looked up.
    pub(crate) fn version(&self, key: NodeKey) -> u64 {
        self.shard(key).version
    }

    /// Keeps a node that was read, unless its parent's entry has changed since `version`; then what was read below it may not be kept either.
    /// Says whether it has not.
    #[must_use]
    pub(crate) fn fill(&self, key: NodeKey, page: &Arc<Page>, version: u64) -> bool {
        let mut shard = self.shard(key);
        let current = shard.version == version;
        if (current || mutated(Mutation::StaleFill)) && !shard.pinned.contains_key(&key) {
            shard.put(key, Arc::clone(page), self.nodes_per_shard);
        }
        current
    }

    /// Pins the new content of a node whose entry its parent does not hold yet.
    pub(crate) fn pin(&self, key: NodeKey, page: Arc<Page>) {
        self.shard(key).pinned.insert(key, page);
    }

    /// The parent holds the node's new entry now (or none, if `keep` is false): it may be evicted.
    pub(crate) fn unpin(&self, key: NodeKey, keep: bool) {
        let mut shard = self.shard(key);
        shard.version += 1;
        let page = shard.pinned.remove(&key);
        match page {
            Some(page) if keep => shard.put(key, page, self.nodes_per_shard),
            _ => shard.forget(key),
        }
    }

    /// Drops a node that no longer exists.
    pub(crate) fn forget(&self, key: NodeKey) {
        let mut shard = self.shard(key);
        shard.version += 1;
        shard.pinned.remove(&key);
        shard.forget(key);
    }

    /// Nodes that had to go to make room for others.
    pub(crate) fn evictions(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).evictions).sum()
    }

    /// Nodes held, pinned ones included.
    pub(crate) fn len(&self) -> usize {
        let held = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.pinned.len() + shard.ring.len()
        };
        self.shards.iter().map(held).sum()
    }
}

impl Shard {
    fn put(&mut self, key: NodeKey, page: Arc<Page>, limit: usize) {
        if let Some(slot) = self.cached.get(&key) {
            self.ring[*slot].1 = page;
            return;
        }
        if self.ring.len() < limit {
            self.cached.insert(key, self.ring.len());
            self.ring.push((key, page, false));
            return;
        }
        while std::mem::replace(&mut self.ring[self.hand].2, false) {
            self.hand = (self.hand + 1) % self.ring.len();
        }
        let victim = std::mem::replace(&mut self.ring[self.hand], (key, page, false));
        self.cached.remove(&victim.0);
        self.evictions += 1;
        self.cached.insert(key, self.hand);
        self.hand = (self.hand + 1) % self.ring.len();
    }

    fn forget(&mut self, key: NodeKey) {
        let Some(slot) = self.cached.remove(&key) else { return };
        self.ring.swap_remove(slot);
        if let Some((moved, _, _)) = self.ring.get(slot) {
            self.cached.insert(*moved, slot);
        }
        if self.hand >= self.ring.len() {
            self.hand = 0;
        }
    }
}

#[cfg(test)]
mod tests;
