//! The queue of a [`FileStore`](crate::FileStore): one ring, used by one thread.

mod breakdown;
mod discard;
mod queue;
mod transfer;

pub(crate) use queue::FileQueue;
