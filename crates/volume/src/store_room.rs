//! A store that gives space as it is written to, and has none left: what has to wait for it, and what need not.
//!
//! Invariants:
//! 1. A write of a user that finds no room fails as `NoSpace`, and the session goes on. While the store has little left, no write completes
//!    before the store has it; one that had completed before waits for room.
//! 2. Journal, bitmap and superblocks have fixed places, which the store was asked for when the volume was made, and again at each attach.
//! 3. For the nodes of the next checkpoint the store is asked before there is a need, up to 16 MiB: what is discarded comes back by a
//!    checkpoint only. A node that finds no room goes to another place, which the store may have given before. When there is none, it waits.

use std::sync::atomic::Ordering;

use store::Buffer;

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::protections::Provision;
use crate::format::superblock::MAX_UNITS;
use crate::geometry::Geometry;
use crate::io::Io;

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
/// Most blocks of fixed places that the store is asked for: 64 MiB. A volume of a terabyte that holds nothing must not take a part of it.
const FIXED_ROOM: u64 = 16_384;

impl Core {
    /// Blocks that a thin volume has the store give ahead for nodes; none for another, whose store has given everything.
    pub(crate) fn node_room(&self) -> u64 {
        match self.header.provision {
            Provision::Thin => self.geometry.most_nodes_of(self.limits.overlay).min(NODE_ROOM),
            Provision::Full => 0,
        }
    }

    /// Asks the store for the places of the next nodes, as far as it can give them.
    pub(crate) fn ask_node_room(&self) {
        let most = self.node_room();
        let runs = if most > 0 { self.space.free_for_nodes(most, NODE_RUNS) } else { Vec::new() };
        for run in runs {
            // What it cannot give now may be there when it is needed.
            if self.environment.store.allocate_range(run).is_err() {
                return;
            }
        }
    }

    /// Looks how much the store has left.
    pub(crate) fn look_at_store(&self) {
        if self.header.provision == Provision::Thin
            && !self.read_only
            && let Some(usage) = self.environment.store.usage()
        {
            self.store_is_short.store(usage.left < LITTLE, Ordering::SeqCst);
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
                self.want_checkpoint();
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

    /// A free place that the store has given before, or gives now; the others that were tried are in `refused`, and taken.
    async fn place_with_room(&self, io: &Io, refused: &mut Vec<u64>) -> Result<Option<u64>> {
        loop {
            while let Some(next) = self.take_node_place() {
                match self.environment.store.allocate_range(next..next + 1) {
                    Err(error) if error.kind == store::ErrorKind::NoSpace => refused.push(next),
                    _ => return Ok(Some(next)),
                }
            }
            // Those of a predecessor first, which the store was asked for: without this checkpoint nothing comes back.
            let _reserving = self.reserving.lock().await;
            self.space.take_over();
            if self.journal_is_tight() || !self.reserve(io, MAX_UNITS).await? {
                return Ok(None);
            }
        }
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
                    refused.drain(..).for_each(|place| self.space.give_node_place_back(place));
                    if let Err(error) = self.wait_for_store(error).await {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
            ended = io.try_write(place, buffer).await;
        };
        refused.into_iter().for_each(|place| self.space.give_node_place_back(place));
        result.map(|()| place)
    }
}
