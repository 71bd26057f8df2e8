//! How far a long command is, for somebody at a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on the terminal; nothing elsewhere.
pub struct Bar(ProgressBar);

impl Bar {
    pub fn new(doing: &'static str) -> Bar {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} pages, {eta} left");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_message(doing);
        Bar(bar)
    }

    pub fn show(&self, done: u64, all: u64) {
        if done.is_multiple_of(256) || done == all {
            self.0.set_length(all);
            self.0.set_position(done);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
