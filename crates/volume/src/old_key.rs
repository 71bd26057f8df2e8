//! What is left of an old volume key when no data needs it any more: bitmap, salt table, header; and how it is given up.
//!
//! Only the maintenance job does this, so it has no rival. What it waits for, and why, is in [`reseal`](crate::reseal).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use seal::slot::KeySlots;

use crate::cache::NodeKey;
use crate::core::Core;
use crate::error::{Kind, Result};
use crate::format::ad::Tree;
use crate::format::entry::{Entry, entry_at};
use crate::format::header::Header;
use crate::io::Io;
use crate::merge::Merge;

/// Leaves of the bitmap that one checkpoint takes along.
const BITMAP_LEAVES: usize = 1024;

/// What a session with two keys keeps in mind.
#[derive(Default)]
pub(crate) struct Resealing {
    /// The first node above the bitmap's leaves that may have one under the old key.
    bitmap: AtomicU64,
    stage: AtomicU8,
}

const AT_WORK: u8 = 0;
const OVER: u8 = 1;
const ENDING: u8 = 2;

impl Resealing {
    /// Nothing needs the old key any more but the volume's own tables.
    pub(crate) fn is_over_now(&self) {
        self.stage.store(OVER, Ordering::SeqCst);
    }

    /// Whether nothing needs the old key any more but the volume's own tables.
    pub(crate) fn is_over(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == OVER
    }

    /// Whether the checkpoint under way is the one that does without the old salt table.
    pub(crate) fn gives_up_old_salts(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == ENDING
    }
}

impl Core {
    /// Whether a node with this entry is sealed under the old key. Nodes of the salt tables do not say: each has a table of its own.
    pub(crate) fn is_under_old_key(&self, tree: Tree, entry: &Entry) -> bool {
        matches!(tree, Tree::Map | Tree::Bitmap) && !entry.is_absent() && self.keys.is_old(entry.epoch)
    }

    /// The first bits of leaves of the bitmap that are under the old key, some at a time.
    pub(crate) async fn old_bitmap_leaves(&self, io: &Io) -> Result<Vec<u64>> {
        let mut first_bits = Vec::new();
        if self.keys.boundary().is_none() {
            return Ok(first_bits);
        }
        let (leaf_bits, fan_out) = (self.geometry.bitmap_bits, self.geometry.fan_out_bits);
        if self.geometry.bitmap_levels() == 1 {
            let old = self.is_under_old_key(Tree::Bitmap, &self.top(Tree::Bitmap).0);
            return Ok(old.then_some(0).into_iter().collect());
        }
        let mut index = self.resealing.bitmap.load(Ordering::SeqCst);
        while index < self.geometry.nodes(Tree::Bitmap, 1) && first_bits.len() < BITMAP_LEAVES {
            if let Some(page) = self.node(io, NodeKey { tree: Tree::Bitmap, level: 1, index }).await? {
                for slot in 0..1usize << fan_out {
                    if self.is_under_old_key(Tree::Bitmap, &entry_at(page.as_slice(), slot)?) {
                        first_bits.push(((index << fan_out) + slot as u64) << leaf_bits);
                    }
                }
            }
            index += 1;
            if first_bits.is_empty() {
                self.resealing.bitmap.store(index, Ordering::SeqCst);
            }
        }
        Ok(first_bits)
    }

    /// Whether no leaf of the bitmap is under the old key.
    pub(crate) async fn bitmap_is_new(&self, io: &Io) -> Result<bool> {
        Ok(self.old_bitmap_leaves(io).await?.is_empty())
    }

    /// Frees the nodes of the old salt table. A damaged one keeps what is below it in use for ever; to stop for that would help nobody.
    pub(crate) async fn free_old_salts(&self, io: &Io, merge: &Merge<'_>) -> Result<()> {
        let (root, level) = self.top(Tree::OldSalts);
        let mut nodes = vec![(NodeKey { tree: Tree::OldSalts, level, index: 0 }, root)];
        while let Some((key, entry)) = nodes.pop().filter(|(_, entry)| !entry.is_absent()) {
            if key.level > 0 {
                match self.load(io, key, &entry).await {
                    Ok(page) => {
                        let bits = self.geometry.inner_bits(key.tree);
                        for slot in 0..1usize << bits {
                            let child = entry_at(page.as_slice(), slot)?;
                            let index = (key.index << bits) + slot as u64;
                            if !child.is_absent() {
                                nodes.push((NodeKey { level: key.level - 1, index, ..key }, child));
                            }
                        }
                    }
                    Err(error) if error.kind() == Kind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
            merge.free(entry.physical);
            self.cache.forget(key);
        }
        self.set_root(Tree::OldSalts, Entry::ABSENT);
        Ok(())
    }

    /// Gives the old key up: a checkpoint without its salt table, then a header without the key. Cut anywhere, the next session finds the
    /// change of key under way still, with nothing left to seal, or ended. A superblock under the old key may stand in the other pair of slots
    /// still. It counts no more; but these slots are not ours to write: who comes next may have begun there.
    pub(crate) async fn end_rekeying(&self, io: &Io) -> Result<()> {
        if self.keys.boundary().is_none() {
            return Ok(());
        }
        self.resealing.stage.store(ENDING, Ordering::SeqCst);
        self.checkpoint(io).await?;
        let given_up = |header: &mut Header, _: &mut KeySlots| {
            header.rekeying = None;
            Ok(())
        };
        self.change_header(io, None, given_up).await?;
        self.keys.drop_old();
        self.resealing.stage.store(AT_WORK, Ordering::SeqCst);
        self.progress.notify(usize::MAX);
        Ok(())
    }
}
