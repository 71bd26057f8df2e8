//! A volume in memory, driven on one thread.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod dice;
pub mod growing;
pub mod late;
pub mod medium;
pub mod rekeying;
pub mod sight;
pub mod streaming;
pub mod worn;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use anchor::{Anchor, MemoryAnchor};
use bytes::Bytes;
use memory::{BLOCK_SIZE, Buffer};
use seal::slot::{Argon2Params, Credential};
use seal::{Random, SecretBytes};
use store::MemoryStore;
use testkit::{InterceptingStore, ManualClock};
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::geometry::Shape;
use volume::policy::Policy;
use volume::{
    AttachOptions, Completion, CreateOptions, Driven, Environment, Queue, Request, Restored, Result, Volume,
    attach, attach_read_only, backup_header, create, restore_header,
};

use medium::{Image, Stopping, image};

/// Bytes from a counter: different at each call, the same in each run.
pub struct CountingRandom(AtomicU64);

impl Random for CountingRandom {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let value = self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let length = chunk.len();
            chunk.copy_from_slice(&value.to_le_bytes()[..length]);
        }
    }
}

pub struct Bench {
    pub environment: Environment,
    pub options: CreateOptions,
    pub attach: AttachOptions,
}

pub fn credential() -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[7; 64]))
}

pub fn options(logical_blocks: u64, shape: Shape) -> CreateOptions {
    CreateOptions {
        suite: SuiteCode::Aes256Gcm,
        confidentiality: true,
        integrity: true,
        freshness: Freshness::Strict,
        provision: Provision::Full,
        logical_blocks: Some(logical_blocks),
        force: false,
        shape,
        argon2: Argon2Params { memory_kib: 8, passes: 1, lanes: 1 },
        label: "test".into(),
        anchor_options: anchor::Options::default(),
    }
}

/// The same at another level, for 4096 blocks.
pub fn options_at(freshness: Freshness) -> CreateOptions {
    CreateOptions { freshness, ..options(4096, Shape::STANDARD) }
}

impl Bench {
    pub fn new(options: CreateOptions, store_blocks: u64) -> Self {
        let anchor =
            (options.freshness != Freshness::Off).then(|| Arc::new(MemoryAnchor::new()) as Arc<dyn Anchor>);
        let environment = Environment {
            store: Arc::new(MemoryStore::new(store_blocks).expect("memory")),
            anchor,
            random: Arc::new(CountingRandom(AtomicU64::new(1))),
            clock: Arc::new(ManualClock::default()),
        };
        let attach = AttachOptions { shape: options.shape, memory: 4 << 20, ..AttachOptions::default() };
        Self { environment, options, attach }
    }

    pub fn create(&self) -> Policy {
        create(self.environment.clone(), self.options.clone(), credential(), Box::new(|_| Ok(())))
            .expect("a queue")
            .block()
            .expect("created")
    }

    pub fn attach(&self, policy: &Policy) -> Result<Session> {
        self.attach_on(&self.environment, policy)
    }

    /// The same with another store or anchor.
    pub fn attach_on(&self, environment: &Environment, policy: &Policy) -> Result<Session> {
        let volume = attach(environment.clone(), policy.clone(), credential(), self.attach)?.block()?;
        Ok(Session::new(volume))
    }

    pub fn attach_reading(&self, policy: &Policy) -> Result<Session> {
        let job = attach_read_only(self.environment.clone(), policy.clone(), credential(), self.attach)?;
        Ok(Session::reading(job.block()?))
    }

    /// A backup of the header.
    pub fn back_up(&self, policy: &Policy) -> Vec<u8> {
        let job = backup_header(self.environment.clone(), policy.clone(), credential(), self.attach);
        job.expect("a queue").block().expect("backed up").bytes
    }

    pub fn restore(&self, policy: &Policy, backup: &[u8]) -> Result<Restored> {
        let (environment, backup) = (self.environment.clone(), backup.to_vec());
        restore_header(environment, policy.clone(), credential(), backup, self.attach)?.block()
    }

    /// The same things on a machine that stops after so many writes and flushes; and how many are left.
    pub fn stopping(&self, steps: i64) -> (Environment, Arc<AtomicI64>) {
        let left = Arc::new(AtomicI64::new(steps));
        let medium = Arc::clone(&self.environment.store);
        let store = InterceptingStore::new(medium, &Arc::new(Stopping(Arc::clone(&left))));
        (Environment { store, ..self.environment.clone() }, left)
    }

    /// All that is on the store.
    pub fn image(&self) -> Image {
        image(&*self.environment.store)
    }
}

/// What block `block` holds after it was written with `round`.
pub fn pattern(block: u64, round: u64) -> u8 {
    u8::try_from(1 + (block * 7 + round * 31) % 255).expect("small")
}

/// An attached volume with one queue and its maintenance.
pub struct Session {
    pub volume: Volume,
    pub queue: Queue,
    maintenance: Option<Driven<Result<()>>>,
    next: u64,
}

impl Session {
    pub fn new(volume: Volume) -> Self {
        let queue = volume.queue(32).expect("a queue");
        let maintenance = Some(volume.maintenance().expect("a queue"));
        Self { volume, queue, maintenance, next: 1 }
    }

    /// A volume that is attached for reading needs no maintenance.
    pub fn reading(volume: Volume) -> Self {
        let queue = volume.queue(32).expect("a queue");
        Self { volume, queue, maintenance: None, next: 1 }
    }

    /// Runs requests to their ends, all at once; what they wrote has landed then, unless the store does not take it.
    pub fn run(&mut self, requests: Vec<Request>) -> Vec<Completion> {
        let mut order = HashMap::new();
        let count = requests.len();
        for (index, request) in requests.into_iter().enumerate() {
            order.insert(self.next, index);
            self.queue.submit(self.next, request);
            self.next += 1;
        }
        let mut ended = Vec::new();
        for _ in 0..1_000_000 {
            self.queue.poll(&mut ended);
            if ended.len() == count {
                self.land();
                ended.sort_by_key(|completion| order[&completion.token]);
                return ended;
            }
            if let Some(maintenance) = &mut self.maintenance
                && maintenance.poll().is_some()
            {
                self.maintenance = None;
            }
        }
        panic!("{} of {count} requests ended, then nothing moved: {:#?}", ended.len(), self.volume.status());
    }

    /// Lets what has completed before the store had it land.
    pub fn land(&mut self) {
        let mut ended = Vec::new();
        for _ in 0..1000 {
            if self.queue.pending() == 0 || self.volume.failure().is_some() {
                break;
            }
            self.step();
            self.queue.poll(&mut ended);
        }
        assert!(ended.is_empty(), "what ended belongs to somebody: {ended:?}");
    }

    pub fn one(&mut self, request: Request) -> Completion {
        self.run(vec![request]).remove(0)
    }

    pub fn write(&mut self, block: u64, blocks: usize, fill: u8) -> Result<()> {
        self.one(Request::Write { block, data: filled(blocks, fill), fua: false }).result
    }

    pub fn read(&mut self, block: u64, blocks: usize) -> Result<Vec<u8>> {
        let completion = self.one(Request::Read { block, buffer: Buffer::private_zeroed(blocks) });
        completion.result?;
        Ok(completion.buffer.expect("the buffer").private().expect("private").to_vec())
    }

    /// Writes these blocks, one by one, so that each says where it stands.
    pub fn write_each(&mut self, blocks: impl IntoIterator<Item = u64>, round: u64) {
        for block in blocks {
            if let Err(error) = self.write(block, 1, pattern(block, round)) {
                panic!("block {block}: {error}; {:#?}", self.volume.status());
            }
        }
    }

    /// These blocks hold what they were written with in this round.
    pub fn check_each(&mut self, blocks: impl IntoIterator<Item = u64>, round: u64) {
        for block in blocks {
            self.check_filled(block, pattern(block, round));
        }
    }

    /// These blocks are empty.
    pub fn check_zeros(&mut self, blocks: impl IntoIterator<Item = u64>) {
        for block in blocks {
            self.check_filled(block, 0);
        }
    }

    fn check_filled(&mut self, block: u64, fill: u8) {
        let found = self.read(block, 1).unwrap_or_else(|error| panic!("block {block}: {error}"));
        assert!(found == page(fill), "block {block}: {} in place of {fill}", found[0]);
    }

    pub fn flush(&mut self) -> Result<()> {
        self.one(Request::Flush).result
    }

    pub fn commit(&mut self) -> Result<()> {
        self.one(Request::Commit).result
    }

    pub fn discard(&mut self, block: u64, blocks: u64) -> Result<()> {
        self.one(Request::Discard { block, blocks }).result
    }

    /// Moves the maintenance job on by one step.
    pub fn step(&mut self) {
        if self.maintenance.as_mut().is_some_and(|maintenance| maintenance.poll().is_some()) {
            self.maintenance = None;
        }
    }

    /// Whether the maintenance job has not ended.
    pub fn is_maintained(&self) -> bool {
        self.maintenance.is_some()
    }

    /// Drops the maintenance job in the middle of whatever it does.
    pub fn give_maintenance_up(&mut self) {
        self.maintenance = None;
    }

    /// Gives the maintenance job time.
    pub fn settle(&mut self) {
        let mut ended = Vec::new();
        for _ in 0..2000 {
            self.volume.tick();
            self.queue.poll(&mut ended);
            if let Some(maintenance) = &mut self.maintenance
                && let Some(result) = maintenance.poll()
            {
                result.expect("maintenance");
                self.maintenance = None;
            }
        }
    }

    pub fn checkpoint(&mut self) {
        let before = self.volume.status().checkpoints;
        self.volume.checkpoint_soon();
        self.settle();
        assert!(self.volume.status().checkpoints > before, "{:#?}", self.volume.status());
    }

    pub fn detach(mut self) -> Result<()> {
        self.land();
        let Self { volume, queue, maintenance, .. } = self;
        drop(queue);
        volume.stop();
        maintenance.map_or(Ok(()), Driven::block)
    }
}

pub fn filled(blocks: usize, fill: u8) -> Bytes {
    vec![fill; blocks * BLOCK_SIZE].into()
}

pub fn page(fill: u8) -> Vec<u8> {
    vec![fill; BLOCK_SIZE]
}
