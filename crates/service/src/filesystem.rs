//! File systems on volumes: made once, mounted and unmounted with the system's own programs.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use volume::format::probe::{self, Found, Kind, PROBE_SIZE, Probe};

use super::fresh;
use super::making::{self, Image};
use super::record::Turn;
use cli::failure::Failure;

/// The file systems that are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    const ALL: [Self; 2] = [Self::Ext4, Self::Xfs];

    /// As `mount -t` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// Whether the program that makes it was cut short: what is there was never mounted. `start` is that of the device.
    fn is_unfinished(self, start: &[u8]) -> bool {
        match self {
            // It is not there before all of it is.
            Self::Ext4 => false,
            // `sb_inprogress`: set with the first superblock, cleared with the last (XFS Algorithms & Data Structures, "Superblocks").
            Self::Xfs => start.get(126).is_some_and(|byte| *byte != 0),
        }
    }

    /// Makes it on the device of a volume on which there is nothing, or what was never mounted.
    fn make(self, device: &Path, volume: [u8; 16], again: bool, turn: &Turn) -> Result<(), Failure> {
        let program = format!("mkfs.{self}");
        let uuid = fresh::spelled(fresh::uuid(volume));
        match self {
            Self::Ext4 => {
                let fail = |error: std::io::Error| {
                    Failure::io(format!("{device} for {program}: {error}", device = device.display()))
                };
                let image = Image::new(turn.beside("image"), device).map_err(fail)?;
                // A file does not say that the device has sectors of 4 KiB. It is blank, so there is no need to write zeros.
                let lazy = "lazy_itable_init=1,lazy_journal_init=1";
                let arguments = ["-q", "-F", "-b", "4096", "-E", lazy, "-U", &uuid];
                let arguments = arguments.map(OsStr::new);
                run(&program, &[&arguments[..], &[image.path().as_os_str()]].concat(), turn)?;
                image.copy_to(device).map_err(fail)
            }
            Self::Xfs => {
                let uuid = format!("uuid={uuid}");
                let force = again.then_some("-f");
                let arguments = ["-q", "-m", &uuid].into_iter().chain(force).map(OsStr::new);
                run(&program, &arguments.chain([device.as_os_str()]).collect::<Vec<_>>(), turn)
            }
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
        let known = Self::ALL.into_iter().find(|fs| fs.name() == text);
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

/// What a device or file has elsewhere whose beginning is blank: the volume's user may have lost the first blocks of what it holds.
fn elsewhere(path: &Path) -> std::io::Result<Option<Found>> {
    let mut file = File::open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    for part in probe::parts(size) {
        let mut bytes = vec![0; usize::try_from(part.end - part.start).map_err(std::io::Error::other)?];
        file.read_exact_at(&mut bytes, part.start)?;
        if let Some(found) = probe::in_part(part.start, &bytes, size) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Refuses a device whose beginning is blank, and that holds something all the same. mkfs.xfs may have been killed behind its first copies.
fn refuse_elsewhere(device: &Path, fs: FileSystem) -> Result<(), Failure> {
    let found = elsewhere(device)
        .map_err(|error| Failure::io(format!("{} cannot be read: {error}", device.display())))?;
    match found {
        Some(Found { kind: Kind::Xfs, .. }) if fs == FileSystem::Xfs => Ok(()),
        Some(Found { kind, at }) => Err(Failure::usage(format!(
            "the volume's first blocks are blank, but it holds {kind}, at byte {at}; nothing was changed. Mend that, or wipe it by hand if nobody needs it (wipefs), and make the file system by hand: mkfs.{fs} {}",
            device.display()
        ))),
        None => Ok(()),
    }
}

/// Whether what is on the device of a volume was never mounted. Then nobody's data is in it, whatever has become of it since.
fn was_never_mounted(device: &Path, kind: Kind, start: &[u8], volume: [u8; 16]) -> bool {
    let made = FileSystem::ALL.into_iter().find(|fs| fs.kind() == kind);
    let fresh =
        |fs: FileSystem| fs.is_unfinished(start) || fresh::was_never_mounted(fs, device, start, volume);
    making::is_marked(start) || made.is_some_and(fresh)
}

/// Mounts the file system on `device`, which shows `volume`. Where there is none yet, or one that was never mounted, it is made first, if
/// `may_make`: what a verified volume says is blank is blank.
///
/// # Errors
/// When something else is on the device or mounted there, or a program fails.
pub fn bring_up(
    device: &Path,
    volume: [u8; 16],
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
    let start = start_of(device)?;
    match Probe::of(&start) {
        // To mount it first would not tell more: what a failed mount writes makes it look used.
        Probe::Foreign(kind) if may_make && was_never_mounted(device, kind, &start, volume) => {
            fs.make(device, volume, true, turn)?;
        }
        Probe::Foreign(kind) if kind == fs.kind() && !fs.is_unfinished(&start) => {}
        Probe::Blank if may_make => {
            refuse_elsewhere(device, fs)?;
            fs.make(device, volume, false, turn)?;
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

/// What would keep a file system from being made and mounted, found before there is a volume to make it on.
///
/// # Errors
/// Says what to do about it.
pub fn check(fs: FileSystem, mountpoint: &Path, may_make: bool) -> Result<(), Failure> {
    let mkfs = format!("mkfs.{fs}");
    let programs = [Some("mount"), may_make.then_some(mkfs.as_str())];
    if let Some(missing) = programs.into_iter().flatten().find(|program| !is_there(program)) {
        return Err(Failure::usage(format!("{missing} is needed, and is not there; install it")));
    }
    let there = mountpoint.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let whole = there == mountpoint;
    if !there.is_dir() {
        let why = if whole { "no directory" } else { "below a file" };
        return Err(Failure::usage(format!(
            "the mountpoint {} is {why}; name another",
            mountpoint.display()
        )));
    }
    let made = if whole { Ok(()) } else { rustix::fs::access(there, rustix::fs::Access::WRITE_OK) };
    made.map_err(|error| Failure::usage(format!("{} cannot be made: {error}", mountpoint.display())))
}

/// Whether a program would be found.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
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
    // What was killed says nothing.
    let why = if said.trim().is_empty() { output.status.to_string() } else { said.trim().into() };
    Err(Failure::io(format!("{program} failed: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xfs_whose_making_was_cut_short_is_told_from_a_whole_one() {
        let mut start = vec![0; PROBE_SIZE];
        start[..4].copy_from_slice(b"XFSB");
        assert!(Probe::of(&start) == Probe::Foreign(Kind::Xfs) && !FileSystem::Xfs.is_unfinished(&start));
        start[126] = 1;
        assert!(FileSystem::Xfs.is_unfinished(&start) && !FileSystem::Ext4.is_unfinished(&start));
        assert!(!FileSystem::Xfs.is_unfinished(b"XFSB"));
    }

    #[test]
    fn what_lies_behind_blank_first_blocks_is_not_made_over() {
        let device = tempfile::NamedTempFile::new().unwrap();
        device.as_file().set_len(256 << 20).unwrap();
        let refused = |fs| refuse_elsewhere(device.path(), fs).err().map(|failure| failure.to_string());
        assert_eq!(refused(FileSystem::Ext4), None);
        device.as_file().write_all_at(b"XFSB", 64 << 20).unwrap();
        assert_eq!(refused(FileSystem::Xfs), None, "its making may have been cut short");
        let said = refused(FileSystem::Ext4).unwrap();
        assert!(said.contains("an XFS file system, at byte 67108864"), "{said}");
        device.as_file().write_all_at(b"EFI PART", (256 << 20) - 512).unwrap();
        assert!(refused(FileSystem::Ext4).is_some());
        device.as_file().write_all_at(&[0; 4], 64 << 20).unwrap();
        assert!(refused(FileSystem::Xfs).unwrap().contains("a GPT partition table"));
    }

    #[test]
    fn what_keeps_a_file_system_away_is_found_before() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), b"").unwrap();
        for (mountpoint, why) in [("file", "no directory"), ("file/below", "below a file")] {
            let failure = check(FileSystem::Ext4, &at(mountpoint), false).unwrap_err();
            assert!(failure.is_usage() && failure.to_string().contains(why), "{failure}");
        }
        for mountpoint in ["", "new", "new/deep"] {
            check(FileSystem::Ext4, &at(mountpoint), false).unwrap();
            assert!(!at("new").exists(), "looking made a directory");
        }
        assert!(is_there("mount") && !is_there("mkfs.no-such-file-system"));
    }

    #[test]
    fn the_last_mount_counts() {
        let table = "/dev/a /srv ext4 rw 0 0\n/dev/b /srv/my\\040data ext4 rw 0 0\n/dev/c /srv ext4 rw 0 0\n";
        assert_eq!(mounted_in(table, Path::new("/srv")), Some("/dev/c".into()));
        assert_eq!(mounted_in(table, Path::new("/srv/my data")), Some("/dev/b".into()));
        assert_eq!(mounted_in(table, Path::new("/sr")), None);
    }
}
