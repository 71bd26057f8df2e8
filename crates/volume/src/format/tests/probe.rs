use crate::format::header;
use crate::format::probe::{END_SIZE, Kind, PROBE_SIZE, Probe, at_end};

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

#[test]
fn the_end_of_a_disk_may_be_somebodys_though_its_beginning_is_blank() {
    let size: u64 = (4 << 20) + 3 * 4096;
    let found = |at: u64, bytes: &[u8]| {
        let mut end = vec![0; END_SIZE];
        let at = usize::try_from(at - (size - END_SIZE as u64)).unwrap();
        end[at..at + bytes.len()].copy_from_slice(bytes);
        at_end(&end, size)
    };
    assert_eq!(at_end(&[], 0), None);
    assert_eq!(found(size - 1, &[1]), None, "a byte that means nothing to anybody");
    assert_eq!(found(size - 512, b"EFI PART"), Some(Kind::Gpt));
    assert_eq!(found(size - 4096, b"EFI PART"), Some(Kind::Gpt));
    assert_eq!(found((4 << 20) - 0x1_0000, b"\xfc\x4e\x2b\xa9"), Some(Kind::LinuxRaid));
    assert_eq!(found(size - 8192, b"\xfc\x4e\x2b\xa9"), Some(Kind::LinuxRaid));
    assert_eq!(found(size - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00"), Some(Kind::LinuxRaid));
    assert_eq!(found(size - 512, b"\xde\x11\xde\x11"), Some(Kind::LinuxRaid));
    assert_eq!(found((4 << 20) - 0x4_0000 + 131_032, b"\x11\x7a\x0c\xb1\x7a\xda\x10\x02"), Some(Kind::Zfs));
    assert_eq!(found(size - (1 << 20) + 4, b" LVM2 x[5A%r0N*>"), Some(Kind::Lvm2));
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
