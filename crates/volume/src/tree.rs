//! The radix trees on the store, read through the cache: map, salt table, bitmap.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use seal::EpochKeys;

use crate::cache::{NodeKey, Page};
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::{Tree, node_ad, salt_node_ad};
use crate::format::entry::{Entry, entry_at};
use crate::geometry::Geometry;
use crate::io::Io;
use crate::mutation::{Mutation, mutated};

/// Bytes of a salt-table node's clear salt.
pub(crate) const NODE_SALT: usize = 32;

impl Geometry {
    /// log2 of the children of an inner node.
    pub(crate) fn inner_bits(&self, tree: Tree) -> u8 {
        match tree {
            Tree::Map | Tree::Bitmap => self.fan_out_bits,
            Tree::Salts | Tree::OldSalts => self.salt_bits,
        }
    }

    /// log2 of the items in a leaf.
    pub(crate) fn leaf_bits(&self, tree: Tree) -> u8 {
        match tree {
            Tree::Map => self.fan_out_bits,
            Tree::Salts | Tree::OldSalts => self.salt_bits,
            Tree::Bitmap => self.bitmap_bits,
        }
    }
}

/// Position of node or item `index` within its parent.
pub(crate) fn child_slot(index: u64, bits: u8) -> usize {
    usize::try_from(index & ((1 << bits) - 1)).unwrap_or(0)
}

impl Core {
    /// A node as the current tree has it; `None` if it is absent.
    pub(crate) async fn node(&self, io: &Io, key: NodeKey) -> Result<Option<Arc<Page>>> {
        match self.cache.get(key) {
            Some(page) => Ok(Some(page)),
            // Boxed: a miss holds whole pages, and would make the future of every request that large.
            None => self.missing_node(io, key).boxed_local().await,
        }
    }

    async fn missing_node(&self, io: &Io, key: NodeKey) -> Result<Option<Arc<Page>>> {
        let bits = self.geometry.inner_bits(key.tree);
        let at = |level: u8| NodeKey { level, index: key.index >> (bits * (level - key.level)), ..key };
        // All versions first: whatever entry we find on the way down was current at some moment after.
        let levels = key.level..self.geometry.levels(key.tree);
        let versions: Vec<u64> = levels.map(|level| self.cache.version(at(level))).collect();
        let (root, top) = self.top(key.tree);
        debug_assert!(key.level <= top, "{key:?} is above the root");
        if key.level > top || at(top).index > 0 {
            // The tree is that of a smaller volume still.
            return Ok(None);
        }
        let mut parent: Option<Arc<Page>> = None;
        // Below a node that has changed meanwhile all was found by old entries, and the versions there need not show it: a merge changes
        // children before their parents, so theirs may have been counted before we came.
        let mut current = true;
        for level in (key.level..=top).rev() {
            let here = at(level);
            let entry = match &parent {
                None => root,
                Some(page) => entry_at(page.as_slice(), child_slot(here.index, bits))?,
            };
            let page = match self.cache.get(here) {
                Some(page) => page,
                None if entry.is_absent() => return Ok(None),
                None => {
                    let page = self.load(io, here, &entry).await?;
                    if current || mutated(Mutation::StalePath) {
                        current = self.cache.fill(here, &page, versions[usize::from(level - key.level)]);
                    }
                    page
                }
            };
            parent = Some(page);
        }
        Ok(parent)
    }

    /// Reads and opens the node that `entry` names.
    pub(crate) async fn load(&self, io: &Io, key: NodeKey, entry: &Entry) -> Result<Arc<Page>> {
        let damaged = || {
            self.counters.corrupt_nodes.add(1);
            let NodeKey { tree, level, index } = key;
            Error::new(
                Kind::Corrupt,
                format!(
                    "node {index} at level {level} of the {tree:?} tree (physical block {}) is not what was written there; restore the volume from a backup",
                    entry.physical
                ),
            )
        };
        if entry.physical >= self.geometry.physical_blocks {
            return Err(damaged());
        }
        let buffer = io.read(entry.physical, 1).await?;
        let mut page = Arc::new([0; memory::BLOCK_SIZE]);
        let out = Arc::get_mut(&mut page).ok_or_else(damaged)?;
        if key.tree.is_self_salted() {
            let old =
                if key.tree == Tree::OldSalts { Some(self.keys.old().ok_or_else(damaged)?) } else { None };
            let volume_key = old.as_ref().map_or(&self.keys.key, |old| &old.key);
            let mut salt = [0; NODE_SALT];
            buffer.copy_to(0, &mut salt);
            let ad = salt_node_ad(&self.header.volume, key.level, key.index);
            let body = &mut out[..memory::BLOCK_SIZE - NODE_SALT];
            let block_key = volume_key.one_time(self.keys.suite, "salt table", &salt);
            let sealed = buffer.source(NODE_SALT..memory::BLOCK_SIZE);
            block_key.open_from(0, &ad, sealed, &entry.tag, body, |_| ()).map_err(|_| damaged())?;
        } else {
            let keys = self.epoch_keys(io, entry.epoch).await?;
            let ad = node_ad(&self.header.volume, key.tree, key.level, key.index);
            let sealed = buffer.source(0..memory::BLOCK_SIZE);
            let opened = keys.node.open_from(entry.nonce, &ad, sealed, &entry.tag, out, |_| ());
            if opened.is_err() && !mutated(Mutation::ParentTagUnchecked) {
                return Err(damaged());
            }
        }
        self.counters.nodes_read.add(1);
        Ok(page)
    }

    /// The keys of an epoch, from memory or the salt table.
    pub(crate) fn epoch_keys<'a>(
        &'a self,
        io: &'a Io,
        number: u32,
    ) -> LocalBoxFuture<'a, Result<Arc<EpochKeys>>> {
        if let Some(keys) = self.keys.known(number) {
            return futures::future::ready(Ok(keys)).boxed_local();
        }
        async move {
            let unknown = || {
                Error::new(
                    Kind::Corrupt,
                    format!(
                        "the salt table does not know key epoch {number}; restore the volume from a backup"
                    ),
                )
            };
            let salt = match self.salt(io, Tree::Salts, number).await? {
                // What the session before a change of key had not entered yet is in the new table.
                None if self.keys.is_old(number) => self.salt(io, Tree::OldSalts, number).await?,
                found => found,
            };
            Ok(self.keys.learn(number, &salt.ok_or_else(unknown)?))
        }
        .boxed_local()
    }

    /// An epoch's salt, if the table has it.
    async fn salt(&self, io: &Io, tree: Tree, number: u32) -> Result<Option<[u8; 32]>> {
        let bits = self.geometry.salt_bits;
        let key = NodeKey { tree, level: 0, index: u64::from(number) >> bits };
        let Some(page) = self.node(io, key).await? else { return Ok(None) };
        let mut salt = [0; 32];
        let at = child_slot(u64::from(number), bits) * 32;
        salt.copy_from_slice(&page[at..at + 32]);
        Ok((salt != [0; 32]).then_some(salt))
    }
}
