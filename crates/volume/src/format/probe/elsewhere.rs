//! What a store whose beginning is blank holds at its end or in its middle: a disk whose first sectors were lost, and whose owner counts on
//! a copy; or the data of somebody who begins elsewhere.
//!
//! Offsets and magic numbers are those of blkid(8), mdadm(8) and dmraid(8), where nothing else is said.

use std::ops::Range;

use super::{Kind, has};
use crate::format::BLOCK_SIZE;

/// Something that was found, and at which byte of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Whose data it looks like.
    pub kind: Kind,
    /// Where its mark is.
    pub at: u64,
}

/// Bytes at the end that are looked at as a whole.
const END: u64 = 2 << 20;

/// Where the four labels of a ZFS device are, but for the first half of the first; and more that lies there.
const BEHIND_START: Range<u64> = super::PROBE_SIZE as u64..512 << 10;

/// Where a mark is.
#[derive(Clone, Copy)]
enum Place {
    /// So many bytes behind the first.
    At(u64),
    /// So many bytes before the end.
    Back(u64),
    /// The same, from the last boundary of 4 KiB.
    BackWhole(u64),
}
use Place::{At, Back, BackWhole};

impl Place {
    fn of(self, size: u64) -> Option<u64> {
        match self {
            At(at) => Some(at),
            Back(back) => size.checked_sub(back),
            BackWhole(back) => (size & !4095).checked_sub(back),
        }
    }
}

/// Where the last sector has a mark, sectors of 512 and of 4096 bytes are both looked for: an image does not say which it has.
const SIGNATURES: &[(Place, &[u8], Kind)] = &[
    // UEFI, section 5.3: the backup header is the last sector.
    (Back(512), b"EFI PART", Kind::Gpt),
    (Back(4096), b"EFI PART", Kind::Gpt),
    // The backup boot sector of NTFS and of ReFS is the last one of the partition.
    (Back(512 - 3), b"NTFS    ", Kind::Ntfs),
    (Back(4096 - 3), b"NTFS    ", Kind::Ntfs),
    (Back(512 - 3), b"ReFS\0\0\0\0", Kind::Refs),
    (Back(4096 - 3), b"ReFS\0\0\0\0", Kind::Refs),
    // TN1150: the alternate volume header, with its version.
    (Back(1024), b"H+\0\x04", Kind::Hfs),
    (Back(1024), b"HX\0\x05", Kind::Hfs),
    // The second superblock: revision 2.0, and the magic number.
    (BackWhole(4096), b"\x02\0\0\0\0\0\x34\x34", Kind::Nilfs2),
    // md(4), version 1.0.
    (BackWhole(8192), MD, Kind::LinuxRaid),
    // What mdadm knows beside its own: Intel's, behind sectors of 512 and of 4096 bytes, and SNIA's DDF.
    (Back(1024), b"Intel Raid ISM Cfg Sig. ", Kind::LinuxRaid),
    (Back(8192), b"Intel Raid ISM Cfg Sig. ", Kind::LinuxRaid),
    (Back(512), b"\xde\x11\xde\x11", Kind::LinuxRaid),
    (Back(512), b"\x11\xde\x11\xde", Kind::LinuxRaid),
    (Back(257 * 512), b"\xde\x11\xde\x11", Kind::LinuxRaid),
    (Back(257 * 512), b"\x11\xde\x11\xde", Kind::LinuxRaid),
    (Back(1024), b"NVIDIA", Kind::FirmwareRaid),
    (Back(512), b"$XIDE$", Kind::FirmwareRaid),
    // Adaptec's, and HighPoint's (45x), in order and failed.
    (Back(512), b"\x37\xfc\x4d\x1e", Kind::FirmwareRaid),
    (Back(11 * 512), b"\xf3\x16\x78\x5a", Kind::FirmwareRaid),
    (Back(11 * 512), b"\xfd\x16\x78\x5a", Kind::FirmwareRaid),
    // Versions 8, 8.4 not closed, and 9, of metadata that is on the device itself.
    (BackWhole(4096 - 60), b"\x83\x74\x02\x6b", Kind::Drbd),
    (BackWhole(4096 - 60), b"\x83\x74\x02\x6c", Kind::Drbd),
    (BackWhole(4096 - 60), b"\x83\x74\x02\x6d", Kind::Drbd),
    // The copies of the private header: in the last sector of the database, which has the last 1 MiB, and 192 sectors before its end.
    (Back(512), b"PRIVHEAD", Kind::Ldm),
    (Back(192 * 512), b"PRIVHEAD", Kind::Ldm),
    // gmirror, geli and others have their metadata in the last sector.
    (Back(512), b"GEOM::", Kind::Geom),
    (Back(4096), b"GEOM::", Kind::Geom),
    // VHD, DMG, and Android's verified boot.
    (Back(512), b"conectix", Kind::Image),
    (Back(512), b"koly\0\0\0\x04", Kind::Image),
    (Back(64), b"AVBf", Kind::Image),
    // The second header, where the first is longer than 64 KiB.
    (At(0x2_0000), LUKS2, Kind::Luks2Backup),
    (At(0x4_0000), LUKS2, Kind::Luks2Backup),
    (At(0x8_0000), LUKS2, Kind::Luks2Backup),
    (At(0x10_0000), LUKS2, Kind::Luks2Backup),
    (At(0x20_0000), LUKS2, Kind::Luks2Backup),
    (At(0x40_0000), LUKS2, Kind::Luks2Backup),
    (At(1 << 20), b"\x0d\xd0\x01\xc0", Kind::Vmfs),
    (At(2 << 20), b"\x5e\xf1\xab\x2f", Kind::Vmfs),
    // The mirrors of the superblock.
    (At((64 << 20) + 64), b"_BHRfS_M", Kind::Btrfs),
    (At((256 << 30) + 64), b"_BHRfS_M", Kind::Btrfs),
];

const MD: &[u8] = b"\xfc\x4e\x2b\xa9";
const LUKS2: &[u8] = b"SKUL\xba\xbe";

/// Marks that are at the beginning of some sector near the end, and at which byte of it: LVM2's second metadata area, and the last
/// superblock of bcachefs.
const IN_SECTORS: &[(usize, &[u8], Kind)] = &[
    (4, b" LVM2 x[5A%r0N*>", Kind::Lvm2),
    (24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", Kind::Bcachefs),
    (24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", Kind::Bcachefs),
];

/// Promise's, so many sectors before the end.
const PROMISE: [u64; 13] = [16, 63, 255, 256, 399, 591, 675, 735, 911, 951, 974, 991, 3087];

/// ext2(5), with 1, 2 and 4 KiB a block: where the second group begins, which has the first copy of the superblock, and how it states the size.
const EXT: [(u64, u32); 3] = [(8193 << 10, 0), (32 << 20, 1), (128 << 20, 2)];

/// Where mkfs.xfs(8) puts the second allocation group, which begins with a copy of the superblock: it makes four of equal size, of 1 TiB at most.
fn xfs(size: u64) -> u64 {
    const BLOCK: u64 = BLOCK_SIZE as u64;
    ((size / BLOCK).div_ceil(4) * BLOCK).min(1 << 40)
}

/// The parts of a store of so many bytes that [`in_part`] wants to see. They begin and end with a block, but for the store's own end.
#[must_use]
pub fn parts(size: u64) -> Vec<Range<u64>> {
    const BLOCK: u64 = BLOCK_SIZE as u64;
    let end = size.saturating_sub(END) / BLOCK * BLOCK;
    let fixed = SIGNATURES.iter().filter_map(|(place, ..)| match place {
        At(at) => Some(*at),
        Back(_) | BackWhole(_) => None,
    });
    let blocks = fixed.chain(EXT.map(|(at, _)| at)).chain([xfs(size)]).map(|at| at / BLOCK * BLOCK);
    let mut found = vec![BEHIND_START];
    found.extend(blocks.filter(|at| !BEHIND_START.contains(at)).map(|at| at..at + BLOCK));
    // What lies in the end is seen there.
    found.retain(|part| part.start < end);
    found.iter_mut().for_each(|part| part.end = part.end.min(end));
    found.push(end..size);
    found.sort_by_key(|part| part.start);
    found.dedup();
    found
}

/// Whose data a part of a store looks like that begins at `first`, of a store of `size` bytes.
#[must_use]
pub fn in_part(first: u64, part: &[u8], size: u64) -> Option<Found> {
    let within = |at: u64| usize::try_from(at.checked_sub(first)?).ok();
    let is = |at: u64, bytes: &[u8]| within(at).is_some_and(|at| has(part, at, bytes));
    let plain = SIGNATURES.iter().find_map(|(place, bytes, kind)| {
        let at = place.of(size).filter(|at| is(*at, bytes))?;
        Some(Found { kind: *kind, at })
    });
    let found = |kind| move |at| Found { kind, at };
    let sector = |at: u64| within(at).and_then(|at| part.get(at..at.checked_add(512)?));
    plain
        .or_else(|| Some(xfs(size)).filter(|at| is(*at, b"XFSB")).map(found(Kind::Xfs)))
        .or_else(|| old_md(size).filter(|at| is(*at, MD)).map(found(Kind::LinuxRaid)))
        .or_else(|| {
            let promise = PROMISE.iter().filter_map(|sectors| size.checked_sub(sectors * 512));
            promise.map(found(Kind::FirmwareRaid)).find(|found| is(found.at, b"Promise Technology, Inc."))
        })
        .or_else(|| {
            let last = size.checked_sub(512)?;
            sector(last).filter(|sector| is_firmware_raid(sector)).map(|_| found(Kind::FirmwareRaid)(last))
        })
        .or_else(|| zfs(size, is).map(found(Kind::Zfs)))
        .or_else(|| {
            let copy = |(at, block_size): &(u64, u32)| {
                sector(*at).is_some_and(|start| is_ext_copy(start, *block_size))
            };
            EXT.iter().find(|copied| copy(copied)).map(|(at, _)| found(Kind::Ext)(*at))
        })
        .or_else(|| in_sectors(first, part, size))
}

/// md(4): version 0.90 is in the last 64 KiB that begin at such a boundary.
fn old_md(size: u64) -> Option<u64> {
    (size & !0xffff).checked_sub(0x1_0000)
}

/// A label of ZFS has 256 KiB, and there are two at either end. One ends its configuration with the magic of a checksum, at 128 KiB, and goes on
/// with uberblocks, which begin with their own (ZFS On-Disk Specification, chapter 1). Both are in the byte order of who wrote them.
fn zfs(size: u64, is: impl Fn(u64, &[u8]) -> bool) -> Option<u64> {
    const LABEL: u64 = 0x4_0000;
    const CHECKSUM: u64 = 0x0210_da7a_b10c_7a11;
    const UBERBLOCK: u64 = 0x00ba_b10c;
    let whole = size & !(LABEL - 1);
    let labels = [Some(0), Some(LABEL), whole.checked_sub(2 * LABEL), whole.checked_sub(LABEL)];
    let shown = |at: u64, magic: u64| is(at, &magic.to_le_bytes()) || is(at, &magic.to_be_bytes());
    labels.into_iter().flatten().find_map(|label| {
        let uberblocks = (label + LABEL / 2..label + LABEL).step_by(1024);
        let checksum = label + LABEL / 2 - 40;
        let found = std::iter::once((checksum, CHECKSUM)).chain(uberblocks.map(|at| (at, UBERBLOCK)));
        found.into_iter().find(|(at, magic)| shown(*at, *magic)).map(|(at, _)| at)
    })
}

/// The last sector, as controllers write it whose marks are short: each has a checksum, too.
fn is_firmware_raid(sector: &[u8]) -> bool {
    let words = |bytes: &[u8]| {
        let (pairs, _) = bytes.as_chunks::<2>();
        pairs.iter().fold(0_u16, |sum, pair| sum.wrapping_add(u16::from_le_bytes(*pair)))
    };
    let silicon_image = has(sector, 0x60, b"\0\0\0\x2f") && words(&sector[..0x140]) == 0;
    let sum = sector[..50].iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    let via = sector.starts_with(b"\x55\xaa") && sector[2] <= 2 && sum == sector[50];
    let jmicron = sector.starts_with(b"JM") && words(&sector[..128]) <= 1;
    silicon_image || via || jmicron
}

/// A copy of ext's superblock that says of itself that it is the second group's.
fn is_ext_copy(superblock: &[u8], block_size: u32) -> bool {
    has(superblock, 56, b"\x53\xef")
        && has(superblock, 90, &[1, 0])
        && has(superblock, 24, &block_size.to_le_bytes())
}

fn in_sectors(first: u64, part: &[u8], size: u64) -> Option<Found> {
    let is_end = first.saturating_add(part.len() as u64) == size;
    let mut sectors = (0..part.len()).step_by(512).take_while(|_| is_end);
    sectors.find_map(|sector| {
        let mark = IN_SECTORS.iter().find(|(at, bytes, _)| has(part, sector + at, bytes))?;
        Some(Found { kind: mark.2, at: first + sector as u64 })
    })
}
