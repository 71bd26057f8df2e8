//! How a long job gives way to those who use the volume.
//!
//! Invariants:
//! 1. While somebody uses the volume, and for a moment after, the job rests [`REST`] times as long as it worked, after each little that it does.
//! 2. With the volume to itself it never rests.

use std::time::Duration;

use volume::{Clock, Driven, Sharing, Volume};

/// How long it sleeps at most before it looks around.
pub const NAP: Duration = Duration::from_millis(50);
/// Who has used the volume so short a time ago uses it.
const MOMENT: Duration = Duration::from_secs(1);
/// It rests so many times as long as it worked.
const REST: u32 = 3;
/// The longest rest: a stop must not wait longer.
const LONGEST_REST: Duration = Duration::from_millis(500);

/// Drives one job.
pub struct BackgroundRate<C> {
    clock: C,
    /// What [`Volume::uses`] said last, and when that had changed.
    uses: u64,
    used: Option<Duration>,
    /// When the job began to work, after its last rest.
    began: Duration,
}

impl<C: Clock> BackgroundRate<C> {
    /// For a job that begins now, on a volume that has been used so often.
    pub fn new(clock: C, uses: u64) -> Self {
        Self { began: clock.now(), clock, uses, used: None }
    }

    /// Moves the job on, and lets it rest; the result, when it has ended. While it is too `early` to go on, it comes to a rest first: what it
    /// has under way others may have to wait for.
    pub fn step<T>(
        &mut self,
        job: &mut Driven<T>,
        volume: &Volume,
        sharing: &Sharing,
        early: Duration,
    ) -> Option<T> {
        let used = self.is_used(volume.uses());
        sharing.share(used || !early.is_zero());
        if sharing.rests() {
            let rest = if used { self.rest() } else { Duration::ZERO };
            std::thread::sleep(rest.max(early.min(NAP)));
            self.rested();
            if early > NAP {
                return None;
            }
            sharing.go_on();
        }
        job.step(NAP)
    }

    /// It begins to work: whatever it waited for, the time before this was no work.
    pub fn rested(&mut self) {
        self.began = self.clock.now();
    }

    /// Whether somebody uses the volume, which has been used so often by now.
    fn is_used(&mut self, uses: u64) -> bool {
        let now = self.clock.now();
        let was = self.used.is_some_and(|used| now - used < MOMENT);
        if std::mem::replace(&mut self.uses, uses) != uses {
            self.used = Some(now);
            if !was {
                self.began = now;
            }
        }
        self.used.is_some_and(|used| now - used < MOMENT)
    }

    /// How long it shall rest now.
    fn rest(&self) -> Duration {
        ((self.clock.now() - self.began) * REST).min(LONGEST_REST)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Milliseconds; it stands still until it is moved.
    #[derive(Clone, Default)]
    struct Still(Arc<AtomicU64>);

    impl Still {
        fn pass(&self, time: Duration) {
            let milliseconds = u64::try_from(time.as_millis()).unwrap();
            self.0.fetch_add(milliseconds, Ordering::Relaxed);
        }
    }

    impl Clock for Still {
        fn now(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Relaxed))
        }
    }

    const TEN: Duration = Duration::from_millis(10);

    #[test]
    fn a_job_with_the_volume_to_itself_never_rests() {
        let clock = Still::default();
        let mut rate = BackgroundRate::new(clock.clone(), 7);
        for _ in 0..1000 {
            clock.pass(TEN);
            assert!(!rate.is_used(7));
        }
    }

    #[test]
    fn who_has_used_the_volume_a_moment_ago_still_uses_it() {
        let clock = Still::default();
        let mut rate = BackgroundRate::new(clock.clone(), 7);
        assert!(rate.is_used(8), "at once");
        clock.pass(MOMENT - TEN);
        assert!(rate.is_used(8));
        clock.pass(TEN);
        assert!(!rate.is_used(8), "and then no longer");
        assert!(rate.is_used(9));
    }

    #[test]
    fn beside_users_it_works_a_quarter_of_the_time() {
        let clock = Still::default();
        let mut rate = BackgroundRate::new(clock.clone(), 0);
        // Alone it has worked for long; that is nothing to rest from.
        clock.pass(Duration::from_mins(1));
        let (mut worked, mut rested) = (Duration::ZERO, Duration::ZERO);
        for uses in 1..=100 {
            assert!(rate.is_used(uses));
            clock.pass(TEN);
            worked += TEN;
            rested += rate.rest();
            clock.pass(rate.rest());
            rate.rested();
        }
        assert_eq!(rested, worked * REST);
    }

    #[test]
    fn no_rest_is_so_long_that_a_stop_would_wait_for_it() {
        let clock = Still::default();
        let mut rate = BackgroundRate::new(clock.clone(), 0);
        assert!(rate.is_used(1));
        clock.pass(Duration::from_mins(1));
        assert_eq!(rate.rest(), LONGEST_REST);
    }
}
