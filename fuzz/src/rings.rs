//! Both ends of a virtqueue, whose other side has written anything.

use std::cell::RefCell;
use std::rc::Rc;

use virtqueue::block::{parse, segments};
use virtqueue::inflight::{Log, length};
use virtqueue::{Area, CHAIN_LIMIT, Device, Driver, Guest, Part, Rings};

const ENTRIES: u16 = 8;

/// A piece of memory that two ends share.
#[derive(Clone)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Memory {
    /// The next so many bytes, or zeros.
    fn new(bytes: &mut &[u8], size: usize) -> Self {
        let (now, then) = bytes.split_at(size.min(bytes.len()));
        *bytes = then;
        let mut content = now.to_vec();
        content.resize(size, 0);
        Self(Rc::new(RefCell::new(content)))
    }
}

impl Area for Memory {
    fn size(&self) -> usize {
        self.0.borrow().len()
    }

    fn load(&self, offset: usize) -> u16 {
        let content = self.0.borrow();
        u16::from_le_bytes([content[offset], content[offset + 1]])
    }

    fn store(&self, offset: usize, value: u16) {
        self.0.borrow_mut()[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn fence(&self) {}
}

impl Guest for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let content = self.0.borrow();
        let begin = usize::try_from(address).unwrap_or(usize::MAX);
        let found = content.get(begin..begin.saturating_add(into.len()));
        found.is_some_and(|found| {
            into.copy_from_slice(found);
            true
        })
    }
}

/// Any bytes as rings, log and memory of a guest: the device gets chains that keep the rules, each head once, or ends the queue. Then any
/// bytes as the used ring of a device: the driver hears only of chains that are in flight, each once.
pub fn rings(mut bytes: &[u8]) {
    let [descriptors, available, used] =
        Rings::<Memory>::lengths(ENTRIES).map(|size| Memory::new(&mut bytes, size));
    let log = Memory::new(&mut bytes, length(ENTRIES));
    let guest = Memory::new(&mut bytes, 1024);
    let rings =
        || Rings::new(ENTRIES, descriptors.clone(), available.clone(), used.clone()).expect("they have room");
    let next = available.load(2).wrapping_sub(4);
    for log in [None, Some(Log::new(log))] {
        let Ok(mut device) = Device::new(rings(), next, log) else { continue };
        let (mut heads, mut parts) = (Vec::new(), Vec::new());
        while let Ok(Some(head)) = device.pop(&guest, &mut parts) {
            assert!(head < ENTRIES && !heads.contains(&head), "a head is taken once");
            assert!(parts.len() <= CHAIN_LIMIT && parts.is_sorted_by_key(|part| part.is_writable));
            heads.push(head);
            if parse(&guest, &mut parts).is_ok() {
                let _ = segments(&guest, &mut parts, 4);
            }
        }
        heads.into_iter().for_each(|head| device.complete(head, 1));
        device.publish();
    }
    heard(&descriptors, &available, &used);
}

fn heard(descriptors: &Memory, available: &Memory, used: &Memory) {
    let rings = Rings::new(ENTRIES, descriptors.clone(), available.clone(), used.clone());
    let mut driver = Driver::new(rings.expect("they have room"));
    let part = Part { address: 0, length: 1, is_writable: true };
    let mut sent = Vec::new();
    for parts in [1, 2, 3] {
        sent.extend(driver.push(&[part; 3][..parts]));
    }
    driver.publish();
    while let Ok(Some(head)) = driver.pop() {
        let place = sent.iter().position(|sent| *sent == head);
        sent.swap_remove(place.expect("only what is in flight ends, and once"));
    }
    assert_eq!(usize::from(driver.in_flight()), sent.len());
}
