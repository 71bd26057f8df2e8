//! Reading and writing files, with a limit on each.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use cli::failure::Failure;

/// Most bytes of a kernel, an initrd or a firmware.
pub const LARGE: u64 = 4 << 30;
/// Most bytes of anything else.
pub const SMALL: u64 = 8 << 20;

/// A whole file of at most `limit` bytes.
///
/// # Errors
/// If it cannot be read, or has more.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| unread(path, &error))?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| unread(path, &error))?;
    if bytes.len() as u64 > limit {
        return Err(Failure::usage(format!(
            "{} has more than {}",
            path.display(),
            cli::output::bytes(limit)
        )));
    }
    Ok(bytes)
}

/// A whole text.
///
/// # Errors
/// If it cannot be read, or is no UTF-8.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let text = String::from_utf8(read(path, SMALL)?);
    text.map_err(|_| Failure::usage(format!("{} is no text", path.display())))
}

fn unread(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("{}: {error}", path.display());
    if error.kind() == ErrorKind::NotFound { Failure::usage(message) } else { Failure::io(message) }
}

/// A new file that only its owner reads, whole or not at all.
///
/// # Errors
/// If it is there already, or cannot be written.
pub fn write_secret(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write(path, bytes, 0o600, false)
}

/// A file with this mode, whole or not at all.
///
/// # Errors
/// If it is there already and not to be replaced, or cannot be written.
pub fn write(path: &Path, bytes: &[u8], mode: u32, replace: bool) -> Result<(), Failure> {
    let written = cli::input::new_file(path, bytes, mode, replace);
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::usage(format!("{} is there already", path.display())),
        _ => Failure::io(format!("{}: {error}", path.display())),
    })
}
