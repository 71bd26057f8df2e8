//! What is counted of a disk. Workers add, whoever asks reads.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

macro_rules! counters {
    ($($name:ident: $about:literal,)*) => {
        /// Counters of one disk, since the server was started.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// Counters at one moment.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
        pub struct Snapshot {
            $(#[doc = $about] pub $name: u64,)*
        }

        impl Counters {
            /// What they are now.
            #[must_use]
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Snapshot {
            /// Each counter: its name, what it counts, and its value.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $about, self.$name),)*]
            }
        }
    };
}

counters! {
    reads: "Reads that ended.",
    writes: "Writes that ended.",
    flushes: "Flushes that ended.",
    discards: "Discards and write zeroes that ended.",
    others: "Requests for the disk's name, and of kinds that it does not know.",
    read_bytes: "Bytes read for guests.",
    written_bytes: "Bytes written for guests.",
    errors: "Requests that ended with an error, whatever their kind.",
    resumed: "Requests that a server before this one had taken, and this one has taken again.",
    kicks: "Notifications by the guest.",
    interrupts: "Interrupts of the guest.",
    sleeps: "Times that a queue was left to the guest's notification.",
    throttled: "Times that a queue had to wait for its disk's limits.",
    sessions: "Times that a VMM has connected.",
    breaches: "Sessions that ended over something that no guest or VMM may do.",
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Snapshot {
    /// Requests of all kinds.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards + self.others
    }
}
