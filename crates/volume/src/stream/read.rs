//! The reading end of a stream: bytes that anybody may have written become chunks that were verified.

use std::io::{self, Read};

use memory::BLOCK_SIZE;
use seal::slot::{Credential, KeySlots, SlotError, SlotLimits};
use seal::{TAG_SIZE, VolumeKey};

use super::chain::{Chain, holds};
use crate::error::{Error, Kind, Result};
use crate::format::stream::{Chunk, FRAME_SIZE, Frame, MAGIC, SALT_SIZE, START, StreamHeader};
use crate::mutation::{Mutation, mutated};

/// Opens chunks, one after the other.
pub struct StreamReader<R> {
    input: R,
    header: StreamHeader,
    chain: Chain,
    sealed: Vec<u8>,
    /// Bytes up to the end of the last chunk that opened.
    whole: u64,
    /// Bytes read.
    read: u64,
    ended: bool,
}

/// A verified chunk.
#[derive(Debug)]
pub struct Opened {
    /// What it is about.
    pub chunk: Chunk,
    payload: Vec<u8>,
}

impl Opened {
    /// The data of its stretches, one behind the other.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.payload[self.chunk.table_bytes()..]
    }
}

/// What is whole of a stream, from its beginning on.
pub struct Tail {
    /// What the stream is of.
    pub header: StreamHeader,
    /// Bytes that are whole; what is behind them is of no use.
    pub bytes: u64,
    /// Blocks of the volume that they cover.
    pub blocks: u64,
    /// Whether the stream goes to its end.
    pub complete: bool,
    /// What stands behind the whole chunks, where that is not simply their end.
    pub damage: Option<Error>,
    pub(super) chain: Chain,
}

/// Why there is no next chunk.
enum Stop {
    /// The bytes end.
    Cut,
    /// They are not what was written.
    Damaged(String),
    /// They cannot be read.
    Failed(io::Error),
}

impl<R: Read> StreamReader<R> {
    /// Reads the beginning of a stream, and opens it.
    ///
    /// # Errors
    /// [`Kind::Usage`] for what is no stream; [`Kind::Locked`] when the credential does not open it; [`Kind::Corrupt`] when its header was
    /// changed; [`Kind::Io`] when it ends before.
    pub fn open(mut input: R, credential: &Credential, limits: &SlotLimits) -> Result<Self> {
        let mut start = Box::new([0; START]);
        let got = fill(&mut input, start.as_mut_slice()).map_err(|error| unreadable(&error))?;
        if start[..got.min(MAGIC.len())] != MAGIC[..got.min(MAGIC.len())] || got == 0 {
            return Err(Error::new(Kind::Usage, "this is no stream of a volume; check the name"));
        }
        if got < START {
            return Err(Error::new(
                Kind::Io,
                "the stream ends in its header: it was cut short, and holds nothing; get it again",
            ));
        }
        let (page, area) = start.split_at(BLOCK_SIZE);
        let header = StreamHeader::decode(page)?;
        let area = area.first_chunk().ok_or_else(|| changed("its key slots are cut short"))?;
        let slots = KeySlots::decode(area).map_err(|_| changed("its key slots are malformed"))?;
        let key = unlock(&header, &slots, credential, limits)?;
        if !holds(&start, &key) {
            return Err(changed("its MAC does not hold"));
        }
        let (chain, whole) = (Chain::new(key, &start), START as u64);
        Ok(Self { input, header, chain, sealed: Vec::new(), whole, read: whole, ended: false })
    }

    /// What the stream is of.
    #[must_use]
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Bytes read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read
    }

    /// Chunks opened so far.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chain.number
    }

    /// The next chunk; `None` behind the last one.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] for bytes that are not what was written, and [`Kind::Io`] where they end too early; both say at which chunk. Nothing
    /// follows an error.
    pub fn chunk(&mut self) -> Result<Option<Opened>> {
        match self.step() {
            Err(Stop::Cut) if mutated(Mutation::CutStreamEnds) => Ok(None),
            step => step.map_err(|stop| self.explain(&stop)),
        }
    }

    /// Reads on to where the stream is no longer whole.
    ///
    /// # Errors
    /// [`Kind::Io`] when it cannot be read.
    pub fn tail(mut self, mut looked: impl FnMut(u64)) -> Result<Tail> {
        let stop = loop {
            match self.step() {
                Ok(Some(_)) => looked(self.whole),
                Ok(None) => break None,
                Err(stop) => break Some(stop),
            }
        };
        let damage = match &stop {
            Some(Stop::Failed(error)) => return Err(unreadable(error)),
            Some(stop @ Stop::Damaged(_)) => Some(self.explain(stop)),
            Some(Stop::Cut) | None => None,
        };
        let (bytes, blocks, complete) = (self.whole, self.chain.at, self.chain.at == self.header.blocks);
        Ok(Tail { header: self.header, bytes, blocks, complete, damage, chain: self.chain })
    }

    fn step(&mut self) -> std::result::Result<Option<Opened>, Stop> {
        if self.ended {
            return Ok(None);
        }
        if self.chain.at == self.header.blocks {
            return self.end();
        }
        let mut frame = self.frame()?;
        // Before the first chunk a leg must begin, and a leg has at least one.
        if frame == Frame::Leg || self.chain.number == 0 {
            let mut salt = [0; SALT_SIZE];
            if frame != Frame::Leg {
                return Err(Stop::Damaged("it has no key".into()));
            }
            self.fill(&mut salt)?;
            self.chain.begin(&salt);
            frame = self.frame()?;
        }
        let Frame::Chunk { last, length } = frame else {
            return Err(Stop::Damaged("a key follows a key".into()));
        };
        let (payload, tag) = self.open_chunk(frame, length)?;
        let (chunk, _) = Chunk::decode(&payload).map_err(|error| Stop::Damaged(error.to_string()))?;
        let fits = chunk.range.start == self.chain.at && chunk.range.end <= self.header.blocks;
        if !fits || last != (chunk.range.end == self.header.blocks) {
            return Err(Stop::Damaged("it is not about the blocks that come next".into()));
        }
        self.chain.advance(tag, chunk.range.end);
        self.whole = self.read;
        Ok(Some(Opened { chunk, payload }))
    }

    fn open_chunk(
        &mut self,
        frame: Frame,
        length: usize,
    ) -> std::result::Result<(Vec<u8>, [u8; TAG_SIZE]), Stop> {
        let mut sealed = std::mem::take(&mut self.sealed);
        sealed.resize(length, 0);
        self.fill(&mut sealed)?;
        let mut tag = [0; TAG_SIZE];
        self.fill(&mut tag)?;
        let mut payload = vec![0; length];
        self.chain
            .open(frame, &sealed, &tag, &mut payload)
            .map_err(|_| Stop::Damaged("it does not verify".into()))?;
        self.sealed = sealed;
        Ok((payload, tag))
    }

    /// Nothing may follow the last chunk.
    fn end(&mut self) -> std::result::Result<Option<Opened>, Stop> {
        match fill(&mut self.input, &mut [0]) {
            Ok(0) => {
                self.ended = true;
                Ok(None)
            }
            Ok(_) => Err(Stop::Damaged("something follows the last chunk".into())),
            Err(error) => Err(Stop::Failed(error)),
        }
    }

    fn frame(&mut self) -> std::result::Result<Frame, Stop> {
        let mut bytes = [0; FRAME_SIZE];
        self.fill(&mut bytes)?;
        Frame::decode(&bytes).map_err(|error| Stop::Damaged(error.to_string()))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> std::result::Result<(), Stop> {
        match fill(&mut self.input, bytes) {
            Ok(got) if got == bytes.len() => {
                self.read += got as u64;
                Ok(())
            }
            Ok(_) => Err(Stop::Cut),
            Err(error) => Err(Stop::Failed(error)),
        }
    }

    fn explain(&self, stop: &Stop) -> Error {
        let number = self.chain.number;
        match stop {
            Stop::Failed(error) => unreadable(error),
            Stop::Cut => Error::new(
                Kind::Io,
                format!(
                    "the stream was cut short: it ends in chunk {number} (they count from 0), with {} of {} blocks",
                    self.chain.at, self.header.blocks
                ),
            ),
            Stop::Damaged(why) => Error::new(
                Kind::Corrupt,
                format!(
                    "chunk {number} of the stream (from byte {} on) is not what was written there: {why}; get the stream again, and suspect whoever kept it",
                    self.whole
                ),
            ),
        }
    }
}

/// Fills `bytes` as far as the input goes.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match input.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn unlock(
    header: &StreamHeader,
    slots: &KeySlots,
    credential: &Credential,
    limits: &SlotLimits,
) -> Result<VolumeKey> {
    slots.unlock(&header.stream, credential, limits).map_err(|error| match error {
        SlotError::WrongCredential => Error::new(
            Kind::Locked,
            "the stream does not open with this: check the passphrase or key file, which are the stream's own and not the volume's",
        ),
        SlotError::Tampered { .. } => changed("its key slot or stream id are not what was written"),
        other => Error::new(Kind::Locked, format!("the stream's key: {other}")),
    })
}

fn changed(why: &str) -> Error {
    Error::new(
        Kind::Corrupt,
        format!("the stream's header was changed: {why}; get the stream again, and suspect whoever kept it"),
    )
}

fn unreadable(error: &io::Error) -> Error {
    Error::new(Kind::Io, format!("the stream cannot be read: {error}"))
}
