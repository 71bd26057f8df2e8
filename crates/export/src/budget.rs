//! How much may be in flight: bytes that were read from clients, or are on their way to them.
//!
//! Each connection has a share of its own, which nobody can take from it, and gets more from a common pool as long as there is some. So a
//! client that never reads its replies holds up itself only: others keep at least their own shares. A front end with one client, the
//! kernel, has one share.
//!
//! Who must wait does so where requests are taken, and never where they end: what ends is what others wait for.

use futures::executor::block_on;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Most bytes of reads and writes that a front end has in flight for one client, such as the kernel of this machine. Who wants more waits:
/// what is in flight takes memory here, and a disk is busy with a few megabytes.
pub(crate) const IN_FLIGHT: u64 = 8 << 20;

/// What a read or write of so many bytes counts of that: a device's memory comes in powers of two.
pub(crate) fn weight(bytes: u32) -> u64 {
    u64::from(bytes).next_power_of_two()
}

/// Limits in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// What a connection may always have: at least the largest request.
    pub(crate) own: u64,
    /// What it may have at most.
    pub(crate) each: u64,
    /// What all may have beyond their own shares.
    pub(crate) common: u64,
}

/// The common pool.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    common: u64,
    waiting: Vec<Waker>,
}

/// A connection's share.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    /// Changes only under the budget's lock.
    used: Mutex<u64>,
}

/// Bytes that are in flight until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    share: Arc<Share>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Arc<Budget> {
        Arc::new(Budget { limits, state: Mutex::default() })
    }

    /// The share of a client that has no others beside it.
    pub(crate) fn of_one(bytes: u64) -> Arc<Share> {
        Budget::new(Limits { own: bytes, each: bytes, common: 0 }).share()
    }

    pub(crate) fn share(self: &Arc<Budget>) -> Arc<Share> {
        Arc::new(Share { budget: Arc::clone(self), used: Mutex::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Waits on this thread until so many bytes, at most [`Limits::own`], may be in flight.
    pub(crate) fn wait(self: &Arc<Share>, bytes: u64) -> Permit {
        block_on(self.acquire(bytes))
    }

    /// Ends when so many bytes, at most [`Limits::own`], may be in flight.
    pub(crate) async fn acquire(self: &Arc<Share>, bytes: u64) -> Permit {
        poll_fn(|context| self.poll(bytes, context)).await
    }

    fn poll(self: &Arc<Share>, bytes: u64, context: &Context<'_>) -> Poll<Permit> {
        let limits = self.budget.limits;
        let mut state = self.budget.lock();
        let mut used = self.used();
        let after = *used + bytes;
        let more = after.saturating_sub(limits.own) - used.saturating_sub(limits.own);
        if after <= limits.each && (more == 0 || state.common + more <= limits.common) {
            *used = after;
            state.common += more;
            return Poll::Ready(Permit { share: Arc::clone(self), bytes });
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn used(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let budget = &self.share.budget;
        let mut state = budget.lock();
        let mut used = self.share.used();
        let after = used.saturating_sub(self.bytes);
        state.common -= used.saturating_sub(budget.limits.own) - after.saturating_sub(budget.limits.own);
        *used = after;
        let waiting = mem::take(&mut state.waiting);
        drop((used, state));
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    const LIMITS: Limits = Limits { own: 10, each: 25, common: 20 };

    fn later(share: &Arc<Share>, bytes: u64) -> Receiver<Permit> {
        let (sender, receiver) = channel();
        let share = Arc::clone(share);
        std::thread::spawn(move || sender.send(share.wait(bytes)));
        receiver
    }

    #[test]
    fn a_greedy_connection_stops_at_its_limit_and_leaves_the_others_their_share() {
        let budget = Budget::new(LIMITS);
        let (greedy, other, third) = (budget.share(), budget.share(), budget.share());
        let held = [10, 10, 5].map(|bytes| greedy.wait(bytes));
        let waiting = later(&greedy, 1);
        assert!(waiting.recv_timeout(Duration::from_millis(50)).is_err());
        // 15 of the pool are gone: 10 of its own and 5 are left for another, and the third has its own.
        let also = [10, 5].map(|bytes| other.wait(bytes));
        let more = later(&other, 1);
        assert!(more.recv_timeout(Duration::from_millis(50)).is_err());
        drop(third.wait(10));
        drop(held);
        assert!(waiting.recv_timeout(Duration::from_secs(5)).is_ok());
        assert!(more.recv_timeout(Duration::from_secs(5)).is_ok());
        drop(also);
        assert_eq!(budget.lock().common, 0);
    }

    proptest! {
        /// Whatever is taken and given back: the pool's count is what the shares have beyond their own.
        #[test]
        fn the_pool_counts_right(steps in prop::collection::vec((0..3_usize, 1..=10_u64, any::<bool>()), 1..60)) {
            let budget = Budget::new(Limits { own: 10, each: u64::MAX, common: u64::MAX });
            let shares = [budget.share(), budget.share(), budget.share()];
            let mut permits = Vec::new();
            for (which, bytes, give_back) in steps {
                permits.push(shares[which].wait(bytes));
                if give_back {
                    permits.swap_remove(permits.len() / 2);
                }
                let beyond: u64 = shares.iter().map(|share| share.used().saturating_sub(10)).sum();
                prop_assert_eq!(budget.lock().common, beyond);
            }
        }
    }
}
