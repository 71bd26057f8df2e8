//! What was in a directory when it was complete, so that one that was damaged since is not used.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::said;

/// The seal's file, in the directory that it is of.
const NAME: &str = "packages";

/// A line for each file, directory and link, and one for the content of each file. Times and owners are left out: they are of the one who unpacks.
const LIST: &str = r"
set -e
export LC_ALL=C
find . -mindepth 1 ! -path ./packages -printf '%p %y %m %l\n' | sort
find . -type f ! -path ./packages -print0 | sort -z | xargs -0 sha256sum
";

/// Why a directory is not to be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// It is not there, or of something else.
    Other,
    /// It is not what it was; with the path that differs first, and perhaps what it was.
    Damaged(String),
}

/// Seals a directory that is complete, as one of `what` (a line).
///
/// # Errors
/// When something in it cannot be read, or the seal not written.
pub(crate) fn close(directory: &Path, what: &str) -> Result<(), String> {
    let seal = format!("{what}\n{}", list(directory)?);
    fs::write(directory.join(NAME), seal).map_err(|error| format!("{}: {error}", directory.display()))
}

/// Looks whether a directory is all that it was when it was sealed, and of `what`.
///
/// # Errors
/// When it is not.
pub(crate) fn check(directory: &Path, what: &str) -> Result<(), Broken> {
    let seal = fs::read(directory.join(NAME)).map_err(|_| Broken::Other)?;
    let seal = String::from_utf8_lossy(&seal);
    let Some(sealed) = seal.strip_prefix(what).and_then(|rest| rest.strip_prefix('\n')) else {
        return Err(Broken::Other);
    };
    let found = list(directory).map_err(Broken::Damaged)?;
    if found == sealed {
        return Ok(());
    }
    let mut lines = found.lines().zip(sealed.lines());
    let line = lines.find(|(found, sealed)| found != sealed).map_or("./something", |(_, sealed)| sealed);
    // Behind its checksum.
    Err(Broken::Damaged(line.split_once("./").map_or(line, |(_, path)| path).into()))
}

fn list(directory: &Path) -> Result<String, String> {
    said(Command::new("sh").args(["-c", LIST]).current_dir(directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const WHAT: &str = "two packages";

    fn fill(at: &Path) {
        fs::create_dir(at.join("usr")).unwrap();
        fs::write(at.join("usr/a file"), "content").unwrap();
        fs::write(at.join("usr/other"), "").unwrap();
        symlink("other", at.join("usr/link")).unwrap();
    }

    #[test]
    fn what_was_not_touched_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        fill(at);
        assert_eq!(check(at, WHAT), Err(Broken::Other), "it was never complete");
        close(at, WHAT).unwrap();
        assert_eq!(check(at, WHAT), Ok(()));
        assert_eq!(check(at, "two"), Err(Broken::Other));
        assert_eq!(check(&at.join("nothing"), WHAT), Err(Broken::Other));
    }

    #[test]
    fn any_damage_is_found_and_named() {
        type Damage = (&'static str, fn(&Path));
        let damages: [Damage; 9] = [
            ("usr/a file", |at| fs::write(at.join("usr/a file"), "kontent").unwrap()),
            ("usr/a file", |at| fs::write(at.join("usr/a file"), "cont").unwrap()),
            ("usr/a file", |at| fs::write(at.join("usr/a file"), "").unwrap()),
            ("usr/other", |at| fs::remove_file(at.join("usr/other")).unwrap()),
            ("usr/link", |at| fs::write(at.join("usr/larger"), "").unwrap()),
            ("usr/link", |at| {
                fs::remove_file(at.join("usr/link")).unwrap();
                symlink("a file", at.join("usr/link")).unwrap();
            }),
            ("usr/other", |at| {
                fs::set_permissions(at.join("usr/other"), PermissionsExt::from_mode(0o711)).unwrap();
            }),
            // The seal itself.
            ("", |at| cut(&at.join(NAME), 1)),
            ("", |at| cut(&at.join(NAME), 70)),
        ];
        for (number, (name, damage)) in damages.into_iter().enumerate() {
            let directory = tempfile::tempdir().unwrap();
            fill(directory.path());
            close(directory.path(), WHAT).unwrap();
            damage(directory.path());
            let found = check(directory.path(), WHAT);
            assert!(
                matches!(&found, Err(Broken::Damaged(line)) if line.contains(name)),
                "{number}: {found:?}"
            );
        }
    }

    /// Cuts a file's last bytes off.
    fn cut(file: &Path, bytes: usize) {
        let content = fs::read(file).unwrap();
        fs::write(file, &content[..content.len() - bytes]).unwrap();
    }
}
