//! Small files, written whole or not at all.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::failure::Failure;

/// Makes a file durable, with its directory. It gets its name when it is whole: whoever is interrupted here leaves none, or the one that was
/// there. `mode` is as for `open(2)`.
///
/// # Errors
/// `AlreadyExists`, unless what is there is to be replaced.
pub fn new_file(path: &Path, bytes: &[u8], mode: u32, replace: bool) -> io::Result<()> {
    check_directory(path)?;
    let mut unnamed = tempfile::Builder::new()
        .prefix(".cvmio-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(directory(path))?;
    unnamed.write_all(bytes)?;
    unnamed.as_file().sync_all()?;
    match replace {
        true => unnamed.persist(path)?,
        false => unnamed.persist_noclobber(path)?,
    };
    sync_directory(path)
}

/// Whether there is a directory for a new file. The system would name a file in it that nobody has heard of.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let place = directory(path);
    // What cannot be told, whoever makes the file is told.
    if place.try_exists().unwrap_or(true) {
        return Ok(());
    }
    let message = format!("there is no directory {}; make it first", place.display());
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// Why a new file could not be written. Without a directory for it, that is what was asked for.
pub fn unwritten(what: &str, path: &Path, error: &io::Error) -> Failure {
    let message = format!("the {what} {} cannot be written: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(message),
        _ => Failure::io(message),
    }
}

/// Makes the name of a file durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path)).and_then(|directory| directory.sync_all())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_replaced_only_on_demand_and_nothing_lies_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy");
        new_file(&path, b"first", 0o600, false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = new_file(&path, b"second", 0o600, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        new_file(&path, b"third", 0o600, true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }
}
