//! A second reader: sees all that guests write, has the volume key, and follows `docs/disk-format.md` in words of its own.
//!
//! What a guest reads back it has checked itself, with the code that wrote it; this does not. It checks
//!
//! * of each journal record, that it continues a chain that was written, that each block it names was on the store before it (durable,
//!   where nothing else could tell later), opens as that logical block, and that no nonce was used twice;
//! * of each superblock, that it stands on that chain and has a key of its own, and that the nodes that it leads to are durable, and open as
//!   what they are named as, each under a nonce of its own; the same of the roots that a record names, before they are durable;
//! * of each superblock and each write of data, that a successor would leave the units alone that its guest is writing to;
//! * of each copy of header and key slots, that the other one is durable.

mod book;
mod desk;
mod nodes;
mod record;
mod superblock;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use memory::{BLOCK_SIZE, Buffer};
use seal::{EpochKeys, VolumeKey};
use store::{Completion, Operation, Queue, Store};
use testkit::hostile::Session;
use volume::geometry::{Geometry, SUPERBLOCK_SLOTS, SUPERBLOCK_START};

pub(crate) use self::book::Book;
use self::desk::{Desk, Written};
use self::record::Sealed;

#[derive(Default)]
struct Inner {
    book: Option<Book>,
    /// The volume keys that there have been, and the one that whoever comes next finds.
    volume_keys: Vec<VolumeKey>,
    current: usize,
    desks: Vec<Desk>,
    /// Heads of chains, by the generation that they stand behind.
    heads: HashMap<u64, Vec<[u8; 32]>>,
    keys: HashMap<(usize, [u8; 32]), Arc<EpochKeys>>,
    nonces: HashMap<([u8; 32], &'static str, u64), Sealed>,
    complaint: Option<String>,
}

/// Where the copies of header and key slots stand.
const COPIES: [u64; 2] = [0, 2];

/// The second reader. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Audit(Arc<Mutex<Inner>>);

impl Audit {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins: from here on records are read.
    pub(crate) fn open(&self, book: Book) {
        let mut inner = self.lock();
        let genesis = seal::sha256(&[b"cvmio genesis", &book.volume]);
        inner.heads.insert(0, vec![genesis]);
        inner.book = Some(book);
    }

    /// The volume has other sizes from now on.
    pub(crate) fn resize(&self, geometry: Geometry) {
        if let Some(book) = &mut self.lock().book {
            book.geometry = geometry;
        }
    }

    /// From now on who comes has this volume key.
    pub(crate) fn use_key(&self, key: VolumeKey) {
        let mut inner = self.lock();
        let known = inner.volume_keys.iter().position(|known| *known == key);
        inner.current = known.unwrap_or(inner.volume_keys.len());
        if known.is_none() {
            inner.volume_keys.push(key);
        }
    }

    /// What is wrong, if anything is.
    pub(crate) fn complaint(&self) -> Option<String> {
        self.lock().complaint.clone()
    }

    /// A guest's way to the store, watched.
    pub(crate) fn watch(&self, session: &Session) -> Audited {
        let mut inner = self.lock();
        let key = inner.current;
        inner.desks.push(Desk::new(key));
        Audited { session: session.clone(), audit: self.clone(), desk: inner.desks.len() - 1 }
    }
}

/// A store whose traffic is watched.
#[derive(Clone)]
pub(crate) struct Audited {
    session: Session,
    audit: Audit,
    desk: usize,
}

impl Audited {
    /// Blocks that its guest has written so far.
    pub(crate) fn writes(&self) -> u64 {
        self.audit.lock().desks[self.desk].writes
    }
}

impl Store for Audited {
    fn blocks(&self) -> u64 {
        self.session.blocks()
    }

    fn name(&self) -> String {
        self.session.name()
    }

    fn allocate_range(&self, blocks: std::ops::Range<u64>) -> Result<(), store::Error> {
        self.session.allocate_range(blocks)
    }

    fn usage(&self) -> Option<store::Usage> {
        self.session.usage()
    }

    fn given(&self, blocks: std::ops::Range<u64>) -> Option<Vec<std::ops::Range<u64>>> {
        self.session.given(blocks)
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, store::Error> {
        let queue = self.session.queue(depth)?;
        Ok(Box::new(AuditedQueue { queue, at: self.clone(), flights: HashMap::new() }))
    }
}

/// What an operation in flight will have done.
enum Flight {
    Write {
        block: u64,
        blocks: u64,
        /// The number of its first block among all that its guest wrote.
        number: u64,
    },
    /// A flush; how many stores its guest knew of.
    Flush(u64),
}

struct AuditedQueue {
    queue: Box<dyn Queue>,
    at: Audited,
    flights: HashMap<u64, Flight>,
}

impl AuditedQueue {
    fn see(&mut self, ended: &[Completion]) {
        let mut inner = self.at.audit.lock();
        let desk = &mut inner.desks[self.at.desk];
        for completion in ended {
            let flight = self.flights.remove(&completion.token);
            if let Some(Flight::Write { number, .. }) = flight {
                desk.end_data(number);
            }
            match flight {
                Some(Flight::Write { block, blocks, .. }) if completion.result.is_ok() => {
                    desk.stored += 1;
                    if let Some(copy) = COPIES.iter().position(|at| *at == block) {
                        desk.end_copy(copy);
                    }
                    for block in block..block + blocks {
                        if let Some(written) = desk.blocks.get_mut(&block) {
                            written.stored = Some(desk.stored);
                        }
                    }
                }
                Some(Flight::Flush(stored)) if completion.result.is_ok() => {
                    desk.flushed(stored);
                }
                _ => {}
            }
        }
    }
}

impl Queue for AuditedQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.queue.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        let mut inner = self.at.audit.lock();
        match &operation {
            Operation::Write { block, buffer } => {
                let number = inner.desks[self.at.desk].writes;
                let blocks = inner.write(self.at.desk, *block, buffer);
                self.flights.insert(token, Flight::Write { block: *block, blocks, number });
            }
            Operation::Flush => {
                let stored = inner.desks[self.at.desk].stored;
                self.flights.insert(token, Flight::Flush(stored));
            }
            Operation::Discard { block, blocks } => {
                let number = inner.desks[self.at.desk].writes;
                inner.discard(self.at.desk, *block, *blocks);
                self.flights.insert(token, Flight::Write { block: *block, blocks: *blocks, number });
            }
            Operation::Read { .. } => {}
        }
        drop(inner);
        self.queue.submit(token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.queue.poll(completions);
        self.see(&completions[before..]);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.queue.wait(timeout, completions);
        self.see(&completions[before..]);
    }

    fn waker(&self) -> Waker {
        self.queue.waker()
    }
}

impl Inner {
    /// Notes a write; how many blocks it has.
    fn write(&mut self, desk: usize, block: u64, buffer: &Buffer) -> u64 {
        let blocks = (buffer.len() / BLOCK_SIZE) as u64;
        let number = self.desks[desk].writes;
        self.desks[desk].writes += blocks;
        let Some(book) = &self.book else { return blocks };
        let geometry = book.geometry;
        let is_data = book.holds_data(block);
        let mut bytes = vec![0; buffer.len()];
        buffer.copy_to(0, &mut bytes);
        let judged = if is_data {
            self.data(desk, block, bytes);
            self.desks[desk].begin_data(number, block..block + blocks, &geometry)
        } else if geometry.is_bitmap_place(block) {
            self.data(desk, block, bytes);
            Ok(())
        } else if (geometry.journal_start()..geometry.bitmap_start()).contains(&block) {
            // What found no room is written once more.
            let digest = seal::sha256(&[&bytes]);
            if self.desks[desk].records.insert(block, digest) == Some(digest) {
                return blocks;
            }
            self.record(desk, &bytes).map_err(|what| format!("the record at block {block}: {what}"))
        } else if let Some(copy) = COPIES.iter().position(|at| *at == block) {
            self.desks[desk].begin_copy(copy)
        } else if let Some(slot) = block.checked_sub(SUPERBLOCK_START)
            && slot < u64::from(SUPERBLOCK_SLOTS)
        {
            self.superblock(desk, slot, &bytes)
                .map_err(|what| format!("the superblock in slot {slot}: {what}"))
        } else {
            Ok(())
        };
        if let Err(what) = judged {
            self.complaint.get_or_insert(what);
        }
        blocks
    }

    /// Notes a discard: of data only, and only where this guest may write.
    fn discard(&mut self, desk: usize, block: u64, blocks: u64) {
        let number = self.desks[desk].writes;
        self.desks[desk].writes += blocks;
        (block..block + blocks).for_each(|block| drop(self.desks[desk].blocks.remove(&block)));
        let Some(book) = &self.book else { return };
        let geometry = book.geometry;
        let judged = match (block..block + blocks).all(|block| book.holds_data(block)) {
            true => self.desks[desk].begin_data(number, block..block + blocks, &geometry),
            false => Err(format!("blocks {block} to {} are discarded, and hold no data", block + blocks)),
        };
        if let Err(what) = judged {
            self.complaint.get_or_insert(what);
        }
    }

    fn data(&mut self, desk: usize, block: u64, bytes: Vec<u8>) {
        let content = Arc::new(bytes);
        for (at, offset) in (0..content.len()).step_by(BLOCK_SIZE).enumerate() {
            let written = Written { content: Arc::clone(&content), offset, stored: None };
            self.desks[desk].blocks.insert(block + at as u64, written);
        }
    }

    /// The volume keys that a guest's records may be under; the one that it should have is the first.
    fn possible(&self, desk: usize) -> Vec<usize> {
        let key = self.desks[desk].key;
        let older = self.book.as_ref().is_some_and(|book| book.older_headers);
        let others = (0..self.volume_keys.len()).filter(|other| older && *other != key);
        [key].into_iter().chain(others).collect()
    }

    fn keys(&mut self, which: usize, salt: &[u8; 32]) -> Option<Arc<EpochKeys>> {
        if let Some(keys) = self.keys.get(&(which, *salt)) {
            return Some(Arc::clone(keys));
        }
        let book = self.book.as_ref()?;
        let keys = Arc::new(self.volume_keys.get(which)?.epoch(book.mode, book.suite, salt));
        self.keys.insert((which, *salt), Arc::clone(&keys));
        Some(keys)
    }
}
