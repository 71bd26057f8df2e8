//! What is to be brought up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use store::Address;
use volume::format::protections::Provision;
use volume::policy::MAX_SIZE;

use super::filesystem::FileSystem;
use cli::failure::Failure;
use cli::input::{parse_duration, parse_name, parse_size, parse_switch, without_mark};
use daemon::front::nbd::Where;
use daemon::front::{Show, Shown};
use daemon::input::{Released, Source};
use daemon::metrics;
use daemon::polling::Poll;
use daemon::tamper::{OnTamper, Orders};
use kbs::Address as ReleaseAddress;

/// Which front end is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontEnd {
    /// A file, and perhaps a loop device on it.
    Fuse,
    /// An NBD server.
    Nbd,
    /// A block device of the kernel's ublk driver.
    Ublk,
    /// A block device: ublk where the kernel has it, else a loop device on a file.
    Auto,
}

/// A volume, and how it is to be there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Target {
    /// As in `cvmio volume list`.
    pub name: String,
    /// The address of the store: a file, a block device, or `vhost-user:SOCKET`.
    pub store: PathBuf,
    /// The attach policy.
    pub policy: PathBuf,
    /// One of these three opens a key slot.
    pub key_file: Option<PathBuf>,
    /// As `--passphrase-file`.
    pub passphrase_file: Option<PathBuf>,
    /// As `--key-from`.
    #[serde(default, deserialize_with = "release_address")]
    pub key_from: Option<ReleaseAddress>,
    /// As `--key-from-ca`.
    pub key_from_ca: Option<PathBuf>,
    /// As `--release-dir`.
    pub release_dir: Option<PathBuf>,
    /// As `--simulated-seat`.
    pub simulated_seat: Option<PathBuf>,
    /// As `attach --as`; `auto` gives a block device.
    #[serde(rename = "as", default = "fuse", deserialize_with = "front_end")]
    pub front_end: FrontEnd,
    /// With `fuse`: a block device is wanted, and not only a file.
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
    /// As `attach --block-cache`.
    #[serde(default, deserialize_with = "size")]
    pub block_cache: u64,
    /// As `attach --discard`.
    #[serde(default, deserialize_with = "switch")]
    pub discard: Option<bool>,
    /// As `attach --queues`.
    #[serde(default = "queues")]
    pub queues: u8,
    /// As `attach --poll`.
    #[serde(default)]
    pub poll: Poll,
    /// As `attach --interval`.
    #[serde(default, deserialize_with = "some_time")]
    pub interval: Option<Duration>,
    /// As `attach --anchor-timeout`.
    #[serde(default, deserialize_with = "some_time")]
    pub anchor_timeout: Option<Duration>,
    /// As `attach --store-timeout`.
    #[serde(default, deserialize_with = "some_time")]
    pub store_timeout: Option<Duration>,
    /// As `attach --buffered`.
    #[serde(default)]
    pub buffered: bool,
    /// As `attach --metrics`.
    pub metrics: Option<metrics::Address>,
    /// As `attach --read-only`; a file system is mounted so, too.
    #[serde(default)]
    pub read_only: bool,
    /// As `attach --on-tamper`.
    #[serde(default)]
    pub on_tamper: OnTamper,
    /// As `attach --tamper-hook`.
    pub tamper_hook: Option<PathBuf>,
}

fn full() -> Provision {
    Provision::Full
}

fn fuse() -> FrontEnd {
    FrontEnd::Fuse
}

fn memory() -> u64 {
    256 << 20
}

fn queues() -> u8 {
    2
}

fn size<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    parse_size(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

fn some_time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    parse_duration(&String::deserialize(from)?).map(Some).map_err(serde::de::Error::custom)
}

fn switch<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    parse_switch(&String::deserialize(from)?).map(Some).map_err(serde::de::Error::custom)
}

fn release_address<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<ReleaseAddress>, D::Error> {
    daemon::input::release_address(&String::deserialize(from)?).map(Some).map_err(serde::de::Error::custom)
}

fn front_end<'de, D: serde::Deserializer<'de>>(from: D) -> Result<FrontEnd, D::Error> {
    parse_front_end(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// A front end, by the name that `attach --as` has for it.
///
/// # Errors
/// Says which there are.
pub fn parse_front_end(text: &str) -> Result<FrontEnd, String> {
    Ok(match text {
        "auto" => FrontEnd::Auto,
        "fuse" => FrontEnd::Fuse,
        "nbd" => FrontEnd::Nbd,
        "ublk" => FrontEnd::Ublk,
        _ => return Err(format!("`{text}` is no front end; there are auto, fuse, nbd and ublk")),
    })
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
            key_from: None,
            key_from_ca: None,
            release_dir: None,
            simulated_seat: None,
            front_end: fuse(),
            use_loop: false,
            fs: None,
            mountpoint: None,
            mount_options: None,
            provision: full(),
            memory: memory(),
            block_cache: 0,
            discard: None,
            queues: queues(),
            poll: Poll::default(),
            interval: None,
            anchor_timeout: None,
            store_timeout: None,
            buffered: false,
            metrics: None,
            read_only: false,
            on_tamper: OnTamper::default(),
            tamper_hook: None,
        }
    }

    /// Reads a configuration in JSON.
    ///
    /// # Errors
    /// When it is no such thing, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let target: Self = serde_json::from_slice(without_mark(text.as_bytes()))
            .map_err(|error| Failure::usage(format!("the configuration cannot be read: {error}")))?;
        target.check().map_err(|why| Failure::usage(format!("the configuration is not usable: {why}")))?;
        Ok(target)
    }

    /// The name in a configuration in JSON. Nothing else of it matters to somebody who takes the volume down.
    ///
    /// # Errors
    /// When there is none.
    pub fn name_in(text: &str) -> Result<String, Failure> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let named: Named = serde_json::from_slice(without_mark(text.as_bytes()))
            .map_err(|error| Failure::usage(format!("the configuration cannot be read: {error}")))?;
        parse_name(&named.name).map_err(Failure::usage)
    }

    /// Whether it is said where the key is, and once.
    fn check_key(&self) -> Result<(), String> {
        let files = [
            &self.key_file,
            &self.passphrase_file,
            &self.key_from_ca,
            &self.release_dir,
            &self.simulated_seat,
        ];
        if let Some(file) = files.into_iter().flatten().find(|file| !file.is_absolute()) {
            return Err(format!("`{}` is no absolute path, which a service needs", file.display()));
        }
        match (&self.key_file, &self.passphrase_file, &self.key_from) {
            (Some(_), None, None) | (None, Some(_), None) if files[2..].iter().any(|file| file.is_some()) => {
                Err("key-from-ca, release-dir and simulated-seat go with key-from".into())
            }
            (Some(_), None, None) | (None, Some(_), None) | (None, None, Some(_)) => Ok(()),
            _ => Err("name either a key file, a passphrase file or key-from: nobody can be asked".into()),
        }
    }

    /// The same with another front end.
    ///
    /// # Errors
    /// When that contradicts something else.
    pub fn shown_as(mut self, front_end: FrontEnd) -> Result<Self, Failure> {
        self.front_end = front_end;
        self.check().map_err(|why| Failure::usage(format!("--as is not usable here: {why}")))?;
        Ok(self)
    }

    /// Whether all is said, and nothing that contradicts something else.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        parse_name(&self.name)?;
        let socket = match &self.metrics {
            Some(metrics::Address::Unix(path)) => Some(path),
            _ => None,
        };
        let address = Address::of(&self.store).map_err(|error| error.to_string())?;
        let others = [self.mountpoint.as_deref(), self.tamper_hook.as_deref(), socket.map(PathBuf::as_path)];
        let paths = [address.path(), &self.policy].into_iter().chain(others.into_iter().flatten());
        if let Some(path) = paths.into_iter().find(|path| !path.is_absolute()) {
            return Err(format!("`{}` is no absolute path, which a service needs", path.display()));
        }
        self.check_key()?;
        if self.mountpoint.is_some() != self.fs.is_some() {
            return Err("fs and mountpoint go together".into());
        }
        if self.mount_options.is_some() && self.mountpoint.is_none() {
            return Err("mount-options want fs and mountpoint".into());
        }
        match self.front_end {
            FrontEnd::Nbd if self.mountpoint.is_some() => {
                return Err("as nbd there is no block device to be mounted; leave fs and mountpoint out, or take auto".into());
            }
            FrontEnd::Nbd | FrontEnd::Ublk | FrontEnd::Auto if self.use_loop => {
                return Err(
                    "loop goes with fuse; auto takes a loop device where the kernel has no ublk".into()
                );
            }
            _ => {}
        }
        if !(1..=64).contains(&self.queues) {
            return Err(format!("there are 1 to 64 queues, and not {}", self.queues));
        }
        Ok(())
    }

    /// The front end for the volume `owner`, and why it is not ublk's if the choice was ours.
    pub fn show(&self, owner: [u8; 16]) -> (Show, Option<Failure>) {
        match self.front_end {
            FrontEnd::Fuse => (Show::Fuse { use_loop: self.needs_loop(), mount: None }, None),
            FrontEnd::Nbd => (Show::Nbd(Where { listen: None, tls: None }), None),
            FrontEnd::Ublk => (Show::Ublk { queues: self.queues, owner }, None),
            FrontEnd::Auto => Show::block_device(self.queues, owner),
        }
    }

    /// With `fuse`: whether a block device is needed.
    fn needs_loop(&self) -> bool {
        self.use_loop || self.mountpoint.is_some()
    }

    /// Whether a volume that is shown so is shown as it is to be.
    pub fn accepts(&self, shown: &Shown) -> bool {
        match (self.front_end, shown) {
            (FrontEnd::Fuse, Shown::Fuse { loop_device, .. }) => !self.needs_loop() || loop_device.is_some(),
            (FrontEnd::Auto, Shown::Fuse { loop_device, .. }) => loop_device.is_some(),
            (FrontEnd::Nbd, Shown::Nbd { .. }) | (FrontEnd::Ublk | FrontEnd::Auto, Shown::Ublk { .. }) => {
                true
            }
            _ => false,
        }
    }

    /// Whether the kernel's ublk is wanted, where it has it.
    pub fn may_be_ublk(&self) -> bool {
        matches!(self.front_end, FrontEnd::Ublk | FrontEnd::Auto)
    }

    /// Whether a ublk device that has outlived its daemon may go on: it was attached for writing.
    pub fn may_go_on(&self) -> bool {
        self.may_be_ublk() && !self.read_only
    }

    /// What the file system is mounted with.
    pub fn mount_options(&self) -> Option<String> {
        let given = self.mount_options.clone();
        match (self.read_only, given) {
            (false, given) => given,
            (true, None) => Some("ro".into()),
            (true, Some(given)) => Some(format!("{given},ro")),
        }
    }

    /// What is to be done when the host is caught.
    ///
    /// # Errors
    /// When the hook is no program.
    pub fn tamper(&self) -> Result<Orders, Failure> {
        Orders::new(self.on_tamper, self.tamper_hook.as_deref())
    }

    /// Where the secret is.
    pub fn credential(&self) -> Source {
        Source {
            key_file: self.key_file.clone(),
            passphrase_file: self.passphrase_file.clone(),
            released: self.released(),
        }
    }

    /// Where the key is released, if it is.
    pub fn released(&self) -> Option<Released> {
        Some(Released {
            address: self.key_from.clone()?,
            authorities: self.key_from_ca.clone(),
            directory: self.release_dir.clone(),
            seat: self.simulated_seat.clone(),
        })
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
        let more = r#""fs": "ext4", "mountpoint": "/srv", "memory": "64M", "block-cache": "1G", "discard": "off", "interval": "2s", "metrics": "unix:/m", "provision": "thin""#;
        let target = Target::parse(&format!("{{ {LEAST}, {more} }}")).unwrap();
        assert_eq!((target.fs, target.needs_loop(), target.memory), (Some(FileSystem::Ext4), true, 64 << 20));
        assert_eq!((target.block_cache, target.discard), (1 << 30, Some(false)));
        for (name, front_end) in [
            ("fuse", FrontEnd::Fuse),
            ("nbd", FrontEnd::Nbd),
            ("ublk", FrontEnd::Ublk),
            ("auto", FrontEnd::Auto),
        ] {
            let target = Target::parse(&format!("{{ {LEAST}, \"as\": \"{name}\" }}")).unwrap();
            assert_eq!(target.front_end, front_end);
        }
    }

    /// What the volume was brought up with may be gone by then.
    #[test]
    fn the_name_is_all_that_is_needed_to_take_a_volume_down() {
        assert_eq!(Target::name_in("{\"name\": \"ledger\"}").unwrap(), "ledger");
        assert_eq!(Target::name_in("{\"name\": \"a\", \"store\": \"relative\", \"more\": 1}").unwrap(), "a");
        assert!(Target::name_in("{}").unwrap_err().is_usage());
        assert!(Target::name_in("{\"name\": \"../a\"}").unwrap_err().to_string().contains("volume's name"));
    }

    #[test]
    fn a_mark_of_the_order_of_bytes_is_no_part_of_a_configuration() {
        assert_eq!(
            Target::parse(&format!("\u{feff}{{ {LEAST} }}")),
            Target::parse(&format!("{{ {LEAST} }}"))
        );
    }

    #[test]
    fn what_is_shown_is_accepted_only_if_it_is_what_was_asked_for() {
        let file = |loop_device: Option<&str>| Shown::Fuse {
            device: "/run/f".into(),
            loop_device: loop_device.map(Into::into),
        };
        let all = [
            file(None),
            file(Some("/dev/loop0")),
            Shown::Nbd { uri: "nbd+unix:///a".into() },
            Shown::Ublk { device: "/dev/ublkb0".into() },
        ];
        for (more, accepted) in [
            ("", [true, true, false, false]),
            (r#", "as": "fuse", "loop": true"#, [false, true, false, false]),
            (r#", "fs": "ext4", "mountpoint": "/srv""#, [false, true, false, false]),
            (r#", "as": "nbd""#, [false, false, true, false]),
            (r#", "as": "ublk""#, [false, false, false, true]),
            (r#", "as": "auto""#, [false, true, false, true]),
        ] {
            let target = Target::parse(&format!("{{ {LEAST}{more} }}")).unwrap();
            assert_eq!(all.each_ref().map(|shown| target.accepts(shown)), accepted, "{more}");
        }
    }

    #[test]
    fn contradictions_are_refused_with_the_reason() {
        for (more, reason) in [
            (r#""colour": "red""#, "unknown field `colour`"),
            (r#""passphrase-file": "/p""#, "either a key file, a passphrase file or key-from"),
            (r#""fs": "ext4""#, "go together"),
            (r#""mount-options": "noatime""#, "want fs"),
            (r#""fs": "ntfs", "mountpoint": "/srv""#, "unknown variant `ntfs`"),
            (r#""fs": "ext4", "mountpoint": "srv""#, "`srv` is no absolute path"),
            (r#""memory": "1X""#, "not a size"),
            (r#""as": "iscsi""#, "`iscsi` is no front end"),
            (r#""as": "nbd", "fs": "ext4", "mountpoint": "/srv""#, "no block device to be mounted"),
            (r#""as": "auto", "loop": true"#, "loop goes with fuse"),
            (r#""queues": 65"#, "1 to 64 queues"),
            (r#""metrics": "0.0.0.0:1""#, "not a loopback address"),
            (r#""metrics": "unix:m""#, "`m` is no absolute path"),
        ] {
            let failure = Target::parse(&format!("{{ {LEAST}, {more} }}")).unwrap_err();
            assert!(failure.to_string().contains(reason), "{more}: {failure}");
            assert_eq!(failure.code(), 2);
        }
        assert!(Target::parse(&format!("{{ {} }}", LEAST.replace("/k", "k"))).is_err());
        assert!(Target::parse(&format!("{{ {} }}", LEAST.replace("ledger", "../x"))).is_err());
    }
}
