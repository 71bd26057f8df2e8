//! Directories that are put away with everything in them.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::iter::repeat_with;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::clear::mounts_below;
use super::{Entry, Recorded, ledger, own_name};
use crate::error::{Context, Result};

/// What a directory of ours has in it, with the name of its process: nothing else is ever removed with its content.
pub const SIGN: &str = ".cvmio-bench";
/// Letters of a name that is made up.
const LETTERS: usize = 8;

/// A private directory that was recorded before it was made. Dropping it removes it, unless something is still mounted in it.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    recorded: Option<Recorded>,
}

impl Place {
    /// Makes one in a directory; its name begins with `prefix`.
    ///
    /// # Errors
    /// When it cannot be recorded or made.
    pub fn new_in(directory: &Path, prefix: &str) -> Result<Self> {
        let shown = directory.display();
        let directory = directory.canonicalize().doing(&shown)?;
        loop {
            let letters: String = repeat_with(fastrand::alphanumeric).take(LETTERS).collect();
            let path = directory.join(format!("{prefix}{letters}"));
            let recorded = ledger().enter(Entry::Place(path.clone()))?;
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made.doing(&shown)?,
            }
            let place = Self { path, recorded: Some(recorded) };
            let sign = place.path.join(SIGN);
            fs::write(&sign, own_name()).doing(sign.display())?;
            return Ok(place);
        }
    }

    /// Makes one in the directory for temporary files.
    ///
    /// # Errors
    /// As [`new_in`](Self::new_in).
    pub fn temporary(prefix: &str) -> Result<Self> {
        Self::new_in(&std::env::temp_dir(), prefix)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(recorded) = self.recorded.take() else { return };
        // What is mounted there is not ours to remove.
        let free = mounts_below(&self.path).is_empty();
        if free && fs::remove_dir_all(&self.path).is_ok() || !self.path.exists() {
            drop(recorded);
        } else {
            recorded.leave();
        }
    }
}

/// Removes a directory that the process `name` has left: with its content if it has its sign, and else only if it is empty.
pub fn remove_left(path: &Path, name: &str) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(seen) if !seen.is_dir() => return Err(std::io::Error::other("it is no directory any more")),
        Ok(_) => {}
    }
    if !mounts_below(path).is_empty() {
        return Err(std::io::Error::other("something is mounted there"));
    }
    let signed = fs::read_to_string(path.join(SIGN)).is_ok_and(|sign| sign == name);
    if signed { fs::remove_dir_all(path) } else { fs::remove_dir(path) }
}
