//! `cvmio volume export` and `import`: a volume's content as a sealed stream, and back.

mod check;
pub mod export;
pub mod import;
mod source;

use std::time::Duration;

use indicatif::ProgressBar;
use volume::{Driven, Result};

/// How long to wait for something before the bar is moved.
const GLANCE: Duration = Duration::from_millis(100);

/// Drives a job to its end, and shows how far it is.
fn drive<T>(mut job: Driven<Result<T>>, bar: &ProgressBar, position: impl Fn() -> u64) -> Result<T> {
    let ended = loop {
        if let Some(ended) = job.step(GLANCE) {
            break ended;
        }
        bar.set_position(position());
    };
    bar.finish_and_clear();
    ended
}
