//! `cvmio volume export` and `import`: a volume's content as a sealed stream, and back.

mod check;
pub mod export;
pub mod import;
mod source;

use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use volume::{Driven, Result};

use crate::cli::stream::StreamCredential;
use daemon::input::VolumeFiles;

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

/// Where a stream is, to be compared with other files: standard input or output may be one of them, too.
pub fn place<'a>(named: &'a Path, standard: &'a str) -> &'a Path {
    if named == Path::new("-") { Path::new(standard) } else { named }
}

/// The files of a volume and the secrets of a stream.
fn with_secrets<'a>(files: VolumeFiles<'a>, stream: &StreamCredential) -> VolumeFiles<'a> {
    let StreamCredential { stream_key_file, stream_passphrase_file } = stream.clone();
    files
        .and_secret("stream's key file", stream_key_file)
        .and_secret("stream's passphrase file", stream_passphrase_file)
}
