//! One thread's way into a volume: requests go in, run to completion on this thread, and come out.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use memory::Buffer;

use crate::allocation::Extent;
use crate::core::Core;
use crate::error::Result;
use crate::io::Io;
use crate::space::Purpose;

/// What a volume may be asked. Addresses and lengths are logical blocks of 4096 bytes.
#[derive(Debug)]
pub enum Request {
    /// Fill `buffer` (private memory) with the blocks from `block` on.
    Read {
        /// First block.
        block: u64,
        /// As long as what is to be read.
        buffer: Buffer,
    },
    /// Write all of `data` to the blocks from `block` on; no more than [`Volume::largest_change`](crate::Volume::largest_change).
    Write {
        /// First block.
        block: u64,
        /// The new content, in whole blocks. It is let go of as soon as it is sealed.
        data: Bytes,
        /// Complete only when it is as durable as after a flush.
        fua: bool,
    },
    /// Make everything that completed before this durable; at levels `strict` and `write`, also fresh.
    Flush,
    /// These blocks read as zeros from now on, and their space is free.
    Discard {
        /// First block.
        block: u64,
        /// How many.
        blocks: u64,
    },
    /// These blocks read as zeros from now on, and their space is kept: on a thin volume zeros are written, elsewhere there is space for all of it
    /// anyhow.
    Zero {
        /// First block.
        block: u64,
        /// How many.
        blocks: u64,
    },
    /// Say which of these blocks hold something, in [`Completion::extents`], without reading them.
    Allocation {
        /// First block.
        block: u64,
        /// How many. The answer has up to an extent for each, so ask for some thousands at a time.
        blocks: u64,
    },
    /// End the transaction: everything that completed before this is durable and anchored when it completes.
    Commit,
}

/// The end of one request.
#[derive(Debug)]
pub struct Completion {
    /// The number that the submitter gave.
    pub token: u64,
    /// A read's buffer. After a failed read its content is undefined, but never plaintext of other blocks.
    pub buffer: Option<Buffer>,
    /// What [`Request::Allocation`] asked for: all of its blocks, in order. Empty for other requests.
    pub extents: Vec<Extent>,
    /// `Ok`, or why it failed.
    pub result: Result<()>,
}

/// A queue of requests to an attached volume; it belongs to the thread that opened it.
///
/// While requests are [pending](Self::pending), go on polling: a flush that leads a commit, a read that holds freed blocks back, a write
/// that completed before the store had it, or a change that is the first in line for room is something that other queues wait for.
/// Dropping the queue gives up what is pending; in the middle of a commit, or with such a write, that ends the session, since nobody
/// knows what arrived.
pub struct Queue {
    core: Arc<Core>,
    io: Io,
    waker: Waker,
    runs: Rc<RefCell<Runs>>,
    tasks: FuturesUnordered<LocalBoxFuture<'static, ()>>,
    ended: Rc<RefCell<Vec<Completion>>>,
    /// How many of the tasks are watches.
    watching: Rc<Cell<usize>>,
}

impl Queue {
    pub(crate) fn open(core: Arc<Core>, depth: u32) -> Result<Self> {
        let io = Io::open(core.environment.store.as_ref(), depth.saturating_add(BEHIND_DEPTH))?;
        Ok(Self {
            waker: io.waker(),
            io,
            core,
            runs: Rc::default(),
            tasks: FuturesUnordered::new(),
            ended: Rc::default(),
            watching: Rc::default(),
        })
    }

    /// Accepts a request. Nothing happens before the next [`poll`](Self::poll).
    pub fn submit(&mut self, token: u64, request: Request) {
        let (core, io, runs) = (Arc::clone(&self.core), self.io.clone(), Rc::clone(&self.runs));
        let ended = Rc::clone(&self.ended);
        let task = async move {
            let mut extents = Vec::new();
            let told = Cell::new(false);
            let early = || {
                told.set(true);
                let extents = Vec::new();
                ended.borrow_mut().push(Completion { token, buffer: None, extents, result: Ok(()) });
            };
            let (buffer, result) = core.serve(&io, &runs, request, &mut extents, &early).await;
            if !told.get() {
                ended.borrow_mut().push(Completion { token, buffer, extents, result });
            }
        };
        // Each request moves its future about; what is large in it belongs in a box on the path that needs it.
        debug_assert!(
            size_of_val(&task) <= TASK_BYTES,
            "a request's future has {} bytes",
            size_of_val(&task)
        );
        self.tasks.push(Box::pin(task));
    }

    /// Completes once, with nothing but the token, when `descriptor` has something to read or its other end is gone: so the thread that
    /// serves requests can take them, too. It is not [pending](Self::pending), and the queue may be dropped. False, and nothing, if
    /// the store can't tell, or watches too many already.
    pub fn watch(&mut self, token: u64, descriptor: Arc<OwnedFd>) -> bool {
        let Some(seen) = self.io.watch(descriptor) else { return false };
        let (ended, watching) = (Rc::clone(&self.ended), Rc::clone(&self.watching));
        watching.set(watching.get() + 1);
        self.tasks.push(Box::pin(async move {
            let result = seen.await.result.map_err(Into::into);
            watching.set(watching.get() - 1);
            ended.borrow_mut().push(Completion { token, buffer: None, extents: Vec::new(), result });
        }));
        true
    }

    /// Requests that have not completed, and writes that have before the store had them. While there are any, go on polling.
    pub fn pending(&self) -> usize {
        self.tasks.len() - self.watching.get()
    }

    /// Moves requests on without waiting, and appends what has completed. With much to do it returns after a part of it, so that the
    /// caller can ask for more while the store works; then it says true, and wants to be polled again at once.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> bool {
        self.io.poll();
        self.run(completions);
        self.io.poll();
        self.io.is_due()
    }

    /// Like `poll`, and then sleeps until something can move on, the [`waker`](Self::waker) is woken, or the time-out passes.
    pub fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let before = completions.len();
        let more = self.poll(completions);
        if completions.len() == before && !more {
            self.io.wait(timeout);
            self.run(completions);
        }
    }

    /// Has [`wait`](Self::wait) look for what it waits for before it sleeps, where the store's queue can.
    pub fn spin(&mut self, spinner: store::Spinner) {
        self.io.spin(spinner);
    }

    /// Ends a `wait` from any thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Moves on what has been submitted since, and what the store has ended, up to a limit: new requests are on their way to the store
    /// before the rest is opened, which would leave the store without work.
    fn run(&mut self, completions: &mut Vec<Completion>) {
        let mut context = Context::from_waker(&self.waker);
        self.io.wake(BATCH_BLOCKS);
        while let Poll::Ready(Some(())) = self.tasks.poll_next_unpin(&mut context) {}
        completions.append(&mut self.ended.borrow_mut());
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.tasks.clear();
        self.runs.borrow_mut().give_all_back(&self.core);
    }
}

/// Blocks of ended transfers after which a queue looks for new requests again. A store that has nothing left to do ends all that it was
/// given at about the same time, and stands still until it hears of more: to open eight blocks takes some microseconds.
const BATCH_BLOCKS: usize = 8;

/// Store operations in flight beyond the queue's depth, for writes that have completed: a submitter that waits for each write is not to
/// wait for all that are on their way, one behind the other.
const BEHIND_DEPTH: u32 = 16;

/// Most bytes of a request's future. The system's allocator has a shorter way for up to 1032 (glibc's `tcache_max`), and goes it for each
/// request.
const TASK_BYTES: usize = 1024;

/// Free blocks that a queue has taken ahead of its writes.
#[derive(Default)]
pub(crate) struct Runs {
    runs: VecDeque<Range<u64>>,
    /// Blocks in them.
    held: u64,
    age: u64,
    /// Places that are in the overlay by now, which the space model has not been told yet.
    placed: Vec<Range<u64>>,
}

/// Stretches of places that a queue keeps to itself before it tells the space model, which takes a lock.
const UNTOLD: usize = 64;

/// Blocks that a queue takes at a time, when there are plenty.
const RUN_BLOCKS: u64 = 256;

impl Runs {
    /// `blocks` blocks in as few runs as there are; all or nothing. At least `keep` blocks of the volume stay free.
    pub(crate) fn take(&mut self, core: &Core, blocks: u64, keep: u64) -> Option<Vec<Range<u64>>> {
        let age = core.run_age.load(Ordering::SeqCst);
        if age != self.age {
            // The last checkpoint may not have listed their units.
            self.empty(core);
            self.age = age;
        }
        if self.held < blocks {
            let free = core.space.free().saturating_sub(keep);
            // Near the end of the space a queue must not sit on what another needs.
            let ahead = RUN_BLOCKS.min(free / 64);
            if self.held + free < blocks {
                return None;
            }
            self.tell(core);
            let more = core.space.take(Purpose::Data, (blocks - self.held).max(ahead), keep);
            self.held += more.iter().map(|run| run.end - run.start).sum::<u64>();
            self.runs.extend(more);
            if core.is_short_of_usable() {
                core.want_units();
            }
        }
        debug_assert_eq!(self.held, self.runs.iter().map(|run| run.end - run.start).sum::<u64>());
        if self.held < blocks {
            return None;
        }
        self.held -= blocks;
        let mut taken = Vec::with_capacity(1);
        let mut left = blocks;
        while left > 0 {
            let run = self.runs.front_mut()?;
            let end = run.end.min(run.start + left);
            taken.push(run.start..end);
            left -= end - run.start;
            run.start = end;
            if run.start == run.end {
                self.runs.pop_front();
            }
        }
        Some(taken)
    }

    /// Whether so many blocks are more than there are, with all that is free and what is held here. At least `keep` stay free.
    pub(crate) fn falls_short(&self, core: &Core, blocks: u64, keep: u64) -> bool {
        self.held + core.space.free().saturating_sub(keep) < blocks
    }

    /// Blocks that were taken and have no use yet.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Nobody writes with these any more.
    pub(crate) fn give_all_back(&mut self, core: &Core) {
        self.tell(core);
        self.empty(core);
    }

    fn empty(&mut self, core: &Core) {
        self.runs.drain(..).for_each(|run| core.space.give_back(run));
        self.held = 0;
    }

    /// What was taken is in the overlay now.
    pub(crate) fn place(&mut self, core: &Core, places: Vec<Range<u64>>) {
        for place in places {
            match self.placed.last_mut() {
                Some(last) if last.end == place.start => last.end = place.end,
                _ => self.placed.push(place),
            }
        }
        if self.placed.len() >= UNTOLD {
            self.tell(core);
        }
    }

    fn tell(&mut self, core: &Core) {
        if !self.placed.is_empty() {
            core.space.placed(self.placed.drain(..));
        }
    }

    /// Puts back what was taken and not written.
    pub(crate) fn put_back(&mut self, core: &Core, runs: Vec<Range<u64>>) {
        runs.into_iter().for_each(|run| core.space.give_back(run));
    }
}
