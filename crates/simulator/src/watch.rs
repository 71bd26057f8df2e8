//! What the traffic on the store gives away about the volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use store::hostile::{Event, Trace as StoreTrace};
use volume::geometry::Geometry;

use crate::trace::Trace;

/// Counts by place.
pub(crate) struct Watch {
    geometry: Geometry,
    segments: BTreeSet<u64>,
    /// Bitmap places that each session wrote and has not read since.
    bitmap: BTreeMap<u64, BTreeSet<u64>>,
    pub(crate) ring_wraps: u64,
    pub(crate) bitmap_evictions: u64,
}

impl Watch {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            segments: BTreeSet::new(),
            bitmap: BTreeMap::new(),
            ring_wraps: 0,
            bitmap_evictions: 0,
        }
    }

    fn submitted(&mut self, session: u64, operation: &str, block: u64) {
        let geometry = &self.geometry;
        let journal = geometry.journal_start()..geometry.bitmap_start();
        let bitmap = geometry.bitmap_start()..geometry.data_start();
        if journal.contains(&block) && operation == "write" {
            let place = block - journal.start;
            let length = u64::from(geometry.segment_blocks);
            if place.is_multiple_of(length) && !self.segments.insert(place / length) {
                self.ring_wraps += 1;
            }
        }
        if bitmap.contains(&block) {
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
        if let Event::Submitted { session, operation, block, .. } = event {
            watch.lock().unwrap_or_else(PoisonError::into_inner).submitted(*session, operation, *block);
        }
        if let Some(words) = &words {
            words.tell(event);
        }
    })
}
