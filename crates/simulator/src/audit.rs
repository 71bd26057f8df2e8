//! A second reader: sees all that guests write, has the volume key, and follows `docs/disk-format.md` in words of its own.
//!
//! What a guest reads back it has checked itself, with the code that wrote it; this does not. Of each journal record it checks that it
//! continues a chain that was written, that each block it names was on the store before it (durable, where nothing else could tell
//! later), opens as that logical block, and that no nonce was used twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use seal::{DataMode, EpochKeys, Suite, VolumeKey};
use store::hostile::Session;
use store::{BLOCK_SIZE, Buffer, Completion, Operation, Queue, Store};
use volume::format::entry::Entry;
use volume::format::item::{Item, items};
use volume::format::record::{RECORD_HEADER, RecordHeader};
use volume::geometry::Geometry;

use crate::content::{Content, parse};

/// What it needs to know of the volume.
pub(crate) struct Book {
    pub(crate) volume: [u8; 16],
    pub(crate) suite: Suite,
    pub(crate) mode: DataMode,
    pub(crate) integrity: bool,
    /// The host changes blocks. Without integrity nobody notices, and a change of key seals anew what was made of them.
    pub(crate) tampering: bool,
    /// The disk may show an attach what it held before, and at level `off` nobody can tell: with an older header comes its key.
    pub(crate) older_headers: bool,
    pub(crate) geometry: Geometry,
}

impl Book {
    /// Whether data may stand in a block: behind the bitmap of the created volume, or behind the places that a growth adds at the head of
    /// what it takes, four for each node that the larger bitmap has and the smaller has not.
    fn holds_data(&self, block: u64) -> bool {
        let geometry = &self.geometry;
        let nodes = |bits: u64| {
            let mut level = bits.div_ceil(1 << geometry.bitmap_bits);
            let mut sum = level;
            while level > 1 {
                level = level.div_ceil(1 << geometry.fan_out_bits);
                sum += level;
            }
            sum
        };
        let unit = u64::from(geometry.unit_blocks);
        let mut sizes = geometry.sizes();
        let Some((_, mut end)) = sizes.next() else { return false };
        let mut bits = geometry.as_of(0).data_blocks();
        if block < end {
            return block >= geometry.data_start();
        }
        for (_, next) in sizes {
            let first = bits.div_ceil(unit) * unit;
            let places = |data: u64| 4 * (nodes(first + data) - nodes(bits));
            let data = (1..=next - end).rev().find(|data| places(*data) + data <= next - end);
            if let Some(data) = data {
                if block < next {
                    return block >= end + places(data);
                }
                bits = first + data;
            }
            end = next;
        }
        false
    }
}

/// A block that a guest wrote.
struct Written {
    content: Arc<Vec<u8>>,
    offset: usize,
    /// Which of the guest's stores it was, once the guest knows that it happened.
    stored: Option<u64>,
}

/// What a guest has done.
#[derive(Default)]
struct Desk {
    blocks: HashMap<u64, Written>,
    stored: u64,
    durable: u64,
    writes: u64,
    /// Which volume key its guest has.
    key: usize,
}

/// What a nonce was used for.
#[derive(PartialEq, Eq, Clone, Copy)]
struct Sealed {
    logical: u64,
    physical: u64,
    tag: [u8; 16],
}

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
        inner.desks.push(Desk { key, ..Desk::default() });
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
            match flight {
                Some(Flight::Write { block, blocks }) if completion.result.is_ok() => {
                    desk.stored += 1;
                    for block in block..block + blocks {
                        if let Some(written) = desk.blocks.get_mut(&block) {
                            written.stored = Some(desk.stored);
                        }
                    }
                }
                Some(Flight::Flush(stored)) if completion.result.is_ok() => {
                    desk.durable = desk.durable.max(stored);
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
                let blocks = inner.write(self.at.desk, *block, buffer);
                self.flights.insert(token, Flight::Write { block: *block, blocks });
            }
            Operation::Flush => {
                let stored = inner.desks[self.at.desk].stored;
                self.flights.insert(token, Flight::Flush(stored));
            }
            Operation::Read { .. } | Operation::Discard { .. } => {}
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
        self.desks[desk].writes += blocks;
        let Some(book) = &self.book else { return blocks };
        let journal = book.geometry.journal_start()..book.geometry.bitmap_start();
        let is_data = book.holds_data(block);
        if !is_data && !journal.contains(&block) {
            return blocks;
        }
        let mut bytes = vec![0; buffer.len()];
        buffer.copy_to(0, &mut bytes);
        if is_data {
            let content = Arc::new(bytes);
            for at in 0..blocks {
                let offset = usize::try_from(at).unwrap_or(0) * BLOCK_SIZE;
                let written = Written { content: Arc::clone(&content), offset, stored: None };
                self.desks[desk].blocks.insert(block + at, written);
            }
        } else if let Err(what) = self.record(desk, &bytes) {
            self.complaint.get_or_insert(format!("the record at block {block}: {what}"));
        }
        blocks
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

    /// Checks a journal record that is being written.
    fn record(&mut self, desk: usize, bytes: &[u8]) -> Result<(), String> {
        let head: &[u8; RECORD_HEADER] =
            bytes.first_chunk().ok_or_else(|| "it is shorter than its header".to_string())?;
        let header = RecordHeader::decode(head).map_err(|error| error.to_string())?;
        let sealed = header.sealed(bytes).map_err(|error| error.to_string())?;
        let mut payload = vec![0; sealed.len()];
        let heads = self.heads.get(&(header.generation - 1)).cloned().unwrap_or_default();
        let continued = self.possible(desk).into_iter().find_map(|key| {
            let keys = self.keys(key, &header.salt)?;
            let before = heads.iter().find(|before| {
                // All of the header but the tag, and the head before it.
                let ad = [&head[..RECORD_HEADER - 16], *before].concat();
                keys.journal.open(header.nonce, &ad, sealed, &header.tag, &mut payload).is_ok()
            });
            before.map(|before| (key, keys, *before))
        });
        let (key, keys, before) =
            continued.ok_or_else(|| "it continues no chain that was ever written".to_string())?;
        self.desks[desk].key = key;
        let after = seal::sha256(&[b"cvmio head", &before, head]);
        self.heads.entry(header.generation).or_default().push(after);
        let whole = Sealed { logical: header.generation, physical: 0, tag: header.tag };
        self.use_nonce(&header.salt, "journal", header.nonce, whole)?;
        for item in items(&payload) {
            let item = item.map_err(|error| error.to_string())?;
            if let Item::Write { logical, entry } = item
                && entry.epoch == header.epoch
            {
                self.entry(desk, &header.salt, &keys, logical, &entry)?;
            }
        }
        Ok(())
    }

    fn use_nonce(
        &mut self,
        salt: &[u8; 32],
        purpose: &'static str,
        nonce: u64,
        sealed: Sealed,
    ) -> Result<(), String> {
        match self.nonces.insert((*salt, purpose, nonce), sealed) {
            Some(before) if before != sealed => {
                Err(format!("nonce {nonce} of its {purpose} key was used twice"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a block that a record names.
    fn entry(
        &mut self,
        desk: usize,
        salt: &[u8; 32],
        keys: &EpochKeys,
        logical: u64,
        entry: &Entry,
    ) -> Result<(), String> {
        let named = format!("it names block {} as logical block {logical}", entry.physical);
        let sealed = Sealed { logical, physical: entry.physical, tag: entry.tag };
        self.use_nonce(salt, "data", entry.nonce, sealed)?;
        let Some(book) = &self.book else { return Ok(()) };
        let succeeded = desk + 1 < self.desks.len();
        let desk = &mut self.desks[desk];
        let durable = desk.durable;
        let written = desk
            .blocks
            .remove(&entry.physical)
            .ok_or_else(|| format!("{named}, which its guest did not write"))?;
        let stored = written.stored.ok_or_else(|| format!("{named}, which is not on the store yet"))?;
        if !book.integrity && stored > durable {
            return Err(format!("{named}, which is not durable, and nobody could tell later"));
        }
        let mut ad = [0; 32];
        ad[..16].copy_from_slice(&book.volume);
        ad[16] = 1;
        ad[24..].copy_from_slice(&logical.to_le_bytes());
        let mut page = [0; BLOCK_SIZE];
        let ciphertext = &written.content[written.offset..written.offset + BLOCK_SIZE];
        keys.data
            .open(entry.nonce, &ad, ciphertext, &entry.tag, &mut page)
            .map_err(|_| format!("{named}, and it does not open as that"))?;
        match parse(&page) {
            Content::Written { block, .. } if block == logical => Ok(()),
            // A guest that was believed dead seals anew what its successor has written to the blocks that it still reads.
            _ if (book.tampering || succeeded) && !book.integrity => Ok(()),
            other => Err(format!("{named}, and it holds {other:?}")),
        }
    }
}
