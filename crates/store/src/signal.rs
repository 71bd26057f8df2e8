//! A flag that one thread sleeps on and any thread may raise.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;
use std::time::Duration;

/// Raised by its waker; lowered by the sleeper that saw it.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Sleeps until raised (at once, if that has happened already) or until the time-out has passed.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        let mut raised = match timeout {
            None => {
                self.changed.wait_while(raised, |raised| !*raised).unwrap_or_else(PoisonError::into_inner)
            }
            Some(timeout) => {
                self.changed
                    .wait_timeout_while(raised, timeout, |raised| !*raised)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        *raised = false;
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}
