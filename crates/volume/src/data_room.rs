//! Room for data on a store that has little left: what overwrites something comes before what is new.
//!
//! A file system on a volume goes on as long as it can write again what it has written before: its journal, its tables. Here such a write goes to a
//! new place, too, and what it replaces is free behind the next checkpoint only.
//!
//! Invariants:
//! 1. New data leaves room for overwrites, [`Limits::overwrite_room`](crate::core::Limits::overwrite_room) blocks: free ones that the store has
//!    given, or that it has left. The store is asked for them while it has some left, since others may take the rest.
//! 2. New data of a few blocks leaves half of that: the tables of a file system come in single blocks. A while after the last refusal, new data of
//!    any size leaves an eighth: a file system that gave up is quiet, and replays its journal when it is mounted again. Whoever goes on filling the
//!    volume is refused again and again, and keeps this shut.
//! 3. None is refused while a checkpoint may make room. An overwrite is refused by the store only.
//!
//! What the store has given, and has left, is its word. It decides who waits, and nothing else.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::select;
use memory::BLOCK_SIZE;

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::queue::Runs;
use crate::space::Purpose;
use crate::store_room::StoreRoom;

/// Blocks of a request that counts as small: 128 KiB.
const SMALL: u64 = 32;
/// How long nothing must have been refused before new data may take most of what is left.
const QUIET: Duration = Duration::from_secs(2);
/// Most runs of blocks that the store is asked for ahead.
const RUNS: usize = 256;

/// How often a write looks again behind its checkpoint, while blocks wait for readers.
const DRAINS: u32 = 8;
/// How often a write that the store has refused is tried at other places.
const ATTEMPTS: u32 = 3;

impl Core {
    /// Whether the store has so little room left that somebody has to see to it, and says what it has.
    pub(crate) fn is_room_scarce(&self) -> bool {
        self.is_store_short() && self.room.data.load(Ordering::SeqCst) < u64::MAX
    }

    /// Writes where there is room. What the store refuses goes to places that it has given.
    pub(crate) async fn write_where_room_is_scarce(
        &self,
        io: &Io,
        runs: &RefCell<Runs>,
        block: u64,
        data: Bytes,
        fua: bool,
    ) -> Result<()> {
        let blocks = (data.len() / BLOCK_SIZE) as u64;
        self.check_range(block, blocks)?;
        if !self.claim_data(blocks, self.limits.overwrite_room) {
            self.wait_for_data_room(io, block, blocks, 0).await?;
        }
        let mut refusals = 0;
        loop {
            match self.write(io, runs, block, data.clone(), fua, &|| ()).await {
                Err(error) if refusals < ATTEMPTS && is_refusal(&error) => {
                    refusals += 1;
                    self.wait_for_data_room(io, block, blocks, refusals).await?;
                }
                result => return result,
            }
        }
    }

    fn claim_data(&self, blocks: u64, kept: u64) -> bool {
        let take = |room: u64| match room {
            u64::MAX => Some(room),
            _ => room.checked_sub(blocks).filter(|left| *left >= kept),
        };
        self.room.data.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    /// Waits until the store has room for a write, where a checkpoint may make some. The store has refused it so many times; behind the second
    /// one its word is worth nothing without a checkpoint.
    ///
    /// # Errors
    /// `NoSpace`, if it is new data, and what is left is kept for overwrites.
    async fn wait_for_data_room(&self, io: &Io, block: u64, blocks: u64, refusals: u32) -> Result<()> {
        let (mut look, mut behind) = (refusals > 0, refusals > 1);
        let overwrites = self.is_overwrite(io, block, blocks).await?;
        let room = self.limits.overwrite_room;
        let now = self.environment.clock.now();
        let quiet = self.room.last_refusal().is_some_and(|last| now.saturating_sub(last) >= QUIET);
        let kept = match blocks {
            _ if overwrites || mutated(Mutation::OverwritesNotKept) => 0,
            _ if quiet => room / 8,
            ..=SMALL => room / 2,
            _ => room,
        };
        let (mut asked, mut looks, waits) = (None, 0, self.room.waits.load(Ordering::SeqCst));
        loop {
            let (progress, ended) = (self.progress.listen(), self.readers.listen());
            self.check_alive()?;
            // Read before the count: a checkpoint lets its blocks go first, and counts as done after that.
            let done = self.checkpoint_done.load(Ordering::SeqCst);
            self.space.collect();
            let may_help = self.checkpointing.load(Ordering::SeqCst) || self.freed_by_a_checkpoint() > 0;
            let tried = asked.is_some_and(|number| done >= number);
            behind &= may_help && !tried;
            // Nothing has changed since somebody looked, as far as anybody can tell: a look at each write that is refused would cost much.
            if std::mem::take(&mut look) || tried || self.room.unseen.swap(false, Ordering::SeqCst) {
                self.forget_given();
                self.ask_data_room();
            }
            if !behind && self.claim_data(blocks, kept) {
                return Ok(());
            }
            // The checkpoint itself has found no room.
            let stuck = self.room.waits.load(Ordering::SeqCst) > waits;
            // What others overwrite meanwhile drains, too, for as long as they go on.
            let draining = self.space.is_draining() && looks < DRAINS;
            looks += u32::from(tried);
            if stuck || (!draining && (tried || !may_help)) {
                // The store has the last word about what overwrites something.
                if overwrites {
                    return Ok(());
                }
                self.room.note_refusal(now);
                return Err(kept_for_overwrites());
            }
            if may_help && asked.is_none() {
                asked = Some(self.want_checkpoint());
                self.counters.waits_for_checkpoint.add(1);
            }
            match draining {
                true => drop(select(progress, ended).await),
                false => progress.await,
            }
        }
    }

    /// Has the store give room for overwrites while it has some, and counts what data may take from now on.
    pub(crate) fn ask_data_room(&self) {
        let most = self.limits.overwrite_room;
        if most == 0 || self.room.untold || self.is_transactional() || !self.is_store_short() {
            self.room.data.store(u64::MAX, Ordering::SeqCst);
            return;
        }
        let Some(given) = self.given_places() else { return };
        let lacking = most.saturating_sub(self.space.given_in_hand(&given));
        for run in self.space.not_given(Purpose::Data, &given, lacking, RUNS) {
            // What it cannot give now may be there when it is needed.
            if self.environment.store.allocate_range(run).is_err() {
                break;
            }
        }
        if lacking > 0 {
            self.forget_given();
        }
        self.count_data_room();
        if !self.begun.load(Ordering::SeqCst) && self.room.data.load(Ordering::SeqCst) < most {
            // The last session may have ended by a refusal.
            self.room.note_refusal(self.environment.clock.now());
        }
    }

    fn count_data_room(&self) {
        let (usage, given) = (self.environment.store.usage(), self.given_places());
        let room = usage.zip(given).map(|(usage, given)| {
            self.space.prefer(Some(&given));
            // The last of it is gone before anybody gets there.
            let left = (usage.left / store::BLOCK_SIZE as u64).saturating_sub(self.limits.overwrite_room / 4);
            left.saturating_add(self.space.given_to_data(&given))
        });
        self.room.data.store(room.unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl StoreRoom {
    /// By the session's clock, if there was one.
    fn last_refusal(&self) -> Option<Duration> {
        let at = self.refused_at.load(Ordering::SeqCst);
        (at > 0).then(|| Duration::from_millis(at))
    }

    fn note_refusal(&self, now: Duration) {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.refused_at.fetch_max(now.max(1), Ordering::SeqCst);
    }
}

/// Whether the store has refused it, rather than this volume.
fn is_refusal(error: &Error) -> bool {
    error.kind() == Kind::NoSpace && std::error::Error::source(error).is_some()
}

fn kept_for_overwrites() -> Error {
    Error::new(
        Kind::NoSpace,
        "the store has little room left, which is kept for what is written again; make room where it lies, or discard something, and writes go on",
    )
}
