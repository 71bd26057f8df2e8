//! Files with the entries that a snapshot has made needless: one behind the other, as they were in the database.

use crate::database::Database;
use crate::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Entries that are read at a time.
const AT_A_TIME: usize = 4096;

/// Under which name a file is written, before it has its own: whoever reads the archive must not find half a file.
const UNFINISHED: &str = "unfinished";

/// Writes the entries `first` to `last` into a file of their own, durably. Files that it makes needless, since an attempt before was cut short
/// behind them, are removed.
///
/// # Errors
/// [`Error::Io`] if the file can't be written; nothing but an unfinished file has changed then.
pub fn write(directory: &Path, database: &Database, first: u64, last: u64) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| Error::Io("make", directory.to_owned(), error))?;
    let path = directory.join(name(first, last));
    let unfinished = directory.join(UNFINISHED);
    let fail = |error| Error::Io("write", path.clone(), error);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)
        .map_err(|error| Error::Io("write", unfinished.clone(), error))?;
    let mut next = first;
    while next <= last {
        let count = usize::try_from(last - next + 1).unwrap_or(AT_A_TIME).min(AT_A_TIME);
        let entries = database.entries(next, count)?;
        for entry in &entries {
            file.write_all(entry).map_err(fail)?;
        }
        next += entries.len().max(1) as u64;
    }
    file.sync_all().map_err(fail)?;
    fs::rename(&unfinished, &path).map_err(fail)?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(fail)?;
    remove_covered(directory, first, last).map_err(fail)
}

fn name(first: u64, last: u64) -> String {
    format!("{first:016}-{last:016}.log")
}

/// Removes what the file with the entries `first` to `last` has as well.
fn remove_covered(directory: &Path, first: u64, last: u64) -> std::io::Result<()> {
    let begin = format!("{first:016}-");
    for entry in fs::read_dir(directory)? {
        let file = entry?.file_name();
        let Some(file) = file.to_str() else { continue };
        if file.starts_with(&begin) && file < name(first, last).as_str() {
            fs::remove_file(directory.join(file))?;
        }
    }
    Ok(())
}
