//! The journal's ring of segments, and the chain of records in it.
//!
//! Invariants:
//! 1. A record lies within one segment; all records of a segment name the same next segment, which is nobody else's.
//! 2. A segment is written only when no superblock that may still be needed has a leg in it.
//!    Two are always outside of the chain (the one named next, and a free one), for the session that comes after this one: so a volume
//!    can be attached after a crash, and after any number of crashes in attaches that write no record.
//! 3. Each record's associated data holds the head before it, so the chain cannot be cut, reordered or continued by a stranger.

use std::collections::HashSet;

use memory::{BLOCK_SIZE, Buffer};

use crate::commit::Committed;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::item::{ITEM_SIZE, Item};
use crate::format::record::{
    RECORD_HEADER, RecordHeader, blocks_for, genesis_input, head_input, items_per_record,
};
use crate::format::superblock::Leg;
use crate::geometry::Geometry;
use crate::io::Io;
use crate::keys::Use;

/// A segment's standing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segment {
    Free,
    /// In the chain; the number says when it was entered.
    Used(u64),
    /// The predecessor may still write there.
    Foreign,
}

/// The state of the chain: where the next record goes, and what it continues.
pub(crate) struct Journal {
    segments: Vec<Segment>,
    entered: u64,
    search: usize,
    segment: u32,
    block: u32,
    next: u32,
    pub(crate) generation: u64,
    pub(crate) head: [u8; 32],
    /// Whether there was no room at the beginning but in the predecessor's segments.
    pub(crate) crowded: bool,
}

/// Segments that a session begins with: the one that it writes, and the next.
const NEEDED: usize = 2;
/// Free ones that it leaves to its successor, which also has the one that it named next.
const KEPT: usize = NEEDED - 1;

impl Journal {
    /// A chain that goes on after (`generation`, `head`) in a segment of its own. `used` segments hold what must be kept until
    /// the next checkpoint; `foreign` ones are the predecessor's.
    pub(crate) fn new(
        geometry: &Geometry,
        generation: u64,
        head: [u8; 32],
        used: &[u32],
        foreign: &[u32],
    ) -> Result<Self> {
        let count = |used: &[u32], foreign: &[u32]| {
            let taken: HashSet<_> = used.iter().chain(foreign).collect();
            (geometry.segments as usize).saturating_sub(taken.len())
        };
        // Without a journal nothing goes on; that counts more than caution towards a guest that is most likely dead.
        let crowded = count(used, foreign) < NEEDED;
        let foreign = if crowded { &[] } else { foreign };
        let mut segments = vec![Segment::Free; geometry.segments as usize];
        // A segment that is both stays foreign: no checkpoint of ours makes the predecessor stop writing there.
        let standings = used
            .iter()
            .map(|at| (at, Segment::Used(0)))
            .chain(foreign.iter().map(|at| (at, Segment::Foreign)));
        for (segment, standing) in standings {
            if let Some(place) = segments.get_mut(*segment as usize) {
                *place = standing;
            }
        }
        let mut journal = Self {
            segments,
            entered: 1,
            search: 0,
            segment: 0,
            block: 0,
            next: 0,
            generation,
            head,
            crowded,
        };
        journal.search = used.last().map_or(0, |last| *last as usize + 1);
        journal.segment = journal.reserve(0)?;
        journal.next = journal.reserve(0)?;
        Ok(journal)
    }

    /// A free segment, if there are more than `keep`.
    fn reserve(&mut self, keep: usize) -> Result<u32> {
        let count = self.segments.len();
        let found = (0..count)
            .map(|step| (self.search + step) % count)
            .find(|at| self.segments[*at] == Segment::Free)
            .filter(|_| self.free() > keep);
        let at = found.ok_or_else(|| {
            Error::new(Kind::NoSpace, "the journal is full and no checkpoint could make room; detach the volume and attach it again")
        })?;
        self.segments[at] = Segment::Used(self.entered);
        self.entered += 1;
        self.search = at + 1;
        Ok(u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// Segment and block within it that the last record ended at.
    pub(crate) fn place(&self) -> (u32, u32) {
        (self.segment, self.block)
    }

    /// Whether a checkpoint would free a segment.
    pub(crate) fn can_retire(&self) -> bool {
        let used = self.segments.iter().filter(|segment| matches!(segment, Segment::Used(_))).count();
        used > 2
    }

    /// Stops leaving the predecessor's segments alone; the next checkpoint frees them.
    pub(crate) fn take_over(&mut self) {
        for segment in self.segments.iter_mut().filter(|segment| **segment == Segment::Foreign) {
            *segment = Segment::Used(0);
        }
    }

    /// Items for which this segment and the next one have room; the next one only if the anchor knows that it is ours, which the first
    /// record of this one told it.
    pub(crate) fn room(&self, geometry: &Geometry) -> usize {
        let next = if self.block == 0 { 0 } else { items_per_record(geometry.segment_blocks) };
        items_per_record(geometry.segment_blocks - self.block) + next
    }

    /// Items for which this segment has room.
    pub(crate) fn rest(&self, geometry: &Geometry) -> usize {
        items_per_record(geometry.segment_blocks - self.block)
    }

    /// Items for which there is room before a checkpoint frees segments. To go on in the next one takes a free one, and one stays free.
    pub(crate) fn capacity(&self, geometry: &Geometry) -> usize {
        let segment = items_per_record(geometry.segment_blocks);
        items_per_record(geometry.segment_blocks - self.block) + self.free().saturating_sub(KEPT) * segment
    }

    /// Blocks for which there is room before a checkpoint frees segments.
    pub(crate) fn blocks_left(&self, geometry: &Geometry) -> u64 {
        let whole = self.free().saturating_sub(KEPT) as u64;
        u64::from(geometry.segment_blocks - self.block) + whole * u64::from(geometry.segment_blocks)
    }

    /// Free segments.
    pub(crate) fn free(&self) -> usize {
        self.segments.iter().filter(|segment| **segment == Segment::Free).count()
    }

    /// The end of the chain, and the open leg that begins with the next record.
    pub(crate) fn committed(&self, geometry: &Geometry) -> Committed {
        let (generation, head, next_segment) = (self.generation, self.head, self.next);
        let full = self.block == geometry.segment_blocks;
        let (segment, block) = if full { (self.next, 0) } else { (self.segment, self.block) };
        let leg = Leg { segment, block, first: generation + 1, last: Leg::OPEN, head };
        Committed { generation, head, leg, next_segment }
    }

    /// Gives back all segments that lie before the leg's.
    pub(crate) fn retire(&mut self, leg: &Leg) {
        let Some(Segment::Used(since)) = self.segments.get(leg.segment as usize).copied() else { return };
        for segment in &mut self.segments {
            if matches!(segment, Segment::Used(entered) if *entered < since) {
                *segment = Segment::Free;
            }
        }
    }

    /// Makes the records of one commit and moves the chain behind them.
    pub(crate) fn records(&mut self, core: &Core, io: &Io, items: &[Item]) -> Result<Vec<(u64, Buffer)>> {
        let mut records = Vec::new();
        let mut rest = items;
        loop {
            if self.block == core.geometry.segment_blocks {
                self.segment = self.next;
                self.block = 0;
                self.next = self.reserve(KEPT)?;
            }
            let room = items_per_record(core.geometry.segment_blocks - self.block);
            let (now, later) = rest.split_at(rest.len().min(room));
            rest = later;
            records.push(self.record(core, io, now, rest.is_empty())?);
            if rest.is_empty() {
                return Ok(records);
            }
        }
    }

    fn record(&mut self, core: &Core, io: &Io, items: &[Item], last: bool) -> Result<(u64, Buffer)> {
        let mut payload = Vec::with_capacity(items.len() * ITEM_SIZE);
        for item in items {
            item.encode_into(&mut payload);
        }
        let blocks = blocks_for(items.len());
        let (epoch, nonce) = core.keys.nonces(Use::Journal, 1)?;
        let mut header = RecordHeader {
            volume: core.header.volume,
            session: core.session,
            generation: self.generation + 1,
            payload_bytes: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            blocks: u16::try_from(blocks).unwrap_or(u16::MAX),
            last,
            next_segment: self.next,
            epoch: epoch.number,
            nonce,
            salt: epoch.salt,
            tag: [0; 16],
        };
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        let sealed = &mut bytes[RECORD_HEADER..RECORD_HEADER + payload.len()];
        header.tag = epoch.keys.journal.seal(nonce, &header.associated_data(&self.head), &payload, sealed);
        bytes[..RECORD_HEADER].copy_from_slice(&header.encode());
        let mut buffer = io.buffer(blocks as usize);
        buffer.copy_from(0, &bytes);
        let place = core.geometry.segment_start(self.segment) + u64::from(self.block);
        self.head = next_head(&self.head, &header);
        self.generation += 1;
        self.block += blocks;
        Ok((place, buffer))
    }
}

/// The head of the chain after a record.
pub(crate) fn next_head(head: &[u8; 32], header: &RecordHeader) -> [u8; 32] {
    seal::sha256(&head_input(head, &header.encode()))
}

/// The head before the first record of a volume.
pub(crate) fn genesis(volume: &[u8; 16]) -> [u8; 32] {
    seal::sha256(&genesis_input(volume))
}
