//! A thread that looks for work and then falls asleep, under a model checker: whatever the order, work that was brought is found, and nobody
//! sleeps over it.

use loom::sync::atomic::{AtomicU8, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use uring::{Latch, SharedByte};

#[derive(Default)]
struct Byte(AtomicU8);

impl SharedByte for Byte {
    fn load(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    fn swap(&self, value: u8) -> u8 {
        self.0.swap(value, Ordering::AcqRel)
    }

    fn replace(&self, current: u8, value: u8) -> bool {
        self.0.compare_exchange(current, value, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// An eventfd that a ring reads: what is signalled before the read ends the read, too.
#[derive(Default)]
struct Event {
    signalled: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn signal(&self) {
        *self.signalled.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut signalled = self.signalled.lock().unwrap();
        while !*signalled {
            signalled = self.changed.wait(signalled).unwrap();
        }
        *signalled = false;
    }
}

#[derive(Default)]
struct Shared {
    latch: Latch<Byte>,
    event: Event,
    /// Requests that were brought.
    inbox: Mutex<u32>,
}

/// As `Disk::push` does: the request first, then the bell.
fn bring(shared: &Shared) {
    *shared.inbox.lock().unwrap() += 1;
    if shared.latch.wake() {
        shared.event.signal();
    }
}

/// As a queue thread does with so many looks before each sleep; a thread that sleeps for ever is what the checker calls a deadlock.
fn serve(shared: &Shared, wanted: u32, looks: u32) {
    let mut taken = 0;
    while taken < wanted {
        taken += std::mem::take(&mut *shared.inbox.lock().unwrap());
        if taken == wanted {
            return;
        }
        let found = (0..looks).any(|_| shared.latch.has_rung());
        if found {
            shared.latch.awake();
        } else if shared.latch.fall_asleep() {
            shared.event.wait();
            shared.latch.awake();
        }
    }
}

/// `each` requests from each of the bringers.
fn check(bringers: u32, each: u32, looks: u32) {
    let mut model = loom::model::Builder::new();
    // An order that loses a wake-up has one or two threads that are stopped at the wrong moment.
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Arc::new(Shared::default());
        let threads: Vec<_> = (0..bringers)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || (0..each).for_each(|_| bring(&shared)))
            })
            .collect();
        serve(&shared, bringers * each, looks);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn nobody_sleeps_over_work_that_was_brought() {
    check(2, 1, 0);
}

#[test]
fn nor_over_work_that_came_while_it_looked_for_it() {
    check(1, 2, 1);
}
