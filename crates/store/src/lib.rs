//! Untrusted block storage behind one asynchronous trait.
//!
//! A [`Store`] is what the host offers: a file, a block device, or memory. It promises nothing: what is read may be anything, what is
//! written may be lost. Each thread that does I/O opens a [`Queue`] of its own, submits operations that own their buffers, and polls for
//! completions; no queue is ever shared.

mod address;
mod error;
mod file;
mod given;
mod memory_store;
mod patience;
mod signal;
mod uring;
mod virtio;

pub use ::uring::{Poll, Spinner, Waited, Waits};
pub use address::{Access, Address, open, read_start};
pub use error::{Error, ErrorKind};
pub use file::{FileStore, Options};
pub use memory::{BLOCK_SIZE, Buffer, Pool};
pub use memory_store::MemoryStore;
pub use virtio::{RingOptions, RingStore};

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// What a queue may be asked to do. Addresses are physical blocks; a buffer is a whole number of blocks.
///
/// Operations in flight together have no order: one that must see another's effect, or overwrite it, is
/// submitted after the other has completed. A crash may keep any part of what was not flushed, in pieces of
/// 512 bytes, whatever the order of completion.
#[derive(Debug)]
pub enum Operation {
    /// Fill `buffer` from `block` on.
    Read {
        /// First block.
        block: u64,
        /// Where to; its length says how much.
        buffer: Buffer,
    },
    /// Write all of `buffer` from `block` on. Durable only after a later `Flush` has completed.
    Write {
        /// First block.
        block: u64,
        /// What; its length says how much.
        buffer: Buffer,
    },
    /// Make every write that completed before this was submitted durable.
    Flush,
    /// Tell the host that the content of these blocks no longer matters: a file gives their space back, a device discards them. Fails as
    /// `Unsupported` where neither can be done.
    Discard {
        /// First block.
        block: u64,
        /// How many.
        blocks: u64,
    },
}

/// The end of one operation.
#[derive(Debug)]
pub struct Completion {
    /// The number that the submitter gave.
    pub token: u64,
    /// The operation's buffer, handed back (also when it failed).
    pub buffer: Option<Buffer>,
    /// `Ok`, or why it failed. After an error the content of a read buffer is undefined.
    pub result: Result<(), Error>,
}

/// Block storage that somebody else holds.
pub trait Store: Send + Sync {
    /// Size in whole blocks, as the host states it now.
    fn blocks(&self) -> u64;
    /// What is behind the last whole block, less than one: sectors or bytes that a volume leaves alone, and that may tell whose they are.
    ///
    /// # Errors
    /// When they cannot be read.
    fn rest(&self) -> Result<Vec<u8>, Error> {
        Ok(Vec::new())
    }
    /// The name to use in messages: a path, or a kind.
    fn name(&self) -> String;
    /// Opens a queue with room for `depth` operations in flight (more may be submitted; they wait inside).
    ///
    /// # Errors
    /// When the host or kernel refuses the resources that a queue needs.
    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error>;
    /// Takes the space of all blocks now, so that no write fails for want of it later. Content stays. A store that has its space needs to do
    /// nothing.
    ///
    /// # Errors
    /// `NoSpace` when there is not enough; `Unsupported` where space cannot be reserved.
    fn allocate(&self) -> Result<(), Error> {
        Ok(())
    }
    /// The same for some blocks, as far as it can be done.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_range(&self, _blocks: Range<u64>) -> Result<(), Error> {
        Ok(())
    }
    /// The parts of these blocks that the store has given already, in order: writing there takes no more room. The host says so, and where
    /// there are very many parts, not all of them. `None` where nobody can tell, as of a device.
    fn given(&self, _blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
        None
    }
    /// What the store takes where it lies, and what is left there, as the host states it now. `None` where nobody can tell, as of a device.
    fn usage(&self) -> Option<Usage> {
        None
    }
    /// Makes a file so many blocks long, durably, if it is shorter: sparsely, or with the space of all its blocks where it is `whole`. Any other
    /// store has the size that it has.
    ///
    /// # Errors
    /// What the file system says; the file has the length that it had then.
    fn extend(&self, _blocks: u64, _whole: bool) -> Result<(), Error> {
        Ok(())
    }
    /// Why the host is believed no more, once it has been silent for too long, is gone, or has said what can't be. All that is asked of the store
    /// fails from then on, whatever the host does.
    fn ended(&self) -> Option<String> {
        None
    }
    /// How long the host has left a request without an answer that is in flight now, if that is a second or more.
    fn silent_for(&self) -> Option<Duration> {
        None
    }
    /// Ends it without waiting for the host any longer. Only for one that is silent: whether what is in flight still happens, nobody knows.
    fn give_up(&self) {}
}

/// What a store takes of the medium that it shares with others, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// What it takes now.
    pub taken: u64,
    /// What it and its neighbours may still take.
    pub left: u64,
}

/// One thread's way to a store.
pub trait Queue {
    /// A buffer of `blocks` blocks that this queue can do I/O on without a copy. Content is undefined.
    /// It returns to the queue's pool when dropped, on whatever thread.
    fn buffer(&mut self, blocks: usize) -> Buffer;
    /// Accepts an operation. Never blocks and never fails: errors arrive as completions. Operations may be
    /// held back until the next `poll`, so that neighbours can be merged into one transfer.
    fn submit(&mut self, token: u64, operation: Operation);
    /// Sends what was held back and appends what has ended to `completions`. Never blocks.
    fn poll(&mut self, completions: &mut Vec<Completion>);
    /// Like `poll`, and then sleeps until there is a completion, the [`waker`](Self::waker) is woken, or the
    /// time-out has passed. May return early.
    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>);
    /// Ends a `wait` from any thread.
    fn waker(&self) -> Waker;
    /// Waits so from now on, where it can: a wait may look for what it waits for before it sleeps.
    fn spin(&mut self, _spinner: Spinner) {}
    /// Completes once, as an operation without a buffer does, when `descriptor` has something to read or its other end is gone. Counts
    /// for no depth, and ends in silence with the queue. False, and nothing, if the queue can't, or has too many already.
    fn watch(&mut self, _token: u64, _descriptor: Arc<OwnedFd>) -> bool {
        false
    }
}
