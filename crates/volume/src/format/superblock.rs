//! Superblock: the state that a session starts from, and the stretches of journal to replay on it.

use super::ad::Tree;
use super::bytes::{Reader, Writer};
use super::entry::{ENTRY_SIZE, Entry};
use super::item::check_root;
use super::salts::SALT_SIZE;
use super::{BLOCK_SIZE, EPOCH_END, Malformed, Page};
use crate::geometry::{Geometry, MAX_GROWTHS};

/// First bytes of a superblock.
pub const MAGIC: &[u8; 8] = b"cvmioSB1";
/// Bytes of the sealed payload.
pub const PAYLOAD: usize = 4040;
/// Most legs.
pub const MAX_LEGS: usize = 24;
/// Most own reserved units.
pub const MAX_UNITS: usize = 256;

const WHAT: &str = "superblock";
const LEG_SIZE: usize = 56;
/// Reserved bytes behind the growths, and behind the root of the old salt table.
const RESERVED: [usize; 2] = [95, 1320];

/// A stretch of journal to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leg {
    /// Segment where it starts.
    pub segment: u32,
    /// Block within that segment.
    pub block: u32,
    /// Generation of its first record.
    pub first: u64,
    /// Generation of its last record, `first - 1` when it has none; [`Leg::OPEN`] while the session writes it.
    pub last: u64,
    /// Head of the chain before its first record.
    pub head: [u8; 32],
}

impl Leg {
    /// `last` of a leg whose end is not known yet.
    pub const OPEN: u64 = u64::MAX;

    /// Whether the session that wrote the superblock still writes this leg.
    pub fn is_open(&self) -> bool {
        self.last == Self::OPEN
    }
}

/// A superblock's payload, opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The last journal record that is merged, or listed in a closed leg.
    pub generation: u64,
    /// Head of the chain at that generation.
    pub head: [u8; 32],
    /// The session that wrote this; all zeros in the one that `create` writes.
    pub session: [u8; 16],
    /// Claims in the stamp of that session.
    pub claims: u64,
    /// The session's epoch; 0 in the superblock that `create` writes.
    pub epoch: u32,
    /// The next free epoch number, above `epoch`.
    pub next_epoch: u32,
    /// Salt of the session's epoch.
    pub epoch_salt: [u8; SALT_SIZE],
    /// Root of the map.
    pub map: Entry,
    /// Root of the salt table.
    pub salts: Entry,
    /// Root of the bitmap.
    pub bitmap: Entry,
    /// Logical blocks with an entry.
    pub mapped: u64,
    /// Raised by each superblock of the session.
    pub publication: u64,
    /// 0: superblock slots 0 and 1, and the first two places of each bitmap node; 1: the others.
    pub pair: u8,
    /// 1 to 24 stretches in the order of replay, each beginning where the one before ends; only the last is
    /// open, and begins behind `generation` with `head`.
    pub legs: Vec<Leg>,
    /// The segment in which the session goes on behind that of the open leg; the same one where it has not chosen it yet.
    pub next_segment: u32,
    /// Own reserved units, at most 256.
    pub units: Vec<u32>,
    /// Growths of the volume that the roots of map and bitmap know: they have the levels of those sizes.
    pub growths: u8,
    /// Root of the old key's salt table, while a change of key is under way; absent otherwise.
    pub old_salts: Entry,
}

impl Superblock {
    /// Lays the payload out.
    ///
    /// # Errors
    /// When the superblock is one that [`decode`](Self::decode) would refuse: it must not reach the disk.
    pub fn encode(&self) -> Result<[u8; PAYLOAD], Malformed> {
        self.validate()?;
        let writer = Writer::<PAYLOAD>::new()
            .put(&self.generation.to_le_bytes())
            .put(&self.head)
            .put(&self.session)
            .put(&self.claims.to_le_bytes())
            .put(&self.epoch.to_le_bytes())
            .put(&self.next_epoch.to_le_bytes())
            .put(&self.epoch_salt)
            .put(&self.map.encode())
            .put(&self.salts.encode())
            .put(&self.bitmap.encode())
            .put(&self.mapped.to_le_bytes())
            .put(&self.publication.to_le_bytes())
            .put(&[self.pair, count("legs", self.legs.len(), MAX_LEGS)?])
            .put(&count::<u16>("own units", self.units.len(), MAX_UNITS)?.to_le_bytes())
            .put(&self.next_segment.to_le_bytes());
        let writer = self.legs.iter().fold(writer, |writer, leg| {
            let writer = writer.put(&leg.segment.to_le_bytes()).put(&leg.block.to_le_bytes());
            writer.put(&leg.first.to_le_bytes()).put(&leg.last.to_le_bytes()).put(&leg.head)
        });
        let writer = writer.skip((MAX_LEGS - self.legs.len()) * LEG_SIZE);
        let writer = put_numbers(writer, &self.units, MAX_UNITS).put(&[self.growths]).skip(RESERVED[0]);
        Ok(writer.put(&self.old_salts.encode()).skip(RESERVED[1]).end())
    }

    /// Reads an opened payload. Whether its numbers exist in the volume is for [`check`](Self::check) to say.
    ///
    /// # Errors
    /// When a field is out of bounds or contradicts another, or `payload` is not [`PAYLOAD`] bytes.
    pub fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(WHAT, payload);
        let r = &mut reader;
        let (generation, head) = (r.u64("generation")?, r.array("head")?);
        let (session, claims) = (r.array("session")?, r.u64("claims")?);
        let (epoch, next_epoch) = (r.u32("epoch")?, r.u32("next epoch")?);
        let epoch_salt = r.array("epoch salt")?;
        let [map, salts, bitmap] = [entry(r, "map root")?, entry(r, "salts root")?, entry(r, "bitmap root")?];
        let (mapped, publication) = (r.u64("mapped blocks")?, r.u64("publication count")?);
        let (pair, legs) = (r.u8("pair")?, usize::from(r.u8("legs")?));
        let units = usize::from(r.u16("own units")?);
        let next_segment = r.u32("next segment")?;
        let mut superblock = Self {
            generation,
            head,
            session,
            claims,
            epoch,
            next_epoch,
            epoch_salt,
            map,
            salts,
            bitmap,
            mapped,
            publication,
            pair,
            legs: read_legs(r, legs)?,
            next_segment,
            units: numbers(r, "own units", units, MAX_UNITS)?,
            growths: r.u8("growths")?,
            old_salts: Entry::ABSENT,
        };
        reader.zeros(RESERVED[0], "reserved")?;
        superblock.old_salts = entry(&mut reader, "old salts root")?;
        reader.zeros(RESERVED[1], "reserved")?;
        reader.end()?;
        superblock.validate()?;
        Ok(superblock)
    }

    /// Checks that the numbers exist in the volume.
    ///
    /// # Errors
    /// Names the first field that points outside.
    pub fn check(&self, geometry: &Geometry) -> Result<(), Malformed> {
        let all = |numbers: &[u32], end: u32| numbers.iter().all(|&number| number < end);
        let leg = |leg: &Leg| leg.segment < geometry.segments && leg.block < geometry.segment_blocks;
        require("legs", self.legs.iter().all(leg), "a leg starts outside the journal")?;
        require("next segment", self.next_segment < geometry.segments, "it is outside the journal")?;
        require("own units", all(&self.units, geometry.units()), "there is no such unit")?;
        let known = usize::from(self.growths);
        require("growths", known <= geometry.growths(), "more than the header lists")?;
        let own = geometry.as_of(known);
        require("mapped blocks", self.mapped <= own.logical_blocks, "more than the logical blocks")?;
        let inside = |root: &Entry| root.is_absent() || own.holds(root.physical);
        require("map root", inside(&self.map), "it is outside the data blocks")?;
        require("salts root", inside(&self.salts), "it is outside the data blocks")?;
        require("old salts root", inside(&self.old_salts), "it is outside the data blocks")?;
        let bitmap = self.bitmap.is_absent() || own.is_bitmap_place(self.bitmap.physical);
        require("bitmap root", bitmap, "it is outside the bitmap's places")?;
        require(
            "next epoch",
            self.next_epoch <= geometry.last_epoch() + 1,
            "the salt table is too small for it",
        )
    }

    /// What holds for a superblock in itself.
    fn validate(&self) -> Result<(), Malformed> {
        require("pair", self.pair < 2, "it is neither 0 nor 1")?;
        require("growths", usize::from(self.growths) <= MAX_GROWTHS, "no volume has so many")?;
        let epochs = self.epoch < self.next_epoch && self.next_epoch <= EPOCH_END;
        require("next epoch", epochs, "it must be above the session's epoch, and at most 2^24")?;
        let salted = self.epoch != 0 || self.epoch_salt == [0; SALT_SIZE];
        require("epoch salt", salted, "there is a salt, but no epoch")?;
        check_root(WHAT, "map root", Tree::Map, &self.map)?;
        check_root(WHAT, "salts root", Tree::Salts, &self.salts)?;
        check_root(WHAT, "bitmap root", Tree::Bitmap, &self.bitmap)?;
        check_root(WHAT, "old salts root", Tree::OldSalts, &self.old_salts)?;
        let Some((last, closed)) = self.legs.split_last() else {
            return require("legs", false, "there is none");
        };
        require("legs", closed.len() < MAX_LEGS, "there are more than 24")?;
        require("legs", last.is_open() && closed.iter().all(|leg| !leg.is_open()), "only the last is open")?;
        let counted = closed.iter().all(|leg| leg.first > 0 && leg.last >= leg.first - 1);
        require("legs", counted, "one ends before it begins")?;
        let joined = self.legs.windows(2).all(|pair| pair[1].first == pair[0].last + 1);
        require("legs", joined, "one does not begin where the one before ends")?;
        let behind = Some(last.first) == self.generation.checked_add(1) && last.head == self.head;
        require("legs", behind, "the open one does not begin behind the generation and head covered")
    }
}

/// Takes a superblock's block apart: salt, sealed payload, tag.
///
/// # Errors
/// When `page` is not one block, or begins with another magic.
#[expect(clippy::type_complexity, reason = "three parts, used once, at the call")]
pub fn split(page: &[u8]) -> Result<(&[u8; SALT_SIZE], &[u8; PAYLOAD], &[u8; 16]), Malformed> {
    let mut reader = Reader::new(WHAT, page);
    reader.magic(MAGIC)?;
    let parts = page[MAGIC.len()..].split_first_chunk().and_then(|(salt, rest)| {
        let (sealed, tag) = rest.split_first_chunk()?;
        Some((salt, sealed, tag.try_into().ok()?))
    });
    parts.ok_or_else(|| reader.malformed("length", format!("{} bytes instead of {BLOCK_SIZE}", page.len())))
}

/// Puts a superblock's block together.
pub fn assemble(salt: &[u8; SALT_SIZE], sealed: &[u8; PAYLOAD], tag: &[u8; 16]) -> Page {
    Writer::<BLOCK_SIZE>::new().put(MAGIC).put(salt).put(sealed).put(tag).end()
}

fn require(field: &'static str, holds: bool, message: &str) -> Result<(), Malformed> {
    if holds { Ok(()) } else { Err(Malformed { what: WHAT, field, message: message.into() }) }
}

fn count<T: TryFrom<usize>>(field: &'static str, count: usize, most: usize) -> Result<T, Malformed> {
    let too_many = || Malformed { what: WHAT, field, message: format!("{count} is more than {most}") };
    if count > most { Err(too_many()) } else { T::try_from(count).map_err(|_| too_many()) }
}

fn put_numbers(writer: Writer<PAYLOAD>, numbers: &[u32], places: usize) -> Writer<PAYLOAD> {
    let writer = numbers.iter().fold(writer, |writer, number| writer.put(&number.to_le_bytes()));
    writer.skip((places - numbers.len()) * 4)
}

fn entry(reader: &mut Reader<'_>, field: &'static str) -> Result<Entry, Malformed> {
    let bytes: [u8; ENTRY_SIZE] = reader.array(field)?;
    Entry::decode(&bytes).map_err(|error| reader.malformed(field, error.to_string()))
}

fn read_legs(reader: &mut Reader<'_>, legs: usize) -> Result<Vec<Leg>, Malformed> {
    count::<usize>("legs", legs, MAX_LEGS)?;
    let list = (0..legs).map(|_| {
        Ok(Leg {
            segment: reader.u32("legs")?,
            block: reader.u32("legs")?,
            first: reader.u64("legs")?,
            last: reader.u64("legs")?,
            head: reader.array("legs")?,
        })
    });
    let list = list.collect::<Result<_, _>>()?;
    reader.zeros((MAX_LEGS - legs) * LEG_SIZE, "legs")?;
    Ok(list)
}

fn numbers(
    reader: &mut Reader<'_>,
    field: &'static str,
    length: usize,
    places: usize,
) -> Result<Vec<u32>, Malformed> {
    count::<usize>(field, length, places)?;
    let list = (0..length).map(|_| reader.u32(field)).collect::<Result<_, _>>()?;
    reader.zeros((places - length) * 4, field)?;
    Ok(list)
}
