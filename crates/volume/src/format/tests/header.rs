use proptest::prelude::*;

use super::{
    Again, changed_is_canonical, damage, other_lengths_are_refused, reserved_is_refused, strategies,
};
use crate::format::header::*;
use crate::format::protections::{Freshness, Provision, SuiteCode, check_protections};
use crate::format::rekeying::Rekeying;
use crate::format::{BLOCK_SIZE, Malformed};
use crate::geometry::{Geometry, Shape};

const AGAIN: Again = |bytes| {
    let mut page = Header::decode(bytes)?.encode_unsigned();
    let digest = SIGNED - 32..SIGNED;
    page[digest.clone()].copy_from_slice(&bytes[digest]);
    put_mac(&mut page, mac(bytes)?);
    Ok(page.to_vec())
};

fn valid() -> Header {
    Header {
        rekeying: None,
        generation: 1,
        volume: [7; 16],
        suite: SuiteCode::Aes256Gcm,
        confidentiality: true,
        integrity: true,
        freshness: Freshness::Write,
        provision: Provision::Full,
        geometry: Geometry::for_logical(1 << 14, Shape::STANDARD).expect("64 MiB"),
    }
}

fn rekeying() -> Rekeying {
    Rekeying { boundary: 5, superblock: [1; 32], salt: [2; 32], sealed: [3; 32], tag: [4; 16] }
}

/// The field that is named when byte `at` is set to `value`.
fn refused(at: usize, value: u8) -> &'static str {
    let mut page = valid().encode_unsigned();
    assert_ne!(page[at], value);
    page[at] = value;
    Header::decode(&page).expect_err("it must be refused").field
}

proptest! {
    #[test]
    fn round_trip(header in strategies::header()) {
        prop_assert_eq!(Header::decode(&header.encode_unsigned()), Ok(header));
    }

    #[test]
    fn changes_are_seen(header in strategies::header(), changes in damage::changes()) {
        changed_is_canonical(&header.encode_unsigned(), &changes, AGAIN)?;
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..5000), magic: bool) {
        if magic && bytes.len() >= 12 {
            bytes[..12].copy_from_slice(b"cvmioVOL\x01\0\0\0");
        }
        prop_assert!(Header::decode(&bytes).is_err());
        let whole = bytes.len() == BLOCK_SIZE;
        prop_assert!(signed_part(&bytes).is_ok() == whole && mac(&bytes).is_ok() == whole);
    }
}

#[test]
fn reserved_bytes_are_refused() {
    let page = valid().encode_unsigned();
    for reserved in [36..40, 59..60, 72..1096, 1097..4032] {
        reserved_is_refused(&page, reserved, AGAIN);
    }
    let page = Header { rekeying: Some(rekeying()), ..valid() }.encode_unsigned();
    for reserved in [72..1096, 1097..1100, 1216..4032] {
        reserved_is_refused(&page, reserved, AGAIN);
    }
}

#[test]
fn the_digest_is_of_all_but_itself_and_the_mac() {
    let slots = [3; BLOCK_SIZE];
    let mut page = valid().encode_unsigned();
    assert_eq!(is_whole(&page, &slots), None, "before there was one");
    put_digest(&mut page, &slots);
    put_mac(&mut page, &[0xff; MAC_SIZE]);
    assert_eq!((is_whole(&page, &slots), Header::decode(&page)), (Some(true), Ok(valid())));
    for at in (0..SIGNED).step_by(31).chain([SIGNED - 1]) {
        let mut changed = page;
        changed[at] ^= 1;
        assert_eq!(is_whole(&changed, &slots), Some(false), "byte {at}");
    }
    for at in [0, 511, 512, 4095] {
        let mut changed = slots;
        changed[at] ^= 1;
        assert_eq!(is_whole(&page, &changed), Some(false), "byte {at} of the key slots");
    }
}

#[test]
fn only_whole_blocks_are_headers() {
    other_lengths_are_refused(&valid().encode_unsigned(), AGAIN);
}

#[test]
fn the_mac_is_no_part_of_what_is_signed() {
    let mut page = valid().encode_unsigned();
    let before = signed_part(&page).expect("a block").to_vec();
    assert_eq!(before.len(), SIGNED);
    put_mac(&mut page, &[0xff; MAC_SIZE]);
    assert_eq!(signed_part(&page), Ok(&before[..]));
    assert_eq!(mac(&page), Ok(&[0xff; MAC_SIZE]));
    assert_eq!(Header::decode(&page), Ok(valid()));
}

#[test]
fn fields_without_meaning_are_named() {
    assert_eq!(refused(0, b'C'), "magic");
    assert_eq!(refused(8, 2), "version");
    assert_eq!(refused(12, 0), "generation");
    assert_eq!(refused(32, 0), "suite");
    assert_eq!(refused(32, 5), "suite");
    assert_eq!(refused(33, 4), "protections");
    assert_eq!(refused(34, 5), "freshness");
    assert_eq!(refused(35, 2), "provision");
    assert_eq!(refused(40, 1), "provision", "one more block is not fully provisioned");
    assert_eq!(refused(47, 0xff), "logical blocks");
    assert_eq!(refused(55, 0xff), "physical blocks");
    assert_eq!(refused(56, 64), "map fan-out");
    assert_eq!(refused(57, 0), "salt-table fan-out");
    assert_eq!(refused(58, 255), "bitmap leaf bits");
    assert_eq!(refused(60, 0), "segment blocks");
    assert_eq!(refused(67, 1), "segments");
    assert_eq!(refused(68, 0), "unit blocks");
    assert_eq!((refused(1096, 2), refused(1096, 1)), ("re-keying", "boundary epoch"));
}

#[test]
fn freshness_without_integrity_is_refused() {
    assert_eq!(refused(33, 1), "freshness");
}

#[test]
fn the_boundary_is_an_epoch() {
    for (boundary, accepted) in [(0, false), (1, true), ((1 << 24) - 1, true), (1 << 24, false)] {
        let it = Rekeying { boundary, ..rekeying() };
        let page = Header { rekeying: Some(it), ..valid() }.encode_unsigned();
        assert_eq!(Header::decode(&page).is_ok(), accepted, "{boundary}");
    }
}

#[test]
fn the_suite_must_fit_the_protections() {
    assert_eq!(refused(32, 4), "suite");
    // What passes is what can be sealed: a header that was let through must not fail later, for another reason.
    for &suite in SuiteCode::ALL {
        for (confidentiality, integrity) in [(true, true), (true, false), (false, true), (false, false)] {
            let checked = |freshness| check_protections(suite, confidentiality, integrity, freshness).is_ok();
            let seals = seal::DataMode::new(suite.suite(), confidentiality, integrity).is_ok();
            assert_eq!(checked(Freshness::Off), seals, "{suite} {confidentiality} {integrity}");
            assert_eq!(
                checked(Freshness::Strict),
                seals && integrity,
                "{suite} {confidentiality} {integrity}"
            );
        }
    }
}

#[test]
fn growths_are_those_that_the_formulas_allow() {
    let created = valid().geometry;
    let (logical, physical) = (created.logical_blocks, created.physical_blocks);
    let once = created.grown(2 * logical, 3 * physical).expect("it grows");
    let twice = once.grown(2 * logical, 4 * physical).expect("it grows again");
    let page = Header { geometry: twice, ..valid() }.encode_unsigned();
    assert_eq!(Header::decode(&page).map(|header| header.geometry), Ok(twice));
    // Where the volume began stays what it was.
    assert_eq!(page[..72], valid().encode_unsigned()[..72]);
    let refused = |at: usize, bytes: &[u8]| {
        let mut page = page;
        page[at..at + bytes.len()].copy_from_slice(bytes);
        Header::decode(&page).expect_err("it must be refused").field
    };
    assert_eq!(refused(72, &[1]), "growths", "what is not counted is zero");
    assert_eq!(refused(72, &[3]), "growths", "a growth to nothing");
    assert_eq!(refused(72, &[17]), "growths");
    assert_eq!(refused(73, &[1]), "growths");
    assert_eq!(refused(80, &(logical - 1).to_le_bytes()), "growths", "smaller");
    assert_eq!(refused(88, &(physical - 1).to_le_bytes()), "growths", "smaller");
    assert_eq!(refused(88, &(physical + 1).to_le_bytes()), "growths", "too little for a unit");
    assert_eq!(refused(96, &(2 * logical - 1).to_le_bytes()), "growths", "smaller than before");
    assert_eq!(refused(104, &(65 * physical).to_le_bytes()), "growths", "too far");
    assert_eq!((refused(336, &[1]), refused(1400, &[1])), ("reserved", "reserved"));
}

#[test]
fn the_shape_is_not_taken_from_the_disk() {
    let geometry = Geometry::for_logical(4096, Shape::TINY).expect("within the limits");
    let page = Header { geometry, ..valid() }.encode_unsigned();
    assert!(matches!(Header::decode(&page), Err(Malformed { what: "geometry", .. })));
    assert_eq!(Header::decode_as(&page, Shape::TINY).map(|header| header.geometry), Ok(geometry));
}

#[test]
fn numbers_and_names_lead_back() {
    assert_eq!(SuiteCode::ALL.iter().map(|suite| suite.code()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(Freshness::ALL.iter().map(|level| level.code()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(Provision::ALL.iter().map(|provision| provision.code()).collect::<Vec<_>>(), [0, 1]);
    for &suite in SuiteCode::ALL {
        assert_eq!((SuiteCode::from_code(suite.code()), suite.to_string().parse()), (Some(suite), Ok(suite)));
    }
    for &level in Freshness::ALL {
        assert_eq!((Freshness::from_code(level.code()), level.to_string().parse()), (Some(level), Ok(level)));
    }
    assert!(Freshness::ALL.is_sorted() && Freshness::Off < Freshness::Write);
    let error = "Strict".parse::<Freshness>().expect_err("names are in lower case");
    let message =
        "there is no freshness level `Strict`; choose one of off, transaction, interval, strict, write";
    assert_eq!(error.to_string(), message);
}
