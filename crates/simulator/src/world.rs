//! Randomness by seed.

use std::sync::{Mutex, PoisonError};

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
