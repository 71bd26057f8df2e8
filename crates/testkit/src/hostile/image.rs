//! What a disk holds.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use memory::BLOCK_SIZE;

/// The content of one block.
pub(super) type Block = [u8; BLOCK_SIZE];

static ZERO: Block = [0; BLOCK_SIZE];

/// A copy of a whole disk. Sparse, and cheap to clone: blocks are shared until they change.
#[derive(Debug, Clone)]
pub struct Image {
    blocks: u64,
    content: BTreeMap<u64, Arc<Block>>,
}

impl Image {
    /// An image of `blocks` blocks, all zero.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self { blocks, content: BTreeMap::new() }
    }

    /// Size in blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The content of a block; zero if it was never written, or lies outside.
    #[must_use]
    pub fn block(&self, block: u64) -> &[u8; BLOCK_SIZE] {
        self.content.get(&block).map_or(&ZERO, |content| content)
    }

    /// The blocks that were ever written, in order.
    pub fn written(&self) -> impl Iterator<Item = u64> + '_ {
        self.content.keys().copied()
    }

    /// Replaces a block; nothing happens outside of the image.
    pub fn set(&mut self, block: u64, content: &[u8; BLOCK_SIZE]) {
        self.put(block, Some(Arc::new(*content)));
    }

    /// Flips one bit (`0..32768`) of a block.
    ///
    /// # Panics
    /// When there is no such bit.
    pub fn corrupt_bit(&mut self, block: u64, bit: usize) {
        let mut content = *self.block(block);
        content[bit / 8] ^= 1 << (bit % 8);
        self.set(block, &content);
    }

    /// Exchanges two blocks.
    pub fn swap(&mut self, a: u64, b: u64) {
        let (at_a, at_b) = (self.get(a), self.get(b));
        self.put(a, at_b);
        self.put(b, at_a);
    }

    /// Makes a block what it is in `from`.
    pub fn replay_block(&mut self, from: &Image, block: u64) {
        self.put(block, from.get(block));
    }

    /// Cuts the end off. An image that is smaller already stays as it is.
    pub fn truncate(&mut self, blocks: u64) {
        self.blocks = self.blocks.min(blocks);
        let _ = self.content.split_off(&self.blocks);
    }

    /// Puts zeros behind the end. An image that is larger already stays as it is.
    pub fn extend(&mut self, blocks: u64) {
        self.blocks = self.blocks.max(blocks);
    }

    pub(super) fn written_in(&self, range: Range<u64>) -> Vec<u64> {
        self.content.range(range).map(|(&block, _)| block).collect()
    }

    pub(super) fn get(&self, block: u64) -> Option<Arc<Block>> {
        self.content.get(&block).cloned()
    }

    /// Replaces a block, by zero if there is no content, and gives what was there.
    pub(super) fn put(&mut self, block: u64, content: Option<Arc<Block>>) -> Option<Arc<Block>> {
        match content {
            Some(content) if block < self.blocks => self.content.insert(block, content),
            _ => self.content.remove(&block),
        }
    }
}

impl PartialEq for Image {
    /// By content: a block that was never written equals one of zeroes.
    fn eq(&self, other: &Self) -> bool {
        let same = |&block: &u64| self.block(block) == other.block(block);
        self.blocks == other.blocks && self.content.keys().chain(other.content.keys()).all(same)
    }
}

impl Eq for Image {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_and_then_part() {
        let mut one = Image::new(4);
        one.set(1, &[1; BLOCK_SIZE]);
        let before = one.clone();
        assert!(std::ptr::eq(one.block(1), before.block(1)), "shared");
        one.corrupt_bit(1, 9);
        assert_eq!((one.block(1)[1], before.block(1)[1]), (3, 1));
        assert_ne!(one, before);
        one.replay_block(&before, 1);
        assert_eq!(one, before);
    }

    #[test]
    fn swap_set_and_truncate_keep_to_the_image() {
        let mut image = Image::new(4);
        image.set(3, &[3; BLOCK_SIZE]);
        image.swap(3, 0);
        assert_eq!((image.block(0)[0], image.block(3)[0]), (3, 0));
        image.swap(0, 9);
        assert_eq!(image, Image::new(4), "swapped out of the image is gone");
        image.set(3, &[3; BLOCK_SIZE]);
        image.truncate(3);
        image.truncate(5);
        image.extend(2);
        assert_eq!(image, Image::new(3));
        image.set(3, &[3; BLOCK_SIZE]);
        assert_eq!(image.written().count(), 0);
    }
}
