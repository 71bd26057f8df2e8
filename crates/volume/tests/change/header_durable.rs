//! What a change of header and key slots relies on is durable before it writes over the other copy, whoever wrote it, and however far that
//! one came.

use std::sync::{Arc, Mutex, PoisonError};

use crate::common::medium::put;
use crate::common::rekeying::Case;
use crate::common::{credential, options_at};
use memory::BLOCK_SIZE;
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential, SlotLimits};
use store::MemoryStore;
use testkit::hostile::{Event, Faults, HostileStore, Image, Session};
use volume::format::protections::Freshness;
use volume::{
    Driven, Environment, Growth, KeyChange, Kind, RekeyOrder, Result, attach, begin_rekey, change_keys, grow,
};

/// What a bad sector gives, `EIO`.
const BAD: i32 = 5;
/// Where the copies stand.
const A: u64 = 0;
const B: u64 = 2;

/// A disk with a volatile cache, and what was submitted to it.
struct Disk {
    store: HostileStore,
    writes: Arc<Mutex<Vec<u64>>>,
}

impl Disk {
    fn of(case: &Case, seed: u64) -> Self {
        let blocks = case.bench.image();
        let mut image = Image::new(blocks.len() as u64);
        for (at, content) in (0..).zip(&blocks) {
            image.set(at, content[..].try_into().expect("a block"));
        }
        let store = HostileStore::from_image(image, seed, Faults::default());
        let writes = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&writes);
        store.set_trace(Some(Box::new(move |event| {
            if let Event::Submitted { operation: "write", block, .. } = event {
                told.lock().unwrap_or_else(PoisonError::into_inner).push(*block);
            }
        })));
        Self { store, writes }
    }

    /// Drives a job to its end.
    fn until<T>(&self, mut job: Driven<T>) -> T {
        loop {
            match job.poll() {
                Some(ended) => return ended,
                None => drop(self.store.complete_all()),
            }
        }
    }

    /// Drives a job until it has sent a write to this block. False if it ends before.
    fn drive_to(&self, mut job: Job, block: u64) -> bool {
        let sent = || self.writes.lock().unwrap_or_else(PoisonError::into_inner).contains(&block);
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        loop {
            let ended = job();
            if ended || sent() {
                return sent();
            }
            self.store.complete_all();
        }
    }
}

/// Does what can be done now; says whether it has ended.
type Job = Box<dyn FnMut() -> bool>;

fn job<T: 'static>(job: Result<Driven<Result<T>>>) -> Job {
    let mut job = job.expect("a queue");
    Box::new(move || job.poll().is_some())
}

fn on(case: &Case, session: &Session) -> Environment {
    Environment { store: Arc::new(session.clone()), ..case.bench.environment.clone() }
}

fn added(number: u8) -> KeyChange {
    KeyChange::Add {
        credential: Credential::KeyFile(SecretBytes::from_slice(&[number; 64])),
        label: format!("key {number}"),
        argon2: Argon2Params { memory_kib: 8, passes: 1, lanes: 1 },
    }
}

fn add(case: &Case, session: &Session, number: u8) -> Job {
    let (change, policy, options) = (added(number), case.policy.clone(), case.bench.attach);
    job(change_keys(on(case, session), policy, credential(), change, true, options))
}

fn change(case: &Case, session: &Session) -> Job {
    add(case, session, 2)
}

fn rekey(case: &Case, session: &Session) -> Job {
    let order = RekeyOrder { keep: Vec::new(), remove_others: true, force: true };
    job(begin_rekey(on(case, session), case.policy.clone(), credential(), order, case.bench.attach))
}

fn growth(case: &Case, session: &Session) -> Job {
    let order = Growth {
        logical_blocks: None,
        enlarge: Box::new(|_, _| Ok(())),
        save: Box::new(|_| Ok(())),
        force: true,
    };
    job(grow(on(case, session), case.policy.clone(), credential(), order, case.bench.attach))
}

/// A change dies when the disk has its copy A, and has not made it durable. The next change finds both copies as they should be. Then the
/// power goes while it writes copy B, and takes from the disk what was not durable.
fn cut_twice(freshness: Freshness, next: fn(&Case, &Session) -> Job, seed: u64) {
    let case = Case::written(options_at(freshness), 0..4);
    let disk = Disk::of(&case, seed);
    let first = disk.store.attach();
    assert!(disk.drive_to(add(&case, &first, 1), A), "copy A was not written");
    disk.store.complete_all();
    first.crash();
    // For a growth.
    disk.store.extend(disk.store.snapshot().blocks() + 4096);
    assert!(disk.drive_to(next(&case, &disk.store.attach()), B), "copy B was not written");
    let left = disk.store.crash();

    let medium = MemoryStore::new(left.blocks()).expect("memory");
    for block in left.written().collect::<Vec<_>>() {
        put(&medium, block, left.block(block));
    }
    let environment = Environment { store: Arc::new(medium), ..case.bench.environment.clone() };
    let opened = attach(environment, case.policy.clone(), credential(), case.bench.attach);
    match opened.expect("a queue").block() {
        Ok(_) => {}
        // Without an anchor a growth whose copy B is whole counts.
        Err(error) if freshness == Freshness::Off && error.to_string().contains("volume grow") => {
            assert_eq!(error.kind(), Kind::Policy);
        }
        Err(error) => panic!("{freshness}, seed {seed}: {error}"),
    }
}

#[test]
fn power_that_goes_in_a_change_behind_one_that_was_killed_takes_one_copy_at_the_most() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        for next in [change, rekey, growth] {
            (0..12).for_each(|seed| cut_twice(freshness, next, seed));
        }
    }
}

/// A change that failed has left half of one copy, and the disk cannot read the other one just now. It may be able to later, unless it was
/// written over and the power went.
fn mends_first(torn: u64, unreadable: u64) {
    let case = Case::written(options_at(Freshness::Strict), 0..4);
    let disk = Disk::of(&case, 1);
    let session = disk.store.attach();
    let attaching = attach(on(&case, &session), case.policy.clone(), credential(), case.bench.attach);
    let volume = disk.until(attaching.expect("a queue")).expect("attached");
    let whole = disk.store.snapshot();
    disk.store.tamper(|image| image.set(torn, &[7; BLOCK_SIZE]));
    disk.store.set_bad(unreadable..unreadable + 1, BAD);
    let changing = volume.change_keys(credential(), added(1), SlotLimits::default());
    assert_eq!(disk.until(changing.expect("a queue")).expect_err("a bad sector").kind(), Kind::Io);
    let now = disk.store.snapshot();
    assert!(
        (torn..torn + 2).all(|block| now.block(block) == whole.block(block)),
        "copy at {torn} is not whole"
    );
}

#[test]
fn a_copy_that_cannot_be_read_is_written_when_the_other_one_is_whole() {
    mends_first(B, A);
    mends_first(A, B);
}
