//! The writing end of a stream.

use std::io::{self, Write};

use seal::slot::{Argon2Params, Credential, KeySlots};
use seal::{Random, VolumeKey};

use super::chain::{Chain, sign};
use super::read::Tail;
use crate::error::{Error, Kind, Result};
use crate::format::stream::{Chunk, FRAME_SIZE, Frame, SALT_SIZE, StreamHeader};

/// Seals chunks and writes them.
pub struct StreamWriter<W> {
    out: W,
    header: StreamHeader,
    chain: Chain,
    frame: Vec<u8>,
    /// Bytes of the stream so far, also those that were there before.
    written: u64,
}

impl<W: Write> StreamWriter<W> {
    /// Begins a stream that `credential` opens. `argon2` counts for a passphrase only.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a credential that is too weak, [`Kind::Io`].
    pub fn begin(
        out: W,
        header: StreamHeader,
        credential: Credential,
        argon2: Argon2Params,
        random: &dyn Random,
    ) -> Result<Self> {
        let key = VolumeKey::generate(random);
        let mut slots = KeySlots::new();
        slots
            .add(&header.stream, &key, credential, "", argon2, random)
            .map_err(|error| Error::new(Kind::Usage, error.to_string()))?;
        let start = sign(&header, &slots, &key);
        let chain = Chain::new(key, &start);
        let mut writer = Self { out, header, chain, frame: Vec::new(), written: 0 };
        writer.put(&start[..])?;
        writer.begin_leg(random)?;
        Ok(writer)
    }

    /// Goes on behind what a reader found whole. `out` must stand there: everything behind it is replaced.
    ///
    /// # Errors
    /// [`Kind::Io`].
    pub fn resume(out: W, tail: Tail, random: &dyn Random) -> Result<Self> {
        let Tail { header, chain, bytes, .. } = tail;
        let mut writer = Self { out, header, chain, frame: Vec::new(), written: bytes };
        writer.begin_leg(random)?;
        Ok(writer)
    }

    /// What the stream is of.
    #[must_use]
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Bytes of the stream so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.written
    }

    /// The block that the next chunk begins with.
    pub(super) fn at(&self) -> u64 {
        self.chain.at
    }

    /// Chunks so far.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chain.number
    }

    /// A fresh key: what was begun under the one before, and lost, is never sealed again under it.
    fn begin_leg(&mut self, random: &dyn Random) -> Result<()> {
        let mut salt = [0; SALT_SIZE];
        random.fill(&mut salt);
        self.chain.begin(&salt);
        self.put(&[&Frame::Leg.encode()[..], &salt].concat())
    }

    /// Writes the next chunk. It is the last one if it goes to the volume's end.
    pub(super) fn chunk(&mut self, chunk: &Chunk, payload: &[u8]) -> Result<()> {
        assert_eq!(chunk.range.start, self.chain.at, "chunks come in order");
        let last = chunk.range.end == self.header.blocks;
        let kind = Frame::Chunk { last, length: payload.len() };
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.extend_from_slice(&kind.encode());
        frame.resize(FRAME_SIZE + payload.len(), 0);
        let tag = self.chain.seal(kind, payload, &mut frame[FRAME_SIZE..]);
        frame.extend_from_slice(&tag);
        self.put(&frame)?;
        self.frame = frame;
        self.chain.advance(tag, chunk.range.end);
        Ok(())
    }

    /// The output again, when all is written.
    pub(super) fn finish(mut self) -> Result<W> {
        self.out.flush().map_err(|error| broken(&error))?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| broken(&error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

fn broken(error: &io::Error) -> Error {
    Error::new(Kind::Io, format!("the stream cannot be written: {error}"))
}
