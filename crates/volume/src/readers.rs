//! Who is still reading: a freed block may be used again only when every reader that could hold its old
//! place has finished.
//!
//! Two phases, as in read-copy-update: a reader counts itself into the current phase; a grace period flips the phase
//! and ends when the old phase's count is zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use event_listener::{Event, EventListener};

use crate::mutation::{Mutation, mutated};

#[derive(Default)]
pub(crate) struct Readers {
    phase: AtomicU64,
    active: [AtomicU64; 2],
    awaited: AtomicBool,
    ended: Event,
}

/// A reader in flight.
pub(crate) struct Reading {
    readers: Arc<Readers>,
    phase: usize,
}

impl Readers {
    pub(crate) fn enter(self: &Arc<Self>) -> Reading {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            let slot = usize::from(phase % 2 == 1);
            self.active[slot].fetch_add(1, Ordering::SeqCst);
            // Counted into a phase that was flipped meanwhile: a grace period may not have seen us.
            if self.phase.load(Ordering::SeqCst) == phase {
                return Reading { readers: Arc::clone(self), phase: slot };
            }
            self.leave(slot);
        }
    }

    /// Counts a reader out: also one that only looked in, for whoever waits may have seen it.
    fn leave(&self, slot: usize) {
        self.active[slot].fetch_sub(1, Ordering::SeqCst);
        // Nearly always nobody waits, and this is one load.
        if self.awaited.load(Ordering::SeqCst) && self.awaited.swap(false, Ordering::SeqCst) {
            self.ended.notify(usize::MAX);
        }
    }

    /// Tells when a reader ends. Look again after this was called, then wait.
    pub(crate) fn listen(&self) -> EventListener {
        // In this order: a reader that takes the notice between the two has somebody to give it to.
        let listener = self.ended.listen();
        self.awaited.store(true, Ordering::SeqCst);
        listener
    }

    /// As if the notice of the last reader had been taken by somebody else.
    #[cfg(test)]
    pub(crate) fn forget_waiters(&self) {
        self.awaited.store(false, Ordering::SeqCst);
    }

    /// Wakes whoever listens, although no reader ended: what it waits for may have happened elsewhere.
    pub(crate) fn wake(&self) {
        self.ended.notify(usize::MAX);
    }

    /// The number of the phase that must drain for a grace period that begins now; flips the phase if the
    /// other one is empty. Call [`Readers::drained`] with it.
    pub(crate) fn begin_grace(&self) -> Option<u64> {
        let phase = self.phase.load(Ordering::SeqCst);
        let next = usize::from((phase + 1) % 2 == 1);
        if self.active[next].load(Ordering::SeqCst) != 0 {
            return None;
        }
        self.phase.store(phase + 1, Ordering::SeqCst);
        Some(phase)
    }

    pub(crate) fn drained(&self, phase: u64) -> bool {
        mutated(Mutation::ReaderIgnored)
            || self.active[usize::from(phase % 2 == 1)].load(Ordering::SeqCst) == 0
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.readers.leave(self.phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_waits_for_older_readers_only() {
        let readers = Arc::new(Readers::default());
        let old = readers.enter();
        let phase = readers.begin_grace().expect("the other phase is empty");
        let young = readers.enter();
        assert!(!readers.drained(phase));
        drop(old);
        assert!(readers.drained(phase), "a reader that began later does not hold a grace period back");
        drop(young);
    }

    #[test]
    fn a_second_grace_cannot_begin_over_an_undrained_phase() {
        let readers = Arc::new(Readers::default());
        let old = readers.enter();
        readers.begin_grace().expect("first");
        assert_eq!(readers.begin_grace(), None, "the next phase still has a reader");
        drop(old);
        assert!(readers.begin_grace().is_some());
    }
}
