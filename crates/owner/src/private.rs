//! What nobody but the owner may read or write.

use crate::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Refuses a key that every user of the machine can read, or that others can replace. A group may be given a key to read, as is the custom for
/// keys of services.
///
/// # Errors
/// [`Error::Exposed`], or why it can't be told.
pub(crate) fn check_key(path: &Path) -> Result<(), Error> {
    match mode(path)? {
        mode if mode & 0o007 != 0 => {
            Err(Error::Exposed(path.to_owned(), "every user of this machine can use the key", "o="))
        }
        mode if mode & 0o020 != 0 => {
            Err(Error::Exposed(path.to_owned(), "others can replace the key", "g-w"))
        }
        _ => Ok(()),
    }
}

/// Refuses a file that others can write, where it decides what is released.
///
/// # Errors
/// As [`check_key`].
pub(crate) fn check_settled(path: &Path) -> Result<(), Error> {
    match mode(path)? & 0o022 {
        0 => Ok(()),
        _ => Err(Error::Exposed(path.to_owned(), "others can change what is released, and to whom", "go-w")),
    }
}

/// Refuses a state directory in which others can write, and what others can write in it. What they can read there is no secret but for the
/// keys: the names of volumes, and when they moved.
///
/// # Errors
/// As [`check_key`].
pub(crate) fn check_state(directory: &Path) -> Result<(), Error> {
    let keys =
        [directory.join(crate::TLS).join("authority.key"), directory.join(crate::TLS).join("server.key")];
    let guarded = [
        directory.to_owned(),
        directory.join(crate::DATABASE),
        directory.join(crate::ARCHIVE),
        directory.join(crate::TLS),
    ];
    let there = |path: &&PathBuf| path.exists();
    for path in guarded.iter().filter(there) {
        if mode(path)? & 0o022 != 0 {
            return Err(Error::Exposed(path.clone(), "others can change what the service stands on", "go-w"));
        }
    }
    keys.iter().filter(there).try_for_each(|key| check_key(key))
}

fn mode(path: &Path) -> Result<u32, Error> {
    let metadata = fs::metadata(path).map_err(|error| Error::Io("look at", path.to_owned(), error))?;
    Ok(metadata.permissions().mode())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path, mode: u32, check: impl Fn() -> Result<(), Error>) -> Option<String> {
        let before = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = check().err().map(|error| error.to_string());
        fs::set_permissions(path, before).unwrap();
        refused
    }

    #[test]
    fn what_others_can_read_or_write_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        crate::make(&state, None).unwrap();
        crate::Authority::make(&state.join(crate::TLS), &["localhost".into()]).unwrap();
        let check = || check_state(&state);
        check().unwrap();
        let key = state.join("tls/authority.key");
        for (path, mode, advice) in [
            (state.clone(), 0o777, "chmod go-w"),
            (state.join(crate::DATABASE), 0o666, "chmod go-w"),
            (state.join(crate::DATABASE), 0o660, "chmod go-w"),
            (key.clone(), 0o644, "chmod o="),
            (key.clone(), 0o620, "chmod g-w"),
            (state.join("tls/server.key"), 0o604, "chmod o="),
            (state.join("tls"), 0o770, "chmod go-w"),
        ] {
            let refused = refusal(&path, mode, check).expect("it is refused");
            let advice = format!("{advice} {}", path.display());
            assert!(refused.contains(&advice), "{refused}");
        }
        // What is no secret may be read, and a group may have a key.
        assert_eq!(refusal(&state, 0o755, check), None);
        assert_eq!(refusal(&state.join(crate::DATABASE), 0o644, check), None);
        assert_eq!(refusal(&key, 0o640, check), None);
        assert!(check_key(&directory.path().join("none")).is_err());
    }
}
