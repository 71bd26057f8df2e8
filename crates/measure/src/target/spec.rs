//! What can be measured, as it is written on the command line.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::vm::Vm;

/// How a cvm-io volume is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// An NBD server on a unix socket.
    Nbd,
    /// A file.
    Fuse,
    /// A loop device on that file.
    Loop,
    /// A ublk device.
    Ublk,
}

impl Front {
    fn name(self) -> &'static str {
        match self {
            Self::Nbd => "nbd",
            Self::Fuse => "fuse",
            Self::Loop => "loop",
            Self::Ublk => "ublk",
        }
    }
}

/// A cvm-io volume that is made for the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// The cipher, as `cvmio volume create --suite` takes it.
    pub suite: Option<String>,
    /// The freshness level, as `--freshness` takes it.
    pub level: Option<String>,
    /// The anchor's address; a file beside the volume if this is not said.
    pub anchor: Option<String>,
    /// How it is shown; behind NBD to fio and as a loop device to applications if this is not said.
    pub front: Option<Front>,
    /// Whether the host may read.
    pub confidentiality: bool,
    /// Whether changes are noticed.
    pub integrity: bool,
    /// Whether it goes through the page cache.
    pub buffered: bool,
    /// As `cvmio volume attach --block-cache` takes it.
    pub block_cache: Option<String>,
}

impl Default for Volume {
    fn default() -> Self {
        Self {
            suite: None,
            level: None,
            anchor: None,
            front: None,
            confidentiality: true,
            integrity: true,
            buffered: false,
            block_cache: None,
        }
    }
}

/// What has settings that can be varied.
pub trait Settings: Clone {
    /// Their names.
    const KEYS: &'static [&'static str];
    /// What has them, for messages.
    const WHAT: &'static str;

    /// Changes one setting.
    ///
    /// # Errors
    /// When there is no such setting, or no such value.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String>;

    /// That there is no such setting.
    fn unknown(key: &str) -> String {
        format!("{} has no setting `{key}`; it has {}", Self::WHAT, Self::KEYS.join(", "))
    }

    /// Changes settings, as `KEY=VALUE,KEY=VALUE`.
    ///
    /// # Errors
    /// When it is not written so, or there is no such setting, or no such value.
    fn read(mut self, settings: &str) -> Result<Self, String> {
        for setting in settings.split(',') {
            let (key, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("`{setting}` is no setting; one is KEY=VALUE"))?;
            self.set(key, value)?;
        }
        Ok(self)
    }
}

impl Settings for Volume {
    const KEYS: &'static [&'static str] =
        &["suite", "level", "anchor", "front", "confidentiality", "integrity", "buffered", "block-cache"];
    const WHAT: &'static str = "a volume";

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(format!("`{key}` is on or off, not `{value}`")),
        };
        match key {
            "suite" => self.suite = Some(value.into()),
            "level" => self.level = Some(value.into()),
            "anchor" => self.anchor = Some(value.into()),
            "front" => {
                let all = [Front::Nbd, Front::Fuse, Front::Loop, Front::Ublk];
                let found = all.into_iter().find(|front| front.name() == value);
                let found =
                    found.ok_or_else(|| format!("`front` is nbd, fuse, loop or ublk, not `{value}`"))?;
                self.front = Some(found);
            }
            "confidentiality" => self.confidentiality = switch()?,
            "integrity" => self.integrity = switch()?,
            "buffered" => self.buffered = switch()?,
            "block-cache" => self.block_cache = Some(value.into()),
            _ => return Err(Self::unknown(key)),
        }
        Ok(())
    }
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spec {
    /// A directory, in which a file is made; an existing file; or a block device.
    Path(PathBuf),
    /// An NBD server's address.
    Nbd(String),
    /// A file in memory.
    Tmpfs,
    /// A cvm-io volume.
    Cvmio(Volume),
    /// A bare file behind `nbdkit`.
    Nbdkit,
    /// LUKS in nbdkit's filter.
    NbdkitLuks,
    /// A bare file behind `qemu-nbd`.
    Qemu,
    /// LUKS in QEMU's driver.
    QemuLuks,
    /// The kernel's dm-crypt on a loop device.
    DmCrypt,
    /// dm-crypt with dm-integrity.
    DmIntegrity,
    /// The disk of a virtual machine, from within.
    Vm(Vm),
}

/// What a target may be, for messages.
const KINDS: &str = "a path, an NBD address (nbd://HOST or nbd+unix:///?socket=PATH), tmpfs, cvmio[:SETTING=VALUE,...], nbdkit, nbdkit-luks, \
                     qemu, qemu-luks, dm-crypt, dm-integrity or vm[:SETTING=VALUE,...]";

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "tmpfs" => Self::Tmpfs,
            "cvmio" => Self::Cvmio(Volume::default()),
            "nbdkit" => Self::Nbdkit,
            "nbdkit-luks" => Self::NbdkitLuks,
            "qemu" => Self::Qemu,
            "qemu-luks" => Self::QemuLuks,
            "dm-crypt" => Self::DmCrypt,
            "dm-integrity" => Self::DmIntegrity,
            "vm" => Self::Vm(Vm::default()),
            _ if text.starts_with("nbd://") || text.starts_with("nbd+unix://") => Self::Nbd(text.into()),
            _ if text.starts_with('/') || text.starts_with('.') => Self::Path(text.into()),
            _ => match text.split_once(':') {
                Some(("cvmio", settings)) => Self::Cvmio(Volume::default().read(settings)?),
                Some(("vm", settings)) => Self::Vm(Vm::default().read(settings)?),
                _ => return Err(format!("`{text}` is no target; a target is {KINDS}")),
            },
        })
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cvmio")?;
        let mut settings = Vec::new();
        let mut say = |key: &str, value: Option<&str>| {
            if let Some(value) = value {
                settings.push(format!("{key}={value}"));
            }
        };
        say("front", self.front.map(Front::name));
        say("suite", self.suite.as_deref());
        say("level", self.level.as_deref());
        say("anchor", self.anchor.as_deref());
        say("confidentiality", (!self.confidentiality).then_some("off"));
        say("integrity", (!self.integrity).then_some("off"));
        say("buffered", self.buffered.then_some("on"));
        say("block-cache", self.block_cache.as_deref());
        if settings.is_empty() { Ok(()) } else { write!(f, ":{}", settings.join(",")) }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Nbd(uri) => f.write_str(uri),
            Self::Tmpfs => f.write_str("tmpfs"),
            Self::Cvmio(volume) => volume.fmt(f),
            Self::Nbdkit => f.write_str("nbdkit"),
            Self::NbdkitLuks => f.write_str("nbdkit-luks"),
            Self::Qemu => f.write_str("qemu"),
            Self::QemuLuks => f.write_str("qemu-luks"),
            Self::DmCrypt => f.write_str("dm-crypt"),
            Self::DmIntegrity => f.write_str("dm-integrity"),
            Self::Vm(vm) => vm.fmt(f),
        }
    }
}

/// The values that settings of volumes and virtual machines go through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Variation(Vec<(String, Vec<String>)>);

impl FromStr for Variation {
    type Err = String;

    /// `KEY=VALUE,VALUE,KEY=VALUE,...`: what has no `=` is another value of the key before it.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all: Vec<(String, Vec<String>)> = Vec::new();
        for word in text.split(',') {
            match (word.split_once('='), all.last_mut()) {
                (Some((key, value)), _) => all.push((key.into(), vec![value.into()])),
                (None, Some((_, values))) => values.push(word.into()),
                (None, None) => {
                    return Err(format!(
                        "`{word}`: values follow a setting, as in suite=aes-256-gcm,aegis-128x2"
                    ));
                }
            }
        }
        // A mistake is found here, not after an hour.
        let (mut volume, mut vm) = (Volume::default(), Vm::default());
        let mut seen = BTreeSet::new();
        for (key, values) in &all {
            if !seen.insert(key.clone()) {
                return Err(format!("`{key}` is there twice"));
            }
            if !Self::concerns_key::<Volume>(key) && !Self::concerns_key::<Vm>(key) {
                return Err(format!("{}; {}", Volume::unknown(key), Vm::unknown(key)));
            }
            for value in values {
                if Self::concerns_key::<Vm>(key) { vm.set(key, value) } else { volume.set(key, value) }?;
            }
        }
        Ok(Self(all))
    }
}

impl Variation {
    fn concerns_key<S: Settings>(key: &str) -> bool {
        S::KEYS.contains(&key)
    }

    /// Whether one of the settings is of this kind of target.
    pub fn concerns<S: Settings>(&self) -> bool {
        self.0.iter().any(|(key, _)| Self::concerns_key::<S>(key))
    }

    /// The product of all values of the settings that a target of this kind has, on top of one.
    pub fn of<S: Settings>(&self, target: &S) -> Vec<S> {
        let mut all = vec![target.clone()];
        for (key, values) in self.0.iter().filter(|(key, _)| Self::concerns_key::<S>(key)) {
            let with = |target: &S| {
                let one = |value: &String| {
                    let mut target = target.clone();
                    // Parsing tried each setting.
                    let _ = target.set(key, value);
                    target
                };
                values.iter().map(one).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        all
    }
}

/// A volume with all protections, and with one taken away at a time. Freshness needs integrity, so both go together at the end.
pub fn one_less(volume: &Volume) -> Vec<Volume> {
    let off = || Some("off".to_string());
    vec![
        volume.clone(),
        Volume { level: off(), ..volume.clone() },
        Volume { confidentiality: false, ..volume.clone() },
        Volume { level: off(), integrity: false, ..volume.clone() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_shown() {
        for text in [
            "/dev/vdb",
            "./disk",
            "nbd://localhost",
            "nbd+unix:///?socket=/run/x",
            "tmpfs",
            "cvmio",
            "cvmio:front=loop,suite=aegis-128x2,level=off,integrity=off,block-cache=64M",
            "qemu-luks",
            "dm-integrity",
        ] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("disk", "a target is"),
            ("cvmio:front=usb", "nbd, fuse, loop or ublk"),
            ("cvmio:integrity=no", "on or off"),
            ("cvmio:colour=red", "no setting `colour`"),
            ("cvmio:suite", "KEY=VALUE"),
        ] {
            let error = text.parse::<Spec>().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let said = "colour=red".parse::<Variation>().unwrap_err();
        assert!(
            said.contains("a volume has no setting") && said.contains("a virtual machine has no"),
            "{said}"
        );
        assert!("aes".parse::<Variation>().is_err() && "level=off,level=off".parse::<Variation>().is_err());
    }

    #[test]
    fn a_variation_is_a_product() {
        let variation: Variation = "suite=aes-256-gcm,aegis-128x2,level=strict,off".parse().unwrap();
        let names: Vec<String> = variation.of(&Volume::default()).iter().map(Volume::to_string).collect();
        assert_eq!(
            names,
            [
                "cvmio:suite=aes-256-gcm,level=strict",
                "cvmio:suite=aes-256-gcm,level=off",
                "cvmio:suite=aegis-128x2,level=strict",
                "cvmio:suite=aegis-128x2,level=off"
            ]
        );
    }

    #[test]
    fn a_variation_of_machines_leaves_volumes_alone() {
        let variation: Variation = "cache=on,off,disk=nvme".parse().unwrap();
        assert!(variation.concerns::<Vm>() && !variation.concerns::<Volume>());
        let names: Vec<String> = variation.of(&Vm::default()).iter().map(Vm::to_string).collect();
        assert_eq!(names, ["vm:disk=nvme,cache=on", "vm:disk=nvme"]);
        assert_eq!(variation.of(&Volume::default()).len(), 1);
    }

    #[test]
    fn one_protection_goes_at_a_time() {
        let names: Vec<String> = one_less(&Volume::default()).iter().map(Volume::to_string).collect();
        assert_eq!(
            names,
            ["cvmio", "cvmio:level=off", "cvmio:confidentiality=off", "cvmio:level=off,integrity=off"]
        );
    }
}
