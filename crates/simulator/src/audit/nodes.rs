//! Nodes of the trees, when something is about to lead to them.

use std::sync::Arc;

use memory::BLOCK_SIZE;
use seal::EpochKeys;
use volume::format::ad::Tree;
use volume::format::entry::{Entry, entry_at};
use volume::geometry::Geometry;

use super::Inner;
use super::record::Sealed;

/// Bytes of a salt, which a node of the salt table begins with.
const SALT: usize = 32;

/// Where the roots are that a guest names, and what it seals under.
pub(super) struct Roots {
    pub(super) desk: usize,
    /// The volume key, by its number.
    pub(super) key: usize,
    pub(super) epoch: u32,
    pub(super) salt: [u8; 32],
    pub(super) keys: Arc<EpochKeys>,
    pub(super) geometry: Geometry,
    /// Whether what they lead to must be durable by now.
    pub(super) durable: bool,
}

/// A node by its place in its tree.
#[derive(Clone, Copy)]
struct Node {
    tree: Tree,
    level: u8,
    index: u64,
}

impl Node {
    fn ad(self, kind: u8, volume: &[u8; 16]) -> [u8; 32] {
        let mut ad = [0; 32];
        ad[..16].copy_from_slice(volume);
        ad[16..19].copy_from_slice(&[kind, self.tree.code(), self.level]);
        ad[24..].copy_from_slice(&self.index.to_le_bytes());
        ad
    }

    fn sealed(self, entry: &Entry) -> Sealed {
        let place = [self.tree.code(), self.level].map(u64::from);
        let logical = place[0] << 60 | place[1] << 56 | self.index;
        Sealed { logical, physical: entry.physical, tag: entry.tag }
    }
}

impl Inner {
    /// Checks what a root leads to, as far as its guest sealed it in this session: that it was written, and is durable, and opens as the node
    /// that it is named as, and that no nonce was used twice.
    pub(super) fn tree(&mut self, roots: &Roots, tree: Tree, root: &Entry) -> Result<(), String> {
        let geometry = &roots.geometry;
        let (levels, bits) = match tree {
            Tree::Map => (geometry.map_levels(), geometry.fan_out_bits),
            Tree::Bitmap => (geometry.bitmap_levels(), geometry.fan_out_bits),
            Tree::Salts | Tree::OldSalts => (geometry.salt_levels(), geometry.salt_bits),
        };
        let mut left = vec![(Node { tree, level: levels - 1, index: 0 }, *root)];
        while let Some((node, entry)) = left.pop() {
            let Some(page) = self.node(roots, node, &entry)? else { continue };
            if node.level == 0 {
                continue;
            }
            for child in 0..1 << bits {
                let entry = entry_at(&page, child).map_err(|error| error.to_string())?;
                let index = node.index << bits | child as u64;
                left.push((Node { level: node.level - 1, index, ..node }, entry));
            }
        }
        Ok(())
    }

    /// One node; nothing, if it is of before, or was looked at before.
    fn node(&mut self, roots: &Roots, node: Node, entry: &Entry) -> Result<Option<Vec<u8>>, String> {
        let salted = node.tree.is_self_salted();
        let written = self.desks[roots.desk].blocks.get(&entry.physical);
        if entry.is_absent() || (!salted && entry.epoch != roots.epoch) || (salted && written.is_none()) {
            return Ok(None);
        }
        let Node { tree, level, index } = node;
        let named = format!("node {index} at level {level} of the {tree:?} tree at block {}", entry.physical);
        let written = written.ok_or_else(|| format!("{named}: its guest did not write it"))?;
        let durable = self.desks[roots.desk].durable;
        if !written.stored.is_some_and(|stored| !roots.durable || stored <= durable) {
            return Err(format!("{named} is not on the store yet, or not durable"));
        }
        let content = Arc::clone(&written.content);
        let sealed = &content[written.offset..written.offset + BLOCK_SIZE];
        let (salt, nonce, purpose) = match sealed.first_chunk::<SALT>() {
            Some(salt) if salted => (*salt, 0, "salt table"),
            _ => (roots.salt, entry.nonce, "node"),
        };
        let what = node.sealed(entry);
        if self.nonces.get(&(salt, purpose, nonce)) == Some(&what) {
            return Ok(None);
        }
        self.use_nonce(&salt, purpose, nonce, what)?;
        let Some(book) = &self.book else { return Ok(None) };
        let mut page = vec![0; BLOCK_SIZE];
        let opened = if salted {
            let key = self.volume_keys[roots.key].one_time(book.suite, "salt table", &salt);
            let body = &mut page[..BLOCK_SIZE - SALT];
            key.open(0, &node.ad(3, &book.volume), &sealed[SALT..], &entry.tag, body)
        } else {
            roots.keys.node.open(nonce, &node.ad(2, &book.volume), sealed, &entry.tag, &mut page)
        };
        opened.map_err(|_| format!("{named} does not open as that"))?;
        Ok(Some(page))
    }
}
