//! How queue threads wait for requests: asleep, or looking for them for a while.

use std::num::NonZero;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use store::{Spinner, Waits};

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Poll {
    /// Sleep until there is something.
    #[default]
    Off,
    /// Look for a bounded time while requests come close together, then sleep.
    Adaptive,
    /// Never sleep: each queue thread takes a processor for itself.
    Always,
}

/// Most hundredths of its time that a thread which may sleep spends looking.
const SHARE: u8 = 50;

/// How the queue threads of one volume wait.
#[derive(Debug, Clone)]
pub struct Polling {
    poll: Poll,
    waits: Arc<Waits>,
}

/// What came of it, for `status`.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Standing {
    /// How they wait.
    pub mode: Poll,
    /// Nanoseconds spent looking.
    pub spun: u64,
    /// Nanoseconds asleep.
    pub slept: u64,
    /// Waits that ended while a thread looked.
    pub found: u64,
    /// Waits in which it looked in vain.
    pub missed: u64,
    /// Waits in which it slept.
    pub sleeps: u64,
}

impl Polling {
    /// As asked for, as far as this machine has the processors for it; and why not.
    #[must_use]
    pub fn new(wanted: Poll, queues: u8) -> (Self, Option<String>) {
        // Takes processors that this process may not run on, and the quota of its control group, into account.
        Self::with(wanted, queues, std::thread::available_parallelism().map_or(1, NonZero::get))
    }

    fn with(wanted: Poll, queues: u8, processors: usize) -> (Self, Option<String>) {
        let of = |poll| Self { poll, waits: Arc::default() };
        match wanted {
            // Who brings the work and who looks for it would wait for each other.
            Poll::Adaptive if processors < 2 => (of(Poll::Off), None),
            Poll::Always if processors <= usize::from(queues) => {
                let poll = if processors < 2 { Poll::Off } else { Poll::Adaptive };
                let instead = if poll == Poll::Off { "they sleep" } else { "they look for a bounded time" };
                let warning = format!(
                    "--poll always: {queues} queue threads that never sleep would take all of the {processors} processors that this process \
                     may use (its affinity and its CPU quota count), so {instead}; give it more processors, or fewer --queues"
                );
                (of(poll), Some(warning))
            }
            poll => (of(poll), None),
        }
    }

    /// One thread's.
    pub(crate) fn spinner(&self) -> Spinner {
        let poll = match self.poll {
            Poll::Off => store::Poll::Off,
            Poll::Adaptive => store::Poll::Adaptive,
            Poll::Always => store::Poll::Always,
        };
        Spinner::new(poll, SHARE, Arc::clone(&self.waits))
    }

    /// What came of it so far.
    pub(crate) fn standing(&self) -> Standing {
        let waited = self.waits.so_far();
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Standing {
            mode: self.poll,
            spun: nanos(waited.spun),
            slept: nanos(waited.slept),
            found: waited.found,
            missed: waited.missed,
            sleeps: waited.sleeps,
        }
    }
}

impl FromStr for Poll {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Off, Self::Adaptive, Self::Always];
        let found = all.into_iter().find(|poll| poll.name() == text);
        found.ok_or_else(|| format!("`{text}` is no way to wait; there are off, adaptive and always"))
    }
}

impl Poll {
    /// As it is typed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Adaptive => "adaptive",
            Self::Always => "always",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_never_sleep_leave_a_processor_to_others() {
        let decided = |wanted, queues, processors| {
            let (polling, warning) = Polling::with(wanted, queues, processors);
            (polling.poll, warning.is_some())
        };
        assert_eq!(decided(Poll::Always, 2, 4), (Poll::Always, false));
        assert_eq!(decided(Poll::Always, 2, 2), (Poll::Adaptive, true));
        assert_eq!(decided(Poll::Always, 1, 1), (Poll::Off, true));
        assert_eq!(decided(Poll::Adaptive, 4, 2), (Poll::Adaptive, false));
        assert_eq!(decided(Poll::Adaptive, 1, 1), (Poll::Off, false));
        assert_eq!(decided(Poll::Off, 1, 8), (Poll::Off, false));
        let (_, warning) = Polling::with(Poll::Always, 2, 1);
        assert!(warning.is_some_and(|why| why.contains("1 processors") && why.contains("quota")));
    }
}
