//! Reading the journal back: from a superblock along its legs, as far as the chain holds.
//!
//! Invariants:
//! 1. A record counts only if it opens under the volume key with the head before it as associated data; a commit only if all its
//!    records are there.
//! 2. The state is that of the last commit that counts: up to the stamp all of them, behind it those that continue it, and the very last
//!    only if the data that it names opens (nothing proves that the flush behind it ever ended).
//!    Behind the stamp only the session that made it may continue.
//! 3. A superblock that covers more than the stamp vouches for does not count: its trees hold what is behind the stamp.
//! 4. Reservations count wherever the chain holds, also in what is not applied: their writer may still be alive.

use std::collections::BTreeSet;

use anchor::Stamp;
use memory::BLOCK_SIZE;

use crate::core::Roots;
use crate::error::{Error, Kind, Result};
use crate::format::ad::{Tree, data_ad};
use crate::format::entry::Entry;
use crate::format::header::Header;
use crate::format::item::{Item, items};
use crate::format::protections::Freshness;
use crate::format::record::{RECORD_HEADER, RecordHeader};
use crate::format::superblock::{Leg, Superblock};
use crate::io::Io;
use crate::journal::next_head;
use crate::keys::Keyring;
use crate::mutation::{Mutation, mutated};
use crate::overlay::Overlay;

/// Where a replay stands relative to the stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The chain passes through the stamp (or there is no stamp to pass through).
    Through,
    /// The chain ends before the stamp's generation.
    Short,
    /// At the stamp's generation the chain has another head.
    Beside,
}

/// What a replay found.
pub(crate) struct Replayed {
    pub(crate) superblock: Superblock,
    pub(crate) standing: Standing,
    /// The last commit that counts.
    pub(crate) generation: u64,
    pub(crate) head: [u8; 32],
    pub(crate) overlay: Overlay,
    pub(crate) roots: Roots,
    pub(crate) salts: Vec<(u32, [u8; 32])>,
    pub(crate) next_epoch: u32,
    /// Legs to list as closed, should a session go on from here.
    pub(crate) closed: Vec<Leg>,
    /// Segments that those legs are in.
    pub(crate) segments: BTreeSet<u32>,
    /// Segments and units in which the predecessor may still write.
    pub(crate) foreign_segments: BTreeSet<u32>,
    pub(crate) foreign_units: BTreeSet<u32>,
}

/// Replays one superblock's journal.
pub(crate) struct Replay<'a> {
    pub(crate) io: &'a Io,
    pub(crate) header: &'a Header,
    pub(crate) keys: &'a Keyring,
    pub(crate) stamp: Option<&'a Stamp>,
    /// Nothing behind the stamp counts, whoever wrote it.
    pub(crate) pinned: bool,
}

/// One commit, as read.
struct Commit {
    items: Vec<Item>,
    generation: u64,
    head: [u8; 32],
    leg: usize,
    segments: Vec<u32>,
    /// The epochs of its records, with their salts.
    epochs: Vec<(u32, [u8; 32])>,
}

impl Replay<'_> {
    pub(crate) async fn run(&self, superblock: Superblock) -> Result<Replayed> {
        let mut state = Replayed {
            standing: Standing::Short,
            generation: superblock.legs.first().map_or(superblock.generation, |leg| leg.first - 1),
            head: superblock.legs.first().map_or(superblock.head, |leg| leg.head),
            overlay: Overlay::new(),
            roots: self.roots(&superblock),
            salts: Vec::new(),
            next_epoch: superblock.next_epoch.max(self.keys.boundary().unwrap_or(0)),
            closed: Vec::new(),
            segments: BTreeSet::new(),
            foreign_segments: BTreeSet::new(),
            foreign_units: superblock.units.iter().copied().collect(),
            superblock,
        };
        self.keys.forget();
        if self.stamp.is_some_and(|stamp| state.superblock.generation > stamp.generation)
            && !mutated(Mutation::LaterSuperblockCounts)
        {
            return Ok(state);
        }
        if state.superblock.epoch != 0 {
            self.keys.learn(state.superblock.epoch, &state.superblock.epoch_salt);
            state.salts.push((state.superblock.epoch, state.superblock.epoch_salt));
        }
        self.compare(&mut state);
        self.walk(&mut state).await?;
        // The overlay holds the changes; nothing of it waits for a journal.
        state.overlay.cut(false);
        Ok(state)
    }

    /// The salt table of a superblock under the old key is the old one, and there is no new one yet.
    fn roots(&self, superblock: &Superblock) -> Roots {
        let Superblock { map, salts, bitmap, mapped, old_salts, .. } = *superblock;
        let old = self.keys.is_old(superblock.epoch);
        let (salts, old_salts) = if old { (Entry::ABSENT, salts) } else { (salts, old_salts) };
        let roots =
            Roots { map, salts, bitmap, old_salts, mapped, growths: 0, map_levels: 0, bitmap_levels: 0 };
        roots.knowing(superblock.growths, &self.header.geometry)
    }

    /// Notes whether the state that counts now is the stamp's.
    fn compare(&self, state: &mut Replayed) {
        state.standing = match self.stamp {
            None => Standing::Through,
            Some(stamp) if stamp.generation == state.generation => {
                if stamp.head == state.head || mutated(Mutation::HeadNotCompared) {
                    Standing::Through
                } else {
                    Standing::Beside
                }
            }
            Some(_) => state.standing,
        };
    }

    async fn walk(&self, state: &mut Replayed) -> Result<()> {
        // The last commit behind the stamp is held back until its data has been seen, or another follows it.
        let mut held: Option<Commit> = None;
        let mut scan = Scan { generation: state.generation, head: state.head };
        let legs = state.superblock.legs.clone();
        for (number, leg) in legs.iter().enumerate() {
            if leg.first != scan.generation + 1 || leg.head != scan.head {
                break;
            }
            if leg.is_open() {
                // Until a record behind the leg's beginning says more.
                state.foreign_segments.extend([leg.segment, state.superblock.next_segment]);
            }
            let mut place = Place { segment: leg.segment, block: leg.block, next: None };
            let mut items = Vec::new();
            let mut segments = Vec::new();
            let mut epochs = Vec::new();
            while leg.is_open() || scan.generation < leg.last {
                let Some((record, read)) = self.record(&mut place, &scan).await? else { break };
                if leg.is_open() && !self.goes_on(&record, &state.superblock) {
                    break;
                }
                // Not before: the salt of a record that does not count may be anything.
                self.keys.learn(record.epoch, &record.salt);
                scan = Scan { generation: record.generation, head: next_head(&scan.head, &record) };
                segments.push(place.segment);
                if leg.is_open() {
                    note_reservations(state, &record, &segments, &read);
                }
                epochs.push((record.epoch, record.salt));
                items.extend(read);
                if !record.last {
                    continue;
                }
                let commit = Commit {
                    items: std::mem::take(&mut items),
                    generation: scan.generation,
                    head: scan.head,
                    leg: number,
                    segments: std::mem::take(&mut segments),
                    epochs: std::mem::take(&mut epochs),
                };
                if state.standing == Standing::Short || !leg.is_open() {
                    self.apply(state, commit, leg);
                    self.compare(state);
                    if state.standing == Standing::Beside {
                        return Ok(());
                    }
                } else if !self.stops_at_stamp()
                    && self.may_continue(&record)
                    && let Some(before) = held.replace(commit)
                {
                    self.apply(state, before, leg);
                }
            }
        }
        if let Some(last) = held
            && self.data_is_there(&last.items).await?
        {
            let leg = legs[last.leg];
            self.apply(state, last, &leg);
        }
        Ok(())
    }

    /// The states that lead on from a superblock: the one that it covers, and behind it each commit of its session that is whole. None if
    /// the stretches before the covered one do not hold.
    pub(crate) async fn states(&self, superblock: &Superblock) -> Result<Vec<State>> {
        self.keys.forget();
        self.keys.learn(superblock.epoch, &superblock.epoch_salt);
        let Some(first) = superblock.legs.first() else { return Ok(Vec::new()) };
        let mut scan = Scan { generation: first.first - 1, head: first.head };
        let mut found = Vec::new();
        for leg in &superblock.legs {
            if leg.first != scan.generation + 1 || leg.head != scan.head {
                return Ok(found);
            }
            if leg.is_open() {
                found.push(State { generation: scan.generation, head: scan.head });
            }
            let mut place = Place { segment: leg.segment, block: leg.block, next: None };
            let mut items = Vec::new();
            let mut last = None;
            while leg.is_open() || scan.generation < leg.last {
                let Some((record, read)) = self.record(&mut place, &scan).await? else { break };
                if leg.is_open() && !self.goes_on(&record, superblock) {
                    break;
                }
                self.keys.learn(record.epoch, &record.salt);
                scan = Scan { generation: record.generation, head: next_head(&scan.head, &record) };
                items.extend(read);
                if record.last && leg.is_open() {
                    found.push(State { generation: scan.generation, head: scan.head });
                    last = Some(std::mem::take(&mut items));
                }
            }
            // As at an attach: nothing proves that what the last commit names has arrived.
            if let Some(last) = last
                && !self.data_is_there(&last).await?
            {
                found.pop();
            }
        }
        Ok(found)
    }

    /// Whether a record in an open leg is its session's, and not of the old key behind a superblock of the new one: whoever has the old
    /// key could write such a record.
    fn goes_on(&self, record: &RecordHeader, superblock: &Superblock) -> bool {
        let old = self.keys.is_old(record.epoch) && !self.keys.is_old(superblock.epoch);
        record.session == superblock.session && !old
    }

    fn stops_at_stamp(&self) -> bool {
        self.header.freshness == Freshness::Transaction || (self.pinned && self.stamp.is_some())
    }

    /// Whether a record behind the stamp may count: only the session that claimed the volume last may continue it. What an earlier one
    /// wrote there and did not get anchored was not found when the volume was claimed, and has been forgotten: the host must not be able
    /// to bring it back by a copy of the disk that has it, nor a guest that was believed dead to slip it in.
    fn may_continue(&self, record: &RecordHeader) -> bool {
        mutated(Mutation::AnySessionContinues)
            || self.stamp.is_none_or(|stamp| stamp.session == record.session)
    }

    /// The next record, if it is one and continues the chain.
    async fn record(&self, place: &mut Place, scan: &Scan) -> Result<Option<(RecordHeader, Vec<Item>)>> {
        let geometry = &self.header.geometry;
        if place.block >= geometry.segment_blocks {
            let Some(next) = place.next else { return Ok(None) };
            *place = Place { segment: next, block: 0, next: None };
        }
        if place.segment >= geometry.segments {
            return Ok(None);
        }
        let first = geometry.segment_start(place.segment) + u64::from(place.block);
        let mut bytes = self.read(first, 1).await?;
        let Ok(header) = RecordHeader::decode(&bytes[..RECORD_HEADER]) else { return Ok(None) };
        let blocks = u32::from(header.blocks);
        let continues = header.volume == self.header.volume
            && header.generation == scan.generation + 1
            && blocks >= 1
            && place.block + blocks <= geometry.segment_blocks
            && header.next_segment < geometry.segments;
        if !continues {
            return Ok(None);
        }
        if blocks > 1 {
            bytes.extend(self.read(first + 1, blocks as usize - 1).await?);
        }
        let Ok(sealed) = header.sealed(&bytes) else { return Ok(None) };
        let mut payload = vec![0; sealed.len()];
        let keys = self.keys.derive(header.epoch, &header.salt);
        if keys
            .journal
            .open(header.nonce, &header.associated_data(&scan.head), sealed, &header.tag, &mut payload)
            .is_err()
        {
            return Ok(None);
        }
        // From here on these are our own words, unless our own code is wrong; still nothing may panic on them.
        let Ok(read) = items(&payload).collect::<std::result::Result<Vec<_>, _>>() else { return Ok(None) };
        if read.iter().any(|item| item.check(geometry).is_err() || self.reaches_beyond(&header, item)) {
            return Ok(None);
        }
        place.block += blocks;
        place.next = Some(header.next_segment);
        Ok(Some((header, read)))
    }

    /// Whether a record under the old key speaks of an epoch under the new one, of which its writer can have known nothing.
    fn reaches_beyond(&self, header: &RecordHeader, item: &Item) -> bool {
        let epoch = match item {
            Item::Write { entry, .. } | Item::Root { entry, .. } => entry.epoch,
            Item::Epoch { epoch, .. } => *epoch,
            _ => 0,
        };
        self.keys.is_old(header.epoch) && !self.keys.is_old(epoch)
    }

    async fn read(&self, block: u64, blocks: usize) -> Result<Vec<u8>> {
        let buffer = self.io.read(block, blocks).await?;
        let mut bytes = vec![0; blocks * BLOCK_SIZE];
        buffer.copy_to(0, &mut bytes);
        Ok(bytes)
    }

    fn apply(&self, state: &mut Replayed, commit: Commit, leg: &Leg) {
        // Its session may have ended before the salt got into the table. Of a commit that does not count the salt must not get there:
        // the number of its epoch is given again.
        for (epoch, salt) in commit.epochs {
            if !state.salts.iter().any(|(known, _)| *known == epoch) {
                state.salts.push((epoch, salt));
            }
        }
        let mut items = commit.items;
        if mutated(Mutation::ReplayOutOfOrder) {
            items.reverse();
        }
        for item in &items {
            match *item {
                Item::Write { logical, entry } => state.overlay.insert(logical, &[entry]),
                Item::Discard { logical, blocks } => state.overlay.discard(logical..logical + blocks),
                Item::Epoch { epoch, salt } => {
                    self.keys.learn(epoch, &salt);
                    state.salts.push((epoch, salt));
                    state.next_epoch = state.next_epoch.max(epoch + 1);
                }
                Item::Root { tree, growths, entry } => {
                    // New roots hold everything before them.
                    state.overlay = Overlay::new();
                    state.roots = state.roots.knowing(growths, &self.header.geometry);
                    match tree {
                        Tree::Map => state.roots.map = entry,
                        Tree::Salts => state.roots.salts = entry,
                        Tree::Bitmap => state.roots.bitmap = entry,
                        Tree::OldSalts => {}
                    }
                }
                Item::Mapped(blocks) => state.roots.mapped = blocks,
                Item::Reserve(_) => {}
            }
        }
        state.generation = commit.generation;
        state.head = commit.head;
        let closed = Leg { last: commit.generation, ..*leg };
        match state.closed.last_mut() {
            Some(last) if last.first == leg.first => *last = closed,
            _ => state.closed.push(closed),
        }
        state.segments.insert(leg.segment);
        state.segments.extend(commit.segments);
    }

    /// Whether every block that a commit names can be opened.
    async fn data_is_there(&self, items: &[Item]) -> Result<bool> {
        if !self.header.integrity || mutated(Mutation::LastCommitUnverified) {
            // Without tags nobody can tell; the writer flushed the data before it wrote the record.
            return Ok(true);
        }
        // In logical order: a run by seed must read in the same order each time.
        let mut last: std::collections::BTreeMap<u64, Option<Entry>> = std::collections::BTreeMap::new();
        for item in items {
            match *item {
                Item::Write { logical, entry } => drop(last.insert(logical, Some(entry))),
                Item::Discard { logical, blocks } => {
                    last.retain(|block, _| !(logical..logical + blocks).contains(block));
                }
                _ => {}
            }
        }
        let mut opened = vec![0; BLOCK_SIZE];
        for (logical, entry) in last.into_iter().filter_map(|(logical, entry)| Some((logical, entry?))) {
            let Some(keys) = self.keys.known(entry.epoch) else { return Ok(false) };
            let buffer = self.io.read(entry.physical, 1).await?;
            let ad = data_ad(&self.header.volume, logical);
            let sealed = buffer.source(0..BLOCK_SIZE);
            if keys.data.open_from(entry.nonce, &ad, sealed, &entry.tag, &mut opened, |_| ()).is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A state by its place in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) generation: u64,
    pub(crate) head: [u8; 32],
}

/// Where the chain stands while it is read.
struct Scan {
    generation: u64,
    head: [u8; 32],
}

/// Where the next record should be.
struct Place {
    segment: u32,
    block: u32,
    next: Option<u32>,
}

/// The predecessor may be alive. Of the journal it may still write what its last commit is in, and the segment that this one names next;
/// of the data, wherever it reserved.
fn note_reservations(state: &mut Replayed, record: &RecordHeader, commit: &[u32], items: &[Item]) {
    state.foreign_segments = commit.iter().copied().chain([record.next_segment]).collect();
    for item in items {
        if let Item::Reserve(units) = item {
            state.foreign_units.extend(units.as_slice());
        }
    }
}

/// The failure that a replay's standing means.
pub(crate) fn standing_error(found: &[Replayed], anchored: u64) -> Error {
    let best = found.iter().max_by_key(|replayed| replayed.generation);
    let beside = found.iter().any(|replayed| replayed.standing == Standing::Beside);
    match best {
        None => Error::new(
            Kind::Corrupt,
            "no superblock of this volume opens: they were overwritten or replaced. Restore the image from a backup",
        ),
        Some(best) if beside || best.superblock.generation > anchored => Error::new(
            Kind::Forked,
            format!(
                "this image has a history of its own beside the one that the anchor vouches for (generation {anchored}). Somebody ran a copy of it, or anchor and image were restored from different times. Attach the image that belongs to the anchor"
            ),
        ),
        Some(best) => Error::new(
            Kind::Stale,
            format!(
                "this image is an older state: its journal ends at generation {}, the anchor vouches for {anchored}. The host put an old copy back, or lost flushed writes. Attach the current image",
                best.generation
            ),
        ),
    }
}
