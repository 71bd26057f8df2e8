//! Journal record: a header in the clear, chained to the record before, and a sealed list of
//! [items](super::item).

use super::bytes::{Reader, Writer};
use super::item::ITEM_SIZE;
use super::salts::SALT_SIZE;
use super::{BLOCK_SIZE, EPOCH_END, Malformed, NONCE_END};

/// First bytes of a record.
pub const MAGIC: &[u8; 8] = b"cvmioJR1";
/// Bytes of a record's header.
pub const RECORD_HEADER: usize = 128;
/// Bytes of a record's associated data.
pub const RECORD_AD: usize = TAG_AT + 32;

const WHAT: &str = "journal record";
const TAG_AT: usize = 112;

/// The header of a journal record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordHeader {
    /// Volume id.
    pub volume: [u8; 16],
    /// The session that wrote it.
    pub session: [u8; 16],
    /// 1 more than that of the record before; from 1.
    pub generation: u64,
    /// Bytes of the sealed payload: whole items.
    pub payload_bytes: u32,
    /// Blocks of the record: the fewest that hold it, [`blocks_for`] its items.
    pub blocks: u16,
    /// Whether this record is the last of its commit.
    pub last: bool,
    /// The segment that the session goes on in when this one is full.
    pub next_segment: u32,
    /// The epoch that the payload is sealed under.
    pub epoch: u32,
    /// The nonce under that epoch's journal key.
    pub nonce: u64,
    /// That epoch's salt.
    pub salt: [u8; SALT_SIZE],
    /// The payload's tag.
    pub tag: [u8; 16],
}

impl RecordHeader {
    /// Lays the header out.
    pub fn encode(&self) -> [u8; RECORD_HEADER] {
        Writer::<RECORD_HEADER>::new()
            .put(MAGIC)
            .put(&self.volume)
            .put(&self.session)
            .put(&self.generation.to_le_bytes())
            .put(&self.payload_bytes.to_le_bytes())
            .put(&self.blocks.to_le_bytes())
            .put(&u16::from(self.last).to_le_bytes())
            .put(&self.next_segment.to_le_bytes())
            .put(&self.epoch.to_le_bytes())
            .put(&self.nonce.to_le_bytes())
            .put(&self.salt)
            .skip(8)
            .put(&self.tag)
            .end()
    }

    /// Reads the header at the beginning of `bytes`, which may go on behind it.
    ///
    /// # Errors
    /// When it is not one, or a field is out of bounds or contradicts another.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(WHAT, bytes);
        let r = &mut reader;
        r.magic(MAGIC)?;
        let (volume, session) = (r.array("volume id")?, r.array("session id")?);
        let (generation, payload_bytes) = (r.u64("generation")?, r.u32("payload bytes")?);
        let (blocks, flags) = (r.u16("blocks")?, r.u16("flags")?);
        let (next_segment, epoch) = (r.u32("next segment")?, r.u32("epoch")?);
        let (nonce, salt) = (r.u64("nonce")?, r.array("epoch salt")?);
        r.zeros(8, "reserved")?;
        let tag = r.array("tag")?;
        let require = |field: &'static str, holds: bool, message: &str| {
            if holds { Ok(()) } else { Err(reader.malformed(field, message)) }
        };
        require("generation", (1..u64::MAX).contains(&generation), "out of bounds")?;
        let payload = usize::try_from(payload_bytes).unwrap_or(usize::MAX);
        require("payload bytes", payload.is_multiple_of(ITEM_SIZE), "not a whole number of items")?;
        let fewest = blocks_for(payload / ITEM_SIZE) == u32::from(blocks);
        require("blocks", fewest, "not the fewest that hold the payload")?;
        require("flags", flags < 2, "one that has no meaning is set")?;
        require("epoch", (1..EPOCH_END).contains(&epoch), "out of bounds")?;
        require("nonce", nonce < NONCE_END, "out of bounds")?;
        let last = flags == 1;
        Ok(Self {
            volume,
            session,
            generation,
            payload_bytes,
            blocks,
            last,
            next_segment,
            epoch,
            nonce,
            salt,
            tag,
        })
    }

    /// What the payload is bound to, `head` being the chain's before this record.
    pub fn associated_data(&self, head: &[u8; 32]) -> [u8; RECORD_AD] {
        let header = self.encode();
        Writer::<RECORD_AD>::new().put(&header[..TAG_AT]).put(head).end()
    }

    /// The sealed payload of a record, of which `record` holds all blocks.
    ///
    /// # Errors
    /// When `record` is not as long as the header says, or not zero behind the payload.
    pub fn sealed<'a>(&self, record: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let malformed = |field, message: &str| Malformed { what: WHAT, field, message: message.into() };
        let payload = usize::try_from(self.payload_bytes).unwrap_or(usize::MAX);
        let body =
            record.get(RECORD_HEADER..).filter(|_| record.len() == usize::from(self.blocks) * BLOCK_SIZE);
        let Some((sealed, rest)) = body.and_then(|body| body.split_at_checked(payload)) else {
            return Err(malformed("blocks", "the record is not as long as its header says"));
        };
        if rest.iter().any(|&byte| byte != 0) {
            return Err(malformed("padding", "the bytes behind the payload must be zero"));
        }
        Ok(sealed)
    }
}

/// What is hashed for the head after a record, one part after the other. `header` is the encoded one.
pub fn head_input<'a>(before: &'a [u8; 32], header: &'a [u8; RECORD_HEADER]) -> [&'a [u8]; 3] {
    [b"cvmio head", before, header]
}

/// What is hashed for the head before the first record of a volume.
pub fn genesis_input(volume: &[u8; 16]) -> [&[u8]; 2] {
    [b"cvmio genesis", volume]
}

/// Most items in a record of `blocks` blocks.
pub fn items_per_record(blocks: u32) -> usize {
    let bytes = usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(BLOCK_SIZE);
    bytes.saturating_sub(RECORD_HEADER) / ITEM_SIZE
}

/// Fewest blocks of a record with `items` items; at least 1.
pub fn blocks_for(items: usize) -> u32 {
    let bytes = items.saturating_mul(ITEM_SIZE).saturating_add(RECORD_HEADER);
    u32::try_from(bytes.div_ceil(BLOCK_SIZE)).unwrap_or(u32::MAX)
}
