//! Sleep and notify, model-checked: in every order of loads, stores and fences, nobody is left asleep with something to do.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use virtqueue::{Area, Device, Driver, Guest, Part, Rings};

/// A piece of a queue, in a memory whose orders are all tried. Bytes have no part in who sleeps; they are kept by single words.
#[derive(Clone)]
struct Words(Arc<Vec<AtomicU16>>);

impl Words {
    fn new(bytes: usize) -> Self {
        Self(Arc::new((0..bytes.div_ceil(2)).map(|_| AtomicU16::new(0)).collect()))
    }
}

impl Area for Words {
    fn size(&self) -> usize {
        2 * self.0.len()
    }

    fn load(&self, offset: usize) -> u16 {
        self.0[offset / 2].load(Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u16) {
        self.0[offset / 2].store(value, Ordering::Release);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        for (word, bytes) in (offset / 2..).zip(into.chunks_exact_mut(2)) {
            bytes.copy_from_slice(&self.0[word].load(Ordering::Relaxed).to_le_bytes());
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        for (word, bytes) in (offset / 2..).zip(bytes.chunks_exact(2)) {
            self.0[word].store(u16::from_le_bytes([bytes[0], bytes[1]]), Ordering::Relaxed);
        }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

struct Nowhere;

impl Guest for Nowhere {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

const PART: Part = Part { address: 0, length: 1, is_writable: true };

fn pieces() -> [Words; 3] {
    Rings::<Words>::lengths(2).map(Words::new)
}

fn rings([descriptors, available, used]: &[Words; 3]) -> Rings<Words> {
    Rings::new(2, descriptors.clone(), available.clone(), used.clone()).unwrap()
}

/// A device falls asleep while a driver sends. It may sleep only if it is kicked.
#[test]
fn a_device_that_sleeps_is_kicked() {
    loom::model(|| {
        let pieces = pieces();
        let mut driver = Driver::new(rings(&pieces));
        let mut device = Device::new(rings(&pieces), 0, None).unwrap();
        device.look();
        let kicked = Arc::new(AtomicBool::new(false));
        let kick = kicked.clone();
        let guest = loom::thread::spawn(move || {
            driver.push(&[PART]).unwrap();
            driver.publish();
            if driver.wants_kick() {
                kick.store(true, Ordering::Release);
            }
        });
        let may_sleep = device.listen();
        guest.join().unwrap();
        // Asleep, nothing but the kick wakes it.
        if !may_sleep || kicked.load(Ordering::Acquire) {
            assert!(device.pop(&Nowhere, &mut Vec::new()).unwrap().is_some());
        } else {
            assert!(!device.has_more(), "it sleeps, and a request waits");
        }
    });
}

/// The other way round.
#[test]
fn a_driver_that_sleeps_is_interrupted() {
    loom::model(|| {
        let pieces = pieces();
        let mut driver = Driver::new(rings(&pieces));
        let mut device = Device::new(rings(&pieces), 0, None).unwrap();
        driver.push(&[PART]).unwrap();
        driver.publish();
        driver.look();
        let interrupted = Arc::new(AtomicBool::new(false));
        let interrupt = interrupted.clone();
        let host = loom::thread::spawn(move || {
            let head = device.pop(&Nowhere, &mut Vec::new()).unwrap().unwrap();
            device.complete(head, 1);
            device.publish();
            if device.wants_interrupt() {
                interrupt.store(true, Ordering::Release);
            }
        });
        let may_sleep = driver.listen();
        host.join().unwrap();
        if !may_sleep || interrupted.load(Ordering::Acquire) {
            assert!(driver.pop().unwrap().is_some());
        } else {
            assert!(!driver.has_more(), "it sleeps, and a request has ended");
        }
    });
}
