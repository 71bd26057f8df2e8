//! How far a run is, and how long it still takes.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::visible::visible;

/// Shows progress: a bar on a terminal, else a line for each case.
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    last: String,
    /// When the first turn began: making targets ready says nothing about how long turns take.
    began: Option<Instant>,
    /// Turns since then; those of a run that is gone on with take no time.
    taken: u32,
}

impl Progress {
    /// For so many turns.
    pub fn new(turns: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(turns) } else { ProgressBar::hidden() };
        bar.set_length(turns);
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos} of {len} turns{prefix}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, terminal, last: String::new(), began: None, taken: 0 }
    }

    /// All targets are ready: turns begin.
    pub fn begin(&mut self) {
        self.began = Some(Instant::now());
    }

    /// What is done now.
    pub fn at(&mut self, what: &str) {
        let what = &visible(what);
        self.bar.set_message(what.clone());
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let elapsed = self.began.map(|began| began.elapsed());
        let left = elapsed.and_then(|elapsed| left(elapsed, self.taken, all.saturating_sub(done)));
        let left = left.map_or(String::new(), |left| format!(", about {} s left", left.as_secs()));
        if !self.terminal && self.last != *what {
            self.last.clone_from(what);
            let _ = writeln!(std::io::stderr(), "{what} ({done} of {all} turns{left})");
        }
        self.bar.set_prefix(left);
    }

    /// A turn was taken.
    pub fn done(&mut self) {
        self.taken += 1;
        self.bar.inc(1);
    }

    /// A turn needs not be taken.
    pub fn skip(&mut self) {
        self.bar.inc(1);
    }

    /// Says something that stays.
    pub fn say(&self, what: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "cvmio: {}", visible(what));
        });
    }
}

/// How long the rest takes, if its turns are like those that were taken; unknown before one was.
fn left(elapsed: Duration, taken: u32, rest: u64) -> Option<Duration> {
    let one = elapsed.checked_div(taken)?;
    Some(one.saturating_mul(u32::try_from(rest).unwrap_or(u32::MAX)))
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_known_from_turns_that_were_taken() {
        assert_eq!(left(Duration::from_secs(70), 0, 96), None);
        assert_eq!(left(Duration::from_secs(8), 4, 10), Some(Duration::from_secs(20)));
        assert_eq!(left(Duration::from_secs(8), 4, 0), Some(Duration::ZERO));
    }
}
