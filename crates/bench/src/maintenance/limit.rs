//! What the bare store and the cipher allow one thread: read and open, or read, open, seal and write back.
//!
//! It knows no map, no journal and no anchor: what it has to do for a block is what nobody can spare a scrub or a change of key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use seal::{BlockKey, DataMode, SystemRandom, TAG_SIZE, VolumeKey};
use store::{BLOCK_SIZE, Buffer, Store};
use volume::format::ad::data_ad;
use volume::{Error, Kind, Result};

use super::super::Protections;
use super::super::lane::{Ended, Lane, Raw};

/// Blocks in a request: as many as a leaf of the map names, which a scrub and a change of key read at a time.
const BLOCKS: u64 = 128;
/// Requests under way, as in those.
const DEPTH: u64 = 8;
/// Whose blocks they are said to be.
const VOLUME: [u8; 16] = *b"cvmio-bench-raw-";

/// Blocks of a bare store, sealed.
pub struct Limit<'a> {
    store: Arc<dyn Store>,
    blocks: u64,
    mode: DataMode,
    protections: &'a Protections,
    sealed: Sealed,
}

/// The key of all blocks, and their tags. The nonce of each is its number.
struct Sealed {
    key: BlockKey,
    tags: Vec<[u8; TAG_SIZE]>,
}

impl<'a> Limit<'a> {
    /// Seals the first `blocks` blocks of a store.
    pub fn new(store: Arc<dyn Store>, blocks: u64, protections: &'a Protections) -> Result<Self> {
        let Protections { suite, no_confidentiality, no_integrity, .. } = protections;
        let mode = DataMode::new(suite.suite(), !no_confidentiality, !no_integrity)
            .map_err(|error| Error::new(Kind::Usage, error.to_string()))?;
        let sealed = Sealed { key: key(mode, protections), tags: Vec::new() };
        let mut limit = Self { store, blocks, mode, protections, sealed };
        limit.run(Work::Seal)?;
        Ok(limit)
    }

    /// How long it takes to read and open all of them.
    pub fn read(&mut self) -> Result<Duration> {
        self.run(Work::Open)
    }

    /// How long it takes to put all of them under another key.
    pub fn reseal(&mut self) -> Result<Duration> {
        self.run(Work::Reseal)
    }

    fn run(&mut self, work: Work) -> Result<Duration> {
        let next = Sealed {
            key: key(self.mode, self.protections),
            tags: vec![[0; TAG_SIZE]; self.sealed.tags.len()],
        };
        let mut pass = Pass { old: &self.sealed, new: next, work, page: [0; BLOCK_SIZE] };
        if work == Work::Seal {
            pass.new.tags = vec![[0; TAG_SIZE]; usize::try_from(self.blocks).unwrap_or(0)];
        }
        let mut lane = Raw::new(self.store.as_ref(), 128)?;
        let began = Instant::now();
        pass.all(&mut lane, self.blocks)?;
        if work != Work::Open {
            lane.flush(0);
            lane.wait(&mut Vec::new());
        }
        let took = began.elapsed();
        if work != Work::Open {
            self.sealed = pass.new;
        }
        Ok(took)
    }
}

fn key(mode: DataMode, protections: &Protections) -> BlockKey {
    VolumeKey::generate(&SystemRandom).epoch(mode, protections.suite.suite(), &[0; seal::SALT_SIZE]).data
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Seal,
    Open,
    Reseal,
}

/// One way through all blocks.
struct Pass<'a> {
    old: &'a Sealed,
    new: Sealed,
    work: Work,
    page: [u8; BLOCK_SIZE],
}

impl Pass<'_> {
    fn all(&mut self, lane: &mut dyn Lane, blocks: u64) -> Result<()> {
        let stretches = blocks.div_ceil(BLOCKS);
        let length = |stretch: u64| usize::try_from(BLOCKS.min(blocks - stretch * BLOCKS)).unwrap_or(1);
        let (mut next, mut done, mut ended) = (0, 0, Vec::new());
        // A stretch is on its way twice: with the first token to be read, with the second to be written.
        while done < stretches {
            while next < stretches && next < done + DEPTH {
                let buffer = lane.buffer(length(next));
                match self.work {
                    Work::Seal => self.write(lane, next, buffer, stretches)?,
                    Work::Open | Work::Reseal => lane.read(next, next * BLOCKS, buffer),
                }
                next += 1;
            }
            lane.wait(&mut ended);
            for Ended { token, buffer, result } in ended.drain(..) {
                result?;
                match buffer {
                    Some(buffer) if token < stretches && self.work == Work::Reseal => {
                        self.write(lane, token, buffer, stretches)?;
                    }
                    Some(buffer) if token < stretches => {
                        self.each(token, buffer)?;
                        done += 1;
                    }
                    _ => done += 1,
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, lane: &mut dyn Lane, stretch: u64, buffer: Buffer, stretches: u64) -> Result<()> {
        let buffer = self.each(stretch, buffer)?;
        lane.write(stretches + stretch, stretch * BLOCKS, buffer);
        Ok(())
    }

    /// Does the work on each block of a stretch.
    fn each(&mut self, stretch: u64, mut buffer: Buffer) -> Result<Buffer> {
        let content =
            buffer.private_mut().ok_or_else(|| Error::new(Kind::Io, "the store's memory is shared"))?;
        for (block, sealed) in (stretch * BLOCKS..).zip(content.chunks_exact_mut(BLOCK_SIZE)) {
            let index = usize::try_from(block).unwrap_or(usize::MAX);
            let ad = data_ad(&VOLUME, block);
            if self.work != Work::Seal {
                let opened = self.old.key.open(block, &ad, sealed, &self.old.tags[index], &mut self.page);
                opened.map_err(|error| Error::new(Kind::Corrupt, error.to_string()))?;
            }
            if self.work != Work::Open {
                self.new.tags[index] = self.new.key.seal(block, &ad, &self.page, sealed);
            }
        }
        Ok(buffer)
    }
}
