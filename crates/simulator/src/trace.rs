//! What happened, in words; and a hash over it, to compare runs by.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

/// Where a line of the trace goes.
pub type Sink = Box<dyn FnMut(&str) + Send>;

struct Inner {
    hash: u64,
    step: u64,
    line: String,
    sink: Option<Sink>,
}

/// A run's trace. Clones are the same trace.
#[derive(Clone)]
pub(crate) struct Trace(Arc<Mutex<Inner>>);

impl Trace {
    pub(crate) fn new(sink: Option<Sink>) -> Self {
        let inner = Inner { hash: 0xcbf2_9ce4_8422_2325, step: 0, line: String::new(), sink };
        Self(Arc::new(Mutex::new(inner)))
    }

    pub(crate) fn set_step(&self, step: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).step = step;
    }

    pub(crate) fn say(&self, what: fmt::Arguments<'_>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { hash, step, line, sink } = &mut *inner;
        line.clear();
        let _ = write!(line, "{step:5}  {what}");
        // FNV-1a, eight bytes at a time: nothing but an accident has to be kept out.
        for part in line.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            *hash = (*hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
            *hash ^= *hash >> 29;
        }
        if let Some(sink) = sink {
            sink(line);
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).hash
    }
}

impl Trace {
    /// A line for the reader only: the disk's events are not part of the hash, since they are told only to a reader.
    pub(crate) fn tell(&self, event: &testkit::hostile::Event) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let step = inner.step;
        if let Some(sink) = &mut inner.sink {
            sink(&format!("{step:5}      disk: {event:?}"));
        }
    }
}
