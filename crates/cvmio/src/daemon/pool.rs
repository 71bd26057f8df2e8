//! Buffers to be used again: a fresh one would have to be zeroed.

use std::collections::HashMap;

use store::Buffer;

/// Buffers that wait to be used again.
#[derive(Default)]
pub struct Pool {
    free: HashMap<usize, Vec<Buffer>>,
    blocks: usize,
}

/// Most blocks that wait in a pool: 8 MiB.
const POOL_BLOCKS: usize = 2048;

impl Pool {
    /// A buffer of so many blocks, with any content.
    pub fn take(&mut self, blocks: usize) -> Buffer {
        match self.free.get_mut(&blocks).and_then(Vec::pop) {
            Some(buffer) => {
                self.blocks -= blocks;
                buffer
            }
            None => Buffer::private_zeroed(blocks),
        }
    }

    /// Keeps a buffer for later, if there is room.
    pub fn put(&mut self, buffer: Buffer) {
        if self.blocks + buffer.blocks() <= POOL_BLOCKS {
            self.blocks += buffer.blocks();
            self.free.entry(buffer.blocks()).or_default().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_gives_back_what_fits_and_keeps_to_its_limit() {
        let mut pool = Pool::default();
        let first = pool.take(3);
        let address = first.as_ptr();
        pool.put(first);
        assert_eq!(pool.take(2).blocks(), 2);
        assert_eq!(pool.take(3).as_ptr(), address);
        pool.put(Buffer::private_zeroed(POOL_BLOCKS));
        pool.put(Buffer::private_zeroed(1));
        assert_eq!(pool.blocks, POOL_BLOCKS);
        assert!(!pool.free.contains_key(&1));
    }
}
