//! What all parts of an attached volume share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anchor::Anchor;
use event_listener::Event;
use seal::Random;
use store::Store;

use crate::attach::Window;
use crate::block_cache::BlockCache;
use crate::cache::{Cache, NodeKey};
use crate::commit::Commit;
use crate::discarding::Discards;
use crate::error::{Error, Kind, Result};
use crate::format::ad::Tree;
use crate::format::entry::Entry;
use crate::format::header::Header;
use crate::format::item::Item;
use crate::geometry::Geometry;
use crate::header_change::InForce;
use crate::keys::{EPOCHS, Keyring};
use crate::landing::Landing;
use crate::mutation::{Mutation, mutated};
use crate::old_key::Resealing;
use crate::overlay::Overlay;
use crate::pace::Pace;
use crate::readers::Readers;
use crate::space::Space;
use crate::store_room::StoreRoom;

/// Where time comes from. Only differences matter; it may jump.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// What a volume stands on, all handed in.
#[derive(Clone)]
pub struct Environment {
    /// The untrusted store.
    pub store: Arc<dyn Store>,
    /// The freshness anchor; absent only at freshness `off`.
    pub anchor: Option<Arc<dyn Anchor>>,
    /// Randomness for keys, salts and ids.
    pub random: Arc<dyn Random>,
    /// Time, for intervals and rates.
    pub clock: Arc<dyn Clock>,
}

/// The roots of the three trees, as of the last merge.
#[derive(Clone, Copy)]
pub(crate) struct Roots {
    pub(crate) map: Entry,
    pub(crate) salts: Entry,
    pub(crate) bitmap: Entry,
    /// The old key's salt table, while a change of key is under way.
    pub(crate) old_salts: Entry,
    /// Logical blocks that have an entry in the map.
    pub(crate) mapped: u64,
    /// Growths of the volume that the roots of map and bitmap knew behind the last merge, or at the start.
    pub(crate) growths: u8,
    /// Levels that they have now; a merge under way may have put some on top.
    pub(crate) map_levels: u8,
    pub(crate) bitmap_levels: u8,
}

impl Roots {
    /// The same roots, of trees as they were when the volume had grown so often.
    pub(crate) fn knowing(self, growths: u8, geometry: &Geometry) -> Self {
        let own = geometry.as_of(growths.into());
        Self { growths, map_levels: own.map_levels(), bitmap_levels: own.bitmap_levels(), ..self }
    }
}

/// A count that only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is counted, in blocks unless the name says otherwise.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) read_blocks: Counter,
    pub(crate) written_blocks: Counter,
    pub(crate) resealed_blocks: Counter,
    pub(crate) discarded_blocks: Counter,
    pub(crate) nodes_read: Counter,
    pub(crate) node_writes: Counter,
    pub(crate) journal_blocks: Counter,
    pub(crate) superblock_writes: Counter,
    pub(crate) commits: Counter,
    pub(crate) anchor_moves: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) flushes: Counter,
    pub(crate) corrupt_blocks: Counter,
    pub(crate) corrupt_nodes: Counter,
    pub(crate) waits_for_space: Counter,
    pub(crate) waits_for_checkpoint: Counter,
    pub(crate) waits_for_store: Counter,
}

/// Limits that follow from the memory the user allowed and from the geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Changes in one overlay generation before a checkpoint begins.
    pub(crate) overlay: u64,
    /// Changes that may wait for the journal.
    pub(crate) pending: u64,
    /// Places for nodes that a thin volume has the store give ahead; none for another, whose store has given everything.
    pub(crate) node_room: u64,
    /// Blocks that new data leaves for overwrites on a store that has little room left; none on a volume whose store has given everything.
    pub(crate) overwrite_room: u64,
    /// Blocks that may be pinned before writers wait.
    pub(crate) pinned: u64,
    /// Free blocks that only nodes of the salt table may take.
    pub(crate) salt_reserve: u64,
    /// Usable free blocks below which more is reserved.
    pub(crate) reserve_low: u64,
    /// What a reservation aims for.
    pub(crate) reserve_target: u64,
}

/// An attached volume's shared state.
pub(crate) struct Core {
    pub(crate) environment: Environment,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) header: Header,
    pub(crate) geometry: Geometry,
    pub(crate) keys: Keyring,
    pub(crate) session: [u8; 16],
    pub(crate) claims: u64,
    pub(crate) pair: u8,
    /// Whether this session has claimed nothing and writes nothing.
    pub(crate) read_only: bool,
    /// When the session began.
    pub(crate) attached_at: Duration,
    /// Whether the store's buffers are memory that the host can write.
    pub(crate) shared_buffers: bool,
    pub(crate) stamp_key: seal::MacKey,
    pub(crate) cache: Cache,
    pub(crate) blocks: BlockCache,
    pub(crate) roots: Mutex<Roots>,
    pub(crate) overlay: Overlay,
    pub(crate) landing: Landing,
    pub(crate) space: Space,
    pub(crate) discards: Discards,
    pub(crate) readers: Arc<Readers>,
    pub(crate) commit: Commit,
    pub(crate) limits: Limits,
    pub(crate) window: Window,
    pub(crate) counters: Counters,
    /// Which of its two places each bitmap node uses until the next superblock.
    pub(crate) bitmap_places: Mutex<HashMap<NodeKey, u64>>,
    /// Salts that the salt table does not have yet.
    pub(crate) new_salts: Mutex<Vec<(u32, [u8; 32])>>,
    pub(crate) next_epoch: AtomicU64,
    /// Checkpoints asked for and done; a checkpoint that began after a request satisfies it.
    pub(crate) checkpoint_wanted: AtomicU64,
    pub(crate) checkpoint_done: AtomicU64,
    /// Whether one is under way: what it will free is in no count yet.
    pub(crate) checkpointing: AtomicBool,
    /// How far it is: writers keep step with it.
    pub(crate) pace: Pace,
    /// Items that requests under way will add to what waits for the journal.
    pub(crate) promised: AtomicU64,
    /// Blocks of writes that take places, or have them, and of discards, as long as they are not in the overlay. See [`crate::places`].
    pub(crate) placing: AtomicU64,
    /// The session ends by releasing the volume: nothing takes places any more.
    pub(crate) releasing: AtomicBool,
    /// Held by whoever reserves units for nodes.
    pub(crate) reserving: tokio::sync::Mutex<()>,
    /// Whose turn it is to wait for room, first come, first served: see [`admit`](Self::admit).
    pub(crate) admitting: tokio::sync::Semaphore,
    /// Whose turn it is to wait for free blocks, likewise: see [`allocate`](Self::allocate).
    pub(crate) short_of_space: tokio::sync::Semaphore,
    /// Ends of transactions that were asked for, and that are done.
    pub(crate) publish_wanted: AtomicU64,
    pub(crate) publish_done: AtomicU64,
    /// Whether nothing is admitted: what the end of the transaction takes has been counted, and it has not been taken yet.
    pub(crate) closing: AtomicBool,
    /// What the spills of this transaction freed.
    pub(crate) unanchored_pins: Mutex<Vec<crate::space::Pin>>,
    /// Whether this transaction was spilled, so that its end must name new roots.
    pub(crate) spilled: AtomicBool,
    /// Whether the session has begun: before that nobody lets time pass for it.
    pub(crate) begun: AtomicBool,
    pub(crate) room: StoreRoom,
    /// Raised by each freeze and each superblock: runs taken before must be given back.
    pub(crate) run_age: AtomicU64,
    pub(crate) stopping: AtomicBool,
    /// Header and key slots, as they are in force; none for who only reads.
    pub(crate) in_force: InForce,
    /// What a change of key has still to do.
    pub(crate) resealing: Resealing,
    pub(crate) publications: AtomicU64,
    /// For the maintenance job: something may be wanted of it.
    pub(crate) work: Event,
    /// For the same in the middle of a checkpoint: writers will soon need more units.
    pub(crate) units_wanted: Event,
    /// For what the store had no room for: some time has passed.
    pub(crate) ticked: Event,
    /// For everybody else: space, journal or overlay may have room again, or the session has failed.
    pub(crate) progress: Arc<Event>,
}

impl Core {
    pub(crate) fn roots(&self) -> MutexGuard<'_, Roots> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tree's root and its level. Until the first merge behind a growth, the level is that of the smaller volume.
    pub(crate) fn top(&self, tree: Tree) -> (Entry, u8) {
        let roots = self.roots();
        match tree {
            Tree::Map => (roots.map, roots.map_levels - 1),
            Tree::Salts => (roots.salts, self.geometry.salt_levels() - 1),
            Tree::OldSalts => (roots.old_salts, self.geometry.salt_levels() - 1),
            Tree::Bitmap => (roots.bitmap, roots.bitmap_levels - 1),
        }
    }

    /// Puts a root on top of another, which is its first child.
    pub(crate) fn set_top(&self, tree: Tree, entry: Entry, level: u8) {
        let mut roots = self.roots();
        match tree {
            Tree::Map => (roots.map, roots.map_levels) = (entry, level + 1),
            Tree::Salts => roots.salts = entry,
            Tree::OldSalts => roots.old_salts = entry,
            Tree::Bitmap => (roots.bitmap, roots.bitmap_levels) = (entry, level + 1),
        }
    }

    pub(crate) fn set_root(&self, tree: Tree, entry: Entry) {
        let mut roots = self.roots();
        match tree {
            Tree::Map => roots.map = entry,
            Tree::Salts => roots.salts = entry,
            Tree::Bitmap => roots.bitmap = entry,
            Tree::OldSalts => roots.old_salts = entry,
        }
    }

    /// Where a bitmap node is written now: the one of this session's two places that the last superblock does not reach.
    pub(crate) fn bitmap_place(&self, key: NodeKey, old: &Entry) -> u64 {
        let mut places = self.bitmap_places.lock().unwrap_or_else(PoisonError::into_inner);
        *places.entry(key).or_insert_with(|| {
            let [first, second] =
                [0, 1].map(|copy| self.geometry.bitmap_place(key.level, key.index, 2 * self.pair + copy));
            if (old.physical == first) != mutated(Mutation::BitmapInPlace) { second } else { first }
        })
    }

    /// Begins a new epoch; its salt goes to the journal with the next commit.
    pub(crate) fn begin_epoch(&self) -> Result<()> {
        let (number, salt) = self.draw_epoch()?;
        self.commit.add_control(Item::Epoch { epoch: number, salt });
        self.keys.begin(number, salt);
        Ok(())
    }

    /// A new epoch's number and salt, noted for the salt table.
    pub(crate) fn draw_epoch(&self) -> Result<(u32, [u8; 32])> {
        let number = u32::try_from(self.next_epoch.fetch_add(1, Ordering::SeqCst)).unwrap_or(u32::MAX);
        if number >= EPOCHS.min(self.geometry.last_epoch()) {
            return Err(Error::new(
                Kind::Usage,
                "all key epochs of this volume are used up; copy its content to a new volume",
            ));
        }
        let mut salt = [0; 32];
        self.random.fill(&mut salt);
        self.new_salts.lock().unwrap_or_else(PoisonError::into_inner).push((number, salt));
        Ok((number, salt))
    }

    /// Asks for a checkpoint; the number to compare `checkpoint_done` with.
    pub(crate) fn want_checkpoint(&self) -> u64 {
        let under_way = u64::from(self.checkpointing.load(Ordering::SeqCst));
        let number = self.checkpoint_done.load(Ordering::SeqCst) + 1 + under_way;
        self.checkpoint_wanted.fetch_max(number, Ordering::SeqCst);
        self.work.notify(usize::MAX);
        number
    }

    /// Ends the session: nothing is written from now on. The first reason stays.
    pub(crate) fn stop(&self, reason: &Error) {
        self.commit.poison(reason);
        if reason.kind() == Kind::Fenced {
            self.name_unanchored();
        }
        self.progress.notify(usize::MAX);
        self.landing.wake();
        self.ticked.notify(usize::MAX);
        self.work.notify(usize::MAX);
    }
}
