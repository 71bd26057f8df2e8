//! Paths that must not name the same thing.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anchor::{Address, Options};
use volume::policy::Policy;

use super::Source;
use crate::failure::Failure;

/// A file that was named, and what for, as a message says it.
pub type Named<'a> = (&'a str, Option<&'a Path>);

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

/// Refuses one file, or one device, for two things of different groups. Within a group files may be the same: two secrets may come from one
/// file, which is only read. Standard input, `-`, is no file.
///
/// # Errors
/// Says which two are the same.
pub fn refuse_same(groups: &[Vec<Named>]) -> Result<(), Failure> {
    let mut before: Vec<(&str, &Path, Identity)> = Vec::new();
    for group in groups {
        let given = group.iter().filter_map(|(what, path)| Some((*what, (*path)?)));
        let files = given.filter(|(_, path)| *path != Path::new("-"));
        let files: Vec<_> = files.map(|(what, path)| (what, path, identity(path))).collect();
        for (what, _, found) in &files {
            if let Some((other, path, _)) = before.iter().find(|(.., one)| one == found) {
                return Err(Failure::usage(format!(
                    "{} is given as the {other} and as the {what}; these are two things, so name two files. Nothing was changed",
                    path.display()
                )));
            }
        }
        before.extend(files);
    }
    Ok(())
}

/// The files that a volume lives by. None of them may be another one, nor anything else that a command is told.
#[derive(Debug)]
pub struct VolumeFiles<'a> {
    store: &'a Path,
    policy: &'a Path,
    anchor: Vec<PathBuf>,
    secrets: Vec<(&'a str, PathBuf)>,
}

impl<'a> VolumeFiles<'a> {
    /// Those of a volume whose anchor is at `address`, if it has one.
    pub fn new(store: &'a Path, policy: &'a Path, address: Option<&str>, options: &Options) -> Self {
        Self { store, policy, anchor: anchor_files(address, options), secrets: Vec::new() }
    }

    /// Those of a volume that is there.
    pub fn known(store: &'a Path, path: &'a Path, policy: &Policy) -> Self {
        Self::new(store, path, policy.anchor.as_deref(), &policy.anchor_options)
    }

    /// And where its secret comes from.
    #[must_use]
    pub fn opened_by(self, source: impl Into<Source>) -> Self {
        let Source { key_file, passphrase_file } = source.into();
        self.and_secret("key file", key_file).and_secret("passphrase file", passphrase_file)
    }

    /// Another secret, such as a stream's.
    #[must_use]
    pub fn and_secret(mut self, what: &'a str, path: Option<PathBuf>) -> Self {
        self.secrets.extend(path.map(|path| (what, path)));
        self
    }

    /// See [`refuse_same`]. Each of `more` is a thing of its own.
    ///
    /// # Errors
    /// Says which two are the same.
    pub fn refuse_same(&self, more: &[Vec<Named>]) -> Result<(), Failure> {
        let mut groups = self.groups();
        groups.insert(2, named("anchor", &self.anchor));
        groups.extend_from_slice(more);
        refuse_same(&groups)
    }

    /// The same for an anchor that the volume is to move to. What its options name, such as a certificate, the old one may have, too.
    ///
    /// # Errors
    /// Says which two are the same.
    pub fn refuse_new_anchor(&self, address: &str, options: &Options) -> Result<(), Failure> {
        self.refuse_same(&[])?;
        let new = anchor_files(Some(address), options);
        let mut groups = self.groups();
        groups.push(named("new anchor", &new));
        refuse_same(&groups)?;
        let itself = anchor_files(Some(address), &Options::default());
        refuse_same(&[named("anchor", &self.anchor), named("new anchor", &itself)])
    }

    /// All but the anchor's.
    fn groups(&self) -> Vec<Vec<Named<'_>>> {
        let secrets = self.secrets.iter().map(|(what, path)| (*what, Some(path.as_path())));
        vec![vec![("store", Some(self.store))], vec![("policy", Some(self.policy))], secrets.collect()]
    }
}

/// Several files for one thing.
pub fn named<'a>(what: &'a str, files: &'a [PathBuf]) -> Vec<Named<'a>> {
    files.iter().map(|path| (what, Some(path.as_path()))).collect()
}

/// The files of an anchor: the one that it is, and those that its options name.
pub fn anchor_files(address: Option<&str>, options: &Options) -> Vec<PathBuf> {
    let address = address.and_then(Address::parse).filter(|address| address.scheme() == "file");
    let itself = address.map(|address| PathBuf::from(address.rest()));
    // An option with a whole path names a file: a companion, a secret, a certificate.
    let told = options.iter().map(|(_, value)| Path::new(value)).filter(|path| path.is_absolute());
    itself.into_iter().chain(told.map(Path::to_path_buf)).collect()
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
            let (one, other) = (at(one), at(other));
            refuse_same(&[
                vec![("store", Some(one.as_path())), ("key file", None)],
                vec![("policy", Some(&other))],
            ])
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
        let dash = Some(Path::new("-"));
        refuse_same(&[vec![("key file", dash)], vec![("stream", dash)]]).unwrap();
        let key = at("key");
        refuse_same(&[vec![("key file", Some(&key)), ("stream's key file", Some(&key))]]).unwrap();
    }

    #[test]
    fn an_anchor_has_the_files_that_its_options_name() {
        let options = [("companion", "/v/x"), ("pcr", "7")];
        let options: Options =
            options.map(|(key, value)| (key.to_string(), value.to_string())).into_iter().collect();
        assert_eq!(anchor_files(Some("tpm:0x1"), &options), [PathBuf::from("/v/x")]);
        assert_eq!(anchor_files(Some("file:/a"), &Options::default()), [PathBuf::from("/a")]);
        let files = VolumeFiles::new(Path::new("/v/x"), Path::new("/p"), Some("tpm:0x1"), &options);
        assert!(files.refuse_same(&[]).unwrap_err().to_string().contains("the store and as the anchor"));
    }
}
