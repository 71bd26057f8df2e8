//! Time and randomness by seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A clock that stands until it is moved.
#[derive(Default)]
pub(crate) struct SimulatedClock(AtomicU64);

impl SimulatedClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl SimulatedClock {
    /// Sets it by this much, or back (not before the beginning).
    pub(crate) fn jump(&self, by: Duration, ahead: bool) {
        let now = self.0.load(Ordering::SeqCst);
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        let set = if ahead { now.saturating_add(by) } else { now.saturating_sub(by) };
        self.0.store(set, Ordering::SeqCst);
    }
}

impl volume::Clock for SimulatedClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// Random bytes from a seed. Worth nothing as a source of keys, and all the more for repeating a run.
pub(crate) struct SeededRandom(Mutex<fastrand::Rng>);

impl SeededRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(fastrand::Rng::with_seed(seed)))
    }
}

impl seal::Random for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }
}
