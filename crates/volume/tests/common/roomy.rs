//! A medium that gives space as it is written to, as a sparse file does, and has so much of it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use store::{BLOCK_SIZE, Buffer, Completion, Error, MemoryStore, Operation, Queue, Store, Usage};

#[derive(Clone)]
pub struct Roomy {
    medium: MemoryStore,
    /// Blocks that it has given.
    taken: Arc<Mutex<BTreeSet<u64>>>,
    room: Arc<AtomicU64>,
    /// How often it was asked for room that it does not have.
    pub refusals: Arc<AtomicU64>,
    /// How often it was told to forget some.
    pub discards: Arc<AtomicU64>,
    /// Whether it says what it has left.
    pub tells: Arc<AtomicBool>,
    /// What it says of the blocks that it has given, and how often it was asked.
    pub says: Arc<Mutex<Says>>,
    pub asked: Arc<AtomicU64>,
    /// Whether it refuses to be written to, wherever that is.
    pub refuses: Arc<AtomicBool>,
    /// Whether it has no room to forget anything.
    pub refuses_discards: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Says {
    #[default]
    Nothing,
    /// Which ones they are. As XFS it refuses all the same to reserve one of them when it is full.
    Truth,
    /// That it has given all of them.
    TooMuch,
    /// That it has given none: each write takes room, as on a file system that never overwrites in place.
    None,
    /// Nothing, and it cannot be asked to reserve anything: a device.
    Device,
}

struct RoomyQueue {
    store: Roomy,
    queue: Box<dyn Queue>,
    refused: Vec<Completion>,
}

impl Roomy {
    pub fn new(blocks: u64) -> Self {
        Self {
            medium: MemoryStore::new(blocks).expect("memory"),
            taken: Arc::default(),
            room: Arc::new(AtomicU64::new(u64::MAX)),
            refusals: Arc::default(),
            discards: Arc::default(),
            tells: Arc::default(),
            says: Arc::default(),
            asked: Arc::default(),
            refuses: Arc::default(),
            refuses_discards: Arc::default(),
        }
    }

    pub fn taken(&self) -> u64 {
        self.taken.lock().expect("a lock").len() as u64
    }

    /// Takes blocks back of which the predicate says so. They keep what is in them.
    pub fn take_back(&self, which: impl Fn(u64) -> bool) {
        self.taken.lock().expect("a lock").retain(|block| !which(*block));
    }

    /// Has room for so many blocks in all from now on.
    pub fn set_room(&self, blocks: u64) {
        self.room.store(blocks, Ordering::SeqCst);
    }

    fn is_device(&self) -> bool {
        *self.says.lock().expect("a lock") == Says::Device
    }

    fn is_full(&self) -> bool {
        self.taken() >= self.room.load(Ordering::SeqCst)
    }

    fn take(&self, blocks: Range<u64>) -> Result<(), Error> {
        let refused = |block| Err(Error::from_errno(28, "write", "roomy").at(block));
        if self.refuses.load(Ordering::SeqCst) {
            return refused(blocks.start);
        }
        let mut taken = self.taken.lock().expect("a lock");
        for block in blocks {
            if taken.contains(&block) {
                continue;
            }
            if taken.len() as u64 >= self.room.load(Ordering::SeqCst) {
                return refused(block);
            }
            taken.insert(block);
        }
        Ok(())
    }
}

impl Store for Roomy {
    fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    fn name(&self) -> String {
        "roomy".into()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        let queue = self.medium.queue(depth)?;
        Ok(Box::new(RoomyQueue { store: self.clone(), queue, refused: Vec::new() }))
    }

    fn allocate_range(&self, blocks: Range<u64>) -> Result<(), Error> {
        if self.is_device() {
            return Ok(());
        }
        let grudges = *self.says.lock().expect("a lock") == Says::Truth && self.is_full();
        let taken = match grudges {
            true => Err(Error::from_errno(28, "allocate", "roomy").at(blocks.start)),
            false => self.take(blocks),
        };
        self.refusals.fetch_add(u64::from(taken.is_err()), Ordering::SeqCst);
        taken
    }

    fn given(&self, blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let taken = self.taken.lock().expect("a lock");
        match *self.says.lock().expect("a lock") {
            Says::Nothing | Says::Device => None,
            Says::Truth => Some(testkit::runs(taken.range(blocks).copied())),
            Says::TooMuch => Some(vec![blocks]),
            Says::None => Some(Vec::new()),
        }
    }

    fn usage(&self) -> Option<Usage> {
        let block = BLOCK_SIZE as u64;
        let left = self.room.load(Ordering::SeqCst).saturating_sub(self.taken());
        self.tells
            .load(Ordering::SeqCst)
            .then(|| Usage { taken: self.taken() * block, left: left.saturating_mul(block) })
    }
}

impl Queue for RoomyQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.queue.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        let operation = match operation {
            Operation::Write { block, buffer } => {
                if let Err(error) = self.store.take(block..block + buffer.blocks() as u64) {
                    self.refused.push(Completion { token, buffer: Some(buffer), result: Err(error) });
                    return;
                }
                Operation::Write { block, buffer }
            }
            Operation::Discard { block, .. } if self.store.refuses_discards.load(Ordering::SeqCst) => {
                let refused = Err(Error::from_errno(28, "discard", "roomy").at(block));
                self.refused.push(Completion { token, buffer: None, result: refused });
                return;
            }
            Operation::Discard { block, blocks } => {
                self.store.discards.fetch_add(1, Ordering::SeqCst);
                self.store
                    .taken
                    .lock()
                    .expect("a lock")
                    .retain(|taken| !(block..block + blocks).contains(taken));
                Operation::Discard { block, blocks }
            }
            other => other,
        };
        self.queue.submit(token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.refused);
        self.queue.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let refused = !self.refused.is_empty();
        completions.append(&mut self.refused);
        self.queue.wait(if refused { Some(Duration::ZERO) } else { timeout }, completions);
    }

    fn waker(&self) -> Waker {
        self.queue.waker()
    }
}
