//! That the hostile disk loses what it may lose, and nothing else.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use memory::{BLOCK_SIZE, Buffer};
use store::{Completion, ErrorKind, Operation, Queue, Store};
use testkit::hostile::{Event, Faults, HostileStore, Image, Session};

const BLOCKS: u64 = 16;
/// Enough that what has a fair chance to happen does.
const SEEDS: u64 = 200;

fn honest(seed: u64) -> HostileStore {
    HostileStore::new(BLOCKS, seed, Faults::default())
}

fn filled(blocks: usize, value: u8) -> Buffer {
    let mut buffer = Buffer::private_zeroed(blocks);
    buffer.copy_from(0, &vec![value; blocks * BLOCK_SIZE]);
    buffer
}

fn write(block: u64, value: u8) -> Operation {
    Operation::Write { block, buffer: filled(1, value) }
}

/// Gives operations to the disk, and leaves them in flight.
fn send(queue: &mut dyn Queue, operations: impl IntoIterator<Item = Operation>) {
    for operation in operations {
        queue.submit(0, operation);
    }
    queue.poll(&mut Vec::new());
}

/// Runs one operation to its end.
fn finish(store: &HostileStore, queue: &mut dyn Queue, operation: Operation) -> Completion {
    queue.submit(9, operation);
    let mut completions = Vec::new();
    queue.poll(&mut completions);
    store.complete_all();
    queue.poll(&mut completions);
    completions.pop().expect("it ended")
}

fn read(store: &HostileStore, queue: &mut dyn Queue, block: u64) -> Vec<u8> {
    let done = finish(store, queue, Operation::Read { block, buffer: filled(1, 0xee) });
    done.result.unwrap();
    done.buffer.unwrap().private().unwrap().to_vec()
}

/// The values of the sectors of a block, each of which must be whole.
fn sectors(image: &Image, block: u64) -> [u8; 8] {
    std::array::from_fn(|sector| {
        let bytes = &image.block(block)[sector * 512..(sector + 1) * 512];
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is never torn");
        bytes[0]
    })
}

fn all(value: u8) -> [u8; 8] {
    [value; 8]
}

#[test]
fn what_was_flushed_survives() {
    for seed in 0..SEEDS {
        let store = honest(seed);
        let mut queue = store.queue(1).unwrap();
        finish(&store, &mut *queue, write(3, 7));
        finish(&store, &mut *queue, Operation::Flush).result.unwrap();
        assert_eq!(sectors(&store.crash(), 3), all(7));
        assert_eq!(sectors(&store.crash(), 3), all(7), "nothing was left to lose");
    }
}

#[test]
fn what_was_not_flushed_is_kept_lost_or_torn() {
    for in_flight in [false, true] {
        let mut outcomes = BTreeSet::new();
        for seed in 0..SEEDS {
            let store = honest(seed);
            let mut queue = store.queue(1).unwrap();
            send(&mut *queue, [write(3, 7)]);
            if !in_flight {
                assert_eq!(store.complete_all(), 1);
            }
            let image = store.crash();
            let kept = sectors(&image, 3).iter().filter(|&&value| value == 7).count();
            outcomes.insert(kept);
            assert_eq!(store.snapshot(), image, "the next guest finds what was left");
        }
        assert!(outcomes.is_superset(&(0..=8).collect()), "all mixes of old and new: {outcomes:?}");
    }
}

#[test]
fn a_crash_knows_no_order() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..SEEDS {
        let store = honest(seed);
        let mut queue = store.queue(1).unwrap();
        for (block, value) in [(1, 1), (2, 2), (2, 3)] {
            finish(&store, &mut *queue, write(block, value));
        }
        let image = store.crash();
        outcomes.insert((sectors(&image, 1), sectors(&image, 2)));
    }
    let (first, older, newer) = (all(1), all(2), all(3));
    for expected in [(first, newer), (all(0), newer), (first, all(0)), (first, older), (all(0), all(0))] {
        assert!(outcomes.contains(&expected), "never came to {expected:?}");
    }
}

#[test]
fn a_flush_covers_no_more_than_it_must() {
    let lost = |between: bool| {
        (0..SEEDS).any(|seed| {
            let store = honest(seed);
            let session = store.attach();
            let mut queue = session.queue(1).unwrap();
            let mut flusher = store.queue(1).unwrap();
            send(&mut *queue, [write(3, 7)]);
            if !between {
                session.complete_all();
            }
            send(&mut *flusher, [Operation::Flush]);
            session.complete_all();
            store.complete_all();
            sectors(&store.crash(), 3) != all(7)
        })
    };
    assert!(lost(true), "a write that ended only after the flush was submitted may be lost");
    assert!(!lost(false), "one that ended before may not");
}

#[test]
fn operations_end_in_any_order_and_number() {
    let mut orders = BTreeSet::new();
    let mut counts = BTreeSet::new();
    for seed in 0..SEEDS {
        let store = honest(seed);
        let mut queue = store.queue(1).unwrap();
        (0..3).for_each(|token| queue.submit(token, Operation::Flush));
        let mut completions = Vec::new();
        queue.poll(&mut completions);
        assert!(completions.is_empty() && store.in_flight() == 3, "nothing ends by itself");
        counts.insert(store.complete_some());
        store.complete_all();
        assert_eq!(store.complete_some(), 0);
        queue.poll(&mut completions);
        orders.insert(completions.iter().map(|c| c.token).collect::<Vec<_>>());
    }
    assert_eq!((orders.len(), counts), (6, BTreeSet::from([1, 2, 3])));
}

#[test]
fn a_read_that_succeeds_may_bring_less_than_was_asked() {
    let mut lengths = BTreeSet::new();
    for seed in 0..SEEDS {
        let store = honest(seed);
        let mut queue = store.queue(1).unwrap();
        for block in [3, 4] {
            finish(&store, &mut *queue, write(block, 7));
        }
        store.set_faults(Faults { short_read: 1.0, ..Faults::default() });
        let done = finish(&store, &mut *queue, Operation::Read { block: 3, buffer: filled(2, 0xee) });
        done.result.unwrap();
        let buffer = done.buffer.unwrap();
        let bytes = buffer.private().unwrap();
        let length = bytes.iter().take_while(|byte| **byte == 7).count();
        assert!(bytes[length..].iter().all(|byte| *byte == 0xee), "the rest is as it was");
        lengths.insert(length);
    }
    let expected: BTreeSet<usize> = (0..16).map(|sector| sector * 512).collect();
    assert_eq!(lengths, expected, "none at all up to all but one sector");
}

#[test]
fn the_dead_are_silent() {
    let store = honest(1);
    let session = store.attach();
    let mut queues = [store.queue(1).unwrap(), session.queue(1).unwrap()];
    for queue in &mut queues {
        send(&mut **queue, [write(3, 7)]);
    }
    let image = store.crash();
    let mut completions = Vec::new();
    for queue in &mut queues {
        queue.submit(1, write(4, 8));
        queue.poll(&mut completions);
        store.complete_all();
        queue.poll(&mut completions);
    }
    assert!(completions.is_empty());
    assert_eq!(store.snapshot(), image, "and touch nothing");
    assert_eq!(session.queue(1).err().map(|error| error.kind), Some(ErrorKind::Io));
    let mut queue = store.queue(1).unwrap();
    finish(&store, &mut *queue, write(4, 9)).result.unwrap();
    assert_eq!(read(&store, &mut *queue, 4), [9; BLOCK_SIZE]);
}

/// A run with all there is, and what was told of it.
fn story(seed: u64) -> (Vec<Event>, Image) {
    let half =
        Faults { read_error: 0.5, write_error: 0.5, lying_flush: 0.5, torn_write: 0.5, ..Faults::default() };
    let store = HostileStore::new(BLOCKS, seed, half);
    let events = Arc::new(Mutex::new(Vec::new()));
    let copy = events.clone();
    store.set_trace(Some(Box::new(move |event| copy.lock().unwrap().push(event.clone()))));
    let mut queue = store.queue(1).unwrap();
    for round in 0..20 {
        let discard = Operation::Discard { block: 0, blocks: 2 };
        send(&mut *queue, [write(round % 4, 1), write(3, 2), Operation::Flush, discard]);
        let _ = store.complete_some();
        let read = Operation::Read { block: 3, buffer: filled(1, 0) };
        send(&mut *queue, [read]);
    }
    let image = store.crash();
    store.set_trace(None);
    let events = events.lock().unwrap().clone();
    (events, image)
}

#[test]
fn a_seed_is_a_story() {
    assert_eq!(story(1), story(1));
    assert_ne!(story(1).0, story(2).0);
    let (events, _) = story(3);
    let has = |test: fn(&Event) -> bool| events.iter().any(test);
    assert!(has(|event| matches!(event, Event::Submitted { operation: "write", block: 3, blocks: 1, .. })));
    assert!(has(|event| matches!(event, Event::Completed { success: false, .. })));
    assert!(has(|event| matches!(event, Event::Fault { name: "lying_flush", .. })));
    assert!(matches!(events.last(), Some(Event::Crashed { session: None, .. })));
}

fn two_guests(seed: u64, faults: Faults) -> (HostileStore, [Session; 2], [Box<dyn Queue>; 2]) {
    let store = HostileStore::new(BLOCKS, seed, faults);
    let sessions = [store.attach(), store.attach()];
    let queues = [0, 1].map(|guest: usize| sessions[guest].queue(1).unwrap());
    (store, sessions, queues)
}

#[test]
fn one_guest_dies_and_the_other_lives() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..SEEDS {
        let (store, [first, second], [mut dying, mut living]) = two_guests(seed, Faults::default());
        send(&mut *dying, [write(1, 1)]);
        send(&mut *living, [write(2, 2)]);
        store.crash_session(&first);
        assert_eq!((first.in_flight(), second.in_flight()), (0, 1));
        outcomes.insert(sectors(&store.snapshot(), 1));
        store.complete_all();
        let mut completions = Vec::new();
        dying.poll(&mut completions);
        assert!(completions.is_empty() && first.queue(1).is_err());
        living.poll(&mut completions);
        assert_eq!(completions.len(), 1);
        assert_eq!(sectors(&store.snapshot(), 2), all(2));
    }
    assert!(outcomes.contains(&all(0)) && outcomes.contains(&all(1)) && outcomes.len() > 3);
}

#[test]
fn a_dead_guests_write_may_come_late() {
    let late = Faults { late_write: 1.0, ..Faults::default() };
    let (store, [first, _], [mut dying, mut living]) = two_guests(1, late);
    first.hold(true);
    send(&mut *dying, [write(1, 1)]);
    store.crash_session(&first);
    finish(&store, &mut *living, write(1, 2)).result.unwrap();
    assert_eq!((store.complete_all(), first.in_flight()), (0, 1));
    assert_eq!(sectors(&store.snapshot(), 1), all(2));
    assert_eq!(first.complete_all(), 1);
    assert_eq!(sectors(&store.snapshot(), 1), all(1));
}

#[test]
fn a_slow_write_is_passed_by_and_ends_all_the_same() {
    let slow = Faults { slow_write: 1.0, ..Faults::default() };
    let store = HostileStore::new(BLOCKS, 1, slow);
    let mut queue = store.queue(4).unwrap();
    send(&mut *queue, [write(1, 1)]);
    store.set_faults(Faults::default());
    for _ in 0..4 {
        send(&mut *queue, [write(2, 2)]);
        assert_eq!((store.complete_some(), store.in_flight()), (1, 1));
    }
    assert!((0..1000).any(|_| store.complete_some() == 1));
    assert_eq!((store.in_flight(), sectors(&store.snapshot(), 1)), (0, all(1)));
}

#[test]
fn a_guest_that_is_held_sleeps() {
    let (store, [first, second], [mut sleeper, mut other]) = two_guests(1, Faults::default());
    first.hold(true);
    send(&mut *sleeper, [write(1, 1)]);
    send(&mut *other, [write(2, 2)]);
    assert_eq!((store.complete_all(), store.complete_some()), (1, 0));
    assert_eq!(second.complete_some(), 0);
    first.hold(false);
    assert_eq!(store.complete_some(), 1);
}

/// Faults with one of them certain.
fn certain(set: impl FnOnce(&mut Faults)) -> HostileStore {
    let mut faults = Faults::default();
    set(&mut faults);
    HostileStore::new(BLOCKS, 5, faults)
}

#[test]
fn errors_are_reported_with_their_kind() {
    let attempt = |store: &HostileStore, operation| {
        let mut queue = store.queue(1).unwrap();
        finish(store, &mut *queue, operation).result.unwrap_err()
    };
    let reader = || Operation::Read { block: 1, buffer: filled(1, 0) };
    let error = attempt(&certain(|faults| faults.read_error = 1.0), reader());
    assert_eq!((error.kind, error.block, error.errno), (ErrorKind::Io, Some(1), Some(libc::EIO)));
    assert_eq!(attempt(&certain(|faults| faults.write_error = 1.0), write(1, 1)).kind, ErrorKind::Io);
    assert_eq!(attempt(&certain(|faults| faults.flush_error = 1.0), Operation::Flush).kind, ErrorKind::Io);
    let full = certain(|faults| faults.no_space = 1.0);
    assert_eq!(attempt(&full, write(1, 1)).kind, ErrorKind::NoSpace);
    assert_eq!(full.snapshot(), Image::new(BLOCKS));

    let store = honest(1);
    store.set_bad(2..4, libc::EIO);
    let spanning = Operation::Write { block: 1, buffer: filled(2, 1) };
    assert_eq!(attempt(&store, spanning).kind, ErrorKind::Io);
    let mut queue = store.queue(1).unwrap();
    assert_eq!(finish(&store, &mut *queue, write(1, 1)).result, Ok(()));
    assert_eq!(finish(&store, &mut *queue, write(4, 1)).result, Ok(()));
    store.clear_bad();
    assert_eq!(finish(&store, &mut *queue, write(3, 1)).result, Ok(()));
}

#[test]
fn a_failed_write_may_have_happened() {
    let happened = |seed| {
        let store = HostileStore::new(BLOCKS, seed, Faults { write_error: 1.0, ..Faults::default() });
        let mut queue = store.queue(1).unwrap();
        assert!(finish(&store, &mut *queue, write(1, 1)).result.is_err());
        store.snapshot() != Image::new(BLOCKS)
    };
    let count = (0..SEEDS).filter(|&seed| happened(seed)).count();
    assert!((50..150).contains(&count), "{count} of {SEEDS}");
}

#[test]
fn a_flush_may_lie_until_one_does_not() {
    let lying = Faults { lying_flush: 1.0, ..Faults::default() };
    let survives = |seed, honest_again: bool| {
        let store = HostileStore::new(BLOCKS, seed, lying);
        let mut queue = store.queue(1).unwrap();
        finish(&store, &mut *queue, write(1, 1));
        finish(&store, &mut *queue, Operation::Flush).result.unwrap();
        if honest_again {
            store.set_faults(Faults::default());
            finish(&store, &mut *queue, Operation::Flush).result.unwrap();
        }
        sectors(&store.crash(), 1) == all(1)
    };
    assert!((0..SEEDS).any(|seed| !survives(seed, false)));
    assert!((0..SEEDS).all(|seed| survives(seed, true)));
}

#[test]
fn writes_that_succeed_may_be_lost_torn_or_misplaced() {
    let after = |set: fn(&mut Faults)| {
        let store = certain(set);
        let mut queue = store.queue(1).unwrap();
        finish(&store, &mut *queue, write(1, 1)).result.unwrap();
        store.snapshot()
    };
    assert_eq!(after(|faults| faults.lost_write = 1.0), Image::new(BLOCKS));
    let torn = sectors(&after(|faults| faults.torn_write = 1.0), 1);
    assert!(torn.contains(&0) && torn.contains(&1), "{torn:?}");
    let misplaced: Vec<u64> = after(|faults| faults.misdirected_write = 1.0).written().collect();
    assert!(misplaced.len() == 1 && misplaced != [1], "{misplaced:?}");
}

#[test]
fn a_read_may_show_what_is_not_there() {
    let mut lies = BTreeSet::new();
    for seed in 0..SEEDS {
        let store = honest(seed);
        let mut queue = store.queue(1).unwrap();
        finish(&store, &mut *queue, write(1, 1));
        finish(&store, &mut *queue, write(1, 2));
        store.set_faults(Faults { unstable_read: 1.0, ..Faults::default() });
        let lie = read(&store, &mut *queue, 1);
        assert_ne!(lie, [2; BLOCK_SIZE]);
        lies.insert(lie == [1; BLOCK_SIZE]);
        store.set_faults(Faults::default());
        assert_eq!(read(&store, &mut *queue, 1), [2; BLOCK_SIZE], "the medium did not change");
    }
    assert_eq!(lies.len(), 2, "now what it was before, now a flipped bit");
}

#[test]
fn the_host_does_as_it_likes() {
    let store = honest(1);
    let mut queue = store.queue(1).unwrap();
    finish(&store, &mut *queue, write(1, 1));
    let early = store.snapshot();
    finish(&store, &mut *queue, write(1, 3));
    finish(&store, &mut *queue, write(2, 2));
    store.swap(1, 2);
    assert_eq!(read(&store, &mut *queue, 1), [2; BLOCK_SIZE]);
    store.replay_block(&early, 1);
    assert_eq!(read(&store, &mut *queue, 1), [1; BLOCK_SIZE]);
    store.corrupt_bit(2, 1);
    assert_eq!(read(&store, &mut *queue, 2)[..2], [1, 3]);
    store.restore(&early);
    assert_eq!(store.snapshot(), early);
    assert_eq!(store.crash(), early, "all of it durable");
    store.truncate(2);
    let mut queue = store.queue(1).unwrap();
    let beyond = finish(&store, &mut *queue, Operation::Read { block: 2, buffer: filled(1, 0) });
    assert_eq!(beyond.result.unwrap_err().kind, ErrorKind::OutOfRange);
    assert_eq!(store.blocks(), 2);
    let fork = HostileStore::from_image(early.clone(), 2, Faults::default());
    assert_eq!(fork.crash(), early);
}

#[test]
fn a_discard_leaves_anything() {
    let mut left = BTreeSet::new();
    for seed in 0..SEEDS {
        let store = honest(seed);
        let mut queue = store.queue(1).unwrap();
        finish(&store, &mut *queue, write(1, 1));
        finish(&store, &mut *queue, write(2, 2));
        finish(&store, &mut *queue, Operation::Flush);
        finish(&store, &mut *queue, Operation::Discard { block: 1, blocks: 1 }).result.unwrap();
        assert_eq!(sectors(&store.snapshot(), 2), all(2));
        left.insert(match store.snapshot().block(1)[..2] {
            [1, 1] => "old",
            [0, 0] => "zero",
            _ => "garbage",
        });
    }
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn shared_buffers_come_back_changed_and_private_ones_do_not() {
    for shared in [false, true] {
        let store = certain(|faults| faults.scribble = 1.0);
        store.set_shared_buffers(shared);
        let mut queue = store.queue(1).unwrap();
        let mut buffer = queue.buffer(2);
        assert_eq!(buffer.private().is_none(), shared);
        buffer.copy_from(0, &[4; 2 * BLOCK_SIZE]);
        let back = finish(&store, &mut *queue, Operation::Write { block: 1, buffer }).buffer.unwrap();
        let mut content = [0; 2 * BLOCK_SIZE];
        back.copy_to(0, &mut content);
        assert_eq!(content != [4; 2 * BLOCK_SIZE], shared);
        assert_eq!(sectors(&store.snapshot(), 2), all(4), "after it was stored");
    }
}
