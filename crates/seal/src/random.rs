//! Where random bytes come from: handed in, so that a seed can replay a run.

use crate::heap;

/// A source of random bytes.
pub trait Random: Send + Sync {
    /// Overwrites all of `bytes`. A source that can't do so must not return.
    fn fill(&self, bytes: &mut [u8]);
}

/// The operating system's generator, through aws-lc. The only one that may make keys outside of tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    /// # Panics
    /// If the system's generator fails, which getrandom(2) does only where it does not exist.
    fn fill(&self, bytes: &mut [u8]) {
        heap::take_over();
        aws_lc_rs::rand::fill(bytes).expect("the system's random generator works");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_random_fills_all_and_differs() {
        let mut a = [0; 4096];
        let mut b = [0; 4096];
        SystemRandom.fill(&mut a);
        SystemRandom.fill(&mut b);
        assert_ne!(a, b);
        assert!(a.chunks(16).all(|part| part != [0; 16]), "a part was left unfilled");
    }
}
