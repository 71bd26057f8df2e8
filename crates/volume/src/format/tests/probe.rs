use crate::format::header;
use crate::format::probe::{Found, Kind, PROBE_SIZE, Probe, in_part, parts};

type Signatures<'a> = &'a [(usize, &'a [u8])];

/// A store that begins with zeros, except for these bytes.
fn probe(signatures: Signatures<'_>) -> Probe {
    let mut start = vec![0; PROBE_SIZE];
    for (offset, bytes) in signatures {
        start[*offset..][..bytes.len()].copy_from_slice(bytes);
    }
    Probe::of(&start)
}

#[test]
fn zeros_are_blank() {
    assert_eq!(probe(&[]), Probe::Blank);
    assert_eq!(Probe::of(&[]), Probe::Blank);
}

#[test]
fn any_byte_is_somebodys() {
    for offset in [0, 4095, 65_536, PROBE_SIZE - 1] {
        assert_eq!(probe(&[(offset, &[1])]), Probe::Foreign(Kind::Unknown), "byte {offset}");
    }
    assert_eq!(Probe::of(&[0, 0, 1]), Probe::Foreign(Kind::Unknown));
}

/// What is found on a store of so many bytes that is blank but for some of them, by who sees only what it asks for.
fn found(size: u64, at: u64, bytes: &[u8]) -> Option<Found> {
    parts(size).into_iter().find_map(|part| {
        let mut content = vec![0; usize::try_from(part.end - part.start).unwrap()];
        for (place, byte) in (at..).zip(bytes).filter(|(place, _)| part.contains(place)) {
            content[usize::try_from(place - part.start).unwrap()] = *byte;
        }
        in_part(part.start, &content, size)
    })
}

const ZFS: [u8; 8] = 0x0210_da7a_b10c_7a11_u64.to_le_bytes();

#[test]
fn the_end_of_a_disk_may_be_somebodys_though_its_beginning_is_blank() {
    // A disk whose last sectors are no whole block.
    let size: u64 = (300 << 20) + 3 * 4096 + 1536;
    assert_eq!(found(size, size - 1, &[1]), None, "a byte that means nothing to anybody");
    for (back, bytes, kind) in [
        (512, &b"EFI PART"[..], Kind::Gpt),
        (4096, b"EFI PART", Kind::Gpt),
        (512 - 3, b"NTFS    ", Kind::Ntfs),
        (4096 - 3, b"NTFS    ", Kind::Ntfs),
        (512 - 3, b"ReFS\0\0\0\0", Kind::Refs),
        (1024, b"H+\0\x04", Kind::Hfs),
        (4096 + 1536, b"\x02\0\0\0\0\0\x34\x34", Kind::Nilfs2),
        (8192 + 1536, b"\xfc\x4e\x2b\xa9", Kind::LinuxRaid),
        (65_536 + 3 * 4096 + 1536, b"\xfc\x4e\x2b\xa9", Kind::LinuxRaid),
        (1024, b"Intel Raid ISM Cfg Sig. 1.3.00", Kind::LinuxRaid),
        (8192, b"Intel Raid ISM Cfg Sig. 1.3.00", Kind::LinuxRaid),
        (512, b"\xde\x11\xde\x11", Kind::LinuxRaid),
        (257 * 512, b"\x11\xde\x11\xde", Kind::LinuxRaid),
        (1024, b"NVIDIA  ", Kind::FirmwareRaid),
        (512, b"$XIDE$", Kind::FirmwareRaid),
        (512, b"\x37\xfc\x4d\x1e", Kind::FirmwareRaid),
        (11 * 512, b"\xf3\x16\x78\x5a", Kind::FirmwareRaid),
        (63 * 512, b"Promise Technology, Inc.", Kind::FirmwareRaid),
        (3087 * 512, b"Promise Technology, Inc.", Kind::FirmwareRaid),
        (4096 - 60 + 1536, b"\x83\x74\x02\x6d", Kind::Drbd),
        (512, b"PRIVHEAD", Kind::Ldm),
        (192 * 512, b"PRIVHEAD", Kind::Ldm),
        (512, b"GEOM::MIRROR", Kind::Geom),
        (512, b"conectix", Kind::Image),
        (64, b"AVBf", Kind::Image),
        // Both labels at the end, by the configuration and by an uberblock.
        (3 * 4096 + 1536 + 0x4_0000 - 131_032, &ZFS, Kind::Zfs),
        (3 * 4096 + 1536 + 0x8_0000 - 131_032, &ZFS, Kind::Zfs),
        (3 * 4096 + 1536 + 0x2_0000, &0x00ba_b10c_u64.to_le_bytes(), Kind::Zfs),
        (3 * 4096 + 1536 + 0x6_0000 - 5120, &0x00ba_b10c_u64.to_be_bytes(), Kind::Zfs),
        ((1 << 20) + 512 - 4, b" LVM2 x[5A%r0N*>", Kind::Lvm2),
        (
            (1 << 20) + 512 - 24,
            b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
            Kind::Bcachefs,
        ),
    ] {
        assert_eq!(found(size, size - back, bytes).map(|found| found.kind), Some(kind), "{back} {kind}");
        assert_eq!(found(size, size - back - 8, bytes), None, "{back} {kind}: it does not begin there");
    }
}

#[test]
fn the_middle_of_a_disk_may_be_somebodys_though_its_beginning_is_blank() {
    let size = (300 << 30) + 4096;
    for (at, bytes, kind) in [
        ((64 << 20) + 64, &b"_BHRfS_M"[..], Kind::Btrfs),
        ((256 << 30) + 64, b"_BHRfS_M", Kind::Btrfs),
        (0x2_0000, b"SKUL\xba\xbe", Kind::Luks2Backup),
        (0x40_0000, b"SKUL\xba\xbe", Kind::Luks2Backup),
        // The second of four allocation groups.
        ((75 << 30) + 4096, b"XFSB", Kind::Xfs),
        (1 << 20, b"\x0d\xd0\x01\xc0", Kind::Vmfs),
        (2 << 20, b"\x5e\xf1\xab\x2f", Kind::Vmfs),
        // The first two labels of a ZFS device.
        (0x2_0000, &0x00ba_b10c_u64.to_le_bytes(), Kind::Zfs),
        (0x4_0000 + 131_032, &ZFS, Kind::Zfs),
    ] {
        assert_eq!(found(size, at, bytes), Some(Found { kind, at }), "{at} {kind}");
        assert_eq!(found(size, at + 8, bytes), None, "{at} {kind}: it does not begin there");
        assert_eq!(found(at, at, bytes), None, "{at} {kind}: the disk ends before");
    }
    // What lies in the end of a small disk is seen there.
    assert_eq!(
        found((64 << 20) + 8192, (64 << 20) + 64, b"_BHRfS_M").map(|found| found.kind),
        Some(Kind::Btrfs)
    );
}

#[test]
fn copies_with_short_marks_are_told_by_more_than_these() {
    let (size, at) = (300_u64 << 20, 128_u64 << 20);
    let mut ext = [0; 1024];
    ext[24] = 2;
    ext[56..58].copy_from_slice(b"\x53\xef");
    assert_eq!(found(size, at, &ext), None, "the first group's");
    ext[90] = 1;
    assert_eq!(found(size, at, &ext), Some(Found { kind: Kind::Ext, at }));
    assert_eq!(found(size, 32 << 20, &ext), None, "with 2 KiB a block it is here");
    ext[24] = 0;
    assert_eq!(found(size, 8193 << 10, &ext).map(|found| found.kind), Some(Kind::Ext));

    let last = |sector: &[u8]| found(size, size - 512, sector).map(|found| found.kind);
    let mut silicon_image = [0; 512];
    silicon_image[0x63] = 0x2f;
    assert_eq!(last(&silicon_image), None, "without its checksum");
    silicon_image[0x13e..0x140].copy_from_slice(&0x2f00_u16.wrapping_neg().to_le_bytes());
    assert_eq!(last(&silicon_image), Some(Kind::FirmwareRaid));
    let mut via = [0; 512];
    via[..3].copy_from_slice(b"\x55\xaa\x02");
    assert_eq!(last(&via), None, "a boot sector's mark, at the wrong end");
    via[50] = 1;
    assert_eq!(last(&via), Some(Kind::FirmwareRaid));
    let mut jmicron = [0; 512];
    jmicron[..2].copy_from_slice(b"JM");
    assert_eq!(last(&jmicron), None);
    jmicron[4..6].copy_from_slice(&u16::from_le_bytes(*b"JM").wrapping_neg().to_le_bytes());
    assert_eq!(last(&jmicron), Some(Kind::FirmwareRaid));
}

#[test]
fn parts_lie_in_the_store_and_apart() {
    for size in
        [0, 512, 4096, 131_072, 200_000, (2 << 20) + 200_704, (2 << 20) + 4608, 65 << 20, 1 << 40, u64::MAX]
    {
        let parts = parts(size);
        assert!(
            parts.iter().all(|part| part.start <= part.end && part.end <= size && part.start % 4096 == 0)
        );
        assert!(parts.windows(2).all(|pair| pair[0].end <= pair[1].start), "{size}: {parts:?}");
        assert_eq!(parts.last().unwrap().end, size);
        for part in parts {
            assert_eq!(in_part(part.start, &[], size), None);
        }
    }
}

#[test]
fn either_copy_of_the_header_is_a_volume() {
    assert_eq!(probe(&[(0, header::MAGIC)]), Probe::Volume);
    assert_eq!(probe(&[(0, b"damaged"), (2 * 4096, header::MAGIC)]), Probe::Volume);
}

#[test]
fn others_are_told_apart() {
    let all: &[(Signatures<'_>, Kind)] = &[
        (&[(1080, &[0x53, 0xef])], Kind::Ext),
        (&[(0, b"XFSB")], Kind::Xfs),
        (&[(0x1_0040, b"_BHRfS_M")], Kind::Btrfs),
        (&[(0, b"LUKS\xba\xbe\0\x01")], Kind::Luks1),
        (&[(0, b"LUKS\xba\xbe\0\x02"), (0x4000, b"SKUL\xba\xbe")], Kind::Luks2),
        (&[(0x4000, b"SKUL\xba\xbe")], Kind::Luks2Backup),
        (&[(4086, b"SWAPSPACE2")], Kind::Swap),
        (&[(65_526, b"SWAPSPACE2")], Kind::Swap),
        (&[(512, b"LABELONE"), (536, b"LVM2 001")], Kind::Lvm2),
        (&[(131_032, &0x0210_da7a_b10c_7a11_u64.to_le_bytes())], Kind::Zfs),
        (&[(131_032, &0x0210_da7a_b10c_7a11_u64.to_be_bytes())], Kind::Zfs),
        (&[(4096, &0xa92b_4efc_u32.to_le_bytes())], Kind::LinuxRaid),
        (&[(0, b"integrt\0")], Kind::DmIntegrity),
        (&[(0, b"verity\0\0")], Kind::DmVerity),
        (&[(1024, &0xf2f5_2010_u32.to_le_bytes())], Kind::F2fs),
        (&[(3, b"NTFS    "), (510, &[0x55, 0xaa])], Kind::Ntfs),
        (&[(3, b"EXFAT   "), (510, &[0x55, 0xaa])], Kind::ExFat),
        (&[(32_769, b"CD001")], Kind::Iso9660),
        (&[(0, b"hsqs")], Kind::Squashfs),
        (&[(510, &[0x55, 0xaa]), (512, b"EFI PART")], Kind::Gpt),
        (&[(510, &[0x55, 0xaa]), (4096, b"EFI PART")], Kind::Gpt),
        (&[(510, &[0x55, 0xaa])], Kind::Mbr),
    ];
    for (signatures, kind) in all {
        assert_eq!(probe(signatures), Probe::Foreign(*kind), "{kind}");
    }
}

#[test]
fn a_short_store_is_judged_by_what_there_is() {
    assert_eq!(Probe::of(b"XFSB"), Probe::Foreign(Kind::Xfs));
    assert_eq!(Probe::of(&header::MAGIC[..7]), Probe::Foreign(Kind::Unknown));
}
