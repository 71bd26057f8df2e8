//! Waking a thread that waits in a ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

use crate::latch::Latch;

/// An eventfd(2): a counter that a ring can read or poll.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// One that a ring reads: the read ends when the event is signalled.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn to_read() -> io::Result<Self> {
        // Blocking, or the ring would not wait for it but fail with EAGAIN.
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// One that a ring polls, so that no memory is named; [`clear`](Self::clear) makes it ready for the next time.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn to_poll() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the read or poll that a ring has in flight, or the next one.
    pub fn signal(&self) {
        // Fails only when the counter is at its limit, and then the waiter has been woken anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes back all signals of an event that is polled.
    pub fn clear(&self) {
        // What it has counted is of no use, and it may have counted nothing.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wakes a ring's thread, as a [`Waker`](std::task::Waker) of it. Costs one atomic exchange while the thread is awake.
#[derive(Debug)]
pub struct Doorbell {
    latch: Latch<AtomicU8>,
    /// The ring keeps a read of it in flight.
    event: Event,
}

impl Doorbell {
    /// A doorbell that nobody has rung.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { latch: Latch::default(), event: Event::to_read()? })
    }

    /// What the ring must have a read of in flight (of eight bytes) before its thread falls asleep.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Whether the thread may sleep; not if it was woken since it last slept. If so, [`awake`](Self::awake) must follow.
    #[must_use]
    pub fn fall_asleep(&self) -> bool {
        self.latch.fall_asleep()
    }

    /// Whether somebody has woken the thread since it last slept: it may then not fall asleep. For a thread that looks before it does: if so,
    /// [`awake`](Self::awake) must follow, and then a look at what there is to do.
    #[must_use]
    pub fn has_rung(&self) -> bool {
        self.latch.has_rung()
    }

    /// The thread has slept.
    pub fn awake(&self) {
        self.latch.awake();
    }

    /// Ends the read that the ring has in flight, asleep or not.
    pub fn ring(&self) {
        self.event.signal();
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.latch.wake() {
            self.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::thread;
    use std::time::Duration;

    use io_uring::{opcode, types};

    use super::*;
    use crate::{Ring, Threads};

    #[test]
    fn a_wake_before_the_sleep_is_not_lost_and_counts_once() {
        let bell = Arc::new(Doorbell::new().unwrap());
        bell.wake_by_ref();
        assert!(!bell.fall_asleep());
        assert!(bell.fall_asleep());
        bell.awake();
        assert!(bell.fall_asleep());
    }

    #[test]
    fn a_thread_that_waits_in_a_ring_is_woken_by_another() {
        let mut ring = Ring::new(4, Threads::One).unwrap();
        let event = Event::to_poll().unwrap();
        for token in 0..2 {
            let poll = opcode::PollAdd::new(types::Fd(event.as_fd().as_raw_fd()), 1).build();
            // SAFETY: polling names no memory, and the event is open until the completion.
            unsafe { ring.push(&poll.user_data(token)) }.unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(10));
                    event.signal();
                });
                while ring.completions().next().map(|ended| ended.token) != Some(token) {
                    ring.wait(Some(Duration::from_secs(10))).unwrap();
                }
            });
            event.clear();
        }
    }
}
