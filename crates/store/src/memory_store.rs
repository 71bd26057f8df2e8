//! A store in private memory: for tests, and as the medium that costs nothing but a copy.

use std::sync::{Arc, PoisonError, RwLock};
use std::task::Waker;
use std::time::Duration;

use memory::{Arena, Mapping};

use crate::signal::Signal;
use crate::{BLOCK_SIZE, Buffer, Completion, Error, Operation, Queue, Store};

/// Blocks that stay together under one lock, so that a transfer takes few of them.
const STRIPE: u64 = 64;
const LOCKS: usize = 1024;

/// Blocks in RAM, zero until written. Sparse: only what was written takes memory, in huge pages.
///
/// A block is read and written as a whole, whatever other queues do; a transfer of several blocks may mix
/// with others at the boundary of a block.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    mapping: Mapping,
    blocks: u64,
    locks: Vec<RwLock<()>>,
}

impl MemoryStore {
    /// A store of `blocks` blocks.
    ///
    /// # Errors
    /// When the kernel refuses the address space.
    pub fn new(blocks: u64) -> Result<Self, Error> {
        let length = usize::try_from(blocks).ok().and_then(|blocks| blocks.checked_mul(BLOCK_SIZE));
        let mapping = match length.map(Mapping::anonymous) {
            Some(Ok(mapping)) => mapping,
            Some(Err(error)) => {
                return Err(Error::from_errno(error.raw_os_error().unwrap_or(libc::ENOMEM), "open", NAME));
            }
            None => return Err(Error::from_errno(libc::ENOMEM, "open", NAME)),
        };
        // Fewer page faults and translations, at the price of touching 2 MiB for each first block.
        mapping.advise_huge();
        let locks = (0..LOCKS).map(|_| RwLock::new(())).collect();
        Ok(Self { inner: Arc::new(Inner { mapping, blocks, locks }) })
    }
}

const NAME: &str = "memory";

impl Store for MemoryStore {
    fn blocks(&self) -> u64 {
        self.inner.blocks
    }

    fn name(&self) -> String {
        NAME.into()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        let arena = Arena::for_depth(depth)
            .map_err(|error| Error::from_errno(error.raw_os_error().unwrap_or(libc::ENOMEM), "open", NAME))?;
        Ok(Box::new(MemoryQueue {
            inner: self.inner.clone(),
            arena,
            held: Vec::new(),
            signal: Arc::default(),
        }))
    }
}

impl Inner {
    /// Calls `action` with offset and length of each run of blocks that one lock covers.
    fn each_stripe(
        &self,
        operation: &'static str,
        block: u64,
        blocks: u64,
        mut action: impl FnMut(&RwLock<()>, usize, usize),
    ) -> Result<(), Error> {
        let out = || Error::out_of_range(operation, NAME.into(), block, blocks, self.blocks);
        let end =
            block.checked_add(blocks).filter(|&end| blocks > 0 && end <= self.blocks).ok_or_else(out)?;
        let mut at = block;
        while at < end {
            let next = (at - at % STRIPE + STRIPE).min(end);
            let index = usize::try_from(at / STRIPE).map_err(|_| out())?;
            let offset = usize::try_from(at).map_err(|_| out())? * BLOCK_SIZE;
            let length = usize::try_from(next - at).map_err(|_| out())? * BLOCK_SIZE;
            action(&self.locks[index % LOCKS], offset, length);
            at = next;
        }
        Ok(())
    }

    fn read(&self, block: u64, buffer: &mut Buffer) -> Result<(), Error> {
        let (mut at, blocks) = (0, length_of(buffer));
        self.each_stripe("read", block, blocks, |lock, offset, length| {
            let target = buffer.target(at..at + length);
            let _guard = lock.read().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the lock keeps writers of these blocks out. Buffer and mapping are separate memory.
            unsafe { self.mapping.copy_to(offset, target) };
            at += length;
        })
    }

    fn write(&self, block: u64, buffer: &Buffer) -> Result<(), Error> {
        let mut at = 0;
        self.each_stripe("write", block, length_of(buffer), |lock, offset, length| {
            let source = buffer.source(at..at + length);
            let _guard = lock.write().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the lock keeps readers and writers of these blocks out. Buffer and mapping are separate memory.
            unsafe { self.mapping.copy_from(offset, &source) };
            at += length;
        })
    }

    fn discard(&self, block: u64, blocks: u64) -> Result<(), Error> {
        let mut failed = None;
        self.each_stripe("discard", block, blocks, |lock, offset, length| {
            let _guard = lock.write().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the lock keeps all others away from these blocks, and no reference to them ever exists.
            failed = unsafe { self.mapping.forget(offset, length) }.err().or(failed.take());
        })?;
        match failed {
            None => Ok(()),
            Some(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                Err(Error::from_errno(errno, "discard", NAME).at(block))
            }
        }
    }

    fn perform(&self, token: u64, operation: Operation) -> Completion {
        let (buffer, result) = match operation {
            Operation::Read { block, mut buffer } => {
                let result = self.read(block, &mut buffer);
                (Some(buffer), result)
            }
            Operation::Write { block, buffer } => {
                let result = self.write(block, &buffer);
                (Some(buffer), result)
            }
            Operation::Flush => (None, Ok(())),
            Operation::Discard { block, blocks } => (None, self.discard(block, blocks)),
        };
        Completion { token, buffer, result }
    }
}

fn length_of(buffer: &Buffer) -> u64 {
    u64::try_from(buffer.blocks()).expect("a length fits 64 bits")
}

struct MemoryQueue {
    inner: Arc<Inner>,
    arena: Arc<Arena>,
    held: Vec<(u64, Operation)>,
    signal: Arc<Signal>,
}

impl Queue for MemoryQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.arena.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        self.held.push((token, operation));
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let inner = &self.inner;
        completions.extend(self.held.drain(..).map(|(token, operation)| inner.perform(token, operation)));
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        if self.held.is_empty() {
            self.signal.sleep(timeout);
        }
        self.poll(completions);
    }

    fn waker(&self) -> Waker {
        Waker::from(self.signal.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn run(queue: &mut dyn Queue, operation: Operation) -> Buffer {
        let mut completions = Vec::new();
        queue.submit(0, operation);
        queue.poll(&mut completions);
        let Completion { buffer, result, .. } = completions.remove(0);
        result.unwrap();
        buffer.unwrap()
    }

    /// Two threads write the same blocks, across the border of two locks, and two read them.
    #[test]
    fn no_block_is_ever_torn() {
        const ROUNDS: usize = 3000;
        let store = MemoryStore::new(2 * STRIPE).unwrap();
        thread::scope(|scope| {
            for value in [1, 2] {
                let store = &store;
                scope.spawn(move || {
                    let mut queue = store.queue(1).unwrap();
                    for _ in 0..ROUNDS {
                        let mut buffer = queue.buffer(4);
                        buffer.copy_from(0, &[value; 4 * BLOCK_SIZE]);
                        run(&mut *queue, Operation::Write { block: STRIPE - 2, buffer });
                    }
                });
                scope.spawn(move || {
                    let mut queue = store.queue(1).unwrap();
                    for _ in 0..ROUNDS {
                        let buffer = queue.buffer(4);
                        let buffer = run(&mut *queue, Operation::Read { block: STRIPE - 2, buffer });
                        for block in buffer.private().unwrap().chunks(BLOCK_SIZE) {
                            assert!(block.iter().all(|byte| *byte == block[0]), "a block of two writes");
                        }
                    }
                });
            }
        });
    }
}
