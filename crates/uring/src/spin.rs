//! Looking for work for a while before falling asleep.
//!
//! A thread that sleeps has to be woken: on an idle processor of a virtual machine that takes as long as a short request. So a thread that
//! will have work again in a moment had better look for it. Whether it will, the last waits tell. Looking takes a processor away from others,
//! perhaps from the very one that is to bring the work. So it is bounded three times: in each wait, in its share of the time, and by what it
//! brings.
//!
//! Nothing here decides whether there is work: who looked in vain falls asleep as if it had not looked ([`Doorbell`](crate::Doorbell)).

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a thread waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Poll {
    /// Asleep.
    #[default]
    Off,
    /// It looks for a time that the last waits suggest, and then sleeps.
    Adaptive,
    /// It never sleeps.
    Always,
}

/// Longest that `adaptive` looks in one wait, in nanoseconds: about as long as a request to a fast disk takes. To be woken costs less than
/// that, so longer would be lost in any case.
const LONGEST: u64 = 100_000;
/// What a wait counts at most, in nanoseconds: after a long one, a few short ones bring the mean back down.
const COUNTS: u64 = 8 * LONGEST;
/// How often the time between two looks shows that another thread had this processor, in a window, before looking ends for the window.
const PUSHED: u32 = 1;
/// Between two looks a thread that was not interrupted takes a fraction of this, in nanoseconds.
const GLANCE: u64 = 30_000;
/// Time over which the share is counted, in nanoseconds.
const WINDOW: u64 = 100_000_000;
/// Looks between two glances at the clock.
const LOOKS: u32 = 16;

/// What waiting has been like, over all threads that share it.
#[derive(Debug, Default)]
pub struct Waits {
    spun: AtomicU64,
    slept: AtomicU64,
    found: AtomicU64,
    missed: AtomicU64,
    sleeps: AtomicU64,
}

/// The same as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waited {
    /// Time spent looking.
    pub spun: Duration,
    /// Time asleep.
    pub slept: Duration,
    /// Waits that ended while it looked.
    pub found: u64,
    /// Waits in which it looked in vain.
    pub missed: u64,
    /// Waits in which it slept.
    pub sleeps: u64,
}

impl Waits {
    /// What it has been like so far.
    pub fn so_far(&self) -> Waited {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Waited {
            spun: Duration::from_nanos(get(&self.spun)),
            slept: Duration::from_nanos(get(&self.slept)),
            found: get(&self.found),
            missed: get(&self.missed),
            sleeps: get(&self.sleeps),
        }
    }
}

/// One thread's way to wait.
#[derive(Debug)]
pub struct Spinner {
    poll: Poll,
    /// Most of the time that may go into looking, in hundredths.
    share: u64,
    waits: Arc<Waits>,
    learned: Learned,
}

impl Spinner {
    /// For one thread. `share`: most hundredths of the time that `adaptive` may spend looking.
    #[must_use]
    pub fn new(poll: Poll, share: u8, waits: Arc<Waits>) -> Self {
        Self { poll, share: share.min(100).into(), waits, learned: Learned::default() }
    }

    /// One that always sleeps, and counts for nobody.
    #[must_use]
    pub fn off() -> Self {
        Self::new(Poll::Off, 0, Arc::default())
    }

    /// Whether it would look at all now. If not, whoever has to do something for it can spare that.
    #[must_use]
    pub fn would_look(&self) -> bool {
        match self.poll {
            Poll::Off => false,
            Poll::Adaptive => self.learned.patience() > 0,
            Poll::Always => true,
        }
    }

    /// Looks whether `is_there` says so, for at most `limit`. If that was in vain, the caller sleeps, for at most what
    /// [is left](Look::left); however the wait ends, [`end`](Self::end) must hear of it.
    pub fn look(&mut self, limit: Option<Duration>, mut is_there: impl FnMut() -> bool) -> Look {
        let patience = match self.poll {
            Poll::Off => return Look::default(),
            Poll::Adaptive => self.learned.patience(),
            Poll::Always => u64::MAX,
        };
        let patience = limit.map_or(patience, |limit| patience.min(nanos(limit)));
        let begun = Instant::now();
        let mut look = Look { begun: Some(begun), ..Look::default() };
        if patience == 0 {
            return look;
        }
        while !look.found && look.time < patience {
            // A short stretch without a glance at the clock.
            look.found = (0..LOOKS).any(|_| {
                hint::spin_loop();
                is_there()
            });
            let now = nanos(begun.elapsed());
            look.pushed += u32::from(now - look.time > GLANCE);
            look.time = now;
        }
        self.waits.spun.fetch_add(look.time, Ordering::Relaxed);
        let count = if look.found { &self.waits.found } else { &self.waits.missed };
        count.fetch_add(1, Ordering::Relaxed);
        look
    }

    /// The wait has ended, asleep if it was not by looking.
    pub fn end(&mut self, look: Look) {
        let Some(begun) = look.begun else { return };
        let now = Instant::now();
        let all = if look.found { look.time } else { nanos(now.saturating_duration_since(begun)) };
        if !look.found {
            self.waits.slept.fetch_add(all.saturating_sub(look.time), Ordering::Relaxed);
            self.waits.sleeps.fetch_add(1, Ordering::Relaxed);
        }
        self.learned.note(now, all, look, self.share);
    }
}

/// What came of looking.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    begun: Option<Instant>,
    /// Nanoseconds.
    time: u64,
    found: bool,
    /// How often another thread had the processor meanwhile.
    pushed: u32,
}

impl Look {
    /// Whether there is work.
    #[must_use]
    pub fn found(&self) -> bool {
        self.found
    }

    /// What is left of a limit.
    #[must_use]
    pub fn left(&self, limit: Option<Duration>) -> Option<Duration> {
        limit.map(|limit| limit.saturating_sub(Duration::from_nanos(self.time)))
    }
}

/// What the last waits tell. Times are in nanoseconds.
#[derive(Debug)]
struct Learned {
    /// A mean of the last waits, whose latest count most.
    mean: u64,
    window: Window,
    /// For so many waits there is no looking: it was in vain, or others want the processor.
    rest: u32,
    /// How long the next such rest is.
    penalty: u32,
}

/// The share's account.
#[derive(Debug, Default)]
struct Window {
    /// Time in it, waits and work.
    begun: Option<Instant>,
    spun: u64,
    pushed: u32,
    closed: bool,
}

impl Default for Learned {
    fn default() -> Self {
        Self { mean: COUNTS, window: Window::default(), rest: 0, penalty: 1 }
    }
}

impl Learned {
    /// How long to look in the next wait.
    fn patience(&self) -> u64 {
        let wanted = self.mean + self.mean / 2;
        if self.window.closed || self.rest > 0 || wanted > LONGEST { 0 } else { wanted }
    }

    /// Learns from a wait of `time` in all.
    fn note(&mut self, now: Instant, time: u64, look: Look, share: u64) {
        self.mean = (3 * self.mean + time.min(COUNTS)) / 4;
        self.rest = self.rest.saturating_sub(1);
        if look.found {
            self.penalty = 1;
        } else if look.time > 0 {
            // In vain: the longer it goes on so, the less often.
            self.rest = self.penalty;
            self.penalty = (self.penalty * 2).min(64);
        }
        self.window.note(now, look, share);
    }
}

impl Window {
    fn note(&mut self, now: Instant, look: Look, share: u64) {
        let begun = *self.begun.get_or_insert(now);
        if nanos(now.saturating_duration_since(begun)) >= WINDOW {
            *self = Self { begun: Some(now), ..Self::default() };
        }
        self.spun += look.time;
        self.pushed += look.pushed;
        self.closed |= self.spun > WINDOW / 100 * share || self.pushed >= PUSHED;
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUND: Look = Look { begun: None, time: 20_000, found: true, pushed: 0 };
    const MISSED: Look = Look { begun: None, time: 60_000, found: false, pushed: 0 };

    fn note(learned: &mut Learned, time: u64, look: Look) {
        learned.note(Instant::now(), time, look, 100);
    }

    fn busy() -> Learned {
        let mut learned = Learned::default();
        (0..20).for_each(|_| note(&mut learned, 20_000, Look::default()));
        learned
    }

    #[test]
    fn it_looks_when_waits_were_short_and_not_after_a_long_one() {
        let mut learned = Learned::default();
        assert_eq!(learned.patience(), 0, "nothing is known yet");
        learned = busy();
        let patience = learned.patience();
        assert!((20_000..=LONGEST).contains(&patience), "{patience}");
        note(&mut learned, 3_000_000_000, Look::default());
        assert_eq!(learned.patience(), 0, "an idle device");
        (0..12).for_each(|_| note(&mut learned, 20_000, Look::default()));
        assert!(learned.patience() > 0, "busy again");
    }

    #[test]
    fn waits_that_are_longer_than_looking_pays_are_slept_through() {
        let mut learned = Learned::default();
        (0..100).for_each(|_| note(&mut learned, LONGEST, Look::default()));
        assert_eq!(learned.patience(), 0);
    }

    #[test]
    fn in_vain_it_looks_less_and_less_often_and_a_find_forgives() {
        let mut learned = busy();
        let mut looks = 0;
        for _ in 0..200 {
            let look = if learned.patience() > 0 { MISSED } else { Look::default() };
            looks += u32::from(look.time > 0);
            note(&mut learned, 20_000, look);
        }
        assert!((3..10).contains(&looks), "{looks}");
        while learned.patience() == 0 {
            note(&mut learned, 20_000, Look::default());
        }
        note(&mut learned, 20_000, FOUND);
        note(&mut learned, 20_000, FOUND);
        assert!(learned.patience() > 0);
    }

    #[test]
    fn no_more_than_its_share_goes_into_looking() {
        let mut window = Window::default();
        let begun = Instant::now();
        let look = Look { time: WINDOW / 10, ..FOUND };
        let at = |part: u64| begun + Duration::from_nanos(WINDOW / 10 * part);
        (0..3).for_each(|part| window.note(at(part), look, 30));
        assert!(!window.closed);
        window.note(at(4), look, 30);
        assert!(window.closed, "four tenths of the time");
        window.note(at(10), Look::default(), 30);
        assert!(!window.closed, "the next window");
    }

    #[test]
    fn who_is_pushed_off_its_processor_lets_others_have_it() {
        let mut learned = busy();
        note(&mut learned, 20_000, Look { pushed: PUSHED, ..FOUND });
        assert_eq!(learned.patience(), 0);
    }

    #[test]
    fn what_is_there_is_found_and_all_of_it_is_counted() {
        let waits = Arc::new(Waits::default());
        let mut spinner = Spinner::new(Poll::Always, 100, waits.clone());
        let mut looks = 0;
        let look = spinner.look(None, || {
            looks += 1;
            looks > 1000
        });
        assert!(look.found());
        spinner.end(look);
        spinner = Spinner::new(Poll::Adaptive, 100, waits.clone());
        let limit = Some(Duration::from_secs(1));
        let look = spinner.look(limit, || panic!("it has not learned to look"));
        assert_eq!((look.found(), look.left(limit)), (false, limit));
        spinner.end(look);
        let so_far = waits.so_far();
        assert_eq!((so_far.found, so_far.missed, so_far.sleeps), (1, 0, 1));
        assert!(so_far.spun > Duration::ZERO && so_far.slept > Duration::ZERO);
    }

    #[test]
    fn a_limit_ends_also_what_never_sleeps() {
        let mut spinner = Spinner::new(Poll::Always, 100, Arc::default());
        let limit = Some(Duration::from_millis(5));
        let look = spinner.look(limit, || false);
        assert_eq!((look.found(), look.left(limit)), (false, Some(Duration::ZERO)));
        assert!(!Spinner::off().look(None, || panic!("it never looks")).found());
    }
}
