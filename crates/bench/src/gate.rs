//! When all threads of a turn begin to count, and when they end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long who waits for others sleeps before it looks again.
const GLANCE: Duration = Duration::from_millis(1);

/// Agrees on two moments among threads that all go on serving their queues meanwhile: from when they count, and, if that is to be before
/// the time is up, until when. A barrier would not do: a thread that sleeps at it with requests under way may be leading the commit that
/// another thread waits for.
#[derive(Default)]
pub struct Gate {
    warm: AtomicU32,
    opened: OnceLock<Instant>,
    closed: OnceLock<Instant>,
    /// Rung when it closes, which happens under the lock.
    bell: (Mutex<()>, Condvar),
}

impl Gate {
    /// Says that a thread is ready to be measured, or has failed. Once a thread.
    pub fn arrive(&self) {
        self.warm.fetch_add(1, Ordering::SeqCst);
    }

    /// The moment from which is counted, once all have arrived.
    pub fn opened(&self) -> Option<Instant> {
        self.opened.get().copied()
    }

    /// Waits for so many threads and opens.
    pub fn open(&self, threads: u32) -> Instant {
        while self.warm.load(Ordering::SeqCst) < threads {
            thread::sleep(GLANCE);
        }
        *self.opened.get_or_init(Instant::now)
    }

    /// Nothing more is to be measured, whatever time is left.
    pub fn close(&self) {
        let (lock, bell) = &self.bell;
        let _held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.closed.get_or_init(Instant::now);
        bell.notify_all();
    }

    /// The moment until which is counted, if somebody set one.
    pub fn closed(&self) -> Option<Instant> {
        self.closed.get().copied()
    }

    /// Sleeps until `end`, or until it closes.
    pub fn wait_until(&self, end: Instant) {
        let (lock, bell) = &self.bell;
        let held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let time = end.saturating_duration_since(Instant::now());
        drop(bell.wait_timeout_while(held, time, |()| self.closed().is_none()));
    }

    /// Sleeps until it opens; whether it does, before `given_up` says that nobody will open it.
    pub fn wait_for_opening(&self, given_up: impl Fn() -> bool) -> bool {
        while self.opened().is_none() && !given_up() {
            thread::sleep(GLANCE);
        }
        self.opened().is_some()
    }
}
