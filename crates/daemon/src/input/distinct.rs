//! Paths that must not name the same thing.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anchor::Address;

use crate::failure::Failure;

/// What a path names, as far as two paths can be told apart by it.
#[derive(PartialEq, Eq)]
enum Identity {
    /// A file, by whatever name: links and bind mounts lead to the same number.
    File(u64, u64),
    /// A block device, through whichever of its nodes.
    Device(u64),
    /// What is not there yet: its directory, and its name there.
    New(u64, u64, std::ffi::OsString),
    /// Nobody can tell; the path itself.
    Unknown(PathBuf),
}

fn identity(path: &Path) -> Identity {
    if let Ok(found) = fs::metadata(path) {
        return match found.file_type().is_block_device() {
            true => Identity::Device(found.rdev()),
            false => Identity::File(found.dev(), found.ino()),
        };
    }
    // A link that leads nowhere yet names what it leads to.
    let target = fs::read_link(path).map(|to| path.parent().unwrap_or(Path::new("")).join(to));
    let path = target.as_deref().unwrap_or(path);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (fs::metadata(directory), path.file_name()) {
        (Ok(directory), Some(name)) => Identity::New(directory.dev(), directory.ino(), name.into()),
        _ => Identity::Unknown(path.to_path_buf()),
    }
}

/// Refuses one file, or one device, for two things. Each is named as a message names it; standard input is no file.
///
/// # Errors
/// Says which two are the same.
pub fn refuse_same(named: &[(&str, Option<&Path>)]) -> Result<(), Failure> {
    let given = named.iter().filter_map(|(what, path)| Some((*what, (*path)?)));
    let files: Vec<_> = given.filter(|(_, path)| *path != Path::new("-")).collect();
    let identities: Vec<Identity> = files.iter().map(|(_, path)| identity(path)).collect();
    for (at, (what, path)) in files.iter().enumerate() {
        if let Some(before) = identities[..at].iter().position(|one| *one == identities[at]) {
            return Err(Failure::usage(format!(
                "{} is given as the {} and as the {what}; these are two things, so name two files. Nothing was changed",
                path.display(),
                files[before].0
            )));
        }
    }
    Ok(())
}

/// The file of an anchor that is one.
pub fn anchor_file(address: Option<&str>) -> Option<PathBuf> {
    let address = Address::parse(address?)?;
    (address.scheme() == "file").then(|| PathBuf::from(address.rest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_known_by_all_its_names() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("store"), b"").unwrap();
        fs::write(at("key"), b"").unwrap();
        fs::hard_link(at("store"), at("hard")).unwrap();
        std::os::unix::fs::symlink("store", at("soft")).unwrap();
        std::os::unix::fs::symlink("new", at("to-new")).unwrap();
        let same = |one: &str, other: &str| {
            refuse_same(&[("store", Some(&at(one))), ("key file", None), ("policy", Some(&at(other)))])
        };
        for (one, other) in
            [("store", "store"), ("store", "hard"), ("soft", "hard"), ("new", "./new"), ("new", "to-new")]
        {
            let failure = same(one, other).unwrap_err();
            assert!(
                failure.is_usage() && failure.to_string().contains("the store and as the policy"),
                "{failure}"
            );
        }
        for (one, other) in [("store", "key"), ("new", "newer"), ("store", "to-new"), ("new", "none/new")] {
            same(one, other).unwrap();
        }
        refuse_same(&[("key file", Some(Path::new("-"))), ("stream", Some(Path::new("-")))]).unwrap();
    }
}
