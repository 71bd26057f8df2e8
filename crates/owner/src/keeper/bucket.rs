//! How many refusals are logged, so that a client that is refused all the time can't fill the disk.

/// Refusals that are logged at once after a quiet time.
const BURST: u64 = 100;

/// Milliseconds after which one more is logged.
const EACH: u64 = 50;

/// A token bucket.
#[derive(Debug, Default)]
pub struct Bucket {
    /// The time up to which its tokens are used.
    used: u64,
    left_out: u32,
}

impl Bucket {
    /// `Some` if a refusal may be logged at `time` (in milliseconds), with the number of those that were left out since the last one.
    pub fn take(&mut self, time: u64) -> Option<u32> {
        // A clock that is set back by hours must not stop the log for hours.
        let used = self.used.min(time.saturating_add(EACH)).max(time.saturating_sub(BURST * EACH));
        if used > time {
            (self.used, self.left_out) = (used, self.left_out.saturating_add(1));
            return None;
        }
        self.used = used + EACH;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_logged_and_then_twenty_a_second() {
        let mut bucket = Bucket::default();
        let start = 1_000_000;
        let logged = (0..1000).filter(|_| bucket.take(start).is_some()).count();
        assert_eq!(logged, 101);
        assert_eq!(bucket.take(start + EACH), Some(899));
        assert_eq!(bucket.take(start + EACH), None);
        let later = (0..10_000).filter(|step| bucket.take(start + EACH + step).is_some()).count();
        assert!((198..=201).contains(&later), "{later}");
    }

    #[test]
    fn a_clock_that_goes_back_stops_nothing() {
        let mut bucket = Bucket::default();
        while bucket.take(1_000_000_000).is_some() {}
        assert_eq!(bucket.take(1_000), None);
        assert!(bucket.take(1_000 + EACH).is_some());
    }
}
