//! The way of the long jobs through everything that the map reaches, and how they give way to users.
//!
//! Invariants:
//! 1. Each leaf is looked at as it is when its turn comes; leaves come in logical order.
//! 2. With the volume to itself a job has several leaves under way, and begins the next when one of them has ended: the store always has work.
//! 3. Beside users it has one short stretch under way, and then rests until its driver says that it may go on. While it rests it holds nothing
//!    that a request could wait for: no place, no promise, and it is no reader.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use event_listener::Event;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use memory::{BLOCK_SIZE, Buffer};

use crate::cache::NodeKey;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::Tree;
use crate::format::entry::entry_at;
use crate::io::Io;

/// Leaves of the map (128 blocks) that are under way at a time when nobody uses the volume.
const LEAVES_AT_ONCE: usize = 8;
/// Blocks after which it rests beside users. A request that comes just then waits for as many at most, so they are few; many more than one,
/// since a rest costs a sleep.
const BLOCKS_BESIDE: u64 = 16;

/// What a long job and its driver agree on: whether somebody else uses the volume, and when the job rests.
#[derive(Debug, Default)]
pub struct Sharing {
    sharing: AtomicBool,
    resting: AtomicBool,
    go: Event,
}

impl Sharing {
    /// For whoever drives the job: whether somebody else uses the volume now. Then it does a little at a time (64 KiB), and rests after each
    /// until [`go_on`](Self::go_on).
    pub fn share(&self, sharing: bool) {
        self.sharing.store(sharing, Ordering::Relaxed);
    }

    /// Whether it rests. It holds nothing then that anybody else could wait for.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.resting.load(Ordering::SeqCst)
    }

    /// It has rested enough.
    pub fn go_on(&self) {
        self.resting.store(false, Ordering::SeqCst);
        self.go.notify(usize::MAX);
    }

    fn is_shared(&self) -> bool {
        self.sharing.load(Ordering::Relaxed)
    }

    /// Leaves the volume to its users for a while.
    async fn rest(&self, core: &Core) {
        self.resting.store(true, Ordering::SeqCst);
        // The driver is about to sleep until the store has something: it must hear that there is nothing under way.
        poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Ready(())
        })
        .await;
        loop {
            let (go, progress) = (self.go.listen(), core.progress.listen());
            if !self.rests() || core.stopping.load(Ordering::SeqCst) {
                return self.resting.store(false, Ordering::SeqCst);
            }
            futures::future::select(go, progress).await;
        }
    }
}

/// What a job does on its way.
pub(crate) trait Visitor {
    /// Whether a leaf is this job's business.
    fn wants(&self, index: u64) -> bool;
    /// The stretches of a leaf's span on which there is work.
    async fn look(&self, span: Range<u64>) -> Result<Vec<Range<u64>>>;
    /// Most blocks of a stretch that are worked on at a time.
    fn most(&self) -> u64;
    /// Does the work on one of them.
    async fn work(&self, stretch: Range<u64>) -> Result<()>;
    /// A node could not be read, and so nothing of this span; an error ends the job.
    fn damaged(&self, span: Range<u64>, error: Error) -> Result<()>;
    /// Whether the job is to end early.
    fn stops(&self) -> bool;
}

/// One way through the map.
pub(crate) struct Tour<'a, V> {
    pub(crate) core: &'a Core,
    pub(crate) io: &'a Io,
    pub(crate) sharing: &'a Sharing,
    pub(crate) visitor: &'a V,
}

/// What is left of a leaf, and how many blocks have been worked on since it was taken up.
struct Done {
    left: VecDeque<Range<u64>>,
    blocks: u64,
}

/// What a job has before it.
struct Ahead {
    /// Nodes whose children nobody has looked up yet; the next one is the last.
    nodes: Vec<NodeKey>,
    /// Leaves, by their numbers.
    leaves: VecDeque<u64>,
    /// What is left of leaves that were begun.
    left: VecDeque<VecDeque<Range<u64>>>,
}

impl<V: Visitor> Tour<'_, V> {
    /// Goes to all leaves that the map reaches. False if it ended early.
    pub(crate) async fn all(&self) -> Result<bool> {
        let (root, level) = self.core.top(Tree::Map);
        let root = (!root.is_absent()).then_some(NodeKey { tree: Tree::Map, level, index: 0 });
        self.run(Ahead { nodes: root.into_iter().collect(), leaves: VecDeque::new(), left: VecDeque::new() })
            .await
    }

    /// Goes to these leaves.
    pub(crate) async fn only(&self, leaves: impl Iterator<Item = u64>) -> Result<bool> {
        self.run(Ahead { nodes: Vec::new(), leaves: leaves.collect(), left: VecDeque::new() }).await
    }

    /// When one leaf fails, those that are under way come to their ends first: one of them may be in the middle of a commit, which ends the
    /// session when it is given up.
    async fn run(&self, mut ahead: Ahead) -> Result<bool> {
        let mut under_way = FuturesUnordered::new();
        let (mut since_rest, mut failed) = (0, None);
        loop {
            let shared = self.sharing.is_shared();
            if shared && under_way.is_empty() && since_rest >= BLOCKS_BESIDE {
                self.sharing.rest(self.core).await;
                since_rest = 0;
            }
            let width = if shared { 1 } else { LEAVES_AT_ONCE };
            while failed.is_none() && under_way.len() < width && !self.visitor.stops() {
                match self.next(&mut ahead).await {
                    Ok(Some(next)) => under_way.push(next),
                    Ok(None) => break,
                    Err(error) => failed = Some(error),
                }
            }
            match under_way.next().await {
                Some(Ok(Done { left, blocks })) => {
                    since_rest += blocks;
                    ahead.left.extend((!left.is_empty()).then_some(left));
                }
                Some(Err(error)) => failed = failed.or(Some(error)),
                None => return failed.map_or_else(|| Ok(!self.visitor.stops()), Err),
            }
        }
    }

    /// What is to be done next; `None` if there is nothing.
    async fn next(&self, ahead: &mut Ahead) -> Result<Option<LocalBoxFuture<'_, Result<Done>>>> {
        if let Some(left) = ahead.left.pop_front() {
            return Ok(Some(self.stretches(left, 0).boxed_local()));
        }
        loop {
            if let Some(index) = ahead.leaves.pop_front() {
                return Ok(Some(self.leaf(index).boxed_local()));
            }
            let Some(key) = ahead.nodes.pop() else { return Ok(None) };
            if key.level == 0 {
                ahead.leaves.extend(Some(key.index).filter(|index| self.visitor.wants(*index)));
                continue;
            }
            let children = self.children(key).await?;
            match key.level {
                1 => ahead.leaves.extend(children.filter(|index| self.visitor.wants(*index))),
                _ => ahead.nodes.extend(children.rev().map(|index| NodeKey {
                    level: key.level - 1,
                    index,
                    ..key
                })),
            }
        }
    }

    /// The numbers of a node's children.
    async fn children(&self, key: NodeKey) -> Result<std::vec::IntoIter<u64>> {
        let bits = self.core.geometry.fan_out_bits;
        let page = {
            // The nodes that are read must not be written over meanwhile.
            let _reading = self.core.readers.enter();
            match self.core.node(self.io, key).await {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(Vec::new().into_iter()),
                Err(error) => {
                    return self.visitor.damaged(self.span(key), error).map(|()| Vec::new().into_iter());
                }
            }
        };
        let mut children = Vec::new();
        for slot in 0..1usize << bits {
            if !entry_at(page.as_slice(), slot)?.is_absent() {
                children.push((key.index << bits) + slot as u64);
            }
        }
        Ok(children.into_iter())
    }

    fn span(&self, key: NodeKey) -> Range<u64> {
        let bits = self.core.geometry.fan_out_bits * (key.level + 1);
        key.index << bits..((key.index + 1) << bits).min(self.core.geometry.logical_blocks)
    }

    async fn leaf(&self, index: u64) -> Result<Done> {
        let stretches = self.visitor.look(self.span(NodeKey { tree: Tree::Map, level: 0, index })).await?;
        self.stretches(stretches.into(), 1).await
    }

    /// Works on these until somebody wants to use the volume, too; then on a little of it.
    async fn stretches(&self, mut left: VecDeque<Range<u64>>, looked: u64) -> Result<Done> {
        let mut blocks = looked;
        while let Some(stretch) = left.pop_front().filter(|_| !self.visitor.stops()) {
            let shared = self.sharing.is_shared();
            let most = if shared { BLOCKS_BESIDE.min(self.visitor.most()) } else { self.visitor.most() };
            let end = stretch.end.min(stretch.start.saturating_add(most.max(1)));
            self.visitor.work(stretch.start..end).await?;
            blocks += end - stretch.start;
            if end < stretch.end {
                left.push_front(end..stretch.end);
            }
            if self.sharing.is_shared() && blocks >= BLOCKS_BESIDE {
                break;
            }
        }
        Ok(Done { left, blocks })
    }
}

/// Memory for what is opened, kept for the next stretch: memory that is new each time comes from the kernel page by page, and zeroed, which
/// takes about as long as to open what is read into it.
pub(crate) struct Buffers {
    blocks: usize,
    free: RefCell<Vec<Buffer>>,
}

/// Some of it; it goes back when it is dropped.
pub(crate) struct Lent<'a> {
    buffers: &'a Buffers,
    buffer: Option<Buffer>,
}

impl Buffers {
    /// Each of so many blocks.
    pub(crate) fn new(blocks: usize) -> Self {
        Self { blocks, free: RefCell::default() }
    }

    /// At least so many blocks, with what was left in them.
    pub(crate) fn take(&self, blocks: usize) -> Lent<'_> {
        let kept = self.free.borrow_mut().pop().filter(|kept| kept.blocks() >= blocks);
        Lent { buffers: self, buffer: kept.or_else(|| Some(Buffer::private_zeroed(blocks.max(self.blocks)))) }
    }
}

impl Lent<'_> {
    /// The first pages of it.
    pub(crate) fn pages(&mut self, blocks: usize) -> Result<&mut [u8]> {
        let all = self.buffer.as_mut().and_then(Buffer::private_mut);
        let pages = all.and_then(|all| all.get_mut(..blocks * BLOCK_SIZE));
        pages.ok_or_else(|| Error::new(Kind::Usage, "plaintext belongs in private memory"))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.buffers.free.borrow_mut().extend(self.buffer.take());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    use seal::SecretBytes;
    use seal::slot::{Argon2Params, Credential};
    use store::MemoryStore;

    use super::*;
    use crate::core::{Clock, Environment};
    use crate::format::protections::{Freshness, Provision, SuiteCode};
    use crate::geometry::Shape;
    use crate::io::Driven;
    use crate::volume::Volume;
    use crate::{AttachOptions, CreateOptions, attach, create};

    struct NoClock;

    impl Clock for NoClock {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn volume() -> Volume {
        let environment = Environment {
            store: Arc::new(MemoryStore::new(8192).unwrap()),
            anchor: None,
            random: Arc::new(seal::SystemRandom),
            clock: Arc::new(NoClock),
        };
        let options = CreateOptions {
            suite: SuiteCode::Aes256Gcm,
            confidentiality: true,
            integrity: true,
            freshness: Freshness::Off,
            provision: Provision::Full,
            logical_blocks: Some(4096),
            force: false,
            shape: Shape::STANDARD,
            argon2: Argon2Params::default(),
            label: String::new(),
            anchor_options: anchor::Options::default(),
        };
        let key = || Credential::KeyFile(SecretBytes::from_slice(&[7; 64]));
        let policy = create(environment.clone(), options, key(), Box::new(|_| Ok(()))).unwrap();
        let policy = policy.block().unwrap();
        attach(environment, policy, key(), AttachOptions::default()).unwrap().block().unwrap()
    }

    /// Work that takes a while, and fails at once on one leaf.
    struct Slow {
        fails: u64,
        begun: Cell<u32>,
        ended: Cell<u32>,
    }

    impl Visitor for Slow {
        fn wants(&self, _: u64) -> bool {
            true
        }

        async fn look(&self, span: Range<u64>) -> Result<Vec<Range<u64>>> {
            Ok(vec![span])
        }

        fn most(&self) -> u64 {
            u64::MAX
        }

        async fn work(&self, stretch: Range<u64>) -> Result<()> {
            if stretch.start == self.fails {
                return Err(Error::new(Kind::NoSpace, "here"));
            }
            self.begun.set(self.begun.get() + 1);
            for _ in 0..5 {
                let mut polled = false;
                poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }
            self.ended.set(self.ended.get() + 1);
            Ok(())
        }

        fn damaged(&self, _: Range<u64>, error: Error) -> Result<()> {
            Err(error)
        }

        fn stops(&self) -> bool {
            false
        }
    }

    #[test]
    fn when_one_leaf_fails_the_others_come_to_their_ends() {
        let volume = volume();
        let core = Arc::clone(&volume.0);
        let job = Driven::new(core.environment.store.as_ref(), 8, {
            let core = Arc::clone(&core);
            move |io| {
                async move {
                    let visitor = Slow { fails: 5 * 128, begun: Cell::new(0), ended: Cell::new(0) };
                    let sharing = Sharing::default();
                    let tour = Tour { core: &core, io: &io, sharing: &sharing, visitor: &visitor };
                    let ended = tour.only(0..32).await;
                    (ended, visitor.begun.get(), visitor.ended.get())
                }
                .boxed_local()
            }
        });
        let (result, begun, ended) = job.unwrap().block();
        assert_eq!(result.unwrap_err().kind(), Kind::NoSpace);
        assert!(begun > 0 && begun == ended && begun < 31, "{begun} begun, {ended} ended");
    }

    #[test]
    fn memory_is_lent_again_and_new_only_if_it_is_too_small() {
        let buffers = Buffers::new(4);
        let place = |lent: &mut Lent<'_>| lent.pages(1).unwrap().as_ptr();
        let (mut one, mut other) = (buffers.take(4), buffers.take(1));
        let (first, second) = (place(&mut one), place(&mut other));
        assert_ne!(first, second, "both are in use");
        assert!(other.pages(4).is_ok() && other.pages(5).is_err());
        drop(one);
        assert_eq!(place(&mut buffers.take(2)), first);
        assert_eq!(buffers.take(5).pages(5).unwrap().len(), 5 * BLOCK_SIZE);
    }
}
