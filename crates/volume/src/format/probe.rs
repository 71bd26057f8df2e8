//! What a store holds before a volume is created on it, so that nobody's data is overwritten by mistake.
//!
//! Offsets and magic numbers are those that blkid and file(1) look for.

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
    ExFat,
    Iso9660,
    Squashfs,
    Luks1,
    Luks2,
    Luks2Backup,
    Swap,
    Lvm2,
    Zfs,
    LinuxRaid,
    DmIntegrity,
    DmVerity,
    Gpt,
    Mbr,
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
            Self::DmIntegrity => "a dm-integrity device",
            Self::DmVerity => "a dm-verity hash tree",
            Self::Gpt => "a GPT partition table",
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

/// Bytes at the end of a store that [`at_end`] looks at.
pub const END_SIZE: usize = 2 << 20;

/// Whose data the end of a store looks like. `end` is its last [`END_SIZE`] bytes, or all of it; `size` are all its bytes. What is blank at its
/// beginning may be a disk whose first sectors were lost, and whose owner counts on the copy at its end.
pub fn at_end(end: &[u8], size: u64) -> Option<Kind> {
    let first = size.saturating_sub(end.len() as u64);
    let found = |at: u64, bytes: &[u8]| {
        at.checked_sub(first).and_then(|at| usize::try_from(at).ok()).is_some_and(|at| has(end, at, bytes))
    };
    let back = |bytes: u64| size.saturating_sub(bytes);
    // UEFI, section 5.3: the backup header is the last sector, of 512 or of 4096 bytes.
    if found(back(512), b"EFI PART") || found(back(4096), b"EFI PART") {
        return Some(Kind::Gpt);
    }
    // md(4): version 0.90 in the last 64 KiB that begin at such a boundary, 1.0 at 8 KiB to 12 KiB from the end. Then the formats of Intel and
    // of SNIA's DDF.
    let (old, new) = ((size & !0xffff).saturating_sub(0x1_0000), back(8192) & !4095);
    let md = b"\xfc\x4e\x2b\xa9";
    if found(old, md)
        || found(new, md)
        || found(back(1024), b"Intel Raid ISM Cfg Sig. ")
        || found(back(512), b"\xde\x11\xde\x11")
    {
        return Some(Kind::LinuxRaid);
    }
    // The last two of the four labels of a ZFS device, each of 256 KiB.
    let labels = [1, 2].map(|label| (size & !0x3_ffff).saturating_sub(label * 0x4_0000) + 131_032);
    let zfs: [&[u8]; 2] = [b"\x11\x7a\x0c\xb1\x7a\xda\x10\x02", b"\x02\x10\xda\x7a\xb1\x0c\x7a\x11"];
    if labels.iter().any(|at| zfs.iter().any(|magic| found(*at, magic))) {
        return Some(Kind::Zfs);
    }
    // The second metadata area, wherever it begins: a header of one sector, its magic behind a checksum.
    let lvm = (0..end.len()).step_by(512).any(|at| has(end, at + 4, b" LVM2 x[5A%r0N*>"));
    lvm.then_some(Kind::Lvm2)
}

fn has(start: &[u8], offset: usize, bytes: &[u8]) -> bool {
    start.get(offset..).is_some_and(|rest| rest.starts_with(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk whose beginning is blank, with something near its end.
    fn found(size: u64, from_end: u64, bytes: &[u8]) -> Option<Kind> {
        let mut end = vec![0; END_SIZE.min(usize::try_from(size).unwrap())];
        let at = end.len() - usize::try_from(from_end).unwrap();
        end[at..at + bytes.len()].copy_from_slice(bytes);
        at_end(&end, size)
    }

    #[test]
    fn what_a_disk_holds_at_its_end_only_is_known() {
        let (md, size) = (b"\xfc\x4e\x2b\xa9", (64 << 20) + 12_288);
        for (from_end, bytes, kind) in [
            (512, &b"EFI PART"[..], Kind::Gpt),
            (4096, b"EFI PART", Kind::Gpt),
            // Version 1.0 of Linux' RAID, and 0.90 at the last boundary of 64 KiB that leaves room for one.
            (8192, md, Kind::LinuxRaid),
            (65_536 + 12_288, md, Kind::LinuxRaid),
            (1024, b"Intel Raid ISM Cfg Sig. ", Kind::LinuxRaid),
            (512, b"\xde\x11\xde\x11", Kind::LinuxRaid),
            (12_288 + 0x4_0000 - 131_032, b"\x11\x7a\x0c\xb1\x7a\xda\x10\x02", Kind::Zfs),
            (1 << 20, b"\0\0\0\0 LVM2 x[5A%r0N*>", Kind::Lvm2),
        ] {
            assert_eq!(found(size, from_end, bytes), Some(kind), "{from_end} {kind}");
            assert_eq!(found(size, from_end + 8, bytes), None, "{from_end} {kind}: it does not begin there");
        }
        assert_eq!(at_end(&[0; 8192], 8192), None);
        assert_eq!(at_end(&[], 0), None);
    }
}
