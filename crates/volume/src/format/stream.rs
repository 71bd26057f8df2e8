//! Stream: a volume's content, as one file or through one pipe. `docs/stream-format.md` is the specification.

use std::ops::Range;

use super::bytes::{Reader, Writer};
use super::header::{MAC_SIZE, SIGNED};
use super::{BLOCK_SIZE, Malformed, Page};
use crate::geometry::Shape;

/// First bytes of a stream.
pub const MAGIC: &[u8; 8] = b"cvmioSX1";
/// The version of the format.
pub const VERSION: u32 = 1;
/// Bytes before the first frame: header and key slots.
pub const START: usize = 2 * BLOCK_SIZE;
/// Bytes of a frame before its body.
pub const FRAME_SIZE: usize = 8;
/// Bytes of the salt that a leg begins with.
pub const SALT_SIZE: usize = 32;
/// Most data blocks in a chunk.
pub const CHUNK_BLOCKS: usize = 256;
/// Most bytes of a chunk's payload: a table of as many stretches as it may have blocks, and the blocks.
pub const MAX_PAYLOAD: usize = TABLE_START + CHUNK_BLOCKS * (STRETCH_SIZE + BLOCK_SIZE);

const WHAT: &str = "stream header";
const TABLE_START: usize = 24;
const STRETCH_SIZE: usize = 16;

/// What a stream is of. Its MAC is laid out as a volume header's is, and covers the key slots too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamHeader {
    /// The stream's own id, to which its key slots are bound.
    pub stream: [u8; 16],
    /// The volume's id.
    pub volume: [u8; 16],
    /// The state's generation.
    pub generation: u64,
    /// The chain's head at that generation.
    pub head: [u8; 32],
    /// Logical blocks of the volume.
    pub blocks: u64,
}

impl StreamHeader {
    /// Lays the header out, with zeros in place of the MAC.
    #[must_use]
    pub fn encode_unsigned(&self) -> Page {
        Writer::<BLOCK_SIZE>::new()
            .put(MAGIC)
            .put(&VERSION.to_le_bytes())
            .skip(4)
            .put(&self.stream)
            .put(&self.volume)
            .put(&self.generation.to_le_bytes())
            .put(&self.head)
            .put(&self.blocks.to_le_bytes())
            .skip(SIGNED - 96)
            .skip(MAC_SIZE)
            .end()
    }

    /// Reads a header. The MAC is the caller's to check.
    ///
    /// # Errors
    /// When `page` is not one block, or not of the documented form.
    pub fn decode(page: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(WHAT, page);
        reader.magic(MAGIC)?;
        reader.version(VERSION)?;
        reader.zeros(4, "reserved")?;
        let (stream, volume) = (reader.array("stream id")?, reader.array("volume id")?);
        let (generation, head) = (reader.u64("generation")?, reader.array("head")?);
        let blocks = reader.u64("logical blocks")?;
        if blocks == 0 || blocks > Shape::STANDARD.max_logical {
            return Err(reader.malformed("logical blocks", format!("no volume has {blocks}")));
        }
        reader.zeros(SIGNED - 96, "reserved")?;
        reader.array::<MAC_SIZE>("MAC")?;
        reader.end()?;
        Ok(Self { stream, volume, generation, head, blocks })
    }
}

/// What comes next in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A salt, under whose key the chunks behind it are sealed.
    Leg,
    /// A sealed chunk, and its tag.
    Chunk {
        /// Whether it is the last one.
        last: bool,
        /// Bytes of its payload.
        length: usize,
    },
}

impl Frame {
    /// The frame's bytes before its body.
    ///
    /// # Panics
    /// If a chunk is longer than [`MAX_PAYLOAD`].
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_SIZE] {
        let (kind, length) = match self {
            Self::Leg => (1, SALT_SIZE),
            Self::Chunk { last: false, length } => (2, *length),
            Self::Chunk { last: true, length } => (3, *length),
        };
        assert!(length <= MAX_PAYLOAD);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Writer::<FRAME_SIZE>::new().put(&[kind]).skip(3).put(&length.to_le_bytes()).end()
    }

    /// Reads the beginning of a frame. Lengths are bounded here, before memory is taken for a body.
    ///
    /// # Errors
    /// When it is not of the documented form.
    pub fn decode(bytes: &[u8; FRAME_SIZE]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("stream frame", bytes);
        let kind = reader.u8("kind")?;
        reader.zeros(3, "reserved")?;
        let length = reader.u32("length")?;
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        match kind {
            1 if bytes == SALT_SIZE => Ok(Self::Leg),
            2 | 3 if (TABLE_START..=MAX_PAYLOAD).contains(&bytes) => {
                Ok(Self::Chunk { last: kind == 3, length: bytes })
            }
            1..=3 => Err(reader.malformed("length", format!("{length} bytes cannot be"))),
            _ => Err(reader.malformed("kind", format!("{kind} has no meaning"))),
        }
    }

    /// Bytes of the body.
    #[must_use]
    pub fn body(&self) -> usize {
        match self {
            Self::Leg => SALT_SIZE,
            Self::Chunk { length, .. } => length + seal::TAG_SIZE,
        }
    }
}

/// What a chunk says of a range of logical blocks: which of them have data. The rest are holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The blocks that it is about; not empty.
    pub range: Range<u64>,
    /// Stretches of data, in order, with a hole between each and the next; at most [`CHUNK_BLOCKS`] blocks in all.
    pub stretches: Vec<Range<u64>>,
}

impl Chunk {
    /// Blocks of data.
    #[must_use]
    pub fn data_blocks(&self) -> usize {
        let blocks: u64 = self.stretches.iter().map(|stretch| stretch.end - stretch.start).sum();
        usize::try_from(blocks).unwrap_or(usize::MAX)
    }

    /// Bytes of the payload before its data.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        TABLE_START + self.stretches.len() * STRETCH_SIZE
    }

    /// The payload, with zeros in place of the data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(self.table_bytes() + self.data_blocks() * BLOCK_SIZE);
        payload.extend_from_slice(&self.range.start.to_le_bytes());
        payload.extend_from_slice(&self.range.end.to_le_bytes());
        payload.extend_from_slice(&(self.stretches.len() as u64).to_le_bytes());
        for stretch in &self.stretches {
            payload.extend_from_slice(&stretch.start.to_le_bytes());
            payload.extend_from_slice(&(stretch.end - stretch.start).to_le_bytes());
        }
        payload.resize(payload.capacity(), 0);
        payload
    }

    /// Reads an opened payload: the table, and the data behind it, block after block.
    ///
    /// # Errors
    /// When it is not of the documented form. Whether the range is the one that comes next is the caller's to check.
    pub fn decode(payload: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut reader = Reader::new("stream chunk", payload);
        let range = reader.u64("first block")?..reader.u64("end")?;
        if range.is_empty() {
            return Err(reader.malformed("end", "it is about no block"));
        }
        let count = reader.u64("stretches")?;
        if count > CHUNK_BLOCKS as u64 {
            return Err(reader.malformed("stretches", format!("{count} are too many")));
        }
        let mut stretches: Vec<Range<u64>> = Vec::new();
        let mut blocks = 0;
        for _ in 0..count {
            let (start, length) = (reader.u64("stretch")?, reader.u64("length of a stretch")?);
            let least = stretches.last().map_or(range.start, |before| before.end.saturating_add(1));
            let end = start.checked_add(length).filter(|end| *end <= range.end);
            let end = end.ok_or_else(|| reader.malformed("stretch", "it is not in the chunk's range"))?;
            blocks = u64::saturating_add(blocks, length);
            if start < least || length == 0 || blocks > CHUNK_BLOCKS as u64 {
                return Err(
                    reader.malformed("stretch", "it is empty, too long, or not behind the one before")
                );
            }
            stretches.push(start..end);
        }
        let chunk = Self { range, stretches };
        let (_, data) = payload.split_at(chunk.table_bytes());
        if data.len() != chunk.data_blocks() * BLOCK_SIZE {
            return Err(reader.malformed("data", "there is more or less of it than the stretches say"));
        }
        Ok((chunk, data))
    }
}
