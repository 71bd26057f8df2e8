//! File systems on volumes: made once, mounted and unmounted with the system's own programs.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use volume::format::probe::{Kind, PROBE_SIZE, Probe};

use super::record::Turn;
use daemon::failure::Failure;

/// The file systems that are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// As `mount -t` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Ext4 => Kind::Ext,
            Self::Xfs => Kind::Xfs,
        }
    }
}

impl std::str::FromStr for FileSystem {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Ext4, Self::Xfs].into_iter().find(|fs| fs.name() == text);
        known.ok_or_else(|| format!("`{text}` is no file system that is made here; there are ext4 and xfs"))
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first bytes of a device or file.
///
/// # Errors
/// When it cannot be read.
pub fn start_of(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(PROBE_SIZE as u64).read_to_end(&mut start));
    read.map_err(|error| Failure::io(format!("{} cannot be read: {error}", path.display())))?;
    Ok(start)
}

/// Mounts the file system on `device`. On a blank device it is made first, if `may_make`: what a verified volume says is blank is blank.
///
/// # Errors
/// When something else is on the device or mounted there, or a program fails.
pub fn bring_up(
    device: &Path,
    fs: FileSystem,
    mountpoint: &Path,
    options: Option<&str>,
    may_make: bool,
    turn: &Turn,
) -> Result<(), Failure> {
    match mounted_at(mountpoint) {
        Some(found) if found == device => return Ok(()),
        Some(found) => {
            return Err(Failure::usage(format!(
                "{} is mounted on {} already; unmount it, or choose another mountpoint",
                found.display(),
                mountpoint.display()
            )));
        }
        None => {}
    }
    match Probe::of(&start_of(device)?) {
        Probe::Foreign(kind) if kind == fs.kind() => {}
        Probe::Blank if may_make => {
            run(&format!("mkfs.{fs}"), &[OsStr::new("-q"), device.as_os_str()], turn)?
        }
        Probe::Blank => {
            return Err(Failure::usage(format!(
                "the volume is empty, and its policy does not allow to make a file system (format-if-blank); make it by hand: mkfs.{fs} {}",
                device.display()
            )));
        }
        Probe::Volume => return Err(other_content(fs, "a cvmio volume")),
        Probe::Foreign(kind) => return Err(other_content(fs, &kind.to_string())),
    }
    fs::create_dir_all(mountpoint)
        .map_err(|error| Failure::usage(format!("{} cannot be made: {error}", mountpoint.display())))?;
    let mut arguments = vec![OsStr::new("-t"), OsStr::new(fs.name())];
    arguments.extend(options.iter().flat_map(|options| [OsStr::new("-o"), OsStr::new(*options)]));
    arguments.extend([device.as_os_str(), mountpoint.as_os_str()]);
    run("mount", &arguments, turn)
}

fn other_content(fs: FileSystem, found: &str) -> Failure {
    Failure::usage(format!(
        "the volume holds {found}, and not {fs}; nothing was changed. Was the first use interrupted? Then make the file system by hand"
    ))
}

/// Unmounts `device` from `mountpoint`, if it is mounted there.
///
/// # Errors
/// When somebody uses it.
pub fn take_down(device: &Path, mountpoint: &Path, turn: &Turn) -> Result<(), Failure> {
    while is_mounted(device, mountpoint) {
        run("umount", &[mountpoint.as_os_str()], turn).map_err(|failure| {
            Failure::usage(format!("{} stays mounted: {failure}; nothing was changed", mountpoint.display()))
        })?;
    }
    Ok(())
}

/// Whether `device` is mounted on `mountpoint`.
pub fn is_mounted(device: &Path, mountpoint: &Path) -> bool {
    mounted_at(mountpoint).is_some_and(|found| found == device)
}

/// What is mounted on `mountpoint`, the last one if there are several.
fn mounted_at(mountpoint: &Path) -> Option<PathBuf> {
    // Links are resolved in the table. What does not exist is not mounted.
    let mountpoint = mountpoint.canonicalize().unwrap_or_else(|_| mountpoint.into());
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounted_in(&table, &mountpoint)
}

fn mounted_in(table: &str, mountpoint: &Path) -> Option<PathBuf> {
    // The kernel writes a space in a path as \040, and so on.
    let plain = |text: &str| {
        text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
    };
    let mut mounts = table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some((plain(fields.next()?), plain(fields.next()?)))
    });
    mounts.rfind(|(_, at)| Path::new(at) == mountpoint).map(|(device, _)| device.into())
}

/// Who comes after us if we are killed must not find this program still at work.
fn run(program: &str, arguments: &[&OsStr], turn: &Turn) -> Result<(), Failure> {
    let output = Command::new(program).args(arguments).stdin(turn.held()?).output();
    let output =
        output.map_err(|error| Failure::usage(format!("{program} cannot be run: {error}; install it")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::io(format!("{program} failed: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_counts() {
        let table = "/dev/a /srv ext4 rw 0 0\n/dev/b /srv/my\\040data ext4 rw 0 0\n/dev/c /srv ext4 rw 0 0\n";
        assert_eq!(mounted_in(table, Path::new("/srv")), Some("/dev/c".into()));
        assert_eq!(mounted_in(table, Path::new("/srv/my data")), Some("/dev/b".into()));
        assert_eq!(mounted_in(table, Path::new("/sr")), None);
    }
}
