//! What can be measured, as it is written on the command line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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

/// The settings of a volume, for messages.
const KEYS: &str = "suite, level, anchor, front, confidentiality, integrity, buffered, block-cache";

impl Volume {
    /// Changes one setting.
    ///
    /// # Errors
    /// When there is no such setting, or no such value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
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
            _ => return Err(format!("a volume has no setting `{key}`; it has {KEYS}")),
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
}

/// What a target may be, for messages.
const KINDS: &str = "a path, an NBD address (nbd://HOST or nbd+unix:///?socket=PATH), tmpfs, cvmio[:SETTING=VALUE,...], nbdkit, nbdkit-luks, \
                     qemu, qemu-luks, dm-crypt or dm-integrity";

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
            _ if text.starts_with("nbd://") || text.starts_with("nbd+unix://") => Self::Nbd(text.into()),
            _ if text.starts_with('/') || text.starts_with('.') => Self::Path(text.into()),
            _ => match text.strip_prefix("cvmio:") {
                Some(settings) => Self::Cvmio(volume(settings)?),
                None => return Err(format!("`{text}` is no target; a target is {KINDS}")),
            },
        })
    }
}

fn volume(settings: &str) -> Result<Volume, String> {
    let mut volume = Volume::default();
    for setting in settings.split(',') {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| format!("`{setting}` is no setting; one is KEY=VALUE"))?;
        volume.set(key, value)?;
    }
    Ok(volume)
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
        }
    }
}

/// The values that settings of a volume go through.
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
        let mut probe = Volume::default();
        let mut seen = BTreeMap::new();
        for (key, values) in &all {
            if seen.insert(key.clone(), ()).is_some() {
                return Err(format!("`{key}` is there twice"));
            }
            values.iter().try_for_each(|value| probe.set(key, value))?;
        }
        Ok(Self(all))
    }
}

impl Variation {
    /// The product of all values, on top of a volume.
    pub fn of(&self, volume: &Volume) -> Vec<Volume> {
        let mut all = vec![volume.clone()];
        for (key, values) in &self.0 {
            let with = |volume: &Volume| {
                let one = |value: &String| {
                    let mut volume = volume.clone();
                    // Parsing tried each setting.
                    let _ = volume.set(key, value);
                    volume
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
    fn one_protection_goes_at_a_time() {
        let names: Vec<String> = one_less(&Volume::default()).iter().map(Volume::to_string).collect();
        assert_eq!(
            names,
            ["cvmio", "cvmio:level=off", "cvmio:confidentiality=off", "cvmio:level=off,integrity=off"]
        );
    }
}
