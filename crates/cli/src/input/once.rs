//! What can be read once only: standard input, and pipes.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::failure::Failure;

/// A pipe, by whichever of its names: device and inode number.
type Number = (u64, u64);

/// What was taken, and what for.
static TAKEN: Mutex<Vec<(Number, &str)>> = Mutex::new(Vec::new());

/// Takes what a path names (`-` for standard input) for one thing. What comes second would wait for ever, or get nothing, and nothing is a
/// secret, too. Files can be taken again and again. To be called before it is opened: that is where one would wait.
///
/// # Errors
/// For the second.
pub fn take(path: &Path, what: &'static str) -> Result<(), Failure> {
    let input = standard_input();
    let taken = if path == Path::new("-") { input } else { pipe(path) };
    // What cannot be looked at, the attempt to open it finds out.
    let Some(number) = taken else { return Ok(()) };
    let mut all = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, first)) = all.iter().find(|(other, _)| *other == number) {
        let named =
            if taken == input { "standard input".into() } else { format!("the pipe {}", path.display()) };
        return Err(Failure::usage(format!(
            "{named} was read for the {first}, so it cannot be the {what}, too; put one of them into a file. Nothing was changed"
        )));
    }
    all.push((number, what));
    Ok(())
}

fn standard_input() -> Option<Number> {
    let status = rustix::fs::fstat(std::io::stdin().as_fd()).ok()?;
    Some((status.st_dev, status.st_ino))
}

fn pipe(path: &Path) -> Option<Number> {
    let found = fs::metadata(path).ok()?;
    found.file_type().is_fifo().then_some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_taken_once_by_whatever_name_and_a_file_as_often_as_one_likes() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), b"").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR).unwrap();
        std::os::unix::fs::symlink("pipe", at("link")).unwrap();
        for _ in 0..2 {
            take(&at("file"), "key file").unwrap();
            take(&at("none"), "key file").unwrap();
        }
        take(&at("pipe"), "key file").unwrap();
        for name in ["pipe", "link"] {
            let failure = take(&at(name), "passphrase file").unwrap_err();
            let told = failure.to_string();
            assert!(
                failure.is_usage() && told.contains("was read for the key file") && told.contains(name),
                "{told}"
            );
        }
    }
}
