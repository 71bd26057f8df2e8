//! Whether a thread sleeps, and whether somebody wants it awake: the part of a [`Doorbell`](crate::Doorbell) that makes no system call.

use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

/// A byte that threads share: the system's, or a model checker's. Each operation acquires what others released, and releases.
pub trait SharedByte {
    /// Reads it.
    fn load(&self) -> u8;
    /// Puts a value there, and returns the one that was there.
    fn swap(&self, value: u8) -> u8;
    /// Puts a value there if another one is there now. Says whether.
    fn replace(&self, current: u8, value: u8) -> bool;
}

impl SharedByte for AtomicU8 {
    fn load(&self) -> u8 {
        self.load(Ordering::Acquire)
    }

    fn swap(&self, value: u8) -> u8 {
        self.swap(value, Ordering::AcqRel)
    }

    fn replace(&self, current: u8, value: u8) -> bool {
        self.compare_exchange(current, value, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// One thread's sleep. A byte of zero is a thread that is awake, and that nobody has woken.
#[derive(Debug, Default)]
pub struct Latch<B>(pub B);

impl<B: SharedByte> Latch<B> {
    /// Whether the thread may sleep; not if it was woken since it last slept. If so, [`awake`](Self::awake) must follow.
    #[must_use]
    pub fn fall_asleep(&self) -> bool {
        let sleeps = self.0.replace(IDLE, ASLEEP);
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// Whether it was woken since it last slept.
    #[must_use]
    pub fn has_rung(&self) -> bool {
        self.0.load() == WOKEN
    }

    /// The thread is awake, and will look for whatever it was woken for.
    pub fn awake(&self) {
        self.0.swap(IDLE);
    }

    /// Wakes it. Says whether it sleeps, and needs to be told.
    #[must_use]
    pub fn wake(&self) -> bool {
        self.0.swap(WOKEN) == ASLEEP
    }
}
