use proptest::prelude::*;

use super::{
    Again, changed_is_canonical, damage, other_lengths_are_refused, reserved_is_refused, strategies,
};
use crate::format::entry::{ENTRY_SIZE, Entry, entry_at, put_entry};
use crate::format::item::{ITEM_SIZE, Item, Units, items};
use crate::format::record::*;
use crate::format::{BLOCK_SIZE, Malformed, salts};
use crate::geometry::{Geometry, Shape};

const HEADER: Again = |bytes| Ok(RecordHeader::decode(bytes)?.encode().to_vec());
const ENTRY: Again = |bytes| Ok(Entry::decode(bytes)?.encode().to_vec());
const ITEM: Again = |bytes| {
    let mut again = Vec::new();
    Item::decode(bytes)?.encode_into(&mut again);
    Ok(again)
};

fn encoded(item: &Item) -> Vec<u8> {
    let mut bytes = Vec::new();
    item.encode_into(&mut bytes);
    bytes
}

fn valid() -> RecordHeader {
    RecordHeader {
        volume: [1; 16],
        session: [2; 16],
        generation: 3,
        payload_bytes: 4000,
        blocks: 2,
        last: true,
        next_segment: 4,
        epoch: 5,
        nonce: 6,
        salt: [7; 32],
        tag: [8; 16],
    }
}

/// The field that is named when `bytes` are put at `at`.
fn refused(at: usize, bytes: &[u8]) -> &'static str {
    let mut header = valid().encode();
    header[at..at + bytes.len()].copy_from_slice(bytes);
    RecordHeader::decode(&header).expect_err("it must be refused").field
}

proptest! {
    #[test]
    fn entries_round_trip(entry in strategies::present(0, u16::MAX), index in 0..128_usize) {
        prop_assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
        let mut page = [0; BLOCK_SIZE];
        put_entry(&mut page, index, &entry);
        for other in 0..128 {
            prop_assert_eq!(entry_at(&page, other), Ok(if other == index { entry } else { Entry::ABSENT }));
        }
    }

    #[test]
    fn any_32_bytes_are_one_entry_or_none(bytes in strategies::hash(), absent: bool) {
        let mut bytes = bytes;
        if absent {
            bytes[..5].fill(0);
        }
        match ENTRY(&bytes) {
            Ok(again) => prop_assert_eq!(again, bytes),
            Err(_) => prop_assert!(bytes[..5] == [0; 5]),
        }
    }

    #[test]
    fn items_round_trip(items_in in prop::collection::vec(strategies::item(), 0..50)) {
        let mut payload = Vec::new();
        items_in.iter().for_each(|item| item.encode_into(&mut payload));
        prop_assert_eq!(payload.len(), items_in.len() * ITEM_SIZE);
        prop_assert_eq!(items(&payload).collect::<Result<Vec<_>, _>>(), Ok(items_in));
    }

    #[test]
    fn changed_items_are_seen(item in strategies::item(), changes in damage::changes()) {
        changed_is_canonical(&encoded(&item), &changes, ITEM)?;
    }

    #[test]
    fn arbitrary_payloads_do_not_panic(payload in prop::collection::vec(any::<u8>(), 0..500), kind in 0..8_u8) {
        let mut payload = payload;
        payload.iter_mut().skip(7).step_by(ITEM_SIZE).for_each(|byte| *byte = kind);
        let read: Vec<_> = items(&payload).collect();
        let whole = read.iter().all(Result::is_ok);
        prop_assert!(!whole || read.len() * ITEM_SIZE == payload.len(), "a part of an item is malformed");
        prop_assert!(read.iter().rev().skip(1).all(Result::is_ok), "nothing follows a malformed item");
        let geometry = Geometry::for_logical(1 << 12, Shape::STANDARD).expect("16 MiB");
        read.into_iter().flatten().for_each(|item| drop(item.check(&geometry)));
    }

    #[test]
    fn headers_round_trip(header in strategies::record_header()) {
        prop_assert_eq!(RecordHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn changed_headers_are_seen(header in strategies::record_header(), changes in damage::changes()) {
        changed_is_canonical(&header.encode(), &changes, HEADER)?;
    }

    #[test]
    fn arbitrary_headers_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
        let mut bytes = bytes;
        if magic && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(MAGIC);
        }
        if let Ok(header) = RecordHeader::decode(&bytes) {
            prop_assert_eq!(&header.encode()[..], &bytes[..RECORD_HEADER]);
        }
    }

    #[test]
    fn a_record_is_the_fewest_blocks(items in 0..30_000_usize) {
        let blocks = blocks_for(items);
        prop_assert!(blocks >= 1 && items_per_record(blocks) >= items);
        prop_assert!(blocks == 1 || items_per_record(blocks - 1) < items);
    }
}

#[test]
fn capacities_are_bounded() {
    assert_eq!((items_per_record(0), items_per_record(1), items_per_record(2)), (0, 99, 201));
    assert_eq!(items_per_record(u32::MAX), (usize::try_from(u32::MAX).expect("64 bits") * 4096 - 128) / 40);
    assert_eq!((blocks_for(0), blocks_for(99), blocks_for(100), blocks_for(usize::MAX)), (1, 1, 2, u32::MAX));
}

#[test]
fn absent_is_all_zero() {
    assert_eq!(Entry::ABSENT.encode(), [0; ENTRY_SIZE]);
    assert!(Entry::ABSENT.is_absent());
    reserved_is_refused(&[0; ENTRY_SIZE], 5..ENTRY_SIZE, ENTRY);
    other_lengths_are_refused(&[0; ENTRY_SIZE], ENTRY);
    assert!(entry_at(&[0; BLOCK_SIZE], 128).is_err());
    assert!(entry_at(&[0; BLOCK_SIZE], usize::MAX).is_err());
}

#[test]
fn reserved_bytes_of_a_header_are_refused() {
    reserved_is_refused(&valid().encode(), 104..112, HEADER);
}

#[test]
fn header_fields_without_meaning_are_named() {
    assert_eq!(refused(0, b"X"), "magic");
    assert_eq!(refused(40, &[0; 8]), "generation");
    assert_eq!(refused(40, &[0xff; 8]), "generation");
    assert_eq!(refused(48, &4001_u32.to_le_bytes()), "payload bytes");
    assert_eq!(refused(48, &u32::MAX.to_le_bytes()), "payload bytes");
    assert_eq!(refused(52, &[1, 0]), "blocks");
    assert_eq!(refused(52, &[3, 0]), "blocks");
    assert_eq!(refused(54, &[2, 0]), "flags");
    assert_eq!(refused(54, &[1, 0x80]), "flags");
    assert_eq!(refused(60, &[0; 4]), "epoch");
    assert_eq!(refused(60, &(1_u32 << 24).to_le_bytes()), "epoch");
    assert_eq!(refused(64, &(1_u64 << 48).to_le_bytes()), "nonce");
}

#[test]
fn a_record_is_its_payload_and_zeros() {
    let header = valid();
    let mut record = vec![0; 2 * BLOCK_SIZE];
    record[RECORD_HEADER..][..4000].fill(9);
    assert_eq!(header.sealed(&record), Ok(&[9; 4000][..]));
    for length in [0, RECORD_HEADER, BLOCK_SIZE, 2 * BLOCK_SIZE - 1] {
        assert_eq!(header.sealed(&record[..length]).map_err(|error| error.field), Err("blocks"), "{length}");
    }
    for at in [RECORD_HEADER + 4000, 2 * BLOCK_SIZE - 1] {
        record[at] = 1;
        assert_eq!(header.sealed(&record).map_err(|error| error.field), Err("padding"));
        record[at] = 0;
    }
}

#[test]
fn the_associated_data_does_not_cover_the_tag() {
    let (header, head) = (valid(), [0xab; 32]);
    let ad = header.associated_data(&head);
    assert_eq!((&ad[..112], &ad[112..]), (&header.encode()[..112], &head[..]));
    assert_eq!(RecordHeader { tag: [0; 16], ..header }.associated_data(&head), ad);
}

#[test]
fn reserved_bytes_of_items_are_refused() {
    reserved_is_refused(&encoded(&Item::Mapped(5)), 0..7, ITEM);
    reserved_is_refused(&encoded(&Item::Mapped(5)), 16..40, ITEM);
    reserved_is_refused(&encoded(&Item::Discard { logical: 1, blocks: 2 }), 16..40, ITEM);
    let units = Units::new(&[1, 2, 3]).expect("1 to 8 units");
    reserved_is_refused(&encoded(&Item::Reserve(units)), 20..40, ITEM);
    other_lengths_are_refused(&encoded(&Item::Mapped(5)), ITEM);
}

#[test]
fn items_without_meaning_are_refused() {
    let item = |kind: u8, argument: u32, body: [u8; 32]| {
        let mut bytes = [0; ITEM_SIZE];
        bytes[..4].copy_from_slice(&argument.to_le_bytes());
        bytes[7] = kind;
        bytes[8..].copy_from_slice(&body);
        Item::decode(&bytes).map_err(|error| error.field)
    };
    let entry = Entry { physical: 9, epoch: 1, nonce: 0, flags: 0, tag: [0; 16] };
    let body = |change: fn(&mut Entry)| {
        let mut entry = entry;
        change(&mut entry);
        entry.encode()
    };
    assert!(item(1, 0, entry.encode()).is_ok());
    assert_eq!(item(1, 0, [0; 32]), Err("entry"), "a write of nothing");
    assert_eq!(item(1, 0, body(|entry| entry.epoch = 0)), Err("entry"));
    assert_eq!(item(1, 0, body(|entry| entry.flags = 1)), Err("entry"));
    assert_eq!(item(2, 0, [0; 32]), Err("blocks"), "a discard of nothing");
    assert_eq!(item(3, 0, [0; 32]), Err("units"), "no units");
    assert_eq!(item(3, 9, [1; 32]), Err("units"), "nine units");
    assert_eq!(item(4, 0, [1; 32]), Err("epoch"));
    assert!(item(5, 3, body(|entry| entry.flags = 7)).is_ok());
    assert_eq!(item(5, 1, body(|entry| entry.flags = 7)), Err("root"));
    assert_eq!(item(5, 1, body(|entry| entry.epoch = 0)), Err("root"));
    assert_eq!(item(5, 2, entry.encode()), Err("root"), "the salt table's root has no epoch");
    assert_eq!(item(5, 4, entry.encode()), Err("number"));
    assert!(item(5, 1 | 16 << 8, body(|_| {})).is_ok());
    assert_eq!(item(5, 1 | 1 << 16, body(|_| {})), Err("growths"));
    assert_eq!(item(0, 0, [0; 32]), Err("kind"));
    assert_eq!(item(7, 0, [0; 32]), Err("kind"));
    let mut epoch = encoded(&Item::Epoch { epoch: (1 << 24) - 1, salt: [1; 32] });
    epoch[3] = 1;
    assert_eq!(Item::decode(&epoch).map_err(|error| error.field), Err("epoch"));
}

#[test]
fn units_are_one_to_eight() {
    assert_eq!(Units::new(&[]), None);
    assert_eq!(Units::new(&[0; 9]), None);
    assert_eq!(Units::new(&[1, 2]).as_ref().map(Units::as_slice), Some(&[1, 2][..]));
}

#[test]
fn items_outside_the_volume_are_refused() {
    let geometry = Geometry::for_logical(1 << 12, Shape::TINY).expect("within the limits");
    let inside = |item: Item| item.check(&geometry).map_err(|error: Malformed| error.field);
    let entry = |physical| Entry { physical, epoch: 1, nonce: 0, flags: 0, tag: [0; 16] };
    let (first, end) = (geometry.data_start(), geometry.data_start() + geometry.data_blocks());
    let write = |logical, physical| inside(Item::Write { logical, entry: entry(physical) });
    assert_eq!((write(4095, first), write(0, end - 1)), (Ok(()), Ok(())));
    assert_eq!(write(4096, first), Err("logical block"));
    assert_eq!((write(0, first - 1), write(0, end)), (Err("physical block"), Err("physical block")));
    assert_eq!(inside(Item::Discard { logical: 4000, blocks: 96 }), Ok(()));
    assert_eq!(inside(Item::Discard { logical: 4000, blocks: 97 }), Err("blocks"));
    assert_eq!(inside(Item::Discard { logical: 4000, blocks: u64::MAX }), Err("blocks"));
    let reserve = |unit| inside(Item::Reserve(Units::new(&[0, unit]).expect("two units")));
    assert_eq!((reserve(geometry.units() - 1), reserve(geometry.units())), (Ok(()), Err("units")));
    let epoch = |epoch| inside(Item::Epoch { epoch, salt: [1; 32] });
    assert_eq!((epoch(255), epoch(256)), (Ok(()), Err("epoch")));
    let root = |tree, physical| inside(Item::Root { tree, growths: 0, entry: entry(physical) });
    use crate::format::ad::Tree;
    assert_eq!((root(Tree::Map, first), root(Tree::Map, first - 1)), (Ok(()), Err("root")));
    assert_eq!((root(Tree::Bitmap, first - 1), root(Tree::Bitmap, first)), (Ok(()), Err("root")));
    assert_eq!(inside(Item::Root { tree: Tree::Map, growths: 0, entry: Entry::ABSENT }), Ok(()));
    assert_eq!(inside(Item::Root { tree: Tree::Map, growths: 1, entry: Entry::ABSENT }), Err("growths"));
    assert_eq!((inside(Item::Mapped(4096)), inside(Item::Mapped(4097))), (Ok(()), Err("mapped blocks")));
}

#[test]
fn the_unused_half_of_a_salt_leaf_is_zero() {
    let mut payload = [0; salts::SALT_NODE_PAYLOAD];
    payload[2047] = 1;
    assert_eq!(salts::check(&payload), Ok(()));
    for at in [2048, salts::SALT_NODE_PAYLOAD - 1] {
        payload[at] = 1;
        assert_eq!(salts::check(&payload).map_err(|error| error.field), Err("reserved"));
        payload[at] = 0;
    }
    assert_eq!(salts::check(&payload[1..]).map_err(|error| error.field), Err("length"));
    assert!(salts::salt_at(&payload, 63).is_ok());
    assert!(salts::salt_at(&payload, 64).is_err() && salts::salt_at(&payload, usize::MAX).is_err());
    assert!(salts::split(&[0; BLOCK_SIZE - 1]).is_err() && salts::split(&[0; BLOCK_SIZE + 1]).is_err());
}
