//! How a session begins: its shared state, its first reservations, and the superblock that tells others of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use event_listener::Event;
use seal::MacKey;

use crate::attach::Attaching;
use crate::block_cache::BlockCache;
use crate::cache::{Cache, NodeKey};
use crate::commit::Commit;
use crate::core::{Core, Counters, Limits};
use crate::discarding::Discards;
use crate::error::{Error, Kind, Result};
use crate::format::ad::Tree;
use crate::format::entry::{Entry, entry_at};
use crate::format::header::Header;
use crate::format::protections::Provision;
use crate::format::superblock::MAX_LEGS;
use crate::geometry::Geometry;
use crate::header_change::InForce;
use crate::io::Io;
use crate::journal::Journal;
use crate::keys::Keyring;
use crate::landing::Landing;
use crate::mutation::{Mutation, mutated};
use crate::old_key::Resealing;
use crate::open_header::Pair;
use crate::pace::Pace;
use crate::readers::Readers;
use crate::replay::Replayed;
use crate::space::Space;
use crate::store_room::{StoreRoom, allocate_fixed};
use crate::untold::changes_with;
use crate::witness::Anchored;

impl Attaching {
    #[expect(clippy::too_many_arguments, reason = "each is one finding of the attach, used once, here")]
    pub(crate) fn core(
        &self,
        header: Header,
        keys: Keyring,
        session: [u8; 16],
        claims: u64,
        pair: u8,
        anchored: Anchored,
        stamp_key: MacKey,
        replayed: &Replayed,
        in_force: Option<Box<Pair>>,
    ) -> Result<Core> {
        let geometry = header.geometry;
        let (readers, progress) = (Arc::new(Readers::default()), Arc::new(Event::new()));
        let used: Vec<u32> = replayed.segments.iter().copied().collect();
        let mut foreign: Vec<u32> = replayed.foreign_segments.iter().copied().collect();
        if mutated(Mutation::ForeignSegmentsTaken) {
            foreign.clear();
        }
        let journal = Journal::new(&geometry, replayed.generation, replayed.head, &used, &foreign)?;
        let thin = header.provision == Provision::Thin;
        let untold = thin && self.environment.store.usage().is_none();
        let (limits, cache) = limits(&geometry, self.options.memory, thin, untold);
        Ok(Core {
            random: Arc::clone(&self.environment.random),
            commit: Commit::new(&geometry, journal, anchored, self.environment.clock.now()),
            environment: self.environment.clone(),
            space: Space::new(
                geometry,
                Arc::clone(&readers),
                Arc::clone(&progress),
                self.options.memory / VIEWS_SHARE,
                thin,
                untold,
            ),
            discards: Discards::new(!self.read_only && self.options.discard.unwrap_or(thin)),
            geometry,
            header,
            keys,
            session,
            claims,
            pair,
            read_only: self.read_only,
            attached_at: self.environment.clock.now(),
            shared_buffers: self.io.buffer(1).is_shared(),
            stamp_key,
            cache: Cache::new(cache),
            blocks: BlockCache::new(self.options.block_cache)?,
            roots: Mutex::new(replayed.roots),
            overlay: crate::overlay::Overlay::new(),
            landing: Landing::new(self.options.behind),
            readers,
            limits,
            window: self.options.window,
            counters: Counters::default(),
            bitmap_places: Mutex::new(HashMap::new()),
            new_salts: Mutex::new(Vec::new()),
            next_epoch: AtomicU64::new(u64::from(replayed.next_epoch)),
            checkpoint_wanted: AtomicU64::new(0),
            checkpoint_done: AtomicU64::new(0),
            checkpointing: AtomicBool::new(false),
            pace: Pace::default(),
            promised: AtomicU64::new(0),
            placing: AtomicU64::new(0),
            releasing: AtomicBool::new(false),
            reserving: tokio::sync::Mutex::new(()),
            admitting: tokio::sync::Semaphore::new(1),
            short_of_space: tokio::sync::Semaphore::new(1),
            publish_wanted: AtomicU64::new(0),
            publish_done: AtomicU64::new(0),
            unanchored_pins: Mutex::new(Vec::new()),
            closing: AtomicBool::new(false),
            spilled: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            room: StoreRoom::new(untold),
            ticked: Event::new(),
            run_age: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            in_force: InForce::new(in_force),
            resealing: Resealing::default(),
            publications: AtomicU64::new(0),
            work: Event::new(),
            units_wanted: Event::new(),
            progress,
        })
    }

    /// Makes the first reservations and the session's first superblock.
    pub(crate) async fn start(&self, mut core: Core, replayed: Replayed) -> Result<Arc<Core>> {
        if core.header.provision == Provision::Thin {
            // What cannot be had now is asked for again when it is written.
            let _ = allocate_fixed(core.environment.store.as_ref(), &core.geometry);
            core.look_at_store();
        }
        let former = replayed.superblock.units.iter().chain(&replayed.foreign_units).copied().collect();
        let held: Vec<u64> = replayed.overlay.physical_blocks();
        let mut foreign: Vec<u32> = replayed.foreign_units.iter().copied().collect();
        if mutated(Mutation::ForeignUnitsTaken) {
            foreign.clear();
        }
        core.overlay = replayed.overlay;
        core.commit.begin_at(core.overlay.next_sequence());
        *core.new_salts.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner) = replayed.salts;
        let free = core.count_free(&self.io).await?;
        core.space.begin(&free, &foreign, &held);
        core.look_for_untidy(&free);
        core.begin_session_epoch()?;
        let closed = replayed.closed;
        let legs = closed.len() + 1;
        if legs > MAX_LEGS {
            return Err(Error::new(
                Kind::Defect,
                "too many sessions in a row ended before their first checkpoint; report this as a defect",
            ));
        }
        let crowded =
            legs > MAX_LEGS / 2 || core.commit.free_segments() < core.geometry.segments as usize / 2;
        if core.commit.began_crowded() {
            core.space.take_over();
        }
        // To tidy up must need no reservation: each has a record, and there may be no room for many.
        let nodes = if crowded { core.node_reserve(0) } else { 0 };
        let needed = if crowded { core.nodes_with(0) } else { 0 };
        let former = core.find_node_units(&self.io, &former, needed).await?;
        core.begin_with(&self.io, &former).await?;
        let want = core.limits.reserve_target.max(nodes);
        let for_data = core.choose_for_data(want, crate::format::superblock::MAX_UNITS / 2);
        core.begin_with(&self.io, &for_data).await?;
        let for_nodes = core.choose_for_nodes(core.node_room(), NODE_UNITS);
        core.begin_with(&self.io, &for_nodes).await?;
        core.publish(&self.io, &core.commit.end(&core.geometry), closed).await?;
        // Somebody who claimed the volume before our reservations were there may have chosen the same units.
        core.confirm_claim().await?;
        core.ask_node_room();
        core.begin_node_places(&self.io).await;
        if !mutated(Mutation::CopiesLeftApart) {
            core.mend_copies(&self.io).await?;
        }
        if crowded {
            // Before anybody is served: sessions that end soon after they began, one after the other, must not use up the journal.
            core.tidy(&self.io).await?;
            core.ask_node_room();
            core.begin_node_places(&self.io).await;
        }
        core.begun.store(true, std::sync::atomic::Ordering::SeqCst);
        Ok(Arc::new(core))
    }
}

/// Units that a thin volume begins with for its nodes.
const NODE_UNITS: usize = 16;

/// Bytes that one change takes in overlay and pending list, with the maps' slack.
const CHANGE_BYTES: u64 = 224;

/// Of the allowed memory, this fraction may hold views of free space that could be read again.
const VIEWS_SHARE: u64 = 32;

/// Most blocks that new data leaves for overwrites on a store that has little room left: 16 MiB.
const OVERWRITE_ROOM: u64 = 4096;

/// Splits the allowed memory: half for the overlay's two generations and what they keep waiting, half for nodes.
///
/// On an `untold` store, changes must not need more nodes than there are places for.
fn limits(geometry: &Geometry, memory: u64, thin: bool, untold: bool) -> (Limits, u64) {
    // A quarter of a segment is left for what comes in addition: control items, and requests that were let in together.
    let segment_items = crate::format::record::items_per_record(geometry.segment_blocks) as u64 * 3 / 4;
    let pinned = geometry.pinned_limit();
    let overlay = (memory / 2 / CHANGE_BYTES).clamp(16, 2 * pinned.max(16));
    let node_room = if thin { geometry.node_room(geometry.most_nodes_of(overlay), !untold) } else { 0 };
    let overlay = if untold { changes_with(geometry, node_room).clamp(16, overlay) } else { overlay };
    let reserve_target = geometry.reserve_target().max(4);
    let limits = Limits {
        overlay,
        node_room,
        overwrite_room: if thin { reserve_target.min(OVERWRITE_ROOM) } else { 0 },
        pending: segment_items.min(overlay).max(8),
        pinned,
        salt_reserve: geometry.salt_reserve().min(8),
        reserve_low: reserve_target / 2,
        reserve_target,
    };
    (limits, memory / 2)
}

impl Core {
    /// Takes units for the session's first superblock.
    async fn begin_with(&self, io: &Io, units: &[u32]) -> Result<()> {
        self.load_units(io, units).await?;
        self.space.activate(units);
        Ok(())
    }

    /// Free blocks of each unit, as the bitmap has it.
    async fn count_free(&self, io: &Io) -> Result<Vec<u32>> {
        let geometry = &self.geometry;
        let leaf_bits = 1u64 << geometry.bitmap_bits;
        let mut free = Vec::with_capacity(geometry.units() as usize);
        let mut inner: Option<(u64, Option<Arc<crate::cache::Page>>)> = None;
        for unit in 0..geometry.units() {
            let range = geometry.unit_range(unit);
            let blocks = range.end - range.start;
            let leaf = geometry.bit_of(range.start) >> geometry.bitmap_bits;
            let whole = blocks == leaf_bits && self.top(Tree::Bitmap).1 > 0;
            let count = if whole {
                // A unit that is a whole leaf: its parent's entry has the number.
                let index = leaf >> geometry.fan_out_bits;
                if inner.as_ref().is_none_or(|(held, _)| *held != index) {
                    inner =
                        Some((index, self.node(io, NodeKey { tree: Tree::Bitmap, level: 1, index }).await?));
                }
                let slot = crate::tree::child_slot(leaf, geometry.fan_out_bits);
                match inner.as_ref().and_then(|(_, page)| page.as_ref()) {
                    Some(page) => match entry_at(page.as_slice(), slot)? {
                        Entry::ABSENT => blocks,
                        entry => u64::from(entry.flags),
                    },
                    None => blocks,
                }
            } else {
                let used = self.unit_bits(io, unit).await?;
                blocks - used.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
            };
            free.push(u32::try_from(count).unwrap_or(u32::MAX));
        }
        Ok(free)
    }

    /// Begins the session's epoch. Its superblock and every record carry the salt, so no item has to.
    fn begin_session_epoch(&self) -> Result<()> {
        let (number, salt) = self.draw_epoch()?;
        self.keys.begin(number, salt);
        Ok(())
    }
}
