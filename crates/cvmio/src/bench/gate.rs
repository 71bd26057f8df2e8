//! When all threads of a turn begin to count.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Agrees on a moment among threads that all go on serving their queues meanwhile. A barrier would not do: a thread that sleeps at
/// it with requests under way may be leading the commit that another thread waits for.
#[derive(Default)]
pub struct Gate {
    warm: AtomicU32,
    opened: OnceLock<Instant>,
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
            thread::sleep(Duration::from_millis(1));
        }
        *self.opened.get_or_init(Instant::now)
    }
}
