//! Keeps requests apart that must not run at the same time, without ever blocking a thread.

use slab::Slab;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a range is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Together with other shared holders.
    Shared,
    /// Alone.
    Exclusive,
}

/// Locks on ranges of blocks. Who must wait is called back, first come, first served: a range that waits also
/// keeps back later ones that overlap it, so that nobody waits for ever.
#[derive(Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
}

type Start = Box<dyn FnOnce(Guard) + Send>;

#[derive(Default)]
struct State {
    held: Slab<Claim>,
    waiting: VecDeque<(Claim, Start)>,
    /// Exclusive claims, held or waiting; while there are none, nothing is compared.
    exclusive: usize,
    /// Granted, but not started yet.
    ready: VecDeque<(usize, Start)>,
    /// Some thread is starting what is ready.
    starting: bool,
}

#[derive(Debug, Clone)]
struct Claim {
    blocks: RangeInclusive<u64>,
    mode: Mode,
}

impl Claim {
    fn conflicts(&self, other: &Claim) -> bool {
        (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
            && self.blocks.start() <= other.blocks.end()
            && other.blocks.start() <= self.blocks.end()
    }
}

/// A range that is held. Dropping it releases the range and starts who waited for it.
pub(crate) struct Guard {
    lock: Arc<RangeLock>,
    key: usize,
}

impl RangeLock {
    /// Calls `start` with the guard: at once if nothing is in the way, or else on the thread that drops the last
    /// guard that is.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        blocks: RangeInclusive<u64>,
        mode: Mode,
        start: impl FnOnce(Guard) + Send + 'static,
    ) {
        let claim = Claim { blocks, mode };
        let mut state = self.lock();
        if mode == Mode::Exclusive {
            state.exclusive += 1;
        }
        if state.exclusive > 0 && state.blocks(&claim, state.waiting.len()) {
            state.waiting.push_back((claim, Box::new(start)));
            return;
        }
        let key = state.held.insert(claim);
        drop(state);
        start(Guard { lock: Arc::clone(self), key });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what has become ready, in a loop rather than by recursion: a starter that finishes at once releases
    /// its own guard, and the chain of those may be as long as the queue.
    fn start_ready(self: &Arc<Self>) {
        loop {
            let mut state = self.lock();
            let Some((key, start)) = state.ready.pop_front() else {
                state.starting = false;
                return;
            };
            drop(state);
            start(Guard { lock: Arc::clone(self), key });
        }
    }
}

impl State {
    /// Whether `claim` must wait for a held one, or for one of the first `ahead` waiting ones.
    fn blocks(&self, claim: &Claim, ahead: usize) -> bool {
        self.held.iter().any(|(_, held)| held.conflicts(claim))
            || self.waiting.iter().take(ahead).any(|(waiting, _)| waiting.conflicts(claim))
    }

    fn release(&mut self, key: usize) {
        if self.held.remove(key).mode == Mode::Exclusive {
            self.exclusive -= 1;
        }
        let mut index = 0;
        while let Some((claim, _)) = self.waiting.get(index) {
            if self.blocks(claim, index) {
                index += 1;
            } else if let Some((claim, start)) = self.waiting.remove(index) {
                let key = self.held.insert(claim);
                self.ready.push_back((key, start));
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.lock.lock();
        state.release(self.key);
        if state.ready.is_empty() || state.starting {
            return;
        }
        state.starting = true;
        drop(state);
        self.lock.start_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::mpsc::{Receiver, channel};

    fn take(lock: &Arc<RangeLock>, blocks: RangeInclusive<u64>, mode: Mode) -> Receiver<Guard> {
        let (sender, receiver) = channel();
        lock.acquire(blocks, mode, move |guard| drop(sender.send(guard)));
        receiver
    }

    #[test]
    fn shared_ranges_overlap_and_exclusive_ones_do_not() {
        let lock = Arc::new(RangeLock::default());
        let first = take(&lock, 0..=9, Mode::Shared).try_recv().expect("free");
        let second = take(&lock, 5..=20, Mode::Shared).try_recv().expect("shared");
        let writer = take(&lock, 9..=9, Mode::Exclusive);
        assert!(writer.try_recv().is_err());
        let elsewhere = take(&lock, 21..=30, Mode::Exclusive).try_recv().expect("beside them");
        drop(first);
        assert!(writer.try_recv().is_err(), "the second still holds block 9");
        drop(second);
        let writer = writer.try_recv().expect("free now");
        assert!(take(&lock, 8..=9, Mode::Shared).try_recv().is_err());
        drop((writer, elsewhere));
    }

    #[test]
    fn who_comes_later_does_not_overtake_who_waits() {
        let lock = Arc::new(RangeLock::default());
        let reader = take(&lock, 0..=3, Mode::Shared).try_recv().expect("free");
        let writer = take(&lock, 3..=4, Mode::Exclusive);
        let late = take(&lock, 4..=5, Mode::Shared);
        assert!(late.try_recv().is_err(), "block 4 is promised to the writer");
        assert!(take(&lock, 5..=5, Mode::Shared).try_recv().is_ok());
        drop(reader);
        drop(writer.try_recv().expect("its turn"));
        assert!(late.try_recv().is_ok());
    }

    #[test]
    fn a_long_queue_needs_no_deep_stack() {
        const WAITING: u32 = 2000;
        let run = || {
            let lock = Arc::new(RangeLock::default());
            let first = take(&lock, 0..=0, Mode::Exclusive).try_recv().expect("free");
            let (sender, receiver) = channel();
            for number in 0..WAITING {
                let sender = sender.clone();
                lock.acquire(0..=0, Mode::Exclusive, move |guard| {
                    sender.send(number).expect("the receiver lives");
                    drop(guard);
                });
            }
            drop((first, sender));
            assert!(receiver.iter().eq(0..WAITING), "all of them, in order");
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(run).unwrap().join().unwrap();
    }

    proptest! {
        /// Whatever is asked for and released in whatever order: no two holders conflict, and in the end
        /// everybody had a turn.
        #[test]
        fn holders_never_conflict_and_everybody_has_a_turn(
            claims in prop::collection::vec((0..12_u64, 0..4_u64, any::<bool>(), any::<prop::sample::Index>()), 1..40),
        ) {
            let lock = Arc::new(RangeLock::default());
            let (sender, receiver) = channel();
            let mut holders: Vec<(Claim, Guard)> = Vec::new();
            let mut turns = 0;
            let mut admit = |holders: &mut Vec<(Claim, Guard)>| {
                while let Ok((claim, guard)) = receiver.try_recv() {
                    assert!(!holders.iter().any(|(held, _): &(Claim, Guard)| held.conflicts(&claim)));
                    holders.push((claim, guard));
                    turns += 1;
                }
            };
            for (first, more, exclusive, release) in &claims {
                let mode = if *exclusive { Mode::Exclusive } else { Mode::Shared };
                let claim = Claim { blocks: *first..=first + more, mode };
                let sender = sender.clone();
                lock.acquire(claim.blocks.clone(), mode, move |guard| sender.send((claim, guard)).expect("alive"));
                admit(&mut holders);
                if release.index(3) == 0 && !holders.is_empty() {
                    drop(holders.swap_remove(release.index(holders.len())));
                    admit(&mut holders);
                }
            }
            while let Some(holder) = holders.pop() {
                drop(holder);
                admit(&mut holders);
            }
            prop_assert_eq!(turns, claims.len());
            prop_assert_eq!(lock.lock().exclusive, 0);
        }
    }
}
