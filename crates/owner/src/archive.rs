//! Files with the entries that a snapshot has made needless: one behind the other, as they were in the database.

use crate::database::Database;
use crate::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Entries that are read at a time.
const AT_A_TIME: usize = 4096;

/// Writes the entries `first` to `last` into a file of their own, durably. A file that a crash left half-written is written anew.
///
/// # Errors
/// If the database can't be read, or the file can't be written.
pub fn write(directory: &Path, database: &Database, first: u64, last: u64) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(|error| Error::Io("make", directory.to_owned(), error))?;
    let path = directory.join(format!("{first:016}-{last:016}.log"));
    let fail = |error| Error::Io("write", path.clone(), error);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(fail)?;
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
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(fail)
}
