//! Shared memory for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering, fence};

use virtqueue::{Area, Guest, Rings, inflight};

/// Memory whose writer can be cut off: so many stores of two bytes come through, and nothing behind them.
#[derive(Debug, Clone)]
pub struct Words {
    words: Arc<[AtomicU16]>,
    fuse: Arc<AtomicUsize>,
}

impl Words {
    pub fn new(bytes: usize) -> Self {
        let words = (0..bytes.div_ceil(2)).map(|_| AtomicU16::new(0)).collect();
        Self { words, fuse: Arc::new(AtomicUsize::new(usize::MAX)) }
    }

    /// The same memory for another writer, who can be cut off by `fuse`.
    pub fn by(&self, fuse: &Arc<AtomicUsize>) -> Self {
        Self { words: self.words.clone(), fuse: fuse.clone() }
    }

    /// Other memory with the same content.
    fn copy(&self) -> Self {
        let words = self.words.iter().map(|word| AtomicU16::new(word.load(Ordering::Relaxed))).collect();
        Self { words, fuse: Arc::new(AtomicUsize::new(usize::MAX)) }
    }

    fn put(&self, word: usize, value: u16) {
        let left = self.fuse.load(Ordering::Relaxed);
        if left > 0 {
            self.fuse.store(left - 1, Ordering::Relaxed);
            self.words[word].store(value, Ordering::Release);
        }
    }
}

impl Area for Words {
    fn size(&self) -> usize {
        2 * self.words.len()
    }

    fn load(&self, offset: usize) -> u16 {
        assert!(offset.is_multiple_of(2));
        self.words[offset / 2].load(Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u16) {
        assert!(offset.is_multiple_of(2));
        self.put(offset / 2, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into) {
            *byte = self.words[at / 2].load(Ordering::Relaxed).to_le_bytes()[at % 2];
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.is_multiple_of(2) && bytes.len().is_multiple_of(2));
        for (word, bytes) in (offset / 2..).zip(bytes.chunks_exact(2)) {
            self.put(word, u16::from_le_bytes([bytes[0], bytes[1]]));
        }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Guest for Words {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let end = usize::try_from(address).ok().and_then(|at| at.checked_add(into.len()));
        let fits = end.is_some_and(|end| end <= self.size());
        if fits {
            Area::read(self, usize::try_from(address).unwrap(), into);
        }
        fits
    }
}

/// The memory of a queue, and of a log.
pub struct Queue {
    pub size: u16,
    pub descriptors: Words,
    pub available: Words,
    pub used: Words,
    pub log: Words,
}

impl Queue {
    pub fn new(size: u16) -> Self {
        let [descriptors, available, used] = Rings::<Words>::lengths(size).map(Words::new);
        Self { size, descriptors, available, used, log: Words::new(inflight::length(size)) }
    }

    /// Another queue that looks the same.
    pub fn copy(&self) -> Self {
        let [descriptors, available, used, log] =
            [&self.descriptors, &self.available, &self.used, &self.log].map(Words::copy);
        Self { size: self.size, descriptors, available, used, log }
    }

    pub fn rings(&self) -> Rings<Words> {
        Rings::new(self.size, self.descriptors.clone(), self.available.clone(), self.used.clone()).unwrap()
    }

    /// Rings and log for a device that can be cut off.
    pub fn cut(&self, fuse: usize) -> (Rings<Words>, inflight::Log<Words>) {
        let fuse = Arc::new(AtomicUsize::new(fuse));
        let [descriptors, available, used, log] =
            [&self.descriptors, &self.available, &self.used, &self.log].map(|words| words.by(&fuse));
        (Rings::new(self.size, descriptors, available, used).unwrap(), inflight::Log::new(log))
    }
}
