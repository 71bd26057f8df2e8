use proptest::prelude::*;

use super::{
    Again, changed_is_canonical, damage, other_lengths_are_refused, reserved_is_refused, strategies,
};
use crate::format::BLOCK_SIZE;
use crate::format::entry::Entry;
use crate::format::superblock::*;
use crate::geometry::{Geometry, Shape};

const AGAIN: Again = |bytes| Ok(Superblock::decode(bytes)?.encode()?.to_vec());

fn root(physical: u64, epoch: u32) -> Entry {
    Entry { physical, epoch, nonce: 0, flags: 0, tag: [5; 16] }
}

/// Two legs, and one unit.
fn valid(geometry: &Geometry) -> Superblock {
    let leg = |segment, first, last, head| Leg { segment, block: 0, first, last, head };
    Superblock {
        generation: 9,
        head: [1; 32],
        session: [2; 16],
        claims: 3,
        epoch: 4,
        next_epoch: 5,
        epoch_salt: [6; 32],
        map: root(geometry.data_start(), 4),
        salts: root(geometry.data_start() + 1, 0),
        bitmap: root(geometry.bitmap_start(), 4),
        mapped: 10,
        publication: 1,
        pair: 0,
        legs: vec![leg(0, 5, 9, [7; 32]), leg(1, 10, Leg::OPEN, [1; 32])],
        next_segment: 2,
        units: vec![1],
        growths: 0,
        old_salts: root(geometry.data_start() + 2, 0),
    }
}

fn tiny() -> Geometry {
    Geometry::for_logical(4096, Shape::TINY).expect("within the limits")
}

/// The field that the encoder names when a valid superblock is changed so.
fn refused(change: impl Fn(&mut Superblock)) -> &'static str {
    let mut superblock = valid(&tiny());
    change(&mut superblock);
    superblock.encode().expect_err("it must be refused").field
}

proptest! {
    #[test]
    fn round_trip(superblock in strategies::superblock()) {
        let payload = superblock.encode();
        prop_assert_eq!(Superblock::decode(&payload.expect("a valid superblock")), Ok(superblock));
    }

    #[test]
    fn changes_are_seen(superblock in strategies::superblock(), changes in damage::changes()) {
        changed_is_canonical(&superblock.encode().expect("a valid superblock"), &changes, AGAIN)?;
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), PAYLOAD - 2..PAYLOAD + 2)) {
        prop_assert!(Superblock::decode(&bytes).is_err());
    }

    #[test]
    fn blocks_come_apart_as_they_were_put_together(salt in strategies::hash(), tag in strategies::id(), fill: u8) {
        let sealed = [fill; PAYLOAD];
        let block = assemble(&salt, &sealed, &tag);
        prop_assert_eq!(split(&block), Ok((&salt, &sealed, &tag)));
        prop_assert!(split(&block[..BLOCK_SIZE - 1]).is_err());
    }

    #[test]
    fn no_superblock_is_checked_into_a_panic(superblock in strategies::superblock()) {
        drop(superblock.check(&tiny()));
    }
}

#[test]
fn reserved_and_unused_bytes_are_refused() {
    let payload = valid(&tiny()).encode().expect("a valid superblock");
    // The reserved ones, and then behind the last leg and unit.
    for unused in [2593..2688, 2720..4040, 224 + 2 * 56..1568, 1572..2592] {
        reserved_is_refused(&payload, unused, AGAIN);
    }
    other_lengths_are_refused(&payload, AGAIN);
}

#[test]
fn a_block_without_the_magic_is_no_superblock() {
    let mut block = assemble(&[1; 32], &[2; PAYLOAD], &[3; 16]);
    assert!(split(&[&block[..], &[0]].concat()).is_err());
    block[7] = b'2';
    assert_eq!(split(&block).map_err(|error| error.field), Err("magic"));
    assert!(split(&[]).is_err());
}

#[test]
fn counts_are_bounded() {
    let payload = valid(&tiny()).encode().expect("a valid superblock");
    let counted = |at: usize, count: &[u8]| {
        let mut payload = payload;
        payload[at..at + count.len()].copy_from_slice(count);
        Superblock::decode(&payload).expect_err("it must be refused").field
    };
    assert_eq!(counted(216, &[2]), "pair");
    assert_eq!((counted(217, &[0]), counted(217, &[25]), counted(217, &[255])), ("legs", "legs", "legs"));
    assert_eq!((counted(218, &[1, 1]), counted(218, &[0, 0])), ("own units", "own units"));
    assert_eq!(counted(218, &[0xff, 0xff]), "own units");
}

#[test]
fn lists_are_bounded() {
    assert_eq!(refused(|superblock| superblock.units = vec![0; 257]), "own units");
    assert_eq!(refused(|superblock| superblock.legs.clear()), "legs");
    let one_too_many = |superblock: &mut Superblock| {
        let first = Leg { first: 5, last: 4, ..superblock.legs[0] };
        superblock.legs.splice(0..0, [first; 23]);
    };
    assert_eq!(refused(one_too_many), "legs");
}

#[test]
fn legs_must_join() {
    assert_eq!(refused(|superblock| superblock.legs[1].last = 12), "legs", "none is open");
    assert_eq!(refused(|superblock| superblock.legs[0].last = Leg::OPEN), "legs", "two are open");
    assert_eq!(refused(|superblock| superblock.legs[0].last = 8), "legs", "a gap");
    assert_eq!(refused(|superblock| superblock.legs[1].first = 9), "legs", "an overlap");
    assert_eq!(refused(|superblock| superblock.legs[0].first = 11), "legs", "backwards");
    assert_eq!(refused(|superblock| superblock.legs[0].first = 0), "legs", "there is no record 0");
    assert_eq!(refused(|superblock| superblock.generation = 8), "legs", "not behind what is covered");
    assert_eq!(refused(|superblock| superblock.head = [0; 32]), "legs", "on another chain");
    assert_eq!(refused(|superblock| superblock.generation = u64::MAX), "legs");
}

#[test]
fn what_is_not_encoded_is_not_decoded() {
    let payload = valid(&tiny()).encode().expect("a valid superblock");
    let refused = |at: usize, value: u8| {
        let mut payload = payload;
        assert_ne!(payload[at], value);
        payload[at] = value;
        Superblock::decode(&payload).expect_err("it must be refused").field
    };
    assert_eq!((refused(0, 8), refused(8, 0)), ("legs", "legs"));
    assert_eq!((refused(64, 5), refused(64, 0)), ("next epoch", "epoch salt"));
    assert_eq!((refused(109, 0), refused(118, 1)), ("map root", "map root"));
    assert_eq!((refused(141, 1), refused(173, 0)), ("salts root", "bitmap root"));
    assert_eq!((refused(232, 11), refused(288, 11), refused(296, 0)), ("legs", "legs", "legs"));
}

#[test]
fn epochs_and_roots_must_make_sense() {
    assert_eq!(refused(|superblock| superblock.next_epoch = 4), "next epoch");
    assert_eq!(refused(|superblock| superblock.next_epoch = (1 << 24) + 1), "next epoch");
    assert_eq!(refused(|superblock| superblock.epoch = 0), "epoch salt");
    assert_eq!(refused(|superblock| superblock.map.flags = 1), "map root");
    assert_eq!(refused(|superblock| superblock.map.epoch = 0), "map root");
    assert_eq!(refused(|superblock| superblock.salts.nonce = 1), "salts root");
    assert_eq!(refused(|superblock| superblock.bitmap.epoch = 0), "bitmap root");
    assert_eq!(refused(|superblock| superblock.old_salts.epoch = 1), "old salts root");
}

#[test]
fn numbers_outside_the_volume_are_refused() {
    let geometry = tiny();
    assert_eq!(valid(&geometry).check(&geometry), Ok(()));
    let refused = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = valid(&geometry);
        change(&mut superblock);
        superblock.check(&geometry).expect_err("it must be refused").field
    };
    assert_eq!(refused(&|superblock| superblock.legs[1].segment = geometry.segments), "legs");
    assert_eq!(refused(&|superblock| superblock.legs[0].block = geometry.segment_blocks), "legs");
    assert_eq!(refused(&|superblock| superblock.next_segment = geometry.segments), "next segment");
    assert_eq!(refused(&|superblock| superblock.units[0] = geometry.units()), "own units");
    assert_eq!(refused(&|superblock| superblock.mapped = 4097), "mapped blocks");
    assert_eq!(refused(&|superblock| superblock.map.physical = geometry.data_start() - 1), "map root");
    assert_eq!(refused(&|superblock| superblock.salts.physical = geometry.physical_blocks), "salts root");
    assert_eq!(
        refused(&|superblock| superblock.old_salts.physical = geometry.physical_blocks),
        "old salts root"
    );
    assert_eq!(refused(&|superblock| superblock.bitmap.physical = geometry.data_start()), "bitmap root");
    assert_eq!(refused(&|superblock| superblock.next_epoch = 257), "next epoch");
    assert_eq!(refused(&|superblock| superblock.growths = 1), "growths");
}

#[test]
fn roots_are_of_the_growths_that_are_known() {
    let created = tiny();
    let grown = created.grown(5000, created.physical_blocks + 2000).expect("it grows");
    let unit = |superblock: &mut Superblock| superblock.units[0] = grown.units() - 1;
    let check = |growths, change: &dyn Fn(&mut Superblock)| {
        let mut superblock = Superblock { growths, ..valid(&created) };
        change(&mut superblock);
        superblock.check(&grown).map_err(|error| error.field)
    };
    assert_eq!((check(0, &|_| {}), check(1, &|_| {}), check(2, &|_| {})), (Ok(()), Ok(()), Err("growths")));
    // A session that has merged nothing writes everywhere already.
    assert_eq!((check(0, &unit), check(1, &unit)), (Ok(()), Ok(())));
    let root = |superblock: &mut Superblock| superblock.map.physical = grown.physical_blocks - 1;
    assert_eq!((check(0, &root), check(1, &root)), (Err("map root"), Ok(())));
    let place = |superblock: &mut Superblock| superblock.bitmap.physical = created.physical_blocks;
    assert_eq!((check(0, &place), check(1, &place)), (Err("bitmap root"), Ok(())));
    let mapped = |superblock: &mut Superblock| superblock.mapped = 5000;
    assert_eq!((check(0, &mapped), check(1, &mapped)), (Err("mapped blocks"), Ok(())));
    assert_eq!(refused(|superblock| superblock.growths = 17), "growths");
}
