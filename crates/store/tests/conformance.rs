//! What every store owes to its users, whatever it is made of.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ::memory::{BLOCK_SIZE, Buffer};
use store::{
    Completion, ErrorKind, FileStore, MemoryStore, Operation, Options, Queue, RingOptions, RingStore, Store,
};
use testkit::hostile::{Faults, HostileStore};

/// Size of each store under test.
const BLOCKS: u64 = 1024;

/// A store, and what must happen beside polling for its operations to end.
struct Subject {
    store: Box<dyn Store>,
    settle: Box<dyn Fn()>,
}

impl Subject {
    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        self.store.queue(depth).expect("a queue opens")
    }

    /// Submits all operations, and returns what became of them by their index.
    fn run(&self, queue: &mut dyn Queue, operations: Vec<Operation>) -> Vec<Completion> {
        let expected = operations.len();
        for (token, operation) in (0..).zip(operations) {
            queue.submit(token, operation);
        }
        let mut completions = Vec::new();
        for _ in 0..10_000 {
            queue.poll(&mut completions);
            if completions.len() >= expected {
                break;
            }
            (self.settle)();
            queue.wait(Some(Duration::from_millis(100)), &mut completions);
        }
        let by_token: BTreeMap<u64, Completion> = completions.into_iter().map(|c| (c.token, c)).collect();
        let expected: Vec<u64> = (0..).take(expected).collect();
        assert!(by_token.keys().eq(&expected), "each operation ends once: {by_token:?}");
        by_token.into_values().collect()
    }

    fn succeed(&self, queue: &mut dyn Queue, operations: Vec<Operation>) -> Vec<Completion> {
        let completions = self.run(queue, operations);
        for completion in &completions {
            assert_eq!(completion.result, Ok(()));
        }
        completions
    }

    /// The blocks from `block` on, read in one transfer.
    fn read(&self, queue: &mut dyn Queue, block: u64, blocks: usize) -> Vec<u8> {
        let read = Operation::Read { block, buffer: queue.buffer(blocks) };
        let completion = self.succeed(queue, vec![read]).remove(0);
        bytes(&completion.buffer.expect("the buffer comes back"))
    }
}

/// A buffer in which each block is filled with its own value, beginning with `seed`.
fn filled(queue: &mut dyn Queue, blocks: usize, seed: u8) -> Buffer {
    let mut buffer = queue.buffer(blocks);
    let content = content(blocks, seed);
    buffer.copy_from(0, &content);
    buffer
}

/// What is in a buffer, also in one that the host could change meanwhile.
fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to(0, &mut bytes);
    bytes
}

fn content(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks).zip((0..=u8::MAX).cycle().skip(seed.into())).flat_map(|(_, v)| [v; BLOCK_SIZE]).collect()
}

fn round_trip(subject: &Subject) {
    assert_eq!(subject.store.blocks(), BLOCKS);
    let mut queue = subject.queue(8);
    for (block, blocks) in [(0, 1), (7, 3), (BLOCKS - 1, 1), (100, 600)] {
        let buffer = filled(&mut *queue, blocks, 3);
        let mut done = subject.succeed(&mut *queue, vec![Operation::Write { block, buffer }]);
        let back = done.remove(0).buffer.expect("the buffer comes back");
        assert_eq!(bytes(&back), content(blocks, 3), "and a write leaves it as it was");
        assert_eq!(subject.read(&mut *queue, block, blocks), content(blocks, 3));
    }
}

fn own_buffers_do_as_well(subject: &Subject) {
    let mut queue = subject.queue(8);
    let mut buffer = Buffer::private_zeroed(2);
    buffer.copy_from(0, &content(2, 9));
    subject.succeed(&mut *queue, vec![Operation::Write { block: 5, buffer }]);
    let read = Operation::Read { block: 5, buffer: Buffer::private_zeroed(2) };
    let back = subject.succeed(&mut *queue, vec![read]).remove(0).buffer.unwrap();
    assert_eq!(bytes(&back), content(2, 9));
}

fn more_in_flight_than_the_depth(subject: &Subject) {
    let mut queue = subject.queue(4);
    let writes = (0..BLOCKS / 2).map(|n| {
        let seed = u8::try_from(n * 7 % 251).unwrap();
        Operation::Write { block: n * 2, buffer: filled(&mut *queue, 1, seed) }
    });
    let writes = writes.collect();
    subject.succeed(&mut *queue, writes);
    let reads = (0..BLOCKS / 2).rev().map(|n| Operation::Read { block: n * 2, buffer: queue.buffer(1) });
    let reads = reads.collect();
    for (n, completion) in (0..BLOCKS / 2).rev().zip(subject.succeed(&mut *queue, reads)) {
        let seed = u8::try_from(n * 7 % 251).unwrap();
        assert_eq!(bytes(&completion.buffer.unwrap()), content(1, seed), "block {}", n * 2);
    }
}

/// Neighbours that wait together may be merged, which must not show: in shuffled order, in pieces of several
/// sizes, from memory that is contiguous (taken in turn) and from memory that is not.
fn neighbours_keep_their_content(subject: &Subject) {
    let mut queue = subject.queue(8);
    let sizes = [1, 4, 2, 1, 1, 3, 8, 1, 40, 200, 1];
    let mut pieces = Vec::new();
    let mut block = 10;
    for size in sizes {
        let seed = u8::try_from(block % 256).unwrap();
        pieces.push((block, size, Operation::Write { block, buffer: filled(&mut *queue, size, seed) }));
        block += u64::try_from(size).unwrap();
    }
    for shift in [0, 3, 7] {
        pieces.rotate_left(shift);
        pieces.reverse();
        let (places, writes): (Vec<_>, Vec<_>) = pieces.drain(..).map(|(b, s, w)| ((b, s), w)).unzip();
        subject.succeed(&mut *queue, writes);
        let reads = places.iter().map(|&(block, size)| Operation::Read { block, buffer: queue.buffer(size) });
        let reads = reads.collect();
        for ((block, size), done) in places.into_iter().zip(subject.succeed(&mut *queue, reads)) {
            let seed = u8::try_from(block % 256).unwrap();
            let buffer = done.buffer.unwrap();
            assert_eq!(bytes(&buffer), content(size, seed), "{size} blocks at {block}");
            pieces.push((block, size, Operation::Write { block, buffer }));
        }
        assert_eq!(subject.read(&mut *queue, 10, 262), content(262, 10));
    }
}

fn a_later_write_wins(subject: &Subject) {
    let mut queue = subject.queue(8);
    for seed in [1, 2, 3] {
        let buffer = filled(&mut *queue, 4, seed);
        subject.succeed(&mut *queue, vec![Operation::Write { block: 20 + u64::from(seed), buffer }]);
    }
    let expected = [content(1, 1), content(1, 2), content(4, 3)].concat();
    assert_eq!(subject.read(&mut *queue, 21, 6), expected);
}

fn queues_see_each_other(subject: &Subject) {
    let [mut one, mut other] = [subject.queue(2), subject.queue(2)];
    let buffer = filled(&mut *one, 1, 77);
    subject.succeed(&mut *one, vec![Operation::Write { block: 1, buffer }]);
    assert_eq!(subject.read(&mut *other, 1, 1), content(1, 77));
}

fn flush_and_discard(subject: &Subject) {
    let mut queue = subject.queue(8);
    let buffer = filled(&mut *queue, 4, 5);
    subject.succeed(&mut *queue, vec![Operation::Write { block: 200, buffer }]);
    subject.succeed(&mut *queue, vec![Operation::Flush, Operation::Flush]);
    subject.succeed(&mut *queue, vec![Operation::Discard { block: 201, blocks: 2 }]);
    let left = subject.read(&mut *queue, 200, 4);
    assert_eq!(left[..BLOCK_SIZE], content(1, 5), "a discard keeps to its blocks");
    assert_eq!(left[3 * BLOCK_SIZE..], content(1, 8), "a discard keeps to its blocks");
}

fn out_of_range_is_an_error(subject: &Subject) {
    let mut queue = subject.queue(8);
    let places = [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1), (u64::MAX / 4096, 1), (0, 0)];
    for (block, blocks) in places {
        let operations = vec![
            Operation::Read { block, buffer: queue.buffer(blocks) },
            Operation::Write { block, buffer: queue.buffer(blocks) },
            Operation::Discard { block, blocks: u64::try_from(blocks).unwrap() },
        ];
        for (completion, name) in
            subject.run(&mut *queue, operations).into_iter().zip(["read", "write", "discard"])
        {
            let error = completion.result.expect_err("outside of the store");
            assert_eq!((error.kind, error.operation), (ErrorKind::OutOfRange, name));
            assert_eq!(error.block, Some(block));
            assert_eq!(completion.buffer.is_some(), name != "discard", "the buffer comes back");
        }
    }
    assert_eq!(subject.store.blocks(), BLOCKS, "nothing grew");
}

fn dropped_in_flight(subject: &Subject) {
    let mut queue = subject.queue(8);
    for n in 0..64 {
        let buffer = if n % 2 == 0 { queue.buffer(1) } else { Buffer::private_zeroed(1) };
        queue.submit(n, Operation::Read { block: n * 3, buffer });
    }
    queue.poll(&mut Vec::new());
    let kept = queue.buffer(1);
    drop(queue);
    assert_eq!(bytes(&kept).len(), BLOCK_SIZE, "a buffer outlives its queue");
}

/// For stores whose `wait` really sleeps.
fn waker_ends_wait(subject: &Subject) {
    let mut queue = subject.queue(8);
    let mut completions = Vec::new();
    let waker = queue.waker();
    waker.wake_by_ref();
    queue.wait(None, &mut completions);
    for _ in 0..20 {
        let waker = waker.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            waker.wake();
        });
        // May return early, but not for ever without the waker: without it, the last one never returns.
        queue.wait(None, &mut completions);
        thread.join().unwrap();
    }
    queue.wait(Some(Duration::from_millis(5)), &mut completions);
    assert!(completions.is_empty());
    let waker = queue.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(2));
        waker.wake();
    });
    queue.wait(Some(Duration::MAX), &mut completions);
    thread.join().unwrap();
    assert_eq!(subject.read(&mut *queue, 0, 1).len(), BLOCK_SIZE, "still of use");
}

macro_rules! suite {
    ($name:ident, $subject:expr, $($test:ident),* $(,)?) => {
        mod $name {
            $(#[test] fn $test() { super::$test(&$subject) })*
        }
    };
    ($name:ident; perhaps $subject:expr; $($test:ident),* $(,)?) => {
        mod $name {
            $(#[test] fn $test() {
                match $subject {
                    Some(subject) => super::$test(&subject),
                    None => super::skipped(concat!(stringify!($name), "::", stringify!($test))),
                }
            })*
        }
    };
    ($name:ident, $subject:expr; sleeps: $($more:ident),*) => {
        suite!($name, $subject, round_trip, own_buffers_do_as_well, more_in_flight_than_the_depth,
            neighbours_keep_their_content, a_later_write_wins, queues_see_each_other, flush_and_discard,
            out_of_range_is_an_error, dropped_in_flight, $($more),*);
    };
}

fn memory() -> Subject {
    Subject { store: Box::new(MemoryStore::new(BLOCKS).unwrap()), settle: Box::new(|| {}) }
}

suite!(memory, super::memory(); sleeps: waker_ends_wait);

/// In the build directory: the system's temporary one may be a tmpfs.
fn file(direct: bool) -> Subject {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = Options { direct, create: Some(BLOCKS), ..Options::default() };
    let store = FileStore::open(directory.path().join("image"), options).unwrap();
    // The directory is removed together with the subject.
    Subject { store: Box::new(store), settle: Box::new(move || _ = directory.path()) }
}

suite!(file_direct, super::file(true); sleeps: waker_ends_wait);
suite!(file_buffered, super::file(false); sleeps: waker_ends_wait);

/// A virtqueue that we drive, at the host's own server. With little room in the region, most buffers lie elsewhere, and are copied.
fn ring(region: usize) -> Subject {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::File::create(at("image")).unwrap().set_len(BLOCKS * 4096).unwrap();
    let disk = host::DiskSettings { direct: false, ..host::DiskSettings::new(at("socket"), at("image")) };
    let server = host::Server::start(&host::Settings { cores: Vec::new(), disks: vec![disk] }).unwrap();
    let store = RingStore::connect(&at("socket"), RingOptions { region, ..RingOptions::default() }).unwrap();
    Subject { store: Box::new(store), settle: Box::new(move || _ = (&server, &directory)) }
}

suite!(ring, super::ring(32 << 20); sleeps: waker_ends_wait);
suite!(ring_staged, super::ring(4 << 20); sleeps: waker_ends_wait);

/// A server that nobody here wrote: QEMU's storage daemon. `None` where it is not installed.
fn qemu() -> Option<Subject> {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::File::create(at("image")).unwrap().set_len(BLOCKS * 4096).unwrap();
    let mut command = Command::new("qemu-storage-daemon");
    command
        .arg("--blockdev")
        .arg(format!("driver=file,node-name=disk,discard=unmap,filename={}", at("image").display()));
    command.arg("--export").arg(format!(
        "type=vhost-user-blk,id=disk,node-name=disk,writable=on,num-queues=8,addr.type=unix,addr.path={}",
        at("socket").display()
    ));
    let daemon = Killed(command.stdin(Stdio::null()).spawn().ok()?);
    let begun = Instant::now();
    let store = loop {
        match RingStore::connect(&at("socket"), RingOptions::default()) {
            Ok(store) => break store,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    Some(Subject { store: Box::new(store), settle: Box::new(move || _ = (&daemon, &directory)) })
}

/// A process that ends with this.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says that a test did not run, also when it passes. `scripts/test` counts these lines.
fn skipped(test: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: no qemu-storage-daemon");
}

suite!(qemu; perhaps super::qemu(); round_trip, own_buffers_do_as_well, more_in_flight_than_the_depth,
    neighbours_keep_their_content, a_later_write_wins, queues_see_each_other, flush_and_discard,
    out_of_range_is_an_error, dropped_in_flight, waker_ends_wait);

/// An honest disk: without faults and crashes it must do as well as any.
fn hostile(all_at_once: bool) -> Subject {
    let store = HostileStore::new(BLOCKS, 1, Faults::default());
    let controller = store.clone();
    let settle = move || _ = if all_at_once { controller.complete_all() } else { controller.complete_some() };
    Subject { store: Box::new(store), settle: Box::new(settle) }
}

suite!(hostile_all_at_once, super::hostile(true); sleeps:);
suite!(hostile_bit_by_bit, super::hostile(false); sleeps:);
