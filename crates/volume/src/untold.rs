//! A thin volume on a store that cannot say what it has left, such as a device: that may be thin itself, and full at any moment.
//!
//! Invariants:
//! 1. No write of a user completes before the store has it. So one that finds no room fails, and no flush waits for it.
//! 2. Journal, bitmap and superblocks were written to when the volume was made, as far as a volume's fixed places ever are
//!    ([`fixed_places`](crate::store_room::fixed_places)): a store that has once given a place needs no room there.
//! 3. So were places for nodes. A session reserves the units that they are in before it discards anything, and sees behind each checkpoint that there
//!    are as many again: enough for two checkpoints in a row, and a quarter more.
//! 4. What is in memory, and not in the map yet, never needs more nodes than one of these checkpoints. When the store has refused something,
//!    changes claim their nodes' places of what is left (`node_room.rs`).
//! 5. A store that has given a block keeps what is written there, and elsewhere zeros are read. So a session finds the places that the one before it
//!    had by reading what is free: first in the units that it had reserved. A store that refuses a write to such a place is not believed about it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use futures::StreamExt;
use seal::Random;
use store::Store;

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::superblock::MAX_UNITS;
use crate::geometry::Geometry;
use crate::io::Io;
use crate::store_room::{MOST_TRIES, UNTOLD_FIXED_ROOM, allocate_fixed, fixed_places};

/// Blocks of one transfer: 256 KiB.
const AT_ONCE: usize = 64;
/// Units for nodes that a session begins with, of those that the one before it had reserved.
const FORMER_UNITS: usize = 64;
/// Most blocks that are read in a search for what was given: where nothing goes on before something is found (16 GiB), and behind a checkpoint
/// (256 MiB).
const MOST_READ: u64 = 4 << 20;
const SOME_READ: u64 = 65_536;
/// Reads on their way.
const READS: usize = 8;

/// The most changes whose nodes are three eighths of so many places.
pub(crate) fn changes_with(geometry: &Geometry, places: u64) -> u64 {
    let (mut fits, mut too_many) = (0, geometry.logical_blocks + 1);
    while too_many - fits > 1 {
        let changes = fits.midpoint(too_many);
        match geometry.most_nodes_of(changes) <= places * 3 / 8 {
            true => fits = changes,
            false => too_many = changes,
        }
    }
    fits
}

/// Has the store give the places of a new thin volume that never move, and on one that cannot say what it has left, places for nodes.
///
/// # Errors
/// `Usage` when it has no room for them; what a store that cannot say what it has left says otherwise.
pub(crate) async fn take_first_places(
    store: &dyn Store,
    io: &Io,
    geometry: &Geometry,
    random: &dyn Random,
) -> Result<()> {
    let taken = match store.usage() {
        Some(_) => match allocate_fixed(store, geometry) {
            // A file system that cannot reserve room gives it as it is written to.
            Err(error) if error.kind != store::ErrorKind::NoSpace => return Ok(()),
            taken => taken.map_err(Error::from),
        },
        None => write_first_places(io, geometry, random).await,
    };
    taken.map_err(|error| match error.kind() {
        Kind::NoSpace => Error::new(
            Kind::Usage,
            format!("{error}: there is no room even for journal, free-space map and the first nodes"),
        ),
        _ => error,
    })
}

async fn write_first_places(io: &Io, geometry: &Geometry, random: &dyn Random) -> Result<()> {
    for blocks in fixed_places(geometry, UNTOLD_FIXED_ROOM).into_iter().flat_map(parts) {
        let mut buffer = io.buffer(length(&blocks));
        buffer.copy_from(0, &vec![0; length(&blocks) * store::BLOCK_SIZE]);
        io.write(blocks.start, buffer).await?;
    }
    let nodes = geometry.node_room(geometry.map_nodes(), false);
    for blocks in geometry.data().take(1).flat_map(|data| parts(data.start..data.end.min(data.start + nodes)))
    {
        fill(io, random, blocks).await?;
    }
    Ok(())
}

impl Core {
    /// For a session that begins: looks for places that the store has given, where the session before this one had its places for nodes, and where a
    /// volume has its first ones. Chooses units for them; they are `Pending` then. `needed` nodes are made before anybody is served: for these, the
    /// units of a session that did not end are taken over, too.
    pub(crate) async fn find_node_units(
        &self,
        io: &Io,
        former: &BTreeSet<u32>,
        needed: u64,
    ) -> Result<Vec<u32>> {
        if !self.room.untold {
            return Ok(Vec::new());
        }
        let first = self.node_room().div_ceil(u64::from(self.geometry.unit_blocks));
        let first = 0..u32::try_from(first).unwrap_or(u32::MAX);
        let units: Vec<u32> = former.iter().copied().chain(first).collect();
        let mut found = self.look_in(io, &units, self.node_room(), u64::MAX).await?;
        if found.iter().map(|(known, _)| known).sum::<u64>() < needed && self.space.take_over() {
            found = self.look_in(io, &units, self.node_room(), u64::MAX).await?;
        }
        Ok(self.keep_best(found, FORMER_UNITS))
    }

    /// Sees to it that so many places for nodes as the next checkpoints need are known to be given, and stay so; as far as the store gives some.
    pub(crate) async fn refill_node_places(&self, io: &Io) -> Result<()> {
        if !self.room.untold || self.stopping.load(Ordering::SeqCst) {
            return Ok(());
        }
        let room = self.node_room();
        if self.space.known_to_nodes() < room || self.is_store_short() {
            let _reserving = self.reserving.lock().await;
            if !self.journal_is_tight() {
                let units = self.space.choose_for_nodes(room, self.space.room_for_nodes(MAX_UNITS));
                self.keep_units(io, &units).await?;
            }
            self.fill_node_places(io).await;
            let lacking = room.saturating_sub(self.space.known_to_nodes());
            if lacking > 0 {
                self.search(io, lacking, SOME_READ, self.space.room_for_nodes(MAX_UNITS)).await?;
            }
        }
        self.count_node_places();
        Ok(())
    }

    /// The same for a session that begins, in the units that it has.
    pub(crate) async fn begin_node_places(&self, io: &Io) {
        if self.room.untold {
            self.fill_node_places(io).await;
            self.count_node_places();
            // The maintenance job looks elsewhere: that takes its time, and a record in the journal.
            self.room.unsearched.store(true, Ordering::SeqCst);
        }
    }

    fn count_node_places(&self) {
        self.room.node_places.store(self.space.known_to_nodes(), Ordering::SeqCst);
    }

    /// Writes to places of nodes that nothing is known of, until there are enough, or the store refuses. Behind a refusal, to one at least: when that
    /// is not refused either, the store has room again.
    async fn fill_node_places(&self, io: &Io) {
        let mut lacking = self.node_room().saturating_sub(self.space.known_to_nodes());
        lacking = lacking.max(u64::from(self.is_store_short()));
        while lacking > 0 {
            let writing = self.space.begin_write();
            let Some(run) = self.space.take_unknown(lacking.min(AT_ONCE as u64)) else { return };
            let filled = fill(io, self.random.as_ref(), run.clone()).await;
            if filled.is_ok() {
                run.clone().for_each(|block| self.space.note_given(block, true));
            }
            lacking -= run.end - run.start;
            self.space.give_back(run);
            drop(writing);
            if let Err(error) = filled {
                self.room.is_short.fetch_or(error.kind() == Kind::NoSpace, Ordering::SeqCst);
                return;
            }
        }
        self.room.is_short.store(false, Ordering::SeqCst);
    }

    /// Looks for places that the store has given, until there are `want`, in all units that could be reserved; reserves the best ones for nodes,
    /// `most` of them. Says whether there were any. The caller has `reserving`.
    async fn search(&self, io: &Io, want: u64, most_read: u64, most: usize) -> Result<bool> {
        if self.journal_is_tight() || most == 0 {
            return Ok(false);
        }
        let found = self.look_in(io, &self.space.to_search(), want, most_read).await?;
        let units = self.keep_best(found, most);
        self.keep_units(io, &units).await?;
        Ok(!units.is_empty())
    }

    /// Another place for a node that the store has refused so many for.
    pub(crate) async fn place_on_untold(&self, io: &Io, refused: usize) -> Result<Option<u64>> {
        if let Some(place) = self.space.take_known_place() {
            return Ok(Some(place));
        }
        let reserving = self.reserving.lock().await;
        // Those of a predecessor as well: without this checkpoint nothing comes back.
        self.space.take_over();
        if self.search(io, MOST_TRIES as u64, MOST_READ, self.space.room(MAX_UNITS)).await?
            && let Some(place) = self.space.take_known_place()
        {
            return Ok(Some(place));
        }
        drop(reserving);
        // It may have got room meanwhile, anywhere.
        Ok(if refused < MOST_TRIES { self.take_node_place() } else { None })
    }

    async fn keep_units(&self, io: &Io, units: &[u32]) -> Result<()> {
        if !units.is_empty() {
            self.reserve_units(io, units).await?;
            self.space.activate(units);
        }
        Ok(())
    }

    /// Keeps those units for nodes in which the most was found, `most` of them.
    fn keep_best(&self, mut found: Vec<(u64, u32)>, most: usize) -> Vec<u32> {
        found.sort_unstable_by_key(|(known, unit)| (Reverse(*known), *unit));
        let units: Vec<u32> = found.iter().take(most).map(|(_, unit)| *unit).collect();
        self.space.keep_for_nodes(&units);
        // Nothing is taken from the others.
        found.iter().skip(most).for_each(|(_, unit)| self.space.unload(*unit));
        units
    }

    /// Reads what is free in these units, of those that could be reserved, until `want` places were found that the store has given, or so much was
    /// read; how many there are in each. Views of units without any leave memory.
    async fn look_in(&self, io: &Io, units: &[u32], want: u64, most_read: u64) -> Result<Vec<(u64, u32)>> {
        let (mut found, mut sum, mut read, mut seen) = (Vec::new(), 0, 0, BTreeSet::new());
        for unit in units {
            if sum >= want || read >= most_read {
                break;
            }
            if !self.space.is_open(*unit) || !seen.insert(*unit) {
                continue;
            }
            let was_there = self.space.is_resident(*unit);
            self.load_units(io, &[*unit]).await?;
            let unknown = self.space.unknown(*unit);
            read += unknown.iter().map(|run| run.end - run.start).sum::<u64>();
            let parts = futures::stream::iter(unknown.into_iter().flat_map(parts));
            parts.for_each_concurrent(READS, |blocks| self.look_at(io, blocks)).await;
            self.space.searched(*unit);
            let known = self.space.known_in(*unit);
            if known > 0 {
                found.push((known, *unit));
                sum += known;
            } else if !was_there {
                self.space.unload(*unit);
            }
        }
        Ok(found)
    }

    /// Notes which of these blocks hold something. What cannot be read is not known to be given.
    async fn look_at(&self, io: &Io, blocks: Range<u64>) {
        let Ok(buffer) = io.read(blocks.start, length(&blocks)).await else { return };
        let mut bytes = vec![0; buffer.len()];
        buffer.copy_to(0, &mut bytes);
        for (block, content) in blocks.zip(bytes.chunks(store::BLOCK_SIZE)) {
            if content.iter().any(|byte| *byte != 0) {
                self.space.note_given(block, true);
            }
        }
    }
}

fn parts(run: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = run.end;
    run.step_by(AT_ONCE).map(move |at| at..end.min(at + AT_ONCE as u64))
}

/// Of one part.
fn length(part: &Range<u64>) -> usize {
    usize::try_from(part.end - part.start).unwrap_or(AT_ONCE)
}

/// Writes something to free blocks that is not zeros, and looks like everything else.
async fn fill(io: &Io, random: &dyn Random, blocks: Range<u64>) -> Result<()> {
    let mut buffer = io.buffer(length(&blocks));
    let mut bytes = vec![0; buffer.len()];
    random.fill(&mut bytes);
    buffer.copy_from(0, &bytes);
    io.write(blocks.start, buffer).await
}
