//! Parties that break the rules.

use proptest::prelude::*;
use virtqueue::block;
use virtqueue::{Area, Breach, CHAIN_LIMIT, Device, Driver, Lie, Part, Rings};

use crate::memory::{Queue, Words};

const WRITE: u16 = 2;
const NEXT: u16 = 1;
const INDIRECT: u16 = 4;

fn put(table: &Words, index: usize, address: u64, length: u32, flags: u16, next: u16) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    Area::write(table, 16 * index, &bytes);
}

/// What a device says of the chain at descriptor 0 of a queue of four.
fn said(prepare: impl Fn(&Queue, &Words)) -> Result<Vec<Part>, Breach> {
    let (queue, memory) = (Queue::new(4), Words::new(1 << 16));
    queue.available.store(2, 1);
    prepare(&queue, &memory);
    let mut device = Device::new(queue.rings(), 0, None).unwrap();
    let mut parts = Vec::new();
    device.pop(&memory, &mut parts).map(|head| {
        assert!(head.is_some());
        parts
    })
}

#[test]
fn each_breach_of_a_driver_is_named() {
    let first = |address, length, flags, next| {
        said(move |queue, _| put(&queue.descriptors, 0, address, length, flags, next))
    };
    assert_eq!(first(7, 9, WRITE, 0), Ok(vec![Part { address: 7, length: 9, is_writable: true }]));
    assert_eq!(first(7, 9, NEXT, 4), Err(Breach::Next(4)));
    assert_eq!(first(7, 9, NEXT, 0), Err(Breach::Endless));
    assert_eq!(first(u64::MAX, 1, 0, 0), Err(Breach::Overflow));
    assert_eq!(first(u64::MAX - 15, 16, INDIRECT, 0), Err(Breach::Overflow));
    assert_eq!(first(0, 0, INDIRECT, 0), Err(Breach::TableLength(0)));
    assert_eq!(first(0, 17, INDIRECT, 0), Err(Breach::TableLength(17)));
    assert_eq!(first(0, 16, INDIRECT | NEXT, 1), Err(Breach::Nested));
    assert_eq!(first(1 << 40, 16, INDIRECT, 0), Err(Breach::NoMemory(1 << 40)));
    let order = said(|queue, _| {
        put(&queue.descriptors, 0, 0, 1, WRITE | NEXT, 1);
        put(&queue.descriptors, 1, 0, 1, 0, 0);
    });
    assert_eq!(order, Err(Breach::Order));
    assert_eq!(said(|queue, _| queue.available.store(2, 5)), Err(Breach::Index { index: 5, at: 0 }));
    assert_eq!(said(|queue, _| queue.available.store(4, 4)), Err(Breach::Head(4)));
}

#[test]
fn indirect_tables_are_followed_one_level_deep_and_to_their_end() {
    let table = |entry: fn(&Words, usize)| {
        said(move |queue, memory| {
            put(&queue.descriptors, 0, 0, 16 * 2048, INDIRECT, 0);
            (0..2048).for_each(|index| entry(memory, index));
        })
    };
    let few = table(|memory, index| {
        put(
            memory,
            index,
            index as u64,
            1,
            if index < 2 { NEXT } else { 0 },
            u16::try_from(index + 1).unwrap(),
        );
    });
    assert_eq!(few.unwrap().len(), 3);
    let nested = table(|memory, index| put(memory, index, 0, 16, INDIRECT, 0));
    assert_eq!(nested, Err(Breach::Nested));
    let endless = table(|memory, index| put(memory, index, 0, 1, NEXT, u16::try_from(index + 1).unwrap()));
    assert_eq!(endless, Err(Breach::Endless));
    let empty_ones = table(|memory, index| put(memory, index, 0, 0, NEXT, u16::try_from(index + 1).unwrap()));
    assert_eq!(empty_ones, Err(Breach::Endless));
    let circle = table(|memory, index| put(memory, index, 0, 0, NEXT, 0));
    assert_eq!(circle, Err(Breach::Endless));
    let outside = table(|memory, index| put(memory, index, 0, 1, NEXT, 2048));
    assert_eq!(outside, Err(Breach::Next(2048)));
    const { assert!(CHAIN_LIMIT < 2048) };
}

#[test]
fn a_head_in_flight_is_not_taken_again() {
    let queue = Queue::new(4);
    put(&queue.descriptors, 1, 0, 1, WRITE, 0);
    queue.available.store(4, 1);
    queue.available.store(6, 1);
    queue.available.store(2, 2);
    let mut device = Device::new(queue.rings(), 0, None).unwrap();
    let (memory, mut parts) = (Words::new(0), Vec::new());
    assert_eq!(device.pop(&memory, &mut parts), Ok(Some(1)));
    assert_eq!(device.pop(&memory, &mut parts), Err(Breach::Twice(1)));
}

/// A driver with two chains in flight, whose device then says `id` at the entry that is next, and `index`.
fn hears(id: u32, index: u16) -> Result<Option<u16>, Lie> {
    let queue = Queue::new(8);
    let mut driver = Driver::new(queue.rings());
    let part = Part { address: 0, length: 1, is_writable: true };
    let heads = [driver.push(&[part]).unwrap(), driver.push(&[part, part]).unwrap()];
    assert_eq!(heads, [0, 2]);
    driver.publish();
    let mut entry = [0xff; 8];
    entry[..4].copy_from_slice(&id.to_le_bytes());
    Area::write(&queue.used, 4, &entry);
    queue.used.store(2, index);
    // Whatever a device writes there, nobody reads it.
    Area::write(&queue.descriptors, 0, &[0xff; 128]);
    driver.pop()
}

#[test]
fn each_lie_of_a_device_is_noticed() {
    assert_eq!(hears(0, 1), Ok(Some(0)));
    assert_eq!(hears(2, 2), Ok(Some(2)));
    assert_eq!(hears(0, 0), Ok(None));
    for index in [3, 0x8000, 0xffff] {
        assert_eq!(hears(0, index), Err(Lie::Index { index, at: 0, in_flight: 2 }));
    }
    // A part of a chain that is not its head, one that is free, one that can't be.
    for id in [1, 5, 8, 0x1_0000, u32::MAX] {
        assert_eq!(hears(id, 1), Err(Lie::Id(id)));
    }
}

#[test]
fn an_id_counts_once_and_what_was_not_shown_has_not_ended() {
    let queue = Queue::new(4);
    let mut driver = Driver::new(queue.rings());
    let part = Part { address: 0, length: 1, is_writable: true };
    assert_eq!(driver.push(&[part]), Some(0));
    queue.used.store(2, 1);
    assert!(matches!(driver.pop(), Err(Lie::Index { in_flight: 0, .. })));
    driver.publish();
    assert_eq!(driver.push(&[part]), Some(1));
    driver.publish();
    queue.used.store(2, 2);
    assert_eq!(driver.pop(), Ok(Some(0)));
    assert_eq!(driver.pop(), Err(Lie::Id(0)));
}

#[test]
fn memory_that_is_no_queue_is_refused() {
    let words = || Words::new(64);
    for size in [0, 1, 3, 6, 32_769] {
        assert!(Rings::new(size, words(), words(), words()).is_err(), "{size}");
    }
    assert!(Rings::new(4, words(), words(), words()).is_ok());
    assert!(Rings::new(8, words(), words(), words()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever lies in the rings and in the guest's memory, the device gives a chain that keeps the rules, or a breach.
    #[test]
    fn any_memory_gives_chains_that_keep_the_rules_or_a_breach(
        descriptors in prop::collection::vec((0_u64..600, 0_u32..200, 0_u16..8, 0_u16..10), 8),
        memory in prop::collection::vec((0_u64..600, 0_u32..200, 0_u16..8, 0_u16..10), 32),
        heads in prop::collection::vec(0_u16..10, 8),
        index in 0_u16..12,
    ) {
        let (queue, guest) = (Queue::new(8), Words::new(512));
        for (at, (address, length, flags, next)) in descriptors.into_iter().enumerate() {
            put(&queue.descriptors, at, address & !15, length & !15, flags, next);
        }
        for (at, (address, length, flags, next)) in memory.into_iter().enumerate() {
            put(&guest, at, address, length, flags, next);
        }
        for (at, head) in heads.into_iter().enumerate() {
            queue.available.store(4 + 2 * at, head);
        }
        queue.available.store(2, index);
        let mut device = Device::new(queue.rings(), 0, None).unwrap();
        let mut parts = Vec::new();
        let mut taken = 0;
        while let Ok(Some(head)) = device.pop(&guest, &mut parts) {
            taken += 1;
            prop_assert!(head < 8 && taken <= 8 && parts.len() <= CHAIN_LIMIT);
            prop_assert!(parts.is_sorted_by_key(|part| part.is_writable));
            let all: Vec<Part> = parts.clone();
            if let Ok(request) = block::parse(&guest, &mut parts) {
                prop_assert!(all.iter().any(|part| (part.address..part.address + u64::from(part.length)).contains(&request.status)));
                let _ = block::segments(&guest, &mut parts, 4);
            }
        }
    }
}
