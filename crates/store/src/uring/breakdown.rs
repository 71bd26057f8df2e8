//! A kernel that does not let us into the ring any more.
//!
//! Requests reach the kernel, and their ends reach us, by `io_uring_enter` only. Where that fails there is nothing to wait for: a thread that
//! tried again would do so for ever, and could not even be stopped. So what passes is tried again, slowly and for a time; then the queue is broken.

use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uring::{EnterError, Event};

use crate::{Error, ErrorKind};

/// How long the kernel may be short of memory, or of room for completions.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a thread rests before it tries again.
const PAUSE: Duration = Duration::from_millis(2);
/// How long it sleeps without a ring, at most: the ring may still have a read of the event in flight, and take what would wake us.
const NAP: Duration = Duration::from_millis(100);

/// What is known of the way into the ring.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Since when it is refused.
    since: Option<Instant>,
    for_good: Option<Error>,
}

impl Trouble {
    /// Takes note of what an entry said. Whether this has broken the queue, now and for good.
    pub(super) fn note(&mut self, entered: Result<(), EnterError>, store: &str) -> bool {
        let Err(refused) = entered else {
            self.since = None;
            return false;
        };
        if self.for_good.is_some() {
            return false;
        }
        let since = self.since.get_or_insert_with(Instant::now);
        if refused.passes() && since.elapsed() < PATIENCE {
            return false;
        }
        let kind = if refused.is_forbidden() { ErrorKind::Forbidden } else { ErrorKind::Io };
        let message = format!("{refused}; what was under way is given up");
        self.for_good = Some(Error { kind, message, ..Error::from_errno(refused.errno(), "submit", store) });
        true
    }

    /// The host is believed no more, which breaks the queue as well.
    pub(super) fn give_up(&mut self, error: Error) {
        self.for_good.get_or_insert(error);
    }

    /// Why the queue is broken, if it is.
    pub(super) fn for_good(&self) -> Option<&Error> {
        self.for_good.as_ref()
    }

    /// Rests before the next attempt.
    pub(super) fn pause(&self) {
        thread::sleep(PAUSE);
    }

    /// Sleeps as the ring would have us sleep.
    pub(super) fn sleep(&self, event: &Event, timeout: Option<Duration>) {
        let nap = Timespec::try_from(timeout.map_or(NAP, |timeout| timeout.min(NAP))).ok();
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        match poll(&mut fds, nap.as_ref()) {
            // Readable, so this does not block. Nobody else reads it any more.
            Ok(1..) => event.clear(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => self.pause(),
        }
    }
}
