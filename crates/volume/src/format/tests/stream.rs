use proptest::prelude::*;

use super::{Again, changed_is_canonical, damage, other_lengths_are_refused, reserved_is_refused};
use crate::format::header::{mac, put_mac};
use crate::format::stream::*;
use crate::format::{BLOCK_SIZE, Malformed};

const HEADER: Again = |bytes| {
    let mut page = StreamHeader::decode(bytes)?.encode_unsigned();
    put_mac(&mut page, mac(bytes)?);
    Ok(page.to_vec())
};

/// Table and data.
const CHUNK: Again = |bytes| {
    let (chunk, data) = Chunk::decode(bytes)?;
    let mut payload = chunk.encode();
    payload[chunk.table_bytes()..].copy_from_slice(data);
    Ok(payload)
};

fn header() -> StreamHeader {
    StreamHeader { stream: [1; 16], volume: [2; 16], generation: 3, head: [4; 32], blocks: 5000 }
}

fn chunk() -> Chunk {
    Chunk { range: 10..1000, stretches: vec![10..12, 13..14, 990..1000] }
}

/// Stretches that may stand in a chunk: gaps and lengths, one after the other.
fn chunks() -> impl Strategy<Value = Chunk> {
    let parts = prop::collection::vec((1..50u64, 1..20u64), 0..12);
    (0..1u64 << 40, parts, 1..1000u64).prop_map(|(start, parts, rest)| {
        let mut at = start;
        let mut stretches = Vec::new();
        for (gap, length) in parts {
            stretches.push(at + gap..at + gap + length);
            at += gap + length;
        }
        Chunk { range: start..at + rest, stretches }
    })
}

fn refused(payload: &[u8]) -> Malformed {
    Chunk::decode(payload).expect_err("it must be refused")
}

proptest! {
    #[test]
    fn headers_round_trip(stream: [u8; 16], volume: [u8; 16], generation: u64, head: [u8; 32], blocks in 1..1u64 << 34) {
        let header = StreamHeader { stream, volume, generation, head, blocks };
        prop_assert_eq!(StreamHeader::decode(&header.encode_unsigned()), Ok(header));
    }

    #[test]
    fn chunks_round_trip(chunk in chunks()) {
        let payload = chunk.encode();
        prop_assert_eq!(payload.len(), chunk.table_bytes() + chunk.data_blocks() * BLOCK_SIZE);
        let (again, data) = Chunk::decode(&payload).expect("valid");
        prop_assert_eq!(&again, &chunk);
        prop_assert_eq!(data.len(), chunk.data_blocks() * BLOCK_SIZE);
    }

    #[test]
    fn changes_are_seen(chunk in chunks(), changes in damage::changes()) {
        changed_is_canonical(&header().encode_unsigned(), &changes, HEADER)?;
        changed_is_canonical(&chunk.encode(), &changes, CHUNK)?;
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000), frame: [u8; FRAME_SIZE]) {
        prop_assert!(StreamHeader::decode(&bytes).is_err());
        let _ = Chunk::decode(&bytes);
        if let Ok(known) = Frame::decode(&frame) {
            prop_assert_eq!(known.encode(), frame);
        }
    }
}

#[test]
fn reserved_bytes_and_other_lengths_are_refused() {
    let page = header().encode_unsigned();
    for reserved in [12..16, 96..4064] {
        reserved_is_refused(&page, reserved, HEADER);
    }
    other_lengths_are_refused(&page, HEADER);
    let small = Chunk { range: 0..4, stretches: vec![1..2, 3..4] };
    other_lengths_are_refused(&small.encode(), CHUNK);
    for frame in [Frame::Leg, Frame::Chunk { last: true, length: 4120 }] {
        reserved_is_refused(&frame.encode(), 1..4, |bytes| {
            Frame::decode(bytes.try_into().expect("a frame")).map(|frame| frame.encode().to_vec())
        });
    }
}

#[test]
fn no_frame_is_longer_than_it_may_be() {
    for (kind, length, good) in [
        (1, SALT_SIZE, true),
        (1, SALT_SIZE + 1, false),
        (2, MAX_PAYLOAD, true),
        (2, MAX_PAYLOAD + 1, false),
        (3, u32::MAX as usize, false),
        (3, 23, false),
        (3, 24, true),
        (0, 100, false),
        (4, 100, false),
    ] {
        let mut bytes = [kind, 0, 0, 0, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&u32::try_from(length).expect("32 bits").to_le_bytes());
        assert_eq!(Frame::decode(&bytes).is_ok(), good, "kind {kind}, {length} bytes");
    }
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of ranges that has one")]
fn chunks_that_contradict_themselves_are_refused() {
    assert_eq!(CHUNK(&chunk().encode()).as_deref(), Ok(&chunk().encode()[..]));
    let with = |range: std::ops::Range<u64>, stretches: &[std::ops::Range<u64>]| {
        refused(&Chunk { range, stretches: stretches.to_vec() }.encode()).field
    };
    assert_eq!(with(7..7, &[]), "end");
    assert_eq!(with(0..10, &[3..3]), "stretch");
    assert_eq!(with(0..10, &[3..4, 4..5]), "stretch", "two that touch are one");
    assert_eq!(with(0..10, &[5..6, 3..4]), "stretch");
    assert_eq!(with(0..10, &[3..5, 4..6]), "stretch");
    assert_eq!(with(5..10, &[4..6]), "stretch");
    assert_eq!(with(5..10, &[9..11]), "stretch");
    assert_eq!(with(0..1000, &[0..257]), "stretch");
    let many: Vec<_> = (0..257).map(|at| 2 * at..2 * at + 1).collect();
    assert_eq!(with(0..1000, &many), "stretches");
    // Numbers whose sums would overflow.
    let mut payload = chunk().encode();
    for (start, length) in [(u64::MAX, 1), (0, u64::MAX), (u64::MAX, u64::MAX), (12, u64::MAX - 12)] {
        payload[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        payload[40..48].copy_from_slice(&start.to_le_bytes());
        payload[48..56].copy_from_slice(&length.to_le_bytes());
        assert_eq!(refused(&payload).field, "stretch", "{start} {length}");
    }
}
