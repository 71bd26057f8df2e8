//! How fast writers may go while a checkpoint is under way: as fast as it does.
//!
//! Without this they would fill the overlay at full speed, and then all stand still until the checkpoint ends: a second or more on a
//! large volume. So the room that the checkpoint will make is handed out as it advances.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Progress is counted in these parts; whoever waits is woken about so often.
const PARTS: u64 = 1024;
/// What writers have at the beginning.
const HEAD_START: u64 = PARTS / 4;

/// What a checkpoint does, with its share of the work.
#[derive(Clone, Copy)]
pub(crate) enum Phase {
    /// Merging changes into the map: most of the work by far.
    Map,
    /// Merging the bits of what was freed and placed.
    Bitmap,
    /// Flushing and publishing.
    Publish,
}

impl Phase {
    /// Parts that are done when it begins and when it ends.
    fn span(self) -> (u64, u64) {
        match self {
            Self::Map => (0, PARTS * 3 / 4),
            Self::Bitmap => (PARTS * 3 / 4, PARTS * 15 / 16),
            Self::Publish => (PARTS * 15 / 16, PARTS),
        }
    }
}

/// The progress of the checkpoint under way. Written by the maintenance job, read by everybody; a value that is a moment old does no harm.
#[derive(Default)]
pub(crate) struct Pace {
    under_way: AtomicBool,
    from: AtomicU64,
    to: AtomicU64,
    total: AtomicU64,
    done: AtomicU64,
}

impl Pace {
    /// A phase begins that has `total` steps.
    pub(crate) fn begin(&self, phase: Phase, total: u64) {
        let (from, to) = phase.span();
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.to.store(to, Ordering::Relaxed);
        self.from.store(from, Ordering::Relaxed);
        self.under_way.store(true, Ordering::Relaxed);
    }

    /// The checkpoint has ended.
    pub(crate) fn end(&self) {
        self.under_way.store(false, Ordering::Relaxed);
    }

    /// So many more steps are done. Says whether those who wait may see a difference.
    pub(crate) fn advance(&self, steps: u64) -> bool {
        let before = self.parts();
        self.done.fetch_add(steps, Ordering::Relaxed);
        self.parts() != before
    }

    fn parts(&self) -> u64 {
        let (from, to) = (self.from.load(Ordering::Relaxed), self.to.load(Ordering::Relaxed));
        let total = self.total.load(Ordering::Relaxed).max(1);
        let done = self.done.load(Ordering::Relaxed).min(total);
        from + to.saturating_sub(from) * done / total
    }

    /// Of a room of `limit` changes, those that may be there by now. Between checkpoints nobody has to keep step.
    pub(crate) fn allowed(&self, limit: u64) -> u64 {
        if !self.under_way.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        let parts = HEAD_START + self.parts() * (PARTS - HEAD_START) / PARTS;
        (limit.saturating_mul(parts) / PARTS).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_with_the_work_from_a_head_start_to_all_of_it() {
        let pace = Pace::default();
        let mut last = 25_000;
        for phase in [Phase::Map, Phase::Bitmap, Phase::Publish] {
            pace.begin(phase, 5000);
            for _ in 0..5000 {
                pace.advance(1);
                let allowed = pace.allowed(100_000);
                assert!(allowed >= last && allowed - last <= 100, "{last} then {allowed}");
                last = allowed;
            }
        }
        assert_eq!(last, 100_000);
        pace.begin(Phase::Map, 5000);
        assert_eq!(pace.allowed(100_000), 25_000);
        pace.end();
        assert_eq!(pace.allowed(100_000), u64::MAX, "nobody waits for a checkpoint that is not there");
    }

    #[test]
    fn a_phase_without_steps_is_no_division_by_zero() {
        let pace = Pace::default();
        pace.begin(Phase::Publish, 0);
        assert!(!pace.advance(0));
        assert!(pace.allowed(0) > 0, "somebody always gets through");
    }
}
