//! A store that gives space as it is written to, and has none left: what has to wait for it, and what need not.
//!
//! Invariants:
//! 1. A write of a user that finds no room fails as `NoSpace`, and the session goes on. While the store has little left, no write completes
//!    before the store has it; one that had completed before waits for room.
//! 2. Journal, bitmap and superblocks have fixed places, which the store was asked for when the volume was made, and again at each attach.
//! 3. For the nodes of the next checkpoint the store is asked before there is a need, up to 16 MiB: what is discarded comes back by a
//!    checkpoint only. A node that finds no room goes to another place, which the store has given before, wherever it lies. When there is
//!    none, it waits.
//! 4. Where the store can tell what it has given, no write leaves the next checkpoint with fewer such places than it needs.

use std::ops::Range;
use std::sync::atomic::Ordering;

use store::Buffer;

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::protections::Provision;
use crate::format::superblock::MAX_UNITS;
use crate::geometry::Geometry;
use crate::io::Io;
use crate::space::Purpose;

/// With less than this left, writes wait for the store: 256 MiB. More than a fast disk takes from one look to the next.
const LITTLE: u64 = 256 << 20;

/// Asks the store for all places of a volume that never move, as far as it can give them.
pub(crate) fn allocate_fixed(
    store: &dyn store::Store,
    geometry: &Geometry,
) -> std::result::Result<(), store::Error> {
    if geometry.physical_blocks - geometry.data_blocks() > FIXED_ROOM {
        return Ok(());
    }
    let mut from = 0;
    for data in geometry.data() {
        store.allocate_range(from..data.start)?;
        from = data.end;
    }
    Ok(())
}

/// Most blocks that the store is asked for ahead for nodes, and most runs of them.
const NODE_ROOM: u64 = 4096;
const NODE_RUNS: usize = 256;
/// Most places that are tried for one node of those that the store says it has given. A file system that never overwrites in place says so of
/// each.
const MOST_TRIES: usize = 256;
/// Most blocks of fixed places that the store is asked for: 64 MiB. A volume of a terabyte that holds nothing must not take a part of it.
const FIXED_ROOM: u64 = 16_384;

fn no_places() -> Error {
    Error::new(
        Kind::NoSpace,
        "the store has no room left but for the volume's own map; make room where it lies, or discard something, and writes go on",
    )
}

impl Core {
    /// Blocks that a thin volume has the store give ahead for nodes; none for another, whose store has given everything.
    pub(crate) fn node_room(&self) -> u64 {
        match self.header.provision {
            Provision::Thin => self.geometry.most_nodes_of(self.limits.overlay).min(NODE_ROOM),
            Provision::Full => 0,
        }
    }

    /// Chooses units for data until they have `want` free blocks, `most` at most. On a store that has little left, first those in which it has
    /// given places already.
    pub(crate) fn choose_for_data(&self, want: u64, most: usize) -> Vec<u32> {
        let given = if self.is_store_short() { self.given_places() } else { None };
        let units = given.map(|given| self.space.choose_given(Purpose::Data, &given, want, most));
        units.filter(|units| !units.is_empty()).unwrap_or_else(|| self.space.choose(want, most))
    }

    /// Free places of nodes that the store has given, as far as that is a matter.
    fn node_places(&self) -> u64 {
        if self.is_store_short() && !self.is_transactional() {
            self.node_places.load(Ordering::SeqCst)
        } else {
            u64::MAX
        }
    }

    /// A checkpoint begins to use them. What it replaces comes back when it has ended.
    pub(crate) fn spend_node_places(&self) {
        let nodes = self.geometry.most_nodes_of(self.overlay.active());
        let spend = |places: u64| (places < u64::MAX).then(|| places.saturating_sub(nodes));
        // Nothing to spend is no failure.
        let _ = self.node_places.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend);
    }

    /// Whether a checkpoint of what is in memory and so many changes more leaves a quarter of the places of its nodes alone.
    fn leaves_node_places(&self, changes: u64) -> bool {
        let nodes = self.geometry.most_nodes_of(self.overlay.active() + changes);
        nodes.saturating_add(self.node_room() / 4) <= self.node_places()
    }

    /// Waits until a write of so many blocks leaves the places alone that a checkpoint will need for its nodes, where the store may give no
    /// others.
    ///
    /// # Errors
    /// `NoSpace` when no checkpoint can help, and the store has none to give.
    pub(crate) async fn keep_node_places(&self, blocks: u64) -> Result<()> {
        let (mut asked, waits) = (None, self.counters.waits_for_store.get());
        while !self.leaves_node_places(blocks) {
            let progress = self.progress.listen();
            // Behind the listener: what has come in between tells nobody again.
            if self.leaves_node_places(blocks) {
                break;
            }
            self.check_alive()?;
            self.counters.waits_for_checkpoint.add(1);
            if self.overlay.active() > 0 {
                self.want_checkpoint();
            } else if !self.checkpointing.load(Ordering::SeqCst) {
                let number =
                    *asked.get_or_insert_with(|| self.node_places_wanted.fetch_add(1, Ordering::SeqCst) + 1);
                self.work.notify(usize::MAX);
                if self.node_places_sought.load(Ordering::SeqCst) >= number {
                    return if self.leaves_node_places(blocks) { Ok(()) } else { Err(no_places()) };
                }
            }
            // The checkpoint itself has found no room.
            if self.counters.waits_for_store.get() > waits {
                return Err(no_places());
            }
            progress.await;
        }
        Ok(())
    }

    /// Looks for more places for nodes, if a writer has asked for some. For the maintenance job.
    pub(crate) async fn seek_node_places(&self, io: &Io) -> Result<()> {
        let wanted = self.node_places_wanted.load(Ordering::SeqCst);
        if self.node_places_sought.load(Ordering::SeqCst) == wanted {
            return Ok(());
        }
        self.ask_node_room();
        if self.node_places() < self.node_room()
            && let Some(given) = self.given_places()
            && self.reserve_for_node(io, Some(&given)).await?
        {
            self.ask_node_room();
        }
        self.node_places_sought.store(wanted, Ordering::SeqCst);
        self.progress.notify(usize::MAX);
        Ok(())
    }

    /// Asks the store for the places of the next nodes, as far as it can give them.
    pub(crate) fn ask_node_room(&self) {
        let most = self.node_room();
        if most == 0 {
            return;
        }
        for run in self.space.free_for_nodes(most, NODE_RUNS) {
            // What it cannot give now may be there when it is needed.
            if self.environment.store.allocate_range(run).is_err() {
                break;
            }
        }
        let given = if self.is_store_short() { self.given_places() } else { None };
        let places = given.map_or(u64::MAX, |given| self.space.given_to_nodes(&given));
        self.node_places.store(places, Ordering::SeqCst);
    }

    /// Looks how much the store has left.
    pub(crate) fn look_at_store(&self) {
        if self.header.provision == Provision::Thin
            && !self.read_only
            && let Some(usage) = self.environment.store.usage()
        {
            let short = usage.left < LITTLE;
            let was = self.store_is_short.swap(short, Ordering::SeqCst);
            if short && !was && self.begun.load(Ordering::SeqCst) {
                self.ask_node_room();
            }
        }
    }

    /// Whether a write could find no room.
    pub(crate) fn is_store_short(&self) -> bool {
        self.store_is_short.load(Ordering::SeqCst)
    }

    /// A write has found room, or none.
    pub(crate) fn note_room(&self, result: &Result<()>) {
        match result {
            Err(error) if error.kind() == Kind::NoSpace => {
                self.store_is_short.store(true, Ordering::SeqCst);
                // What was discarded comes back by a checkpoint only.
                if self.freed_by_a_checkpoint() > 0 {
                    self.want_checkpoint();
                }
            }
            Ok(()) if self.is_store_short() && self.environment.store.usage().is_none() => {
                self.store_is_short.store(false, Ordering::SeqCst);
            }
            _ => {}
        }
    }

    /// Waits for a moment at which it makes sense to try again what failed for want of room; `error` if there is none.
    pub(crate) async fn wait_for_store(&self, error: Error) -> Result<()> {
        let ticked = self.ticked.listen();
        // Before the other reasons: in a session's last commit that there is no room says more than that the session ends.
        if self.stopping.load(Ordering::SeqCst) || !self.begun.load(Ordering::SeqCst) {
            return Err(error);
        }
        self.check_alive()?;
        self.counters.waits_for_store.add(1);
        // Writers that wait for a checkpoint wait no longer for one that waits itself.
        self.progress.notify(usize::MAX);
        ticked.await;
        Ok(())
    }

    /// Writes what can go nowhere else: waits while the store has no room.
    pub(crate) async fn write_fixed(&self, io: &Io, place: u64, buffer: Buffer) -> Result<()> {
        let mut ended = io.try_write(place, buffer).await;
        loop {
            self.note_room(&ended.1);
            match ended {
                (Some(buffer), Err(error)) if error.kind() == Kind::NoSpace => {
                    self.wait_for_store(error).await?;
                    ended = io.try_write(place, buffer).await;
                }
                (_, result) => return result,
            }
        }
    }

    /// The places of data and nodes that the store has given already, if it can tell.
    fn given_places(&self) -> Option<Vec<Range<u64>>> {
        let parts = self.geometry.data().map(|data| self.environment.store.given(data));
        parts.collect::<Option<Vec<_>>>().map(|parts| parts.concat())
    }

    /// A free place that the store has given before, or gives now; the others that were tried are in `refused`, and taken. Where the store can
    /// tell what it has given, only that is tried; elsewhere, whatever can be reserved.
    async fn place_with_room(&self, io: &Io, refused: &mut Vec<u64>) -> Result<Option<u64>> {
        let given = self.given_places();
        loop {
            // Behind so many that were refused, its word is worth nothing.
            let given = given.as_deref().filter(|_| refused.len() < MOST_TRIES);
            let next = match given {
                // The store is not asked again: a full XFS refuses to reserve what it has given.
                Some(given) => self.space.take_given_place(given),
                None => self.take_place_with_room(refused),
            };
            if next.is_some() || !self.reserve_for_node(io, given).await? {
                return Ok(next);
            }
        }
    }

    /// A free place that may be written to, and that the store gives now; those that it refuses are in `refused`.
    fn take_place_with_room(&self, refused: &mut Vec<u64>) -> Option<u64> {
        while let Some(next) = self.take_node_place() {
            match self.environment.store.allocate_range(next..next + 1) {
                Err(error) if error.kind == store::ErrorKind::NoSpace => refused.push(next),
                _ => return Some(next),
            }
        }
        None
    }

    /// Reserves more units for nodes. Says whether there were any.
    async fn reserve_for_node(&self, io: &Io, given: Option<&[Range<u64>]>) -> Result<bool> {
        let _reserving = self.reserving.lock().await;
        // Those of a predecessor as well, which the store was asked for: without this checkpoint nothing comes back.
        self.space.take_over();
        if self.journal_is_tight() {
            return Ok(false);
        }
        let Some(given) = given else { return self.reserve(io, MAX_UNITS).await };
        let units =
            self.space.choose_given(Purpose::Nodes, given, MOST_TRIES as u64, self.space.room(MAX_UNITS));
        if units.is_empty() {
            return Ok(false);
        }
        self.reserve_units(io, &units).await?;
        self.space.activate(&units);
        Ok(true)
    }

    /// Writes a node to `first`, or to another place that is free; where it stands then.
    pub(crate) async fn write_node(&self, io: &Io, first: u64, buffer: Buffer) -> Result<u64> {
        let (mut place, mut refused) = (first, Vec::new());
        let mut ended = io.try_write(place, buffer).await;
        let result = loop {
            self.note_room(&ended.1);
            let (Some(buffer), Err(error)) = ended else { break ended.1 };
            if error.kind() != Kind::NoSpace {
                break Err(error);
            }
            match self.place_with_room(io, &mut refused).await {
                Ok(Some(next)) => refused.push(std::mem::replace(&mut place, next)),
                Ok(None) => {
                    // Others need these, and one of them may have room next time.
                    self.space.give_node_places_back(&refused);
                    refused.clear();
                    if let Err(error) = self.wait_for_store(error).await {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
            ended = io.try_write(place, buffer).await;
        };
        self.space.give_node_places_back(&refused);
        result.map(|()| place)
    }
}
