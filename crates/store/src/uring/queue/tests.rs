use super::*;
use crate::{FileStore, Options};
use std::io::Write;

/// The places that each transfer in flight writes to.
fn flying(queue: &FileQueue) -> Vec<Vec<u64>> {
    let transfers = queue.flying.iter().filter_map(|(_, job)| match job {
        Job::Transfer(transfer) => Some(transfer.parts.iter().map(|part| part.block).collect()),
        _ => None,
    });
    transfers.collect()
}

/// A queue of a file, which goes with the directory.
fn queue() -> (FileQueue, tempfile::TempDir) {
    // In the build directory: the system's temporary one may be a tmpfs.
    let program = std::env::current_exe().expect("this program");
    let directory = tempfile::tempdir_in(program.parent().expect("a directory")).expect("a directory");
    let options = Options { create: Some(32), ..Options::default() };
    let store = FileStore::open(directory.path().join("image"), options).expect("opened");
    (FileQueue::new(store.inner.clone(), 1).expect("a queue"), directory)
}

#[test]
fn only_the_queues_own_buffers_go_as_registered_ones() {
    let (mut queue, _directory) = queue();
    if queue.registered.is_none() {
        // Straight to the stream: what `println!` says is shown only when a test fails.
        let skipped =
            "SKIPPED only_the_queues_own_buffers_go_as_registered_ones: too little memory may be locked";
        let _ = writeln!(std::io::stderr(), "\n{skipped}");
        return;
    }
    let (heap, own) = (Buffer::private_zeroed(2), queue.buffer(2));
    for (buffer, reads, writes) in [
        (heap, opcode::Read::CODE, opcode::Write::CODE),
        (own, opcode::ReadFixed::CODE, opcode::WriteFixed::CODE),
    ] {
        let mut transfer = Transfer::new(Part { direction: Direction::Read, block: 0, token: 0, buffer });
        for (direction, code) in [(Direction::Read, reads), (Direction::Write, writes)] {
            transfer.parts[0].direction = direction;
            let entry = format!("{:?}", transfer.entry(FILE, queue.registered));
            assert!(entry.contains(&format!("op_code: {code},")), "{direction:?} {code}: {entry}");
        }
    }
}

#[test]
fn what_waits_for_room_is_merged_when_its_turn_comes() {
    let (mut queue, _directory) = queue();
    for block in [3, 10, 12, 11] {
        let buffer = queue.buffer(1);
        queue.submit(block, Operation::Write { block, buffer });
        queue.dispatch();
    }
    assert_eq!(flying(&queue), [[3]], "one has room");
    let mut ended = Vec::new();
    while ended.is_empty() {
        queue.enter();
        queue.reap();
        ended.append(&mut queue.ended);
    }
    queue.dispatch();
    assert_eq!(flying(&queue), [[10, 11, 12]]);
    while ended.len() < 4 {
        queue.wait(None, &mut ended);
    }
    assert!(ended.iter().all(|completion| completion.result.is_ok()), "{ended:?}");
}

fn pair() -> (std::os::unix::net::UnixStream, Arc<OwnedFd>) {
    let (ours, watched) = std::os::unix::net::UnixStream::pair().expect("a pair");
    (ours, Arc::new(watched.into()))
}

fn tokens(queue: &mut FileQueue, count: usize) -> Vec<u64> {
    let mut ended = Vec::new();
    while ended.len() < count {
        queue.wait(None, &mut ended);
    }
    assert!(ended.iter().all(|completion| completion.result.is_ok()), "{ended:?}");
    ended.iter().map(|completion| completion.token).collect()
}

#[test]
fn a_watch_ends_with_something_to_read_or_nobody_to_come_and_takes_no_place() {
    let (mut queue, _directory) = queue();
    let (mut talks, talker) = pair();
    let (leaves, leaver) = pair();
    assert!(queue.watch(7, Arc::clone(&talker)) && queue.watch(8, leaver));
    // The depth is 1.
    let buffer = queue.buffer(1);
    queue.submit(1, Operation::Write { block: 0, buffer });
    assert_eq!(tokens(&mut queue, 1), [1]);
    talks.write_all(b"x").expect("sent");
    assert_eq!(tokens(&mut queue, 1), [7]);
    // It is still there to be read.
    assert!(queue.watch(9, talker));
    assert_eq!(tokens(&mut queue, 1), [9]);
    drop(leaves);
    assert_eq!(tokens(&mut queue, 1), [8]);
    assert_eq!((queue.watching, queue.flying.len()), (0, 0));
}

#[test]
fn a_queue_that_watches_may_go_and_watches_only_so_many() {
    let (mut queue, _directory) = queue();
    let pairs: Vec<_> = (0..=WATCHES).map(|_| pair()).collect();
    for (number, (_, watched)) in (0..).zip(&pairs) {
        assert_eq!(queue.watch(number, Arc::clone(watched)), number < WATCHES as u64, "{number}");
        // Some are with the kernel, some not yet.
        if number == 9 {
            queue.enter();
        }
    }
    drop(queue);
    assert!(pairs.iter().all(|(_, watched)| Arc::strong_count(watched) == 1));
}

/// A filter is a thread's own, so it is one that ends.
fn without_the_call(test: impl FnOnce(&mut FileQueue) + Send + 'static) {
    let thread = std::thread::spawn(|| {
        let (mut queue, _directory) = queue();
        test(&mut queue);
    });
    thread.join().expect("the test has passed");
}

fn forbid() {
    testkit::seccomp::forbid(libc::SYS_io_uring_enter, libc::EPERM).expect("a filter");
}

fn refused(ended: &[Completion]) -> Vec<u64> {
    for completion in ended {
        let error = completion.result.as_ref().expect_err("nothing can have been done");
        assert!(error.kind == ErrorKind::Forbidden && error.message.contains("seccomp"), "{error}");
    }
    let mut tokens: Vec<u64> = ended.iter().map(|completion| completion.token).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn where_the_ring_may_not_be_entered_all_that_is_asked_for_fails() {
    without_the_call(|queue| {
        forbid();
        let mut ended = Vec::new();
        for (token, block) in [(1, 3), (2, 3), (3, 90)] {
            let buffer = queue.buffer(1);
            queue.submit(token, Operation::Write { block, buffer });
        }
        queue.submit(4, Operation::Flush);
        while ended.len() < 4 {
            queue.wait(None, &mut ended);
        }
        let out_of_range = ended.iter().position(|completion| completion.token == 3).expect("it has ended");
        ended.remove(out_of_range);
        assert_eq!(refused(&ended), [1, 2, 4]);
        // What comes later fails, too, and what is to be watched is refused.
        ended.clear();
        queue.submit(5, Operation::Read { block: 0, buffer: Buffer::private_zeroed(1) });
        queue.poll(&mut ended);
        assert_eq!(refused(&ended), [5]);
        assert!(ended[0].buffer.is_some(), "the kernel has never seen it");
        assert!(!queue.watch(6, pair().1));
    });
}

#[test]
fn what_is_in_flight_fails_and_its_memory_is_given_to_nobody() {
    without_the_call(|queue| {
        let (_ours, watched) = pair();
        assert!(queue.watch(7, Arc::clone(&watched)));
        let mut ended = Vec::new();
        queue.poll(&mut ended);
        forbid();
        let buffer = queue.buffer(1);
        queue.submit(1, Operation::Write { block: 1, buffer });
        while ended.len() < 2 {
            queue.wait(None, &mut ended);
        }
        assert_eq!(refused(&ended), [1, 7]);
        assert!(ended.iter().all(|completion| completion.buffer.is_none()));
        assert!(Arc::strong_count(&watched) > 1, "the kernel may have it");
    });
}

#[test]
fn a_thread_sleeps_beside_a_broken_ring_until_it_is_woken() {
    without_the_call(|queue| {
        forbid();
        let mut ended = Vec::new();
        queue.submit(1, Operation::Flush);
        while ended.is_empty() {
            queue.wait(None, &mut ended);
        }
        let before = cpu_time();
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_millis(600) {
            queue.wait(Some(Duration::from_secs(1)), &mut ended);
        }
        let spent = cpu_time() - before;
        assert!(spent < Duration::from_millis(150), "it spins: {spent:?} of 600 ms");
        let waker = queue.waker();
        let woken = std::thread::spawn(move || waker.wake());
        queue.wait(Some(Duration::from_secs(60)), &mut ended);
        woken.join().expect("woken");
    });
}

/// What this thread has had of a processor (proc_pid_schedstat(5): nanoseconds).
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a number");
    let spent = stat.split(' ').next().and_then(|spent| spent.parse().ok());
    Duration::from_nanos(spent.expect("nanoseconds"))
}
