//! What tests and the simulator put in the place of the world: stores, an anchor and a clock that do what a test says.
//!
//! No product crate depends on this one, except for its tests.
//!
//! * [`hostile::HostileStore`] is a disk in the hands of an adversary, by seed.
//! * [`InterceptingStore`] stands in front of another store; an [`Interceptor`] watches its traffic, holds it back or fails it.
//! * [`ScriptedAnchor`] moves when a script says so, fails, or lies.
//! * [`ManualClock`] stands still until it is moved.
//! * [`seccomp::forbid`] makes the kernel refuse a system call.
#![deny(unsafe_code)]

#[cfg(feature = "volume")]
mod clock;
pub mod hostile;
mod intercept;
mod scripted;
#[allow(unsafe_code, reason = "a system call")]
pub mod seccomp;

#[cfg(feature = "volume")]
pub use clock::ManualClock;
pub use intercept::{InterceptingStore, Interceptor, Verdict};
pub use scripted::{Outcome, ScriptedAnchor};

/// Blocks in rising order, as runs.
pub fn runs(blocks: impl Iterator<Item = u64>) -> Vec<std::ops::Range<u64>> {
    let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(last) if last.end == block => last.end += 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs
}
