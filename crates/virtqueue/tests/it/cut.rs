//! A device is killed at each of its stores, and another goes on by the log.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use virtqueue::{Device, Driver, Part};

use crate::life::Nowhere;
use crate::memory::{Queue, Words};

/// What a device does next.
#[derive(Debug, Clone, Copy)]
enum Step {
    Send(u8),
    Take(u8),
    Complete(u8),
    Publish,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1_u8..6).prop_map(Step::Send),
        (1_u8..6).prop_map(Step::Take),
        any::<u8>().prop_map(Step::Complete),
        any::<u8>().prop_map(Step::Complete),
        Just(Step::Publish),
    ]
}

const ONE: Part = Part { address: 0, length: 1, is_writable: true };

/// What the driver has sent, in its order, and what of it has ended.
struct Sender {
    driver: Driver<Words>,
    sent: BTreeMap<u16, usize>,
    order: usize,
}

impl Sender {
    fn send(&mut self, count: u8) {
        for _ in 0..count {
            if let Some(head) = self.driver.push(&[ONE]) {
                assert!(self.sent.insert(head, self.order).is_none());
                self.order += 1;
            }
        }
        self.driver.publish();
    }

    fn hear(&mut self) {
        while let Some(head) = self.driver.pop().unwrap() {
            assert!(self.sent.remove(&head).is_some(), "it ended twice");
        }
    }
}

/// Lets a device work until it is cut off. Returns whether it was.
fn work(queue: &Queue, sender: &mut Sender, steps: &[Step], fuse: usize, base: u16) {
    let (rings, log) = queue.cut(fuse);
    // One that was killed in its first steps reads back what it has never stored.
    let Ok(mut device) = Device::new(rings, base, Some(log)) else { return };
    let (mut taken, mut parts) = (Vec::new(), Vec::new());
    for step in steps {
        match *step {
            Step::Send(count) => sender.send(count),
            Step::Take(count) => {
                for _ in 0..count {
                    match device.pop(&Nowhere, &mut parts).unwrap() {
                        Some(head) => taken.push(head),
                        None => break,
                    }
                }
            }
            Step::Complete(which) if !taken.is_empty() => {
                device.complete(taken.swap_remove(usize::from(which) % taken.len()), 0);
            }
            Step::Complete(_) => {}
            Step::Publish => {
                device.publish();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_killed_device_is_followed_by_one_that_loses_and_repeats_nothing(
        lives in prop::collection::vec((prop::collection::vec(step(), 1..24), 0_usize..90), 1..5),
    ) {
        let queue = Queue::new(8);
        let driver = Driver::new(queue.rings());
        let mut sender = Sender { driver, sent: BTreeMap::new(), order: 0 };
        for (steps, fuse) in &lives {
            // What the VMM says when a device is gone: the used index, as it is in the ring.
            let base = used_index(&queue);
            work(&queue, &mut sender, steps, *fuse, base);
            sender.hear();
            // Another device must find all that has not ended, once, and first what was taken first.
            let base = used_index(&queue);
            let (rings, log) = queue.copy().cut(usize::MAX);
            let mut device = Device::new(rings, base, Some(log)).unwrap();
            let (mut found, mut parts) = (Vec::new(), Vec::new());
            while let Some(head) = device.pop(&Nowhere, &mut parts).unwrap() {
                found.push(head);
            }
            let all: BTreeSet<u16> = found.iter().copied().collect();
            prop_assert_eq!(all.len(), found.len());
            let expected: BTreeSet<u16> = sender.sent.keys().copied().collect();
            prop_assert_eq!(all, expected);
            let order: Vec<usize> = found.iter().map(|head| sender.sent[head]).collect();
            prop_assert!(order.is_sorted(), "{:?}", order);
        }
        // And one that is not killed ends them all.
        let base = used_index(&queue);
        let (rings, log) = queue.cut(usize::MAX);
        let mut device = Device::new(rings, base, Some(log)).unwrap();
        let mut parts = Vec::new();
        while let Some(head) = device.pop(&Nowhere, &mut parts).unwrap() {
            device.complete(head, 0);
        }
        device.publish();
        sender.hear();
        prop_assert!(sender.sent.is_empty());
    }

    /// A log is the VMM's memory: whatever is in it, it is taken or refused.
    #[test]
    fn any_log_is_recovered_or_refused(bytes in prop::collection::vec(any::<u8>(), 144), used in any::<u16>()) {
        let queue = Queue::new(8);
        let mut bytes = bytes;
        bytes[8..12].copy_from_slice(&[1, 0, 8, 0]);
let [low, high] = used.to_le_bytes();
        let tail = [bytes[12] % 8, 0, low.wrapping_sub(bytes[13] % 9), high];
        bytes[12..16].copy_from_slice(&tail);
        virtqueue::Area::write(&queue.log, 0, &bytes);
        virtqueue::Area::store(&queue.used, 2, used);
        let (rings, log) = queue.cut(usize::MAX);
        if let Ok(mut device) = Device::new(rings, used, Some(log)) {
            let mut parts = Vec::new();
            while let Ok(Some(head)) = device.pop(&Nowhere, &mut parts) {
                device.complete(head, 0);
            }
            device.publish();
        }
    }
}

fn used_index(queue: &Queue) -> u16 {
    virtqueue::Area::load(&queue.used, 2)
}
