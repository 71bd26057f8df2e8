//! What the traffic on the store gives away about the volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use testkit::hostile::{Event, Trace as StoreTrace};
use volume::geometry::{Geometry, SUPERBLOCK_SLOTS, SUPERBLOCK_START};

use crate::trace::Trace;

const SUPERBLOCKS: std::ops::Range<u64> = SUPERBLOCK_START..SUPERBLOCK_START + SUPERBLOCK_SLOTS as u64;

/// Counts by place.
pub(crate) struct Watch {
    geometry: Geometry,
    segments: BTreeSet<u64>,
    /// Bitmap places that each session wrote and has not read since.
    bitmap: BTreeMap<u64, BTreeSet<u64>>,
    /// Superblocks on their way to the disk: session and token.
    superblocks: BTreeSet<(u64, u64)>,
    pub(crate) ring_wraps: u64,
    pub(crate) bitmap_evictions: u64,
}

impl Watch {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            segments: BTreeSet::new(),
            bitmap: BTreeMap::new(),
            superblocks: BTreeSet::new(),
            ring_wraps: 0,
            bitmap_evictions: 0,
        }
    }

    /// The volume has other sizes from now on.
    pub(crate) fn resize(&mut self, geometry: Geometry) {
        self.geometry = geometry;
    }

    /// Whether a superblock is on its way.
    pub(crate) fn is_publishing(&self) -> bool {
        !self.superblocks.is_empty()
    }

    /// Nobody's operations are in flight any more.
    pub(crate) fn forget_flights(&mut self) {
        self.superblocks.clear();
    }

    fn submitted(&mut self, session: u64, operation: &str, block: u64) {
        let geometry = &self.geometry;
        let journal = geometry.journal_start()..geometry.bitmap_start();
        if journal.contains(&block) && operation == "write" {
            let place = block - journal.start;
            let length = u64::from(geometry.segment_blocks);
            if place.is_multiple_of(length) && !self.segments.insert(place / length) {
                self.ring_wraps += 1;
            }
        }
        if geometry.is_bitmap_place(block) {
            let written = self.bitmap.entry(session).or_default();
            if operation == "write" {
                written.insert(block);
            } else if operation == "read" && written.remove(&block) {
                self.bitmap_evictions += 1;
            }
        }
    }
}

/// The store's trace: counts, and words if there is somebody to read them.
pub(crate) fn watching(watch: &Arc<Mutex<Watch>>, words: Option<Trace>) -> StoreTrace {
    let watch = Arc::clone(watch);
    Box::new(move |event| {
        let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Submitted { session, token, operation, block, .. } => {
                watch.submitted(*session, operation, *block);
                if *operation == "write" && SUPERBLOCKS.contains(block) {
                    watch.superblocks.insert((*session, *token));
                }
            }
            Event::Completed { session, token, .. } => drop(watch.superblocks.remove(&(*session, *token))),
            _ => {}
        }
        drop(watch);
        if let Some(words) = &words {
            words.tell(event);
        }
    })
}
