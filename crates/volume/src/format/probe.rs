//! What a store holds before a volume is created on it, so that nobody's data is overwritten by mistake.
//!
//! Offsets and magic numbers are those that blkid and file(1) look for.

mod elsewhere;

pub use elsewhere::{Found, in_part, parts};

use std::fmt;

use super::{BLOCK_SIZE, header};

/// Bytes from the start of a store that [`Probe::of`] wants to see.
pub const PROBE_SIZE: usize = 128 * 1024;

/// What the start of a store looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Zeros only.
    Blank,
    /// A header of ours, whole or not.
    Volume,
    /// Something else.
    Foreign(Kind),
}

/// Whose data it looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of the formats")]
pub enum Kind {
    Ext,
    Xfs,
    Btrfs,
    F2fs,
    Ntfs,
    Refs,
    ExFat,
    Hfs,
    Nilfs2,
    Bcachefs,
    Vmfs,
    Iso9660,
    Squashfs,
    Luks1,
    Luks2,
    Luks2Backup,
    Swap,
    Lvm2,
    Zfs,
    LinuxRaid,
    FirmwareRaid,
    Drbd,
    DmIntegrity,
    DmVerity,
    Gpt,
    Ldm,
    Geom,
    Mbr,
    Image,
    /// Not all zeros, and nothing that is known here.
    Unknown,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext => "an ext2, ext3 or ext4 file system",
            Self::Xfs => "an XFS file system",
            Self::Btrfs => "a Btrfs file system",
            Self::F2fs => "an F2FS file system",
            Self::Ntfs => "an NTFS file system",
            Self::Refs => "a ReFS file system",
            Self::Hfs => "an HFS+ file system",
            Self::Nilfs2 => "a NILFS2 file system",
            Self::Bcachefs => "a bcachefs file system or a bcache device",
            Self::Vmfs => "a VMFS volume",
            Self::ExFat => "an exFAT file system",
            Self::Iso9660 => "an ISO 9660 file system",
            Self::Squashfs => "a SquashFS file system",
            Self::Luks1 => "a LUKS1 volume",
            Self::Luks2 => "a LUKS2 volume",
            Self::Luks2Backup => "a LUKS2 volume (its second header)",
            Self::Swap => "swap space",
            Self::Lvm2 => "an LVM2 physical volume",
            Self::Zfs => "a member of a ZFS pool",
            Self::LinuxRaid => "a member of a Linux RAID",
            Self::FirmwareRaid => "a member of a RAID of a disk controller",
            Self::Drbd => "a DRBD device",
            Self::DmIntegrity => "a dm-integrity device",
            Self::DmVerity => "a dm-verity hash tree",
            Self::Gpt => "a GPT partition table",
            Self::Ldm => "a Windows dynamic disk",
            Self::Geom => "a provider of FreeBSD's GEOM",
            Self::Image => "a disk image (its footer)",
            Self::Mbr => "an MBR partition table or a boot sector",
            Self::Unknown => "data of an unknown kind",
        })
    }
}

/// (offset, bytes, kind), the more telling first: a boot sector's mark is also on NTFS, exFAT and GPT disks.
const SIGNATURES: &[(usize, &[u8], Kind)] = &[
    (0, b"LUKS\xba\xbe\x00\x01", Kind::Luks1),
    (0, b"LUKS\xba\xbe\x00\x02", Kind::Luks2),
    (0x4000, b"SKUL\xba\xbe", Kind::Luks2Backup),
    (0x8000, b"SKUL\xba\xbe", Kind::Luks2Backup),
    (0x10000, b"SKUL\xba\xbe", Kind::Luks2Backup),
    (0, b"integrt\0", Kind::DmIntegrity),
    (0, b"verity\0\0", Kind::DmVerity),
    (0, b"LABELONE", Kind::Lvm2),
    (512, b"LABELONE", Kind::Lvm2),
    (1024, b"LABELONE", Kind::Lvm2),
    (1536, b"LABELONE", Kind::Lvm2),
    (0, b"XFSB", Kind::Xfs),
    (65_600, b"_BHRfS_M", Kind::Btrfs),
    (1080, b"\x53\xef", Kind::Ext),
    (1024, b"\x10\x20\xf5\xf2", Kind::F2fs),
    // The end of a ZFS label's configuration: the magic of its checksum, in either byte order.
    (131_032, b"\x11\x7a\x0c\xb1\x7a\xda\x10\x02", Kind::Zfs),
    (131_032, b"\x02\x10\xda\x7a\xb1\x0c\x7a\x11", Kind::Zfs),
    (0, b"\xfc\x4e\x2b\xa9", Kind::LinuxRaid),
    (4096, b"\xfc\x4e\x2b\xa9", Kind::LinuxRaid),
    // At the end of the first page, whatever size a page has.
    (4096 - 10, b"SWAPSPACE2", Kind::Swap),
    (4096 - 10, b"SWAP-SPACE", Kind::Swap),
    (8192 - 10, b"SWAPSPACE2", Kind::Swap),
    (16_384 - 10, b"SWAPSPACE2", Kind::Swap),
    (65_536 - 10, b"SWAPSPACE2", Kind::Swap),
    (32_769, b"CD001", Kind::Iso9660),
    (0, b"hsqs", Kind::Squashfs),
    (3, b"NTFS    ", Kind::Ntfs),
    (3, b"EXFAT   ", Kind::ExFat),
    (512, b"EFI PART", Kind::Gpt),
    (4096, b"EFI PART", Kind::Gpt),
    (510, b"\x55\xaa", Kind::Mbr),
];

impl Probe {
    /// Judges a store by its first [`PROBE_SIZE`] bytes, or by fewer if it has no more.
    pub fn of(start: &[u8]) -> Self {
        let ours = |copy: usize| has(start, copy * BLOCK_SIZE, header::MAGIC);
        if ours(0) || ours(2) {
            return Self::Volume;
        }
        match SIGNATURES.iter().find(|(offset, bytes, _)| has(start, *offset, bytes)) {
            Some(&(_, _, kind)) => Self::Foreign(kind),
            None if start.iter().all(|&byte| byte == 0) => Self::Blank,
            None => Self::Foreign(Kind::Unknown),
        }
    }
}

fn has(start: &[u8], offset: usize, bytes: &[u8]) -> bool {
    start.get(offset..).is_some_and(|rest| rest.starts_with(bytes))
}
