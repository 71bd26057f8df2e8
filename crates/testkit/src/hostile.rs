//! A disk in the hands of an adversary, for simulation: nothing happens until the controller says so, and
//! what happens follows from a seed.
//!
//! An honest disk with a volatile write cache is the least of it: operations end in any order, and a crash
//! keeps what was not flushed in any subset, in any order, torn at 512 bytes. [`Faults`] and the commands of
//! [`HostileStore`] add lies, errors, and tampering.
//!
//! For use by one thread: the locks inside are there to satisfy [`Store`], and a trace must not call back.

mod disk;
mod fault;
mod image;
mod queue;

pub use fault::{Event, Faults, Trace};
pub use image::Image;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disk::Disk;
use queue::HostileQueue;
use store::{Error, ErrorKind, Queue, Store, Usage};

const NAME: &str = "hostile";

/// The disk, and what its owner can do to it. Clones are the same disk.
///
/// As a [`Store`] it opens queues for a guest of its own that is always there; [`HostileStore::attach`] gives
/// guests that can be killed one by one.
#[derive(Clone)]
pub struct HostileStore {
    disk: Arc<Mutex<Disk>>,
}

/// One guest's way to the disk, from attach to death. Clones are the same guest.
#[derive(Clone)]
pub struct Session {
    disk: Arc<Mutex<Disk>>,
    id: u64,
}

/// The guest behind [`HostileStore`]'s own queues.
const RESIDENT: u64 = 0;

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostileStore {
    /// An empty disk of `blocks` blocks, all zero. Everything that is left to chance follows from `seed`.
    #[must_use]
    pub fn new(blocks: u64, seed: u64, faults: Faults) -> Self {
        Self::from_image(Image::new(blocks), seed, faults)
    }

    /// A disk that holds `image`, all of it durable.
    #[must_use]
    pub fn from_image(image: Image, seed: u64, faults: Faults) -> Self {
        Self { disk: Arc::new(Mutex::new(Disk::new(image, seed, faults))) }
    }

    /// Lets a guest in.
    #[must_use]
    pub fn attach(&self) -> Session {
        Session { disk: self.disk.clone(), id: lock(&self.disk).attach() }
    }

    /// Calls `trace` for all that happens from now on.
    pub fn set_trace(&self, trace: Option<Trace>) {
        lock(&self.disk).set_trace(trace);
    }

    /// Changes the probabilities for what ends from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.disk).faults = faults;
    }

    /// Lets queues hand out buffers that the host can write, as those of a shared-memory channel are.
    pub fn set_shared_buffers(&self, shared: bool) {
        lock(&self.disk).shared_buffers = shared;
    }

    /// Fails every read, write and discard that touches `range` with `errno`, until
    /// [`clear_bad`](Self::clear_bad).
    pub fn set_bad(&self, range: Range<u64>, errno: i32) {
        lock(&self.disk).bad.push((range, errno));
    }

    /// Ends what [`set_bad`](Self::set_bad) began.
    pub fn clear_bad(&self) {
        lock(&self.disk).bad.clear();
    }

    /// Has room for so many blocks in all from now on, as a file on a file system that others fill has; `None` for as many as there are. Blocks that
    /// were written or asked for keep their room until they are discarded.
    pub fn set_room(&self, blocks: Option<u64>) {
        lock(&self.disk).room = blocks;
    }

    /// Whether the disk says from now on which blocks it has given, and how much is left.
    pub fn set_telling(&self, tells: bool) {
        lock(&self.disk).tells = tells;
    }

    /// Blocks that the disk has given.
    #[must_use]
    pub fn taken(&self) -> u64 {
        lock(&self.disk).taken()
    }

    /// Operations that the disk has and that have not ended, of living guests and dead ones.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        lock(&self.disk).in_flight(None)
    }

    /// Ends some of the operations in flight (at least one, if there are any that are not slow) in any order, and says how many.
    #[must_use = "nothing in flight means that waiting is in vain"]
    pub fn complete_some(&self) -> usize {
        lock(&self.disk).complete(None, false)
    }

    /// Ends all operations in flight in any order, and says how many.
    pub fn complete_all(&self) -> usize {
        lock(&self.disk).complete(None, true)
    }

    /// Cuts the power. Keeps some of what was not durable, kills every guest and queue, and gives what the
    /// disk then holds, which is also what the next guest finds.
    pub fn crash(&self) -> Image {
        lock(&self.disk).crash()
    }

    /// Kills one guest; disk and other guests live on. What the guest had in flight happens, or does not, or
    /// happens in part or (see [`Faults::late_write`]) later.
    pub fn crash_session(&self, session: &Session) {
        lock(&self.disk).kill(session.id);
    }

    /// What the disk holds now, durable or not.
    #[must_use]
    pub fn snapshot(&self) -> Image {
        lock(&self.disk).visible().clone()
    }

    /// Puts another image in place, all of it durable: a rollback, or a fork. Guests are not told; what they
    /// have in flight happens to the new image.
    pub fn restore(&self, image: &Image) {
        lock(&self.disk).restore(image);
    }

    /// Changes what the disk holds, durable or not, behind everybody's back. The change is durable; what was
    /// written before and is not may still overwrite it in a crash.
    pub fn tamper(&self, change: impl FnMut(&mut Image)) {
        lock(&self.disk).tamper(change);
    }

    /// Flips one bit (`0..32768`) of a block.
    pub fn corrupt_bit(&self, block: u64, bit: usize) {
        self.tamper(|image| image.corrupt_bit(block, bit));
    }

    /// Exchanges two blocks.
    pub fn swap(&self, a: u64, b: u64) {
        self.tamper(|image| image.swap(a, b));
    }

    /// Puts a block back to what it was in `from`.
    pub fn replay_block(&self, from: &Image, block: u64) {
        self.tamper(|image| image.replay_block(from, block));
    }

    /// Makes the disk larger; what is new is zero.
    pub fn extend(&self, blocks: u64) {
        self.tamper(|image| image.extend(blocks));
    }

    /// Makes the disk smaller.
    pub fn truncate(&self, blocks: u64) {
        self.tamper(|image| image.truncate(blocks));
    }
}

impl Session {
    /// Kills this guest, whose disk may be another one by now than the one that is offered.
    pub fn crash(&self) {
        lock(&self.disk).kill(self.id);
    }

    /// Holds this guest's operations back (or no longer): `complete_some` and `complete_all` of the store
    /// pass them by. So a guest can be made to sleep and wake up as a zombie.
    pub fn hold(&self, hold: bool) {
        lock(&self.disk).hold(self.id, hold);
    }

    /// This guest's operations that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        lock(&self.disk).in_flight(Some(self.id))
    }

    /// As the store's, for this guest alone, held or not.
    #[must_use = "nothing in flight means that waiting is in vain"]
    pub fn complete_some(&self) -> usize {
        lock(&self.disk).complete(Some(self.id), false)
    }

    /// As the store's, for this guest alone, held or not.
    pub fn complete_all(&self) -> usize {
        lock(&self.disk).complete(Some(self.id), true)
    }
}

fn open(disk: &Arc<Mutex<Disk>>, session: u64) -> Result<Box<dyn Queue>, Error> {
    let Some(id) = lock(disk).open_queue(session) else {
        return Err(Error::new(ErrorKind::Io, "open", NAME, "this guest is dead; attach again"));
    };
    Ok(Box::new(HostileQueue::new(disk.clone(), id)))
}

impl Store for HostileStore {
    fn blocks(&self) -> u64 {
        lock(&self.disk).visible().blocks()
    }

    fn name(&self) -> String {
        NAME.into()
    }

    fn queue(&self, _depth: u32) -> Result<Box<dyn Queue>, Error> {
        open(&self.disk, RESIDENT)
    }

    fn allocate_range(&self, blocks: Range<u64>) -> Result<(), Error> {
        lock(&self.disk).give("allocate", blocks)
    }

    fn given(&self, blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
        lock(&self.disk).given(blocks)
    }
}

impl Store for Session {
    fn blocks(&self) -> u64 {
        lock(&self.disk).visible().blocks()
    }

    fn name(&self) -> String {
        NAME.into()
    }

    fn queue(&self, _depth: u32) -> Result<Box<dyn Queue>, Error> {
        open(&self.disk, self.id)
    }

    fn allocate_range(&self, blocks: Range<u64>) -> Result<(), Error> {
        lock(&self.disk).give("allocate", blocks)
    }

    fn usage(&self) -> Option<Usage> {
        lock(&self.disk).usage()
    }

    fn given(&self, blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
        lock(&self.disk).given(blocks)
    }
}

/// The guests that live, and those that are held.
#[derive(Debug, Default)]
struct Guests {
    last: u64,
    living: BTreeSet<u64>,
    held: BTreeSet<u64>,
}
