//! Places for the nodes of the next checkpoint, on a store that has little room left. Users must not take them: what they discard comes back by a
//! checkpoint only, and one that has no place for its nodes never ends.
//!
//! Invariants:
//! 1. The store is asked for these places before there is a need ([`Geometry::node_room`](crate::geometry::Geometry::node_room)).
//! 2. Where it can tell what it has given, no change leaves the next checkpoint with fewer such places than it needs. Each change counts from
//!    its claim on: as claimed, as promised (see `admission.rs`), and in the overlay.
//! 3. Writes leave a quarter of the places alone. A discard needs nodes, too: each leaf that it leaves a part of is written again. One that
//!    does not fit waits for a checkpoint, and is let in when nothing else waits for it.

use std::sync::atomic::Ordering;

use futures::FutureExt;

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::superblock::MAX_UNITS;
use crate::io::Io;
use crate::space::Purpose;

/// Most runs of blocks that the store is asked for ahead for nodes.
const NODE_RUNS: usize = 256;
/// Blocks that others may have taken before the store is looked at again (64 MiB): only what it has left beyond counts for nodes.
const MARGIN: u64 = 16_384;
fn no_places() -> Error {
    Error::new(
        Kind::NoSpace,
        "the store has little room left, which is kept for the volume's own map; make room where it lies, or discard something, and writes go on",
    )
}

/// What may use up the places of nodes: writes only as far as some are left for discards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    Writes,
    Discard,
}

/// Changes that have places for their nodes, until they are promised.
pub(crate) struct NodeClaim<'a> {
    core: &'a Core,
    changes: u64,
}

impl Drop for NodeClaim<'_> {
    fn drop(&mut self) {
        if self.changes == 0 {
            return;
        }
        self.core.room.claims.fetch_sub(self.changes, Ordering::SeqCst);
        self.core.progress.notify(usize::MAX);
    }
}

impl Core {
    pub(crate) fn node_room(&self) -> u64 {
        self.limits.node_room
    }

    /// Places for nodes that the store has given, or has left, as far as that is a matter.
    fn node_places(&self) -> u64 {
        if !self.is_store_short() || self.is_transactional() {
            return u64::MAX;
        }
        let left = self.room.left.load(Ordering::SeqCst).saturating_sub(MARGIN);
        self.room.node_places.load(Ordering::SeqCst).saturating_add(left)
    }

    /// Nodes that the next checkpoint makes at most, with so many claims.
    pub(crate) fn nodes_with(&self, claims: u64) -> u64 {
        // In the order in which changes go their way: one that moves on meanwhile counts twice.
        let promised = self.promised.load(Ordering::SeqCst);
        self.geometry.most_nodes_of(claims + promised + self.overlay.touched())
    }

    /// A checkpoint begins to use them. What it replaces comes back when it has ended.
    pub(crate) fn spend_node_places(&self) {
        let nodes = self.nodes_with(self.room.claims.load(Ordering::SeqCst));
        let spend = |places: u64| (places < u64::MAX).then(|| places.saturating_sub(nodes));
        // Nothing to spend is no failure.
        let _ = self.room.node_places.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend);
    }

    /// Claims places for the nodes that so many changes need.
    fn claim_nodes(&self, changes: u64, of: Changes) -> Option<NodeClaim<'_>> {
        let places = self.node_places();
        if places == u64::MAX {
            return Some(NodeClaim { core: self, changes: 0 });
        }
        let kept = if of == Changes::Writes { self.node_room() / 4 } else { 0 };
        let claim = |claims: u64| {
            let alone = of == Changes::Discard && self.nodes_with(claims) == 0;
            let fits = self.nodes_with(claims + changes).saturating_add(kept) <= places;
            (fits || alone).then_some(claims + changes)
        };
        self.room.claims.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).ok()?;
        Some(NodeClaim { core: self, changes })
    }

    /// Waits until so many changes leave the places alone that a checkpoint will need for its nodes, where the store may give no others. They
    /// are the caller's until the changes are promised.
    ///
    /// # Errors
    /// `NoSpace` when no checkpoint can help, and the store has none to give.
    pub(crate) async fn keep_node_places(&self, changes: u64, of: Changes) -> Result<NodeClaim<'_>> {
        match self.claim_nodes(changes, of) {
            Some(claim) => Ok(claim),
            None => self.wait_for_node_places(changes, of).boxed_local().await,
        }
    }

    async fn wait_for_node_places(&self, changes: u64, of: Changes) -> Result<NodeClaim<'_>> {
        let (mut asked, waits) = (None, self.room.waits.load(Ordering::SeqCst));
        loop {
            let (progress, ticked) = (self.progress.listen(), self.ticked.listen());
            // Behind the listeners: what has come in between tells nobody again.
            if let Some(claim) = self.claim_nodes(changes, of) {
                return Ok(claim);
            }
            self.check_alive()?;
            self.counters.waits_for_checkpoint.add(1);
            if self.overlay.active() > 0 {
                self.want_checkpoint();
            } else if !self.checkpointing.load(Ordering::SeqCst)
                && self.nodes_with(self.room.claims.load(Ordering::SeqCst)) == 0
            {
                let number =
                    *asked.get_or_insert_with(|| self.room.wanted.fetch_add(1, Ordering::SeqCst) + 1);
                self.work.notify(usize::MAX);
                if self.room.sought.load(Ordering::SeqCst) >= number {
                    return self.claim_nodes(changes, of).ok_or_else(no_places);
                }
            }
            // The checkpoint itself has found no room.
            if self.room.waits.load(Ordering::SeqCst) > waits {
                return Err(no_places());
            }
            // A change that others were let in with tells nobody when it is in the overlay, nor does a store that has more left.
            futures::future::select(progress, ticked).await;
        }
    }

    /// Looks for more places for nodes, if a writer has asked for some, or a session begins on a store that cannot tell. For the maintenance job.
    pub(crate) async fn seek_node_places(&self, io: &Io) -> Result<()> {
        if self.room.unsearched.swap(false, Ordering::SeqCst) {
            self.refill_node_places(io).await?;
        }
        let wanted = self.room.wanted.load(Ordering::SeqCst);
        if self.room.sought.load(Ordering::SeqCst) == wanted {
            return Ok(());
        }
        // What a checkpoint has replaced may be waiting for a reader only.
        self.space.drain().await;
        self.ask_node_room();
        self.refill_node_places(io).await?;
        if self.room.untold && self.space.known_to_nodes() < self.node_room() && self.space.take_over() {
            self.refill_node_places(io).await?;
        }
        let most = self.space.room_for_nodes(MAX_UNITS);
        if self.node_places() < 2 * self.node_room()
            && let Some(given) = self.given_places()
            && self.reserve_for_node(io, Some(&given), self.node_room(), most).await?
        {
            self.ask_node_room();
        }
        if self.node_places() < self.node_room() / 2
            && let Some(given) = self.given_places()
            && self.space.give_data_units_to_nodes(&given, self.node_room() / 2)
        {
            self.ask_node_room();
        }
        self.room.sought.store(wanted, Ordering::SeqCst);
        self.progress.notify(usize::MAX);
        Ok(())
    }

    /// Asks the store for the places of the next nodes, as far as it can give them.
    pub(crate) fn ask_node_room(&self) {
        let most = self.node_room();
        // What a store that cannot tell has given is seen to elsewhere (`untold.rs`).
        if most == 0 || self.room.untold {
            return;
        }
        self.room.is_asked.store(self.is_store_short(), Ordering::SeqCst);
        for run in self.space.free_for_nodes(most, NODE_RUNS) {
            // What it cannot give now may be there when it is needed.
            if self.environment.store.allocate_range(run).is_err() {
                break;
            }
        }
        self.forget_given();
        let given = if self.is_store_short() { self.given_places() } else { None };
        self.space.prefer(given.as_deref().map(Vec::as_slice));
        let places = given.map_or(u64::MAX, |given| self.space.given_to_nodes(&given));
        self.room.node_places.store(places, Ordering::SeqCst);
        self.ask_data_room();
    }

    /// Chooses units for nodes until they have `want` free blocks, `most` at most; on a store that has little left, those in which it has given
    /// most.
    pub(crate) fn choose_for_nodes(&self, want: u64, most: usize) -> Vec<u32> {
        let given = if self.is_store_short() { self.given_places() } else { None };
        let Some(given) = given else { return self.space.choose_for_nodes(want, most) };
        match want.saturating_sub(self.space.given_to_nodes(&given)) {
            0 => Vec::new(),
            lacking => match self.space.choose_given(Purpose::Nodes, &given, lacking, most) {
                units if units.is_empty() => self.space.choose_for_nodes(want, most),
                units => units,
            },
        }
    }
}
