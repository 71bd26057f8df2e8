//! What lies under a volume: its bytes, and a machine that stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use memory::{BLOCK_SIZE, Buffer};
use store::{Completion, Error, ErrorKind, Operation, Store};
use testkit::{Interceptor, Verdict};

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

/// A machine that stops after some writes and flushes: of the next write one sector reaches the medium, and nothing after that.
pub struct Stopping(pub Arc<AtomicI64>);

impl Interceptor for Stopping {
    fn submitted(&self, _queue: usize, operation: &Operation, medium: &dyn Store) -> Verdict {
        let counts = matches!(operation, Operation::Write { .. } | Operation::Flush);
        let left = if counts { self.0.fetch_sub(1, Ordering::Relaxed) } else { 1 };
        if left > 0 {
            return Verdict::Pass;
        }
        if let (0, Operation::Write { block, buffer }) = (left, operation) {
            tear(medium, *block, buffer);
        }
        Verdict::Fail(Error::new(ErrorKind::Io, "write", "stopped", "the machine stopped"))
    }
}

/// The first sector of the write that the machine stops in has arrived.
fn tear(medium: &dyn Store, block: u64, buffer: &Buffer) {
    let mut new = vec![0; buffer.blocks() * BLOCK_SIZE];
    buffer.copy_to(0, &mut new);
    let read = Operation::Read { block, buffer: Buffer::private_zeroed(buffer.blocks()) };
    let old = submit(medium, read).buffer.expect("the buffer");
    old.copy_to(SECTOR, &mut new[SECTOR..]);
    put(medium, block, &new);
}
