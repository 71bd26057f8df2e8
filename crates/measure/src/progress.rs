//! How far a run is, and how long it still takes.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows progress: a bar on a terminal, else a line for each case.
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    last: String,
}

impl Progress {
    /// For so many turns.
    pub fn new(turns: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(turns) } else { ProgressBar::hidden() };
        bar.set_length(turns);
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos} of {len} turns, {eta} left") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, terminal, last: String::new() }
    }

    /// What is done now.
    pub fn at(&mut self, what: &str) {
        self.bar.set_message(what.to_string());
        if !self.terminal && self.last != what {
            self.last = what.into();
            let left = self.bar.eta().as_secs();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let _ = writeln!(std::io::stderr(), "{what} ({done} of {all} turns, about {left} s left)");
        }
    }

    /// Some turns are behind us.
    pub fn done(&mut self, turns: u64) {
        self.bar.inc(turns);
    }

    /// Says something that stays.
    pub fn say(&self, what: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "cvmio: {what}");
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
