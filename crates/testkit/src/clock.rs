//! A clock for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that stands still, at zero at first, until it is moved. It counts milliseconds.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves it ahead.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::SeqCst);
    }

    /// Sets it.
    pub fn set(&self, to: Duration) {
        self.0.store(millis(to), Ordering::SeqCst);
    }

    /// Sets it ahead by this much, or back (not before the beginning).
    pub fn jump(&self, by: Duration, ahead: bool) {
        let (now, by) = (self.0.load(Ordering::SeqCst), millis(by));
        let set = if ahead { now.saturating_add(by) } else { now.saturating_sub(by) };
        self.0.store(set, Ordering::SeqCst);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl volume::Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::Clock;

    #[test]
    fn it_moves_only_when_it_is_moved_and_never_before_its_beginning() {
        let clock = ManualClock::default();
        let seconds = Duration::from_secs;
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(seconds(5));
        clock.jump(seconds(2), false);
        assert_eq!(clock.now(), seconds(3));
        clock.jump(seconds(9), false);
        assert_eq!(clock.now(), Duration::ZERO);
        clock.set(seconds(7));
        clock.jump(seconds(1), true);
        assert_eq!(clock.now(), seconds(8));
    }
}
