//! Merging changes into a tree: from the leaves up, each node to a new place, the parent last.
//!
//! Invariants:
//! 1. No block that the last published superblock reaches is written: map and salt nodes go to free blocks, bitmap nodes to the
//!    place that the superblock does not reach.
//! 2. A new node is pinned until its parent (pinned, or the root in memory) holds its new entry; so at each moment a reader finds
//!    a tree in which every changed entry is either old (and masked by the frozen overlay) or new.
//! 3. What a parent's entry named before is in `freed` afterwards, once.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use futures::future::LocalBoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};

use crate::cache::{NodeKey, Page};
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::{Tree, node_ad, salt_node_ad};
use crate::format::entry::{Entry, entry_at, put_entry};
use crate::io::Io;
use crate::keys::Use;
use crate::mutation::{Mutation, mutated};
use crate::tree::{NODE_SALT, child_slot};

/// Leaves that are read and written at a time.
const LEAVES_AT_ONCE: usize = 32;
/// Inner nodes whose subtrees are worked on at a time.
const SUBTREES_AT_ONCE: usize = 2;

/// A change of one item in a leaf.
pub(crate) trait Change: Copy {
    /// Applies it at `slot` of the leaf.
    fn apply(self, page: &mut Page, slot: usize, merge: &Merge<'_>) -> Result<()>;
}

/// A salt to enter into the salt table.
#[derive(Clone, Copy)]
pub(crate) struct Salt(pub(crate) [u8; 32]);

/// What becomes of a block's bit.
#[derive(Clone, Copy)]
pub(crate) enum Bit {
    /// The block is in use from now on.
    Used,
    /// It is in use no longer.
    Free,
    /// As it is; but its leaf is looked at, and does not stay under an old key.
    Same,
}

impl Change for Entry {
    fn apply(self, page: &mut Page, slot: usize, merge: &Merge<'_>) -> Result<()> {
        let old = entry_at(page.as_slice(), slot)?;
        if !old.is_absent() {
            merge.free(old.physical);
        }
        merge.mapped.set(merge.mapped.get() + i64::from(!self.is_absent()) - i64::from(!old.is_absent()));
        if !self.is_absent() {
            merge.placed.borrow_mut().push(self.physical);
        }
        put_entry(page.as_mut_slice(), slot, &self);
        Ok(())
    }
}

impl Change for Salt {
    fn apply(self, page: &mut Page, slot: usize, _: &Merge<'_>) -> Result<()> {
        page[slot * 32..slot * 32 + 32].copy_from_slice(&self.0);
        Ok(())
    }
}

impl Change for Bit {
    fn apply(self, page: &mut Page, slot: usize, _: &Merge<'_>) -> Result<()> {
        let (byte, mask) = (slot / 8, 1u8 << (slot % 8));
        match self {
            Self::Used => page[byte] |= mask,
            Self::Free => page[byte] &= !mask,
            Self::Same => {}
        }
        Ok(())
    }
}

/// One merge, and what it leaves to be done.
pub(crate) struct Merge<'a> {
    core: &'a Core,
    io: &'a Io,
    /// Physical blocks that nothing in the new tree names.
    pub(crate) freed: RefCell<Vec<u64>>,
    /// Physical blocks that the new tree names and the old did not.
    pub(crate) placed: RefCell<Vec<u64>>,
    /// Change of the number of mapped logical blocks.
    pub(crate) mapped: Cell<i64>,
    gone: RefCell<Vec<NodeKey>>,
}

/// What became of a node.
enum Outcome {
    Same,
    New(Entry),
}

impl<'a> Merge<'a> {
    pub(crate) fn new(core: &'a Core, io: &'a Io) -> Self {
        Self {
            core,
            io,
            freed: RefCell::default(),
            placed: RefCell::default(),
            mapped: Cell::new(0),
            gone: RefCell::default(),
        }
    }

    pub(crate) fn free(&self, physical: u64) {
        if mutated(Mutation::FreedBeforeSuperblock) {
            self.core.space.let_go([self.core.space.pin(vec![physical])]);
        }
        self.freed.borrow_mut().push(physical);
    }

    /// Applies `cleared`, then `changes` (sorted, by item number), to a tree; its new root is in force afterwards.
    pub(crate) async fn run<T: Change>(
        &self,
        tree: Tree,
        changes: &[(u64, T)],
        cleared: &[Range<u64>],
    ) -> Result<()> {
        if changes.is_empty() && cleared.is_empty() {
            return Ok(());
        }
        let (old, level) = self.core.top(tree);
        let root = NodeKey { tree, level, index: 0 };
        if let Outcome::New(entry) = self.subtree(root, old, changes, cleared).await? {
            self.core.set_root(tree, entry);
            self.core.cache.unpin(root, !entry.is_absent());
        }
        for key in self.gone.take() {
            self.core.cache.forget(key);
        }
        Ok(())
    }

    /// Puts nodes on top of the root, until the tree has the levels of the volume's sizes: it may have grown since the root was made. Each
    /// reaches all that the one below reaches, so a reader may begin at any of them.
    pub(crate) async fn lift(&self, tree: Tree) -> Result<()> {
        loop {
            let (old, below) = self.core.top(tree);
            let root = NodeKey { tree, level: below + 1, index: 0 };
            if root.level >= self.core.geometry.levels(tree) {
                return Ok(());
            }
            let mut page = Arc::new([0; memory::BLOCK_SIZE]);
            if !mutated(Mutation::RootNotLifted) {
                put_entry(Arc::make_mut(&mut page).as_mut_slice(), 0, &old);
            }
            self.core.cache.pin(root, Arc::clone(&page));
            let entry = self.write(root, &Entry::ABSENT, &page).await?;
            self.core.set_top(tree, entry, root.level);
            self.core.cache.unpin(root, !entry.is_absent());
        }
    }

    fn subtree<'m, T: Change>(
        &'m self,
        key: NodeKey,
        old: Entry,
        changes: &'m [(u64, T)],
        cleared: &'m [Range<u64>],
    ) -> LocalBoxFuture<'m, Result<Outcome>> {
        async move {
            let before = self.content(key, &old).await?;
            let mut page = before.clone();
            let children = if key.level == 0 {
                self.change_leaf(key, Arc::make_mut(&mut page), changes, cleared)?;
                Vec::new()
            } else {
                self.change_children(key, Arc::make_mut(&mut page), changes, cleared).await?
            };
            // Whatever is looked at leaves the old key behind, changed or not.
            let old_key = self.core.is_under_old_key(key.tree, &old);
            if page == before && children.is_empty() && !old_key {
                return Ok(Outcome::Same);
            }
            self.core.cache.pin(key, Arc::clone(&page));
            for (child, kept) in children.into_iter().filter(|_| !mutated(Mutation::EvictedEarly)) {
                self.core.cache.unpin(child, kept);
            }
            let entry = self.write(key, &old, &page).await?;
            if key.level == 0 && self.core.pace.advance(changes.len() as u64) {
                self.core.progress.notify(usize::MAX);
            }
            if !old.is_absent() && key.tree != Tree::Bitmap {
                self.free(old.physical);
            }
            Ok(Outcome::New(entry))
        }
        .boxed_local()
    }

    async fn content(&self, key: NodeKey, old: &Entry) -> Result<Arc<Page>> {
        if let Some(page) = self.core.cache.get(key) {
            return Ok(page);
        }
        if old.is_absent() {
            return Ok(Arc::new([0; memory::BLOCK_SIZE]));
        }
        self.core.load(self.io, key, old).await
    }

    fn change_leaf<T: Change>(
        &self,
        key: NodeKey,
        page: &mut Page,
        changes: &[(u64, T)],
        cleared: &[Range<u64>],
    ) -> Result<()> {
        let bits = self.core.geometry.leaf_bits(key.tree);
        let span = key.index << bits..(key.index + 1) << bits;
        for range in cleared {
            for item in range.start.max(span.start)..range.end.min(span.end) {
                Entry::ABSENT.apply(page, child_slot(item, bits), self)?;
            }
        }
        for (item, change) in changes {
            change.apply(page, child_slot(*item, bits), self)?;
        }
        Ok(())
    }

    /// Works on the children that are concerned; the keys of those that changed, and whether they still exist.
    async fn change_children<T: Change>(
        &self,
        key: NodeKey,
        page: &mut Page,
        changes: &[(u64, T)],
        cleared: &[Range<u64>],
    ) -> Result<Vec<(NodeKey, bool)>> {
        let shape = &self.core.geometry;
        let bits = shape.inner_bits(key.tree);
        let item_bits = shape.leaf_bits(key.tree) + bits * (key.level - 1);
        let mut jobs = Vec::new();
        for slot in 0..1usize << bits {
            let child = NodeKey { level: key.level - 1, index: (key.index << bits) + slot as u64, ..key };
            let span = child.index << item_bits..(child.index + 1) << item_bits;
            let inside = between(changes, &span);
            let covers = clip(cleared, &span);
            let entry = entry_at(page.as_slice(), slot)?;
            if inside.is_empty() && (covers.is_empty() || entry.is_absent()) {
                continue;
            }
            jobs.push((slot, child, span, entry, inside, covers));
        }
        let width = if key.level == 1 { LEAVES_AT_ONCE } else { SUBTREES_AT_ONCE };
        let ended: Vec<_> = futures::stream::iter(jobs)
            .map(|(slot, child, span, entry, inside, covers)| async move {
                let whole = covers.iter().any(|range| range.start <= span.start && range.end >= span.end);
                if whole && inside.is_empty() {
                    self.prune(child, entry).await?;
                    return Ok((slot, child, Outcome::New(Entry::ABSENT)));
                }
                let outcome = self.subtree(child, entry, inside, covers).await?;
                if let Outcome::New(entry) = &outcome
                    && mutated(Mutation::EvictedEarly)
                {
                    self.core.cache.unpin(child, !entry.is_absent());
                }
                Ok::<_, Error>((slot, child, outcome))
            })
            .buffer_unordered(width)
            .inspect_err(|error| self.core.stop(error))
            .try_collect()
            .await?;
        let mut changed = Vec::new();
        for (slot, child, outcome) in ended {
            if let Outcome::New(entry) = outcome {
                put_entry(page.as_mut_slice(), slot, &entry);
                changed.push((child, !entry.is_absent()));
            }
        }
        Ok(changed)
    }

    /// Frees everything below and including a node of the map.
    fn prune(&self, key: NodeKey, entry: Entry) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            let page = self.content(key, &entry).await?;
            let bits = self.core.geometry.inner_bits(key.tree);
            let mut below = Vec::new();
            for slot in 0..1usize << bits {
                let child = entry_at(page.as_slice(), slot)?;
                if child.is_absent() {
                    continue;
                }
                if key.level == 0 {
                    self.free(child.physical);
                    self.mapped.set(self.mapped.get() - 1);
                } else {
                    below.push((
                        NodeKey { level: key.level - 1, index: (key.index << bits) + slot as u64, ..key },
                        child,
                    ));
                }
            }
            futures::stream::iter(below)
                .map(|(child, entry)| self.prune(child, entry))
                .buffer_unordered(LEAVES_AT_ONCE)
                .inspect_err(|error| self.core.stop(error))
                .try_collect::<()>()
                .await?;
            self.free(entry.physical);
            self.gone.borrow_mut().push(key);
            Ok(())
        }
        .boxed_local()
    }

    /// Seals a node and writes it to its new place. An all-zero node is absent.
    async fn write(&self, key: NodeKey, old: &Entry, page: &Page) -> Result<Entry> {
        let core = self.core;
        if page.iter().all(|byte| *byte == 0) {
            if key.tree == Tree::Bitmap && !old.is_absent() {
                // The last superblock may reach its old place. A later spill of the same transaction must remember that, and would
                // not see it from an absent entry.
                core.bitmap_place(key, old);
            }
            return Ok(Entry::ABSENT);
        }
        let physical = match key.tree {
            Tree::Bitmap => core.bitmap_place(key, old),
            Tree::Map | Tree::Salts | Tree::OldSalts => {
                let place = core.node_place(self.io).await?;
                self.placed.borrow_mut().push(place);
                place
            }
        };
        let mut buffer = self.io.buffer(1);
        let entry = if key.tree == Tree::Salts {
            let mut salt = [0; NODE_SALT];
            core.random.fill(&mut salt);
            let ad = salt_node_ad(&core.header.volume, key.level, key.index);
            buffer.copy_from(0, &salt);
            let block_key = core.keys.key.one_time(core.keys.suite, "salt table", &salt);
            let body = &page[..memory::BLOCK_SIZE - NODE_SALT];
            let target = buffer.target(NODE_SALT..memory::BLOCK_SIZE);
            let tag = block_key.seal_into(0, &ad, body, target, |_, _| ());
            Entry { physical, epoch: 0, nonce: 0, flags: 0, tag }
        } else {
            let (epoch, nonce) = core.keys.nonces(Use::Node, 1)?;
            let ad = node_ad(&core.header.volume, key.tree, key.level, key.index);
            let target = buffer.target(0..memory::BLOCK_SIZE);
            let tag = epoch.keys.node.seal_into(nonce, &ad, page, target, |_, _| ());
            Entry { physical, epoch: epoch.number, nonce, flags: self.flags(key, page)?, tag }
        };
        self.io.write(physical, buffer).await?;
        core.counters.node_writes.add(1);
        Ok(entry)
    }

    /// A bitmap leaf's entry says how many free blocks it has.
    fn flags(&self, key: NodeKey, page: &Page) -> Result<u16> {
        if key.tree != Tree::Bitmap || key.level != 0 {
            return Ok(0);
        }
        let bits = 1u64 << self.core.geometry.bitmap_bits;
        let used: u64 = page.iter().map(|byte| u64::from(byte.count_ones())).sum();
        u16::try_from(bits.saturating_sub(used))
            .map_err(|_| Error::new(Kind::Usage, "a bitmap leaf is larger than the format allows"))
    }
}

/// The changes whose item lies in `span`.
fn between<'c, T>(changes: &'c [(u64, T)], span: &Range<u64>) -> &'c [(u64, T)] {
    let from = changes.partition_point(|(item, _)| *item < span.start);
    let to = changes.partition_point(|(item, _)| *item < span.end);
    &changes[from..to]
}

/// The ranges that touch `span` (they are sorted and do not overlap).
fn clip<'c>(ranges: &'c [Range<u64>], span: &Range<u64>) -> &'c [Range<u64>] {
    let from = ranges.partition_point(|range| range.end <= span.start);
    let to = ranges.partition_point(|range| range.start < span.end);
    &ranges[from..to.max(from)]
}
