//! What lies under a volume: its bytes, and a machine that stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Waker;
use std::time::Duration;

use memory::{BLOCK_SIZE, Buffer};
use store::{Completion, Error, ErrorKind, Operation, Queue, Store};

/// A whole store, block by block.
pub type Image = Vec<Vec<u8>>;

/// Bytes that a disk writes whole.
const SECTOR: usize = 512;
/// Blocks that are read and written at once.
const PIECE: usize = 256;

fn submit(store: &dyn Store, operation: Operation) -> Completion {
    let mut queue = store.queue(1).expect("a queue");
    queue.submit(1, operation);
    let mut ended = Vec::new();
    while ended.is_empty() {
        queue.poll(&mut ended);
    }
    ended.remove(0)
}

/// All that is on a store.
pub fn image(store: &dyn Store) -> Image {
    let pieces = (0..store.blocks()).step_by(PIECE).flat_map(|block| {
        let blocks = PIECE.min((store.blocks() - block).try_into().expect("small"));
        let ended = submit(store, Operation::Read { block, buffer: Buffer::private_zeroed(blocks) });
        let buffer = ended.buffer.expect("the buffer");
        buffer.private().expect("private").chunks(BLOCK_SIZE).map(<[u8]>::to_vec).collect::<Vec<_>>()
    });
    pieces.collect()
}

/// Writes whole blocks.
pub fn put(store: &dyn Store, block: u64, bytes: &[u8]) {
    let mut buffer = Buffer::private_zeroed(bytes.len() / BLOCK_SIZE);
    buffer.copy_from(0, bytes);
    submit(store, Operation::Write { block, buffer }).result.expect("written");
}

/// Puts a whole store back.
pub fn put_back(store: &dyn Store, image: &Image) {
    for (block, piece) in (0..).step_by(PIECE).zip(image.chunks(PIECE)) {
        put(store, block, &piece.concat());
    }
}

/// A store whose machine stops after some writes and flushes: of the next write one sector reaches the medium, and nothing after that.
pub struct Stopping {
    pub medium: Arc<dyn Store>,
    pub left: Arc<AtomicI64>,
}

struct StoppingQueue {
    store: Arc<dyn Store>,
    medium: Box<dyn Queue>,
    left: Arc<AtomicI64>,
    failed: Vec<Completion>,
}

impl Store for Stopping {
    fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    fn name(&self) -> String {
        self.medium.name()
    }

    fn queue(&self, depth: u32) -> std::result::Result<Box<dyn Queue>, Error> {
        let medium = self.medium.queue(depth)?;
        let (store, left) = (Arc::clone(&self.medium), Arc::clone(&self.left));
        Ok(Box::new(StoppingQueue { store, medium, left, failed: Vec::new() }))
    }
}

impl StoppingQueue {
    /// The first sector of the write that the machine stops in has arrived.
    fn tear(&self, block: u64, buffer: &Buffer) {
        let mut new = vec![0; buffer.blocks() * BLOCK_SIZE];
        buffer.copy_to(0, &mut new);
        let read = Operation::Read { block, buffer: Buffer::private_zeroed(buffer.blocks()) };
        let old = submit(&*self.store, read).buffer.expect("the buffer");
        old.copy_to(SECTOR, &mut new[SECTOR..]);
        put(&*self.store, block, &new);
    }
}

impl Queue for StoppingQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.medium.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        let counts = matches!(operation, Operation::Write { .. } | Operation::Flush);
        let left = if counts { self.left.fetch_sub(1, Ordering::Relaxed) } else { 1 };
        if left <= 0 {
            if let (0, Operation::Write { block, buffer }) = (left, &operation) {
                self.tear(*block, buffer);
            }
            let result = Err(Error::new(ErrorKind::Io, "write", "stopped", "the machine stopped"));
            return self.failed.push(Completion { token, buffer: None, result });
        }
        self.medium.submit(token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.failed);
        self.medium.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        if self.failed.is_empty() { self.medium.wait(timeout, completions) } else { self.poll(completions) }
    }

    fn waker(&self) -> Waker {
        self.medium.waker()
    }
}
