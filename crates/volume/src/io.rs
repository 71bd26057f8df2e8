//! One thread's I/O as futures: a store queue, and who waits for what on it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::LocalBoxFuture;
use memory::Buffer;
use slab::Slab;
use store::{Completion, Operation, Store};

use crate::error::Result;

/// A store queue whose operations are futures. Clones share the queue; it stays on its thread.
#[derive(Clone)]
pub(crate) struct Io(Rc<RefCell<Inner>>);

struct Inner {
    queue: Box<dyn store::Queue>,
    slots: Slab<Slot>,
    ended: Vec<Completion>,
    /// Who waits for what has ended, and of how many blocks that was; first come, first woken.
    due: VecDeque<(Waker, usize)>,
    /// Blocks that the queue was handed since the store was last told.
    held: usize,
    /// Writes that wait for company, since the store has enough to do; and their blocks.
    gathered: Vec<(usize, Operation)>,
    gathered_blocks: usize,
    /// Such writes that the store has.
    writing: usize,
}

/// While the store has so many writes, those that come are gathered: most writes go to consecutive places, and a transfer costs the same
/// whether it has one block or thirty-two.
const ENOUGH_WRITES: usize = 4;

/// With so many blocks the store gets what was gathered, however busy it is.
const GATHERED_BLOCKS: usize = 32;

/// Blocks after which the store is told at once: it should work while the next ones are sealed.
const HELD_BLOCKS: usize = 128;

enum Slot {
    Waiting {
        waker: Option<Waker>,
        /// Whether it began among the gathered ones.
        gathered: bool,
    },
    Ended(Completion),
    /// Nobody waits any more; the slot goes when the operation ends.
    Abandoned {
        gathered: bool,
    },
}

impl Inner {
    /// Hands an operation to the queue. Says whether the store should hear of it now.
    fn submit(&mut self, slot: usize, operation: Operation) -> bool {
        self.held += match &operation {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => buffer.blocks(),
            Operation::Flush | Operation::Discard { .. } => 0,
        };
        self.queue.submit(slot as u64, operation);
        self.held >= HELD_BLOCKS
    }

    /// The same for all that were gathered.
    fn send_gathered(&mut self) -> bool {
        self.gathered_blocks = 0;
        self.writing += self.gathered.len();
        let mut gathered = std::mem::take(&mut self.gathered);
        let full =
            gathered.drain(..).fold(false, |full, (slot, operation)| self.submit(slot, operation) || full);
        // The next ones find its room.
        self.gathered = gathered;
        full
    }
}

impl Io {
    pub(crate) fn open(store: &dyn Store, depth: u32) -> Result<Self> {
        Ok(Self::on(store.queue(depth)?))
    }

    fn on(queue: Box<dyn store::Queue>) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            queue,
            slots: Slab::new(),
            ended: Vec::new(),
            due: VecDeque::new(),
            held: 0,
            gathered: Vec::new(),
            gathered_blocks: 0,
            writing: 0,
        })))
    }

    pub(crate) fn buffer(&self, blocks: usize) -> Buffer {
        self.0.borrow_mut().queue.buffer(blocks)
    }

    pub(crate) async fn read(&self, block: u64, blocks: usize) -> Result<Buffer> {
        let buffer = self.buffer(blocks);
        let ended = self.start(Operation::Read { block, buffer }).await;
        ended.result?;
        ended.buffer.ok_or_else(|| {
            crate::error::Error::new(
                crate::error::Kind::Defect,
                "the store kept a read's buffer; report this as a defect",
            )
        })
    }

    pub(crate) async fn write(&self, block: u64, buffer: Buffer) -> Result<()> {
        Ok(self.start(Operation::Write { block, buffer }).await.result?)
    }

    /// The same; and the buffer, to try again.
    pub(crate) async fn try_write(&self, block: u64, buffer: Buffer) -> (Option<Buffer>, Result<()>) {
        let ended = self.start(Operation::Write { block, buffer }).await;
        (ended.buffer, ended.result.map_err(Into::into))
    }

    /// Begins a write at once, and not when the future is first polled; the store may get it together with others.
    pub(crate) fn begin_write(&self, block: u64, buffer: Buffer) -> Transfer {
        let mut inner = self.0.borrow_mut();
        let slot = inner.slots.insert(Slot::Waiting { waker: None, gathered: true });
        inner.gathered_blocks += buffer.blocks();
        inner.gathered.push((slot, Operation::Write { block, buffer }));
        let full = inner.gathered_blocks >= GATHERED_BLOCKS && inner.send_gathered();
        drop(inner);
        if full {
            self.poll();
        }
        Transfer { io: self.clone(), slot }
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        Ok(self.start(Operation::Flush).await.result?)
    }

    /// Has the store forget blocks.
    pub(crate) async fn discard(&self, block: u64, blocks: u64) -> Result<()> {
        Ok(self.start(Operation::Discard { block, blocks }).await.result?)
    }

    /// Ends when `descriptor` has something to read, or its other end is gone; `None` if the store can't tell.
    pub(crate) fn watch(&self, descriptor: Arc<OwnedFd>) -> Option<Transfer> {
        let inner = &mut *self.0.borrow_mut();
        let place = inner.slots.vacant_entry();
        let slot = place.key();
        inner.queue.watch(slot as u64, descriptor).then(|| {
            place.insert(Slot::Waiting { waker: None, gathered: false });
            Transfer { io: self.clone(), slot }
        })
    }

    fn start(&self, operation: Operation) -> Transfer {
        let mut inner = self.0.borrow_mut();
        let slot = inner.slots.insert(Slot::Waiting { waker: None, gathered: false });
        let full = inner.submit(slot, operation);
        drop(inner);
        if full {
            self.poll();
        }
        Transfer { io: self.clone(), slot }
    }

    /// Sends and reaps without blocking. Nobody is woken before [`wake`](Self::wake).
    pub(crate) fn poll(&self) {
        self.reap(|queue, ended| queue.poll(ended));
    }

    /// Like `poll`, but sleeps until something ends, a waker is woken, or the time-out passes.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        self.reap(|queue, ended| queue.wait(timeout, ended));
    }

    pub(crate) fn spin(&self, spinner: store::Spinner) {
        self.0.borrow_mut().queue.spin(spinner);
    }

    pub(crate) fn waker(&self) -> Waker {
        self.0.borrow().queue.waker()
    }

    /// Wakes the futures whose operations have ended, until these had `blocks` blocks together.
    pub(crate) fn wake(&self, blocks: usize) {
        let mut woken = 0;
        while woken < blocks {
            let Some((waker, blocks)) = self.0.borrow_mut().due.pop_front() else { return };
            woken += blocks;
            waker.wake();
        }
    }

    /// Whether somebody is to be woken.
    pub(crate) fn is_due(&self) -> bool {
        !self.0.borrow().due.is_empty()
    }

    fn reap(&self, step: impl FnOnce(&mut dyn store::Queue, &mut Vec<Completion>)) {
        let mut inner = self.0.borrow_mut();
        if inner.writing < ENOUGH_WRITES {
            inner.send_gathered();
        }
        inner.held = 0;
        let Inner { queue, slots, ended, due, writing, .. } = &mut *inner;
        step(queue.as_mut(), ended);
        for completion in ended.drain(..) {
            // A token that is not ours would be the store's defect; it has nobody to go to.
            let Some(key) = usize::try_from(completion.token).ok().filter(|key| slots.contains(*key)) else {
                continue;
            };
            let blocks = completion.buffer.as_ref().map_or(0, Buffer::blocks);
            match std::mem::replace(&mut slots[key], Slot::Ended(completion)) {
                Slot::Waiting { waker, gathered } => {
                    *writing = writing.saturating_sub(usize::from(gathered));
                    due.extend(waker.map(|waker| (waker, blocks)));
                }
                Slot::Abandoned { gathered } => {
                    *writing = writing.saturating_sub(usize::from(gathered));
                    slots.remove(key);
                }
                Slot::Ended(_) => {}
            }
        }
    }
}

/// One operation on its way.
pub(crate) struct Transfer {
    io: Io,
    slot: usize,
}

impl Future for Transfer {
    type Output = Completion;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let slots = &mut self.io.0.borrow_mut().slots;
        match &mut slots[self.slot] {
            Slot::Waiting { waker, .. } => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Slot::Ended(_) | Slot::Abandoned { .. } => {
                match std::mem::replace(&mut slots[self.slot], Slot::Abandoned { gathered: false }) {
                    Slot::Ended(completion) => Poll::Ready(completion),
                    _ => Poll::Pending,
                }
            }
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // The queue owns the buffer until the operation ends, so an abandoned one harms nobody.
        let slots = &mut self.io.0.borrow_mut().slots;
        match slots.get(self.slot) {
            Some(Slot::Waiting { gathered, .. }) => {
                slots[self.slot] = Slot::Abandoned { gathered: *gathered };
            }
            Some(_) => drop(slots.remove(self.slot)),
            None => {}
        }
    }
}

/// A job with its own store queue, moved on by whoever holds it: a thread that blocks, or a scheduler that
/// interleaves.
pub struct Driven<T> {
    io: Io,
    future: LocalBoxFuture<'static, T>,
    waker: Waker,
}

impl<T> Driven<T> {
    pub(crate) fn new(
        store: &dyn Store,
        depth: u32,
        job: impl FnOnce(Io) -> LocalBoxFuture<'static, T>,
    ) -> Result<Self> {
        let io = Io::open(store, depth)?;
        Ok(Self { future: job(io.clone()), waker: io.waker(), io })
    }

    /// Does what can be done now; the result, when the job has ended. Never blocks.
    pub fn poll(&mut self) -> Option<T> {
        self.io.poll();
        self.io.wake(usize::MAX);
        let ended = self.advance();
        self.io.poll();
        ended
    }

    fn advance(&mut self) -> Option<T> {
        match self.future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Does what can be done now, and then sleeps until there is more to do, or for so long; the result, when the job has ended.
    pub fn step(&mut self, timeout: Duration) -> Option<T> {
        let ended = self.advance();
        if ended.is_none() {
            // What ended while the job sent more has woken nobody yet.
            if !self.io.is_due() {
                self.io.wait(Some(timeout));
            }
            self.io.wake(usize::MAX);
        }
        ended
    }

    /// Runs the job to its end on this thread.
    pub fn block(mut self) -> T {
        loop {
            if let Some(result) = self.step(Duration::from_millis(100)) {
                return result;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    /// A store that ends everything at the next poll, and on which nobody may sleep.
    struct Sleepless;

    #[derive(Default)]
    struct SleeplessQueue(Vec<Completion>);

    impl Store for Sleepless {
        fn blocks(&self) -> u64 {
            1 << 20
        }

        fn name(&self) -> String {
            "sleepless".into()
        }

        fn queue(&self, _depth: u32) -> std::result::Result<Box<dyn store::Queue>, store::Error> {
            Ok(Box::new(SleeplessQueue::default()))
        }
    }

    impl store::Queue for SleeplessQueue {
        fn buffer(&mut self, blocks: usize) -> Buffer {
            Buffer::private_zeroed(blocks)
        }

        fn submit(&mut self, token: u64, operation: Operation) {
            let buffer = match operation {
                Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => Some(buffer),
                Operation::Flush | Operation::Discard { .. } => None,
            };
            self.0.push(Completion { token, buffer, result: Ok(()) });
        }

        fn poll(&mut self, completions: &mut Vec<Completion>) {
            completions.append(&mut self.0);
        }

        fn wait(&mut self, _timeout: Option<Duration>, completions: &mut Vec<Completion>) {
            assert!(!self.0.is_empty(), "it would sleep, and all has ended");
            self.poll(completions);
        }

        fn waker(&self) -> Waker {
            Waker::noop().clone()
        }
    }

    /// A store that ends what it is told to, and how many transfers it has got.
    #[derive(Clone, Default)]
    struct Busy(Rc<RefCell<Vec<Completion>>>, Rc<RefCell<usize>>);

    impl store::Queue for Busy {
        fn buffer(&mut self, blocks: usize) -> Buffer {
            Buffer::private_zeroed(blocks)
        }

        fn submit(&mut self, token: u64, _: Operation) {
            self.0.borrow_mut().push(Completion { token, buffer: None, result: Ok(()) });
        }

        fn poll(&mut self, completions: &mut Vec<Completion>) {
            let ends = self.1.take();
            completions.extend(self.0.borrow_mut().drain(..ends));
        }

        fn wait(&mut self, _timeout: Option<Duration>, completions: &mut Vec<Completion>) {
            self.poll(completions);
        }

        fn waker(&self) -> Waker {
            Waker::noop().clone()
        }
    }

    #[test]
    fn writes_are_gathered_while_the_store_has_enough_of_them() {
        let store = Busy::default();
        let io = Io::on(Box::new(store.clone()));
        let has = || store.0.borrow().len();
        let mut begun = Vec::new();
        let mut begin = |count: usize| {
            for _ in 0..count {
                begun.push(io.begin_write(0, Buffer::private_zeroed(1)));
                io.poll();
            }
        };
        begin(ENOUGH_WRITES);
        assert_eq!(has(), ENOUGH_WRITES, "it had too little to do to wait for more");
        begin(GATHERED_BLOCKS - 1);
        assert_eq!(has(), ENOUGH_WRITES);
        begin(1);
        assert_eq!(has(), ENOUGH_WRITES + GATHERED_BLOCKS, "a whole group");
        begin(1);
        assert_eq!(has(), ENOUGH_WRITES + GATHERED_BLOCKS);
        // Whatever ends, waited for or not: with little left to do, the store gets the rest.
        drop(begun);
        *store.1.borrow_mut() = has() - ENOUGH_WRITES + 1;
        io.poll();
        io.poll();
        assert_eq!(has(), ENOUGH_WRITES);
    }

    #[test]
    fn a_job_does_not_sleep_over_what_ended_while_it_sent_more() {
        // The second write is as much as is held back, so the store ends both while the job sends it, and the job waits for the first.
        let job = |io: Io| {
            let write = move |blocks: usize| {
                let io = io.clone();
                async move { io.write(0, Buffer::private_zeroed(blocks)).await }
            };
            async move { join_all([1, HELD_BLOCKS].map(write)).await.len() }.boxed_local()
        };
        let mut driven = Driven::new(&Sleepless, 8, job).expect("a queue");
        let ended = (0..10).find_map(|_| driven.step(Duration::from_secs(3600)));
        assert_eq!(ended, Some(2));
    }
}
