//! Persistent memory that loses what was not fenced.
//!
//! Every word remembers the values that it was given since it was last durable. A fence makes durable what had been written back before it. At
//! a crash each word that is not durable has its durable value or any of the later ones, each word by itself.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use fastrand::Rng;
use scm::{Fault, Medium};

/// Most images of one crash for which every combination is tried.
const ALL_UP_TO: usize = 256;

pub struct CrashMedium(Mutex<Inner>);

struct Inner {
    now: Vec<u64>,
    durable: Vec<u64>,
    /// Values since the word was durable, in order; and how many of them were written back.
    pending: BTreeMap<usize, (Vec<u64>, usize)>,
    operations: u64,
    /// The operation that does not happen any more.
    cut: u64,
}

impl CrashMedium {
    pub fn new(image: &[u64]) -> CrashMedium {
        CrashMedium(Mutex::new(Inner {
            now: image.to_vec(),
            durable: image.to_vec(),
            pending: BTreeMap::new(),
            operations: 0,
            cut: u64::MAX,
        }))
    }

    /// Crashes before the operation with this number.
    pub fn cut_at(self, operation: u64) -> CrashMedium {
        self.inner().cut = operation;
        self
    }

    pub fn operations(&self) -> u64 {
        self.inner().operations
    }

    /// What a reader sees now.
    pub fn now(&self) -> Vec<u64> {
        self.inner().now.clone()
    }

    /// What may be there after a crash now: all possible images if they are few, else the extremes and some by chance.
    pub fn images(&self, random: &mut Rng) -> Vec<Vec<u64>> {
        let inner = self.inner();
        let words: Vec<(usize, Vec<u64>)> = inner
            .pending
            .iter()
            .map(|(&word, (values, _))| (word, [&[inner.durable[word]][..], values].concat()))
            .collect();
        let product =
            words.iter().try_fold(1_usize, |product, (_, values)| product.checked_mul(values.len()));
        let image = |choose: &mut dyn FnMut(usize, usize) -> usize| {
            let mut image = inner.durable.clone();
            for (i, (word, values)) in words.iter().enumerate() {
                image[*word] = values[choose(i, values.len())];
            }
            image
        };
        match product {
            Some(product) if product <= ALL_UP_TO => (0..product)
                .map(|mut number| {
                    image(&mut |_, count| {
                        let digit = number % count;
                        number /= count;
                        digit
                    })
                })
                .collect(),
            _ => {
                let mut images = vec![image(&mut |_, _| 0), image(&mut |_, count| count - 1)];
                for one in 0..words.len().min(24) {
                    images.push(image(&mut |i, count| if i == one { count - 1 } else { 0 }));
                    images.push(image(&mut |i, count| if i == one { 0 } else { count - 1 }));
                }
                for _ in 0..12 {
                    images.push(image(&mut |_, count| random.usize(..count)));
                }
                images
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no poison")
    }
}

impl Inner {
    fn operation(&mut self) -> Result<(), Fault> {
        if self.operations >= self.cut {
            return Err(Fault::Crash);
        }
        self.operations += 1;
        Ok(())
    }

    fn store(&mut self, word: usize, value: u64) -> Result<(), Fault> {
        self.operation()?;
        self.now[word] = value;
        if self.durable[word] != value || self.pending.contains_key(&word) {
            self.pending.entry(word).or_default().0.push(value);
        }
        Ok(())
    }
}

fn index(at: u64) -> usize {
    assert!(at.is_multiple_of(8), "whole words");
    usize::try_from(at / 8).expect("small")
}

impl Medium for CrashMedium {
    fn len(&self) -> u64 {
        self.inner().now.len() as u64 * 8
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        let inner = self.inner();
        let (words, rest) = out.as_chunks_mut::<8>();
        assert!(rest.is_empty(), "whole words");
        for (i, word) in words.iter_mut().enumerate() {
            *word = inner.now[index(at) + i].to_le_bytes();
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        let mut inner = self.inner();
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "whole words");
        words
            .iter()
            .enumerate()
            .try_for_each(|(i, word)| inner.store(index(at) + i, u64::from_le_bytes(*word)))
    }

    fn load(&self, at: u64) -> Result<u64, Fault> {
        Ok(self.inner().now[index(at)])
    }

    fn store(&self, at: u64, word: u64) -> Result<(), Fault> {
        self.inner().store(index(at), word)
    }

    fn write_back(&self, at: u64, len: u64) -> Result<(), Fault> {
        let mut inner = self.inner();
        inner.operation()?;
        let lines = at / 64 * 64..(at + len).next_multiple_of(64);
        for (_, (values, written)) in inner.pending.range_mut(index(lines.start)..index(lines.end)) {
            *written = values.len();
        }
        Ok(())
    }

    fn fence(&self) -> Result<(), Fault> {
        let mut inner = self.inner();
        inner.operation()?;
        let Inner { pending, durable, .. } = &mut *inner;
        pending.retain(|word, (values, written)| {
            if let Some(last) = values.drain(..*written).next_back() {
                durable[*word] = last;
            }
            *written = 0;
            !values.is_empty()
        });
        Ok(())
    }
}
