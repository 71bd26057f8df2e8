//! Paths that must not name the same thing.

use std::path::{Path, PathBuf};

use anchor::{Address, Options};
use volume::policy::Policy;

use super::Source;
use super::ground::{Common, Ground};
use cli::failure::Failure;

/// A file that was named, and what for, as a message says it.
pub type Named<'a> = (&'a str, Option<&'a Path>);

/// Refuses one file, or one device, for two things of different groups, under whatever names: also a loop device and its file, or a disk and
/// its partition. Within a group files may be the same: two secrets may come from one file, which is only read. Standard input, `-`, is no file.
///
/// # Errors
/// Says which two are the same.
pub fn refuse_same(groups: &[Vec<Named>]) -> Result<(), Failure> {
    let mut before: Vec<(&str, &Path, Ground)> = Vec::new();
    for group in groups {
        let given = group.iter().filter_map(|(what, path)| Some((*what, (*path)?)));
        let files = given.filter(|(_, path)| *path != Path::new("-"));
        let files: Vec<_> = files.map(|(what, path)| (what, path, Ground::of(path))).collect();
        for one in &files {
            let clash = |other| refusal(other, one);
            if let Some(failure) = before.iter().find_map(clash) {
                return Err(failure);
            }
        }
        before.extend(files);
    }
    Ok(())
}

fn refusal(first: &(&str, &Path, Ground), second: &(&str, &Path, Ground)) -> Option<Failure> {
    let ((other, its_path, its_ground), (what, path, ground)) = (first, second);
    Some(Failure::usage(match its_ground.in_common_with(ground)? {
        Common::Itself => format!(
            "{} is given as the {other} and as the {what}; these are two things, so name two files. Nothing was changed",
            its_path.display()
        ),
        Common::Bytes => format!(
            "{}, the {other}, and {}, the {what}, have bytes in common: one is, or lies on, a part of the other (`lsblk` and `losetup` show it). These are two things, so name two that have none. Nothing was changed",
            its_path.display(),
            path.display()
        ),
    }))
}

/// The files that a volume lives by. None of them may be another one, nor anything else that a command is told.
#[derive(Debug)]
pub struct VolumeFiles<'a> {
    /// What there is of it in this machine.
    store: PathBuf,
    policy: &'a Path,
    anchor: Vec<PathBuf>,
    secrets: Vec<(&'a str, PathBuf)>,
}

impl<'a> VolumeFiles<'a> {
    /// Those of a volume whose anchor is at `address`, if it has one.
    pub fn new(store: &Path, policy: &'a Path, address: Option<&str>, options: &Options) -> Self {
        let store = store::Address::of(store).map_or_else(|_| store.into(), |address| address.path().into());
        Self { store, policy, anchor: anchor_files(address, options), secrets: Vec::new() }
    }

    /// Those of a volume that is there.
    pub fn known(store: &Path, path: &'a Path, policy: &Policy) -> Self {
        Self::new(store, path, policy.anchor.as_deref(), &policy.anchor_options)
    }

    /// And where its secret comes from.
    #[must_use]
    pub fn opened_by(self, source: impl Into<Source>) -> Self {
        let Source { key_file, passphrase_file, released } = source.into();
        let seat = released.and_then(|released| released.seat);
        self.and_secret("key file", key_file)
            .and_secret("passphrase file", passphrase_file)
            .and_secret("simulated seat", seat)
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
        vec![
            vec![("store", Some(self.store.as_path()))],
            vec![("policy", Some(self.policy))],
            secrets.collect(),
        ]
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
    use std::fs;

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
    fn a_loop_device_and_its_file_are_one_thing() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let run = |arguments: &[&str]| {
            let output = std::process::Command::new("losetup").args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
        };
        let Some(device) = run(&["-f", "--show", image.path().to_str().unwrap()]) else {
            println!("SKIPPED: no loop device to be had");
            return;
        };
        let store = Path::new(&device);
        let refused = VolumeFiles::new(store, image.path(), None, &Options::default()).refuse_same(&[]);
        let policy = image.path().with_extension("policy");
        let beside = VolumeFiles::new(store, &policy, None, &Options::default()).refuse_same(&[]);
        run(&["-d", &device]);
        let failure = refused.unwrap_err();
        let said = failure.to_string();
        assert!(failure.is_usage() && said.contains("have bytes in common"), "{said}");
        assert!(
            said.contains(&format!("{device}, the store, and {}, the policy", image.path().display())),
            "{said}"
        );
        beside.unwrap();
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
