//! Persistent memory that loses what was not fenced.
//!
//! Every word remembers the values that it was given since it was last durable. A fence makes durable what had been written back before it. At
//! a crash each word that is not durable has its durable value or any of the later ones, each word by itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;
use scm::{Fault, Medium};

/// When a line that was written back is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Behind the next fence: `clwb` and `clflushopt`.
    AtFence,
    /// Before anything that is stored later: `clflush`, and msync(2).
    AtOnce,
}

pub struct CrashMedium(Mutex<Inner>);

struct Inner {
    now: Vec<u64>,
    durable: Vec<u64>,
    /// Values since the word was durable, in order; and how many of them were written back.
    pending: BTreeMap<usize, (Vec<u64>, usize)>,
    order: Order,
    operations: u64,
    /// The operation that does not happen any more.
    cut: u64,
    /// What an earlier crash left: words that have one of several values. Which one is decided when somebody looks.
    undecided: BTreeMap<usize, Vec<u64>>,
    /// Which of how many values they get, in the order of the looks; behind its end, the first one.
    decisions: Vec<(usize, usize)>,
    decided: usize,
}

/// What a crash left.
pub struct Crash {
    durable: Vec<u64>,
    /// Words of which more than one value may be there, with all of them.
    words: BTreeMap<usize, Vec<u64>>,
}

impl CrashMedium {
    pub fn new(image: &[u64]) -> CrashMedium {
        CrashMedium(Mutex::new(Inner {
            now: image.to_vec(),
            durable: image.to_vec(),
            pending: BTreeMap::new(),
            order: Order::AtFence,
            operations: 0,
            cut: u64::MAX,
            undecided: BTreeMap::new(),
            decisions: Vec::new(),
            decided: 0,
        }))
    }

    /// Crashes before the operation with this number.
    pub fn cut_at(self, operation: u64) -> CrashMedium {
        self.inner().cut = operation;
        self
    }

    pub fn ordered(self, order: Order) -> CrashMedium {
        self.inner().order = order;
        self
    }

    pub fn operations(&self) -> u64 {
        self.inner().operations
    }

    /// What a reader sees now.
    pub fn now(&self) -> Vec<u64> {
        self.inner().now.clone()
    }

    /// Whether a crash now would leave what a reader sees.
    pub fn is_durable(&self) -> bool {
        let inner = self.inner();
        inner.now == inner.durable
    }

    /// What may be there after a crash now.
    pub fn crash(&self) -> Crash {
        let inner = self.inner();
        let values = |(&word, (values, _)): (&usize, &(Vec<u64>, usize))| {
            let mut all = vec![inner.durable[word]];
            for value in values {
                if !all.contains(value) {
                    all.push(*value);
                }
            }
            (word, all)
        };
        let words = inner.pending.iter().map(values).filter(|(_, values)| values.len() > 1).collect();
        Crash { durable: inner.durable.clone(), words }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no poison")
    }
}

impl Crash {
    /// The values that a word may have.
    pub fn values(&self, word: usize) -> &[u64] {
        self.words.get(&word).map_or(std::slice::from_ref(&self.durable[word]), Vec::as_slice)
    }

    /// How many images it may have left.
    pub fn images(&self) -> f64 {
        self.words.values().map(|values| f64::from(u32::try_from(values.len()).expect("few"))).product()
    }

    /// One of the images, by chance. The extremes and those that differ from them in one word come more often than each of the others.
    pub fn image(&self, random: &mut Rng) -> Vec<u64> {
        let mut image = self.durable.clone();
        let way = random.u8(..5);
        let one = random.usize(..self.words.len().max(1));
        for (i, (word, values)) in self.words.iter().enumerate() {
            image[*word] = match way {
                0 if i == one => values[values.len() - 1],
                0 => values[0],
                1 if i == one => values[0],
                1 => values[values.len() - 1],
                _ => values[random.usize(..values.len())],
            };
        }
        image
    }

    /// Calls `look` with every image that it may have left, as far as `look` can tell them apart: a word gets its values one after the other,
    /// and only if it is looked at. `look` does the same for the same content. Returns how many there were.
    pub fn each(&self, mut look: impl FnMut(&Arc<CrashMedium>) -> Result<(), String>) -> Result<u64, String> {
        let mut decisions = Vec::new();
        for count in 1.. {
            let medium = CrashMedium::new(&self.durable);
            medium.inner().undecided = self.words.clone();
            medium.inner().decisions = decisions;
            let medium = Arc::new(medium);
            look(&medium)?;
            let mut inner = medium.inner();
            assert_eq!(
                inner.decided,
                inner.decisions.len(),
                "the same content was looked at in another order"
            );
            decisions = std::mem::take(&mut inner.decisions);
            // The next one, as an odometer counts.
            loop {
                match decisions.pop() {
                    Some((chosen, values)) if chosen + 1 < values => {
                        decisions.push((chosen + 1, values));
                        break;
                    }
                    Some(_) => {}
                    None => return Ok(count),
                }
            }
        }
        unreachable!("it ends before the numbers do")
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

    fn load(&mut self, word: usize) -> u64 {
        if let Some(values) = self.undecided.remove(&word) {
            if self.decided == self.decisions.len() {
                self.decisions.push((0, values.len()));
            }
            let (chosen, _) = self.decisions[self.decided];
            self.decided += 1;
            (self.now[word], self.durable[word]) = (values[chosen], values[chosen]);
        }
        self.now[word]
    }

    fn store(&mut self, word: usize, value: u64) -> Result<(), Fault> {
        self.operation()?;
        // Nobody has looked at what was there.
        self.undecided.remove(&word);
        self.now[word] = value;
        if self.durable[word] != value || self.pending.contains_key(&word) {
            self.pending.entry(word).or_default().0.push(value);
        }
        Ok(())
    }

    /// Makes durable what was written back.
    fn settle(&mut self) {
        let Inner { pending, durable, .. } = self;
        pending.retain(|word, (values, written)| {
            if let Some(last) = values.drain(..*written).next_back() {
                durable[*word] = last;
            }
            *written = 0;
            !values.is_empty()
        });
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
        let mut inner = self.inner();
        let (words, rest) = out.as_chunks_mut::<8>();
        assert!(rest.is_empty(), "whole words");
        for (i, word) in words.iter_mut().enumerate() {
            *word = inner.load(index(at) + i).to_le_bytes();
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
        Ok(self.inner().load(index(at)))
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
        if inner.order == Order::AtOnce {
            inner.settle();
        }
        Ok(())
    }

    fn fence(&self) -> Result<(), Fault> {
        let mut inner = self.inner();
        inner.operation()?;
        inner.settle();
        Ok(())
    }
}
