//! What is to be brought up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use volume::format::protections::Provision;
use volume::policy::MAX_SIZE;

use super::filesystem::FileSystem;
use crate::cli::CredentialArgs;
use crate::daemon::metrics::Address;
use crate::failure::Failure;
use crate::input::{parse_duration, parse_name, parse_size};

/// A volume, and how it is to be there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Target {
    /// As in `cvmio volume list`.
    pub name: String,
    /// File or block device.
    pub store: PathBuf,
    /// The attach policy.
    pub policy: PathBuf,
    /// One of these two opens a key slot.
    pub key_file: Option<PathBuf>,
    /// As `--passphrase-file`.
    pub passphrase_file: Option<PathBuf>,
    /// A block device is wanted, and not only a file.
    #[serde(rename = "loop", default)]
    pub use_loop: bool,
    /// The file system on it. It is made on first use.
    pub fs: Option<FileSystem>,
    /// Where that is mounted; the directory is made.
    pub mountpoint: Option<PathBuf>,
    /// As for `mount -o`.
    pub mount_options: Option<String>,
    /// Where the first use makes the volume.
    #[serde(default = "full")]
    pub provision: Provision,
    /// As `attach --memory`.
    #[serde(default = "memory", deserialize_with = "size")]
    pub memory: u64,
    /// As `attach --queues`.
    #[serde(default = "queues")]
    pub queues: u8,
    /// As `attach --interval`.
    #[serde(default = "interval", deserialize_with = "time")]
    pub interval: Duration,
    /// As `attach --buffered`.
    #[serde(default)]
    pub buffered: bool,
    /// As `attach --metrics`.
    pub metrics: Option<Address>,
}

fn full() -> Provision {
    Provision::Full
}

fn memory() -> u64 {
    256 << 20
}

fn queues() -> u8 {
    2
}

fn interval() -> Duration {
    Duration::from_secs(1)
}

fn size<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    parse_size(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// Most bytes of a configuration.
pub const MAX_CONFIG: u64 = MAX_SIZE as u64;

impl Target {
    /// A volume, with all else as it is by default.
    pub fn new(name: &str, store: &Path, policy: &Path) -> Self {
        Self {
            name: name.into(),
            store: store.into(),
            policy: policy.into(),
            key_file: None,
            passphrase_file: None,
            use_loop: false,
            fs: None,
            mountpoint: None,
            mount_options: None,
            provision: full(),
            memory: memory(),
            queues: queues(),
            interval: interval(),
            buffered: false,
            metrics: None,
        }
    }

    /// Reads a configuration in JSON.
    ///
    /// # Errors
    /// When it is no such thing, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let target: Self = serde_json::from_str(text)
            .map_err(|error| Failure::usage(format!("the configuration cannot be read: {error}")))?;
        target.check().map_err(|why| Failure::usage(format!("the configuration is not usable: {why}")))?;
        Ok(target)
    }

    /// Whether all is said, and nothing that contradicts something else.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        parse_name(&self.name)?;
        let paths = [Some(&self.store), Some(&self.policy), self.mountpoint.as_ref()];
        if let Some(path) = paths.into_iter().flatten().find(|path| !path.is_absolute()) {
            return Err(format!("`{}` is no absolute path, which a service needs", path.display()));
        }
        match (&self.key_file, &self.passphrase_file) {
            (Some(file), None) | (None, Some(file)) if file.is_absolute() => {}
            (Some(file), None) | (None, Some(file)) => {
                return Err(format!("`{}` is no absolute path, which a service needs", file.display()));
            }
            _ => return Err("name either a key file or a passphrase file: nobody can be asked".into()),
        }
        if self.mountpoint.is_some() != self.fs.is_some() {
            return Err("fs and mountpoint go together".into());
        }
        if self.mount_options.is_some() && self.mountpoint.is_none() {
            return Err("mount-options want fs and mountpoint".into());
        }
        if !(1..=64).contains(&self.queues) {
            return Err(format!("there are 1 to 64 queues, and not {}", self.queues));
        }
        Ok(())
    }

    /// Whether a block device is needed.
    pub fn needs_loop(&self) -> bool {
        self.use_loop || self.mountpoint.is_some()
    }

    /// Where the secret is.
    pub fn credential(&self) -> CredentialArgs {
        CredentialArgs { key_file: self.key_file.clone(), passphrase_file: self.passphrase_file.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = r#""name": "ledger", "store": "/dev/vdb", "policy": "/etc/p", "key-file": "/k""#;

    #[test]
    fn what_is_not_said_is_as_with_attach() {
        let target = Target::parse(&format!("{{ {LEAST} }}")).unwrap();
        let mut wanted = Target::new("ledger", Path::new("/dev/vdb"), Path::new("/etc/p"));
        wanted.key_file = Some("/k".into());
        assert_eq!(target, wanted);
        let more = r#""fs": "ext4", "mountpoint": "/srv", "memory": "64M", "interval": "2s", "metrics": "unix:/m", "provision": "thin""#;
        let target = Target::parse(&format!("{{ {LEAST}, {more} }}")).unwrap();
        assert_eq!((target.fs, target.needs_loop(), target.memory), (Some(FileSystem::Ext4), true, 64 << 20));
    }

    #[test]
    fn contradictions_are_refused_with_the_reason() {
        for (more, reason) in [
            (r#""colour": "red""#, "unknown field `colour`"),
            (r#""passphrase-file": "/p""#, "either a key file or a passphrase file"),
            (r#""fs": "ext4""#, "go together"),
            (r#""mount-options": "noatime""#, "want fs"),
            (r#""fs": "ntfs", "mountpoint": "/srv""#, "unknown variant `ntfs`"),
            (r#""fs": "ext4", "mountpoint": "srv""#, "`srv` is no absolute path"),
            (r#""memory": "1X""#, "not a size"),
            (r#""queues": 65"#, "1 to 64 queues"),
            (r#""metrics": "0.0.0.0:1""#, "not a loopback address"),
        ] {
            let failure = Target::parse(&format!("{{ {LEAST}, {more} }}")).unwrap_err();
            assert!(failure.to_string().contains(reason), "{more}: {failure}");
            assert_eq!(failure.code(), 2);
        }
        assert!(Target::parse(&format!("{{ {} }}", LEAST.replace("/k", "k"))).is_err());
        assert!(Target::parse(&format!("{{ {} }}", LEAST.replace("ledger", "../x"))).is_err());
    }
}
