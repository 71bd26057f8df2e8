//! One thread's way to what is measured: the bare store, or the volume on it. The load can't tell which.

use std::sync::Arc;

use bytes::Bytes;
use store::{BLOCK_SIZE, Buffer, Operation};
use volume::{Error, Request, Result};

/// The end of one request.
pub struct Ended {
    pub token: u64,
    pub buffer: Option<Buffer>,
    pub result: Result<()>,
}

/// A queue of requests.
pub trait Lane {
    /// Memory for requests of this lane.
    fn buffer(&mut self, blocks: usize) -> Buffer;
    fn read(&mut self, token: u64, block: u64, buffer: Buffer);
    fn write(&mut self, token: u64, block: u64, buffer: Buffer);
    fn flush(&mut self, token: u64);
    /// Sends what was asked for and sleeps until at least something has ended, which it appends.
    fn wait(&mut self, ended: &mut Vec<Ended>);
    /// Sleeps until the store has all that has ended.
    fn settle(&mut self) {}
}

/// The bare store.
pub struct Raw {
    queue: Box<dyn store::Queue>,
    completions: Vec<store::Completion>,
}

impl Raw {
    pub fn new(store: &dyn store::Store, depth: u32) -> Result<Self> {
        Ok(Self { queue: store.queue(depth)?, completions: Vec::new() })
    }
}

impl Lane for Raw {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.queue.buffer(blocks)
    }

    fn read(&mut self, token: u64, block: u64, buffer: Buffer) {
        self.queue.submit(token, Operation::Read { block, buffer });
    }

    fn write(&mut self, token: u64, block: u64, buffer: Buffer) {
        self.queue.submit(token, Operation::Write { block, buffer });
    }

    fn flush(&mut self, token: u64) {
        self.queue.submit(token, Operation::Flush);
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) {
        while self.completions.is_empty() {
            self.queue.wait(None, &mut self.completions);
        }
        ended.extend(self.completions.drain(..).map(|completion| Ended {
            token: completion.token,
            buffer: completion.buffer,
            result: completion.result.map_err(Error::from),
        }));
    }
}

/// The protected volume.
pub struct Protected {
    queue: volume::Queue,
    completions: Vec<volume::Completion>,
    /// What is being written, by token (a load numbers its slots from 0): the volume lets go of it before the write ends.
    writing: Vec<Option<Arc<Buffer>>>,
}

/// A buffer as the volume has it for a write.
struct Lent(Arc<Buffer>);

fn slot(token: u64) -> usize {
    usize::try_from(token).unwrap_or(usize::MAX)
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.private().unwrap_or_default()
    }
}

impl Protected {
    pub fn new(volume: &volume::Volume, depth: u32) -> Result<Self> {
        Ok(Self { queue: volume.queue(depth)?, completions: Vec::new(), writing: Vec::new() })
    }
}

impl Lane for Protected {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        Buffer::private_zeroed(blocks)
    }

    fn read(&mut self, token: u64, block: u64, buffer: Buffer) {
        self.queue.submit(token, Request::Read { block, buffer });
    }

    fn write(&mut self, token: u64, block: u64, buffer: Buffer) {
        let buffer = Arc::new(buffer);
        let data = Bytes::from_owner(Lent(Arc::clone(&buffer)));
        let slot = slot(token);
        if slot >= self.writing.len() {
            self.writing.resize(slot + 1, None);
        }
        self.writing[slot] = Some(buffer);
        self.queue.submit(token, Request::Write { block, data, fua: false });
    }

    fn flush(&mut self, token: u64) {
        self.queue.submit(token, Request::Flush);
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) {
        while self.completions.is_empty() {
            self.queue.wait(None, &mut self.completions);
        }
        for completion in self.completions.drain(..) {
            let written = self.writing.get_mut(slot(completion.token)).and_then(Option::take);
            let buffer = completion.buffer.or_else(|| written.and_then(Arc::into_inner));
            ended.push(Ended { token: completion.token, buffer, result: completion.result });
        }
    }

    fn settle(&mut self) {
        while self.queue.pending() > 0 {
            self.queue.wait(None, &mut self.completions);
        }
    }
}

/// Bytes that say which block this is, at its beginning.
const MARK: usize = 16;

/// What every block begins with, so that each read can be checked at the cost of a comparison.
fn mark(block: u64) -> [u8; MARK] {
    let mut mark = [0; MARK];
    mark[..8].copy_from_slice(&block.to_le_bytes());
    mark[8..].copy_from_slice(&(block ^ 0x6376_6d69_6f20_6d6b).to_be_bytes());
    mark
}

/// Marks the blocks of a buffer that is about to be written from `block` on.
pub fn put_marks(buffer: &mut Buffer, block: u64) {
    for (at, logical) in (0..buffer.blocks()).zip(block..) {
        buffer.copy_from(at * BLOCK_SIZE, &mark(logical));
    }
}

/// Whether a buffer that was read from `block` on holds those blocks.
///
/// # Errors
/// Names the first block that it does not hold.
pub fn check_marks(buffer: &Buffer, block: u64) -> Result<()> {
    for (at, logical) in (0..buffer.blocks()).zip(block..) {
        let mut found = [0; MARK];
        buffer.copy_to(at * BLOCK_SIZE, &mut found);
        if found != mark(logical) {
            return Err(Error::new(
                volume::Kind::Corrupt,
                format!(
                    "block {logical} does not read as it was written; this is a defect, and the figures would be worthless"
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_lies_elsewhere_is_noticed() {
        let mut buffer = Buffer::private_zeroed(3);
        assert!(check_marks(&buffer, 0).is_err(), "zeros are no block");
        put_marks(&mut buffer, 7);
        check_marks(&buffer, 7).unwrap();
        assert!(check_marks(&buffer, 8).unwrap_err().to_string().starts_with("block 8"));
    }
}
