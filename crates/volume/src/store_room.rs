//! A store that gives space as it is written to, and has none left: what has to wait for it, and what need not.
//!
//! Invariants:
//! 1. A write of a user that finds no room fails as `NoSpace`, and the session goes on. While the store has little left, or cannot say what it
//!    has left (`untold.rs`), no write completes before the store has it; one that had completed before waits for room.
//! 2. Journal, bitmap and superblocks have fixed places. The store is asked for them when the volume is made and at each attach, if they are
//!    few; for all of them when it begins to have little left.
//! 3. A node that finds no room goes to another place, which the store has given before, wherever it lies. When there is none, it waits.
//! 4. Data goes to places that the store has given, as long as there are some (`space/given.rs`). What nodes need, `node_room.rs` keeps.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
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

/// Asks the store for all places of a volume that never move, as far as it can give them, if they are no more than it is asked for ahead.
pub(crate) fn allocate_fixed(
    store: &dyn store::Store,
    geometry: &Geometry,
) -> std::result::Result<(), store::Error> {
    fixed_places(geometry, FIXED_ROOM).into_iter().try_for_each(|run| store.allocate_range(run))
}

/// The places of a volume that never move; none where they are more than `most`.
pub(crate) fn fixed_places(geometry: &Geometry, most: u64) -> Vec<Range<u64>> {
    if geometry.physical_blocks - geometry.data_blocks() > most {
        return Vec::new();
    }
    let from = std::iter::once(0).chain(geometry.data().map(|data| data.end));
    from.zip(geometry.data()).map(|(from, data)| from..data.start).collect()
}

/// Most places that are tried for one node of those that the store says it has given. A file system that never overwrites in place says so of
/// each.
pub(crate) const MOST_TRIES: usize = 256;
/// Most blocks of fixed places that a store is asked for: 64 MiB. A terabyte that holds nothing must not take a part of its host's file system.
const FIXED_ROOM: u64 = 16_384;
/// The same where it cannot say what it has left, so that nothing warns of its end: 512 MiB, those of a volume of 2 TiB.
pub(crate) const UNTOLD_FIXED_ROOM: u64 = 131_072;
/// Blocks of such places that it is asked for at a time when it has little left: 4 MiB.
const PART: usize = 1024;

/// Asks the store for the same, however much it is, and for each part of it alone, since there may not be room for all.
fn allocate_scarce(store: &dyn store::Store, geometry: &Geometry) {
    for run in fixed_places(geometry, u64::MAX) {
        let (end, parts) = (run.end, run.step_by(PART));
        // What it cannot give now may be there when it is needed.
        let given = |at: u64| store.allocate_range(at..end.min(at + PART as u64)).is_ok();
        if !parts.into_iter().all(given) {
            return;
        }
    }
}

/// What is known of the store's room.
pub(crate) struct StoreRoom {
    /// It is a thin volume's, and cannot say what it has left: see `untold.rs`.
    pub(crate) untold: bool,
    /// A session has begun on such a store, and has not looked yet whether it has as many places for nodes as it needs.
    pub(crate) unsearched: AtomicBool,
    /// Whether the store has little left, or none.
    pub(crate) is_short: AtomicBool,
    /// Whether it was asked for all places that never move since it has little.
    pub(crate) is_fixed: AtomicBool,
    /// Blocks that it had left at the last look; what follows matters only while it has little.
    pub(crate) left: AtomicU64,
    /// Which places it has given, as of the last look.
    pub(crate) given: Mutex<Option<Arc<Vec<Range<u64>>>>>,
    /// Free places of nodes that it has given; `u64::MAX` where it cannot tell.
    pub(crate) node_places: AtomicU64,
    /// Whether it was asked for places since it has little.
    pub(crate) is_asked: AtomicBool,
    /// Changes that have places for their nodes, and are not promised yet.
    pub(crate) claims: AtomicU64,
    /// Blocks that the store has room for, less what was let in since they were counted; `u64::MAX` where that is no matter: see `data_room.rs`.
    pub(crate) data: AtomicU64,
    /// Whether the store may have more since they were counted.
    pub(crate) unseen: AtomicBool,
    /// When new data was last refused to keep room for overwrites, in milliseconds by the session's clock.
    pub(crate) refused_at: AtomicU64,
    /// How often writers have asked the maintenance job for more places, and up to which it has looked.
    pub(crate) wanted: AtomicU64,
    pub(crate) sought: AtomicU64,
    /// How often a checkpoint has waited for room.
    pub(crate) waits: AtomicU64,
    /// What waits for room now.
    waiting: Mutex<Waiting>,
    /// Nobody is to wait any longer.
    given_up: AtomicBool,
}

/// Jobs that wait for the store to have room.
#[derive(Default)]
struct Waiting {
    jobs: u64,
    /// By the session's clock, when the first of them began.
    since: Duration,
    /// What the store said to the last one.
    error: String,
}

/// A session that waits for its store to have room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct WaitsForRoom {
    /// Since so many seconds.
    pub seconds: u64,
    /// What the store says.
    pub error: String,
}

/// A job that waits, from the first refusal to its end.
pub(crate) struct RoomWait<'a>(&'a Core);

impl Drop for RoomWait<'_> {
    fn drop(&mut self) {
        self.0.room.waiting().jobs -= 1;
    }
}

impl StoreRoom {
    pub(crate) fn new(untold: bool) -> Self {
        Self {
            untold,
            unsearched: AtomicBool::default(),
            is_short: AtomicBool::default(),
            is_fixed: AtomicBool::default(),
            left: AtomicU64::default(),
            given: Mutex::default(),
            node_places: AtomicU64::new(u64::MAX),
            is_asked: AtomicBool::default(),
            claims: AtomicU64::default(),
            data: AtomicU64::new(u64::MAX),
            unseen: AtomicBool::default(),
            refused_at: AtomicU64::default(),
            wanted: AtomicU64::default(),
            sought: AtomicU64::default(),
            waits: AtomicU64::default(),
            waiting: Mutex::default(),
            given_up: AtomicBool::default(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Chooses units for data until they have `want` free blocks, `most` at most. On a store that has little left, first those in which it has
    /// given places already; none while data has such places left in the units that it has.
    pub(crate) fn choose_for_data(&self, want: u64, most: usize) -> Vec<u32> {
        let given = if self.is_store_short() { self.given_places() } else { None };
        let prefers = self.space.prefer(given.as_deref().map(Vec::as_slice));
        match given.filter(|_| prefers) {
            Some(given) => self.space.choose_given(Purpose::Data, &given, want, most),
            None => self.space.choose(want, most),
        }
    }

    /// Why nothing can be asked of the store any more: its host has been silent for too long, is gone, or has said what can't be.
    pub(crate) fn store_ended(&self) -> Option<Error> {
        let store = &self.environment.store;
        store.ended().map(|reason| Error::new(Kind::Io, format!("{}: {reason}", store.name())))
    }

    /// Looks how much the store has left.
    pub(crate) fn look_at_store(&self) {
        let matters = self.header.provision == Provision::Thin || self.is_store_short();
        if self.read_only || !matters {
            return;
        }
        self.forget_given();
        self.room.unseen.store(true, Ordering::SeqCst);
        let Some(usage) = self.environment.store.usage() else { return };
        self.room.left.store(usage.left / store::BLOCK_SIZE as u64, Ordering::SeqCst);
        self.discards.note_left(usage.left, self.environment.clock.now());
        let short = usage.left < LITTLE;
        if short && self.header.provision == Provision::Thin {
            self.room.is_short.store(true, Ordering::SeqCst);
            if !self.room.is_fixed.swap(true, Ordering::SeqCst) {
                // A journal that waits for room would have all flushes wait, and what is discarded.
                allocate_scarce(self.environment.store.as_ref(), &self.geometry);
            }
        } else if !short {
            self.room.is_short.store(false, Ordering::SeqCst);
            self.room.is_asked.store(false, Ordering::SeqCst);
            self.room.is_fixed.store(false, Ordering::SeqCst);
        }
        if self.is_store_short()
            && self.begun.load(Ordering::SeqCst)
            && !self.room.is_asked.load(Ordering::SeqCst)
        {
            self.ask_node_room();
        }
    }

    /// Whether a write could find no room.
    pub(crate) fn is_store_short(&self) -> bool {
        self.room.is_short.load(Ordering::SeqCst)
    }

    /// Whether a write may complete only when the store has it: what it had no room for could not be kept.
    pub(crate) fn must_wait_for_store(&self) -> bool {
        self.room.untold || self.is_store_short()
    }

    /// A write has found room, or none.
    pub(crate) fn note_room(&self, result: &Result<()>) {
        match result {
            Err(error) if error.kind() == Kind::NoSpace => {
                self.room.is_short.store(true, Ordering::SeqCst);
                // What was discarded comes back by a checkpoint only.
                if self.freed_by_a_checkpoint() > 0 {
                    self.want_checkpoint();
                }
            }
            // One place with room may be the last (`untold.rs`).
            Ok(())
                if self.is_store_short() && !self.room.untold && self.environment.store.usage().is_none() =>
            {
                self.room.is_short.store(false, Ordering::SeqCst);
            }
            _ => {}
        }
    }

    /// Counts a job among those that wait for room, until it has its end.
    pub(crate) fn begin_to_wait(&self) -> RoomWait<'_> {
        let mut waiting = self.room.waiting();
        if waiting.jobs == 0 {
            waiting.since = self.environment.clock.now();
        }
        waiting.jobs += 1;
        RoomWait(self)
    }

    /// Since when something waits for room, if something does.
    pub(crate) fn waits_for_room(&self) -> Option<WaitsForRoom> {
        let waiting = self.room.waiting();
        (waiting.jobs > 0).then(|| WaitsForRoom {
            seconds: self.environment.clock.now().saturating_sub(waiting.since).as_secs(),
            error: waiting.error.clone(),
        })
    }

    /// Lets all that waits for room fail, now and from now on.
    pub(crate) fn give_up_waiting(&self) {
        self.room.given_up.store(true, Ordering::SeqCst);
        self.ticked.notify(usize::MAX);
    }

    /// Waits for a moment at which it makes sense to try again what failed for want of room; `error` if there is none.
    pub(crate) async fn wait_for_store(&self, error: Error) -> Result<()> {
        let ticked = self.ticked.listen();
        // Before the other reasons: in a session's last commit that there is no room says more than that the session ends.
        let ends = [&self.stopping, &self.room.given_up].into_iter().any(|end| end.load(Ordering::SeqCst));
        if ends || !self.begun.load(Ordering::SeqCst) {
            return Err(error);
        }
        self.room.waiting().error = error.to_string();
        self.check_alive()?;
        self.counters.waits_for_store.add(1);
        ticked.await;
        Ok(())
    }

    /// A checkpoint waits for room: none that waits for it waits any longer.
    async fn wait_for_node_room(&self, error: Error) -> Result<()> {
        self.room.waits.fetch_add(1, Ordering::SeqCst);
        self.progress.notify(usize::MAX);
        self.wait_for_store(error).await
    }

    /// Writes what can go nowhere else: waits while the store has no room.
    pub(crate) async fn write_fixed(&self, io: &Io, place: u64, buffer: Buffer) -> Result<()> {
        let mut ended = io.try_write(place, buffer).await;
        let mut waits = None;
        loop {
            self.note_room(&ended.1);
            match ended {
                (Some(buffer), Err(error)) if error.kind() == Kind::NoSpace => {
                    waits.get_or_insert_with(|| self.begin_to_wait());
                    self.wait_for_node_room(error).await?;
                    ended = io.try_write(place, buffer).await;
                }
                (_, result) => return result,
            }
        }
    }

    /// The places of data and nodes that the store has given already, if it can tell: as of the last look at it, or now.
    pub(crate) fn given_places(&self) -> Option<Arc<Vec<Range<u64>>>> {
        let known = || self.room.given.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(given) = &*known() {
            return Some(Arc::clone(given));
        }
        let parts = self.geometry.data().map(|data| self.environment.store.given(data));
        let given = Arc::new(parts.collect::<Option<Vec<_>>>()?.concat());
        *known() = Some(Arc::clone(&given));
        Some(given)
    }

    pub(crate) fn forget_given(&self) {
        *self.room.given.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A free place that the store has given before, or gives now; the others that were tried are in `refused`, and taken. Where the store can
    /// tell what it has given, only that is tried; elsewhere, whatever can be reserved.
    async fn place_with_room(&self, io: &Io, refused: &mut Vec<u64>) -> Result<Option<u64>> {
        let given = self.given_places();
        loop {
            // Behind so many that were refused, its word is worth nothing.
            let given = given.as_deref().filter(|_| refused.len() < MOST_TRIES).map(Vec::as_slice);
            let next = match given {
                // The store is not asked again: a full XFS refuses to reserve what it has given.
                Some(given) => self.space.take_given_place(given),
                None => self.take_place_with_room(refused),
            };
            if next.is_some() || !self.reserve_for_node(io, given, MOST_TRIES as u64, MAX_UNITS).await? {
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

    /// Reserves more units for nodes, of those that were given until these have `want` free places; `most` at most. Says whether there were any.
    pub(crate) async fn reserve_for_node(
        &self,
        io: &Io,
        given: Option<&[Range<u64>]>,
        want: u64,
        most: usize,
    ) -> Result<bool> {
        let _reserving = self.reserving.lock().await;
        // Those of a predecessor as well, which the store was asked for: without this checkpoint nothing comes back.
        self.space.take_over();
        if self.journal_is_tight() {
            return Ok(false);
        }
        let Some(given) = given else { return self.reserve(io, MAX_UNITS).await };
        let units =
            self.space.choose_given(Purpose::Nodes, given, want, self.space.room(MAX_UNITS).min(most));
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
        let mut waits = None;
        let result = loop {
            self.note_room(&ended.1);
            let (Some(buffer), Err(error)) = ended else { break ended.1 };
            if error.kind() != Kind::NoSpace {
                break Err(error);
            }
            // It does not have this one, whatever was believed.
            self.space.note_given(place, false);
            let next = match self.room.untold {
                true => self.place_on_untold(io, refused.len()).await,
                false => self.place_with_room(io, &mut refused).await,
            };
            match next {
                Ok(Some(next)) => refused.push(std::mem::replace(&mut place, next)),
                Ok(None) => {
                    // Others need these, and one of them may have room next time.
                    self.space.give_node_places_back(&refused);
                    refused.clear();
                    waits.get_or_insert_with(|| self.begin_to_wait());
                    if let Err(error) = self.wait_for_node_room(error).await {
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
