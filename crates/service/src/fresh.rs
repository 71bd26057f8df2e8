//! Whether a file system is one that was made here, and was never mounted: then nobody's data is in it, and it may be made again, whatever has
//! become of it meanwhile.
//!
//! Two things have to be true, and each is looked for where it can be found without doubt; what cannot be read, or is not as expected, counts
//! as somebody's data.
//!
//! 1. It was made here. Its UUID is the one that this volume's file system gets ([`uuid`]); a file system that was made by hand, or copied
//!    from elsewhere, may hold data although it was never mounted.
//! 2. It was never mounted. An ext4 says when it was mounted last: durably, before the mount is there. An XFS writes nothing that a user has been
//!    promised before there is something in its log, which is filled from its beginning on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::filesystem::FileSystem;

/// Where an ext4 has its superblock (Linux, `Documentation/filesystems/ext4/super.rst`, as all fields of it).
const EXT4_SUPERBLOCK: usize = 1024;
/// Inodes that an ext4 begins with: the reserved ones, and `lost+found`.
const EXT4_FIRST: u32 = 11;
/// Inodes in use that an XFS begins with: its root, and two for its real-time part. A repair (`xfs_repair -L`) empties the log, and counts these.
const XFS_FIRST: u64 = 3;
/// The longest record of an XFS log; so much of it is looked at.
const XFS_RECORD: u64 = 256 << 10;
/// Of an XFS log: each begins with a number that is never zero in what was written (XFS Algorithms & Data Structures, "Journaling Log").
const XFS_SECTOR: usize = 512;
/// How a record of an XFS log begins.
const XFS_RECORD_MAGIC: [u8; 4] = 0xfeed_babe_u32.to_be_bytes();

/// The UUID of the file system that is made on a volume: its id, in the form of a UUID of one's own making (RFC 9562, section 5.8).
pub fn uuid(volume: [u8; 16]) -> [u8; 16] {
    let mut uuid = volume;
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// As the programs want it.
pub fn spelled(uuid: [u8; 16]) -> String {
    let text = hex::encode(uuid);
    [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-")
}

/// Whether the file system on `device`, which begins with `start`, was made for this volume and never mounted.
pub fn was_never_mounted(fs: FileSystem, device: &Path, start: &[u8], volume: [u8; 16]) -> bool {
    let read = |at: u64, length: u64| -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        File::open(device).ok()?.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    match fs {
        FileSystem::Ext4 => ext4(start, uuid(volume)),
        FileSystem::Xfs => xfs(start, uuid(volume), read),
    }
    .unwrap_or(false)
}

fn ext4(start: &[u8], uuid: [u8; 16]) -> Option<bool> {
    let superblock = start.get(EXT4_SUPERBLOCK..EXT4_SUPERBLOCK + 1024)?;
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| superblock[at + byte]));
    let mounted = [number(0x2c), number(0x34) & 0xffff, u32::from(superblock[0x275])];
    // An inode for orphans, where there is one, is made together with the file system.
    let first = EXT4_FIRST + u32::from(number(0x280) != 0);
    let is_empty = number(0).checked_sub(number(0x10)) == Some(first);
    Some(superblock[0x68..0x78] == uuid && mounted == [0; 3] && is_empty)
}

fn xfs(start: &[u8], uuid: [u8; 16], read: impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<bool> {
    let field = |at: usize, bytes: usize| {
        Some(start.get(at..at + bytes)?.iter().fold(0_u64, |number, &byte| number << 8 | u64::from(byte)))
    };
    let (block, log, blocks, group) = (field(4, 4)?, field(48, 8)?, field(96, 4)?, field(84, 4)?);
    let (group_bits, unit) = (field(124, 1)?, field(196, 4)?);
    // Number of the last change that the superblock was part of.
    let changed = field(240, 8)?;
    let inodes = field(128, 8)?.checked_sub(field(136, 8)?)?;
    // The log is none if it lies on another device.
    if start.get(32..48)? != uuid || changed != 0 || inodes != XFS_FIRST || log == 0 {
        return Some(false);
    }
    let (number, within) = (
        log.checked_shr(u32::try_from(group_bits).ok()?)?,
        1_u64.checked_shl(u32::try_from(group_bits).ok()?)?,
    );
    let at = number.checked_mul(group)?.checked_add(log & (within - 1))?.checked_mul(block)?;
    // mkfs writes one record: it says that the log is empty. It is as long as the log's unit.
    let first = unit.max(2 * XFS_SECTOR as u64);
    let length = blocks.checked_mul(block)?.min(XFS_RECORD.checked_mul(2)?);
    if first > XFS_RECORD || length <= first {
        return Some(false);
    }
    let log = read(at, length)?;
    Some(log.chunks(XFS_SECTOR).skip(usize::try_from(first).ok()?.div_ceil(XFS_SECTOR)).all(is_unwritten))
}

/// Whether nothing was written to a sector of an XFS log since the log was made: it is zeros, or what a mount puts in front of where the first record
/// will come, a record of the cycle before the first.
fn is_unwritten(sector: &[u8]) -> bool {
    let is_before_first = sector.starts_with(&XFS_RECORD_MAGIC) && sector.get(4..8) == Some(&[0; 4]);
    is_before_first || sector.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::process::Command;

    const VOLUME: [u8; 16] = [0xab; 16];

    /// A file system that was made as it is here, in a file; none where the program is not there.
    struct Made {
        fs: FileSystem,
        file: tempfile::NamedTempFile,
    }

    impl Made {
        fn new(fs: FileSystem, more: &str) -> Option<Self> {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(320 << 20).unwrap();
            let uuid = spelled(uuid(VOLUME));
            let arguments = match fs {
                FileSystem::Ext4 => format!("-q -F -b 4096 -U {uuid} {more}"),
                FileSystem::Xfs => format!("-q -m uuid={uuid} {more}"),
            };
            let mut command = Command::new(format!("mkfs.{fs}"));
            match command.args(arguments.split_whitespace()).arg(file.path()).output() {
                Ok(made) => assert!(made.status.success(), "{made:?}"),
                Err(error) => {
                    let thread = std::thread::current();
                    let name = thread.name().unwrap_or("a test");
                    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: mkfs.{fs}: {error}");
                    return None;
                }
            }
            Some(Self { fs, file })
        }

        fn is_fresh(&self) -> bool {
            self.is_fresh_for(VOLUME)
        }

        fn is_fresh_for(&self, volume: [u8; 16]) -> bool {
            was_never_mounted(self.fs, self.file.path(), &self.bytes(0, 128 << 10), volume)
        }

        fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
            let mut bytes = vec![0; length];
            self.file.as_file().read_exact_at(&mut bytes, at).unwrap();
            bytes
        }

        /// What it would be with these bytes in it; then it is as before.
        fn is_fresh_with(&self, at: u64, bytes: &[u8]) -> bool {
            let before = self.bytes(at, bytes.len());
            self.file.as_file().write_all_at(bytes, at).unwrap();
            let fresh = self.is_fresh();
            self.file.as_file().write_all_at(&before, at).unwrap();
            fresh
        }
    }

    #[test]
    fn an_ext4_is_fresh_until_it_was_mounted_or_has_a_file() {
        for more in ["", "-O orphan_file"] {
            let Some(made) = Made::new(FileSystem::Ext4, more) else { return };
            assert!(made.is_fresh() && !made.is_fresh_for([0xac; 16]), "{more}");
            assert!(made.is_fresh_with(4096, &[0x5a; 256 << 10]), "damage is no use of it");
            for (field, byte) in [(0x2c, 1), (0x2f, 1), (0x34, 1), (0x35, 1), (0x275, 1), (0x68, 0)] {
                assert!(!made.is_fresh_with(1024 + field, &[byte]), "{field:#x}");
            }
            assert!(made.is_fresh());
            let path = made.file.path();
            let mut debugfs = Command::new("debugfs");
            let written = debugfs.args(["-w", "-R", "write /proc/version kept"]).arg(path).output();
            assert!(written.is_ok_and(|written| written.status.success()) && !made.is_fresh(), "{more}");
        }
    }

    #[test]
    fn an_xfs_is_fresh_until_something_is_in_its_log() {
        // Devices of volumes have sectors of 4 KiB.
        for (more, first) in [("", 1024), ("-s size=4096", 4096)] {
            let Some(made) = Made::new(FileSystem::Xfs, more) else { return };
            assert!(made.is_fresh() && !made.is_fresh_for([0xac; 16]), "{more}");
            assert!(made.is_fresh_with(4096, &[0x5a; 256 << 10]), "damage is no use of it");
            for field in [32, 143, 247] {
                assert!(!made.is_fresh_with(field, &[1]), "{field}");
            }
            assert!(!made.is_fresh_with(48, &[0; 8]), "a log elsewhere");
            let start = made.bytes(0, 128);
            let number = |at: usize| u64::from(u32::from_be_bytes([0, 1, 2, 3].map(|byte| start[at + byte])));
            let within = number(52) & ((1 << start[124]) - 1);
            let log = ((number(52) >> start[124]) * number(84) + within) * number(4);
            assert_eq!(made.bytes(log, 4), XFS_RECORD_MAGIC, "that is where it is");
            let record = |cycle: u32| [XFS_RECORD_MAGIC, cycle.to_be_bytes()].concat();
            assert!(made.is_fresh_with(log + first, &record(0)), "a mount that has not written yet");
            assert!(!made.is_fresh_with(log + first, &record(1)), "{more}");
            assert!(!made.is_fresh_with(log + first + 512, &1_u32.to_be_bytes()), "{more}");
        }
    }

    /// Whatever the superblock says, that is a number of the host's if a volume has no integrity.
    #[test]
    fn what_makes_no_sense_is_not_fresh() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        fs::write(&path, [0; 8192]).unwrap();
        for fill in [0, 0x40, 0xff] {
            let mut start = vec![fill; 8192];
            for (at, length) in [(32, 16), (240, 8), (1024 + 0x68, 16)] {
                start[at..at + length].fill(0);
            }
            start[32..48].copy_from_slice(&uuid(VOLUME));
            start[1024 + 0x68..1024 + 0x78].copy_from_slice(&uuid(VOLUME));
            for (fs, length) in [
                (FileSystem::Ext4, 8192),
                (FileSystem::Ext4, 1100),
                (FileSystem::Xfs, 8192),
                (FileSystem::Xfs, 100),
            ] {
                assert!(!was_never_mounted(fs, &path, &start[..length], VOLUME), "{fs} {fill} {length}");
            }
        }
    }

    #[test]
    fn a_uuid_has_a_version_and_is_the_volumes_own() {
        assert_eq!(spelled(uuid([0xff; 16])), "ffffffff-ffff-8fff-bfff-ffffffffffff");
        assert_ne!(uuid([1; 16]), uuid([2; 16]));
    }
}
