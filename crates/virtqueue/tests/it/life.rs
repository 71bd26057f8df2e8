//! A driver and a device that both keep the rules, against a model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use virtqueue::block::{self, Kind};
use virtqueue::{Breach, Device, Driver, Guest, Part};

use crate::memory::{Queue, Words};

/// Nothing but what is in the rings.
pub struct Nowhere;

impl Guest for Nowhere {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

fn chain(number: u64, parts: usize) -> Vec<Part> {
    let part = |index: usize| Part {
        address: number << 32 | index as u64,
        length: 1 + u32::try_from(number % 1000).unwrap(),
        is_writable: index > 0,
    };
    (0..parts).map(part).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each chain arrives once and as it was sent, and ends once, in whatever order: also when the indices wrap, thrice.
    #[test]
    fn chains_arrive_and_end_once(
        exponent in 1_u32..6,
        steps in prop::collection::vec((0_u8..4, 1_usize..4, any::<prop::sample::Index>()), 1..60),
    ) {
        let queue = Queue::new(1 << exponent);
        let mut driver = Driver::new(queue.rings());
        let mut device = Device::new(queue.rings(), 0, None).unwrap();
        let (mut sent, mut taken) = (BTreeMap::new(), Vec::new());
        let (mut number, mut parts, mut turns) = (0, Vec::new(), 0_u32);
        while number < 200_000 / u64::from(queue.size) && turns < 20_000 {
            for (what, count, which) in &steps {
                turns += 1;
                match what {
                    0 => {
                        let chain = chain(number, *count);
                        if let Some(head) = driver.push(&chain) {
                            prop_assert!(sent.insert(head, chain).is_none());
                            number += 1;
                        }
                    }
                    1 => {
                        driver.publish();
                        while let Some(head) = device.pop(&Nowhere, &mut parts).unwrap() {
                            prop_assert_eq!(&sent[&head], &parts);
                            taken.push(head);
                        }
                    }
                    2 if !taken.is_empty() => {
                        let head = taken.swap_remove(which.index(taken.len()));
                        device.complete(head, 0);
                    }
                    _ => {
                        device.publish();
                        while let Some(head) = driver.pop().unwrap() {
                            prop_assert!(sent.remove(&head).is_some());
                        }
                    }
                }
                prop_assert_eq!(usize::from(driver.in_flight()), sent.len());
                prop_assert_eq!(usize::from(device.in_flight()), taken.len());
            }
        }
    }

    /// However a driver cuts a request, it is the same request.
    #[test]
    fn a_request_is_the_same_however_it_is_cut(
        cuts in prop::collection::vec(1_u32..40, 0..8),
        data in 0_u32..200,
        sector in any::<u64>(),
    ) {
        let memory = Words::new(1024);
        for (kind, to_write) in [(Kind::Read, true), (Kind::Write, false), (Kind::Flush, false)] {
            virtqueue::Area::write(&memory, 0, &block::header(kind, sector));
            let (reads, writes) = if to_write { (16, data + 1) } else { (16 + data, 1) };
            let mut parts = cut(0, reads, &cuts, false);
            parts.extend(cut(512, writes, &cuts, true));
            let request = block::parse(&memory, &mut parts).unwrap();
            prop_assert_eq!((request.kind, request.sector), (kind, sector));
            let (begin, status) = if to_write { (512, 512 + data) } else { (16, 512) };
            prop_assert_eq!(request.status, u64::from(status));
            let expected = if kind == Kind::Flush { 0 } else { data };
            prop_assert_eq!(request.length, u64::from(expected));
            let mut at = begin;
            for part in parts {
                prop_assert_eq!((part.address, part.is_writable), (at, to_write));
                at += u64::from(part.length);
            }
            prop_assert_eq!(at, begin + u64::from(expected));
        }
    }
}

fn cut(from: u64, length: u32, cuts: &[u32], is_writable: bool) -> Vec<Part> {
    let (mut parts, mut at) = (Vec::new(), 0);
    for cut in cuts.iter().copied().chain([u32::MAX]) {
        let length = cut.min(length - at);
        if length > 0 {
            parts.push(Part { address: from + u64::from(at), length, is_writable });
        }
        at += length;
    }
    parts
}

#[test]
fn a_request_without_header_or_status_is_none() {
    let memory = Words::new(64);
    let part = |length, is_writable| Part { address: 0, length, is_writable };
    for mut parts in
        [vec![part(16, false)], vec![part(15, false), part(1, true)], vec![part(1, true)], vec![]]
    {
        assert_eq!(block::parse(&memory, &mut parts), Err(Breach::Request), "{parts:?}");
    }
    let mut outside = vec![Part { address: 60, length: 16, is_writable: false }, part(1, true)];
    assert_eq!(block::parse(&memory, &mut outside), Err(Breach::NoMemory(60)));
}

#[test]
fn segments_are_whole_few_and_without_unknown_flags() {
    let memory = Words::new(64);
    let segment = |flags: u32| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&7_u64.to_le_bytes());
        bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
        bytes[12..].copy_from_slice(&flags.to_le_bytes());
        bytes
    };
    virtqueue::Area::write(&memory, 0, &segment(0));
    virtqueue::Area::write(&memory, 16, &segment(1));
    virtqueue::Area::write(&memory, 32, &segment(2));
    let of = |address, length, most| {
        block::segments(&memory, &mut [Part { address, length, is_writable: false }], most)
    };
    let found = of(0, 32, 2).unwrap();
    assert_eq!(
        found.iter().map(|one| (one.sector, one.sectors, one.unmap)).collect::<Vec<_>>(),
        [(7, 9, false), (7, 9, true)]
    );
    for (address, length, most) in [(0, 32, 1), (0, 0, 1), (0, 17, 2), (32, 16, 1), (60, 16, 1)] {
        assert_eq!(of(address, length, most), None, "{address} {length} {most}");
    }
}
