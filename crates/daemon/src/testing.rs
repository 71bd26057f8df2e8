//! A volume in memory, for tests of what is around one.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use anchor::MemoryAnchor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential};
use store::{Buffer, Completion, MemoryStore, Operation, Queue, Store};
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{AttachOptions, CreateOptions, Environment, Volume};

/// Says that a test did not run, in a line that is seen although it passes. `scripts/test` counts these lines.
pub fn tell_skipped(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

/// How long a queue sleeps at most that watches descriptors.
const LOOK: Duration = Duration::from_millis(5);

/// What is wrong with a store.
#[derive(Clone)]
pub struct Trouble {
    /// So many queues more can be had.
    pub queues: Arc<AtomicU64>,
    /// The next write that begins here fails, and only that one.
    pub fails: Arc<Mutex<Option<Range<u64>>>>,
}

/// A store that can be in trouble.
struct Troubled {
    memory: MemoryStore,
    trouble: Trouble,
}

struct TroubledQueue {
    inner: Box<dyn Queue>,
    trouble: Trouble,
    failing: BTreeSet<u64>,
    watching: Vec<(u64, Arc<OwnedFd>)>,
}

impl Store for Troubled {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }

    fn name(&self) -> String {
        self.memory.name()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, store::Error> {
        let one_less = |left: u64| left.checked_sub(1);
        if self.trouble.queues.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err() {
            return Err(error("queue", rustix::io::Errno::NOMEM));
        }
        let inner = self.memory.queue(depth)?;
        let trouble = self.trouble.clone();
        Ok(Box::new(TroubledQueue { inner, trouble, failing: BTreeSet::new(), watching: Vec::new() }))
    }
}

fn error(operation: &'static str, errno: rustix::io::Errno) -> store::Error {
    store::Error::from_errno(errno.raw_os_error(), operation, "here")
}

impl TroubledQueue {
    /// What the memory's queue can't: it has no descriptors.
    fn look(&mut self, ended: &mut Vec<Completion>) {
        self.watching.retain(|(token, descriptor)| {
            let mut looked = [PollFd::new(descriptor, PollFlags::IN)];
            let nothing = poll(&mut looked, Some(&Timespec::default())).unwrap() == 0;
            if !nothing {
                ended.push(Completion { token: *token, buffer: None, result: Ok(()) });
            }
            nothing
        });
    }

    fn spoil(&mut self, ended: &mut [Completion]) {
        for completion in ended.iter_mut().filter(|completion| self.failing.remove(&completion.token)) {
            completion.result = Err(error("write", rustix::io::Errno::IO));
        }
    }
}

impl Queue for TroubledQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.inner.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        if let Operation::Write { block, .. } = &operation
            && self.trouble.fails.lock().unwrap().take_if(|range| range.contains(block)).is_some()
        {
            self.failing.insert(token);
        }
        self.inner.submit(token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.inner.poll(completions);
        self.spoil(&mut completions[before..]);
        self.look(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let before = completions.len();
        let most = if self.watching.is_empty() { Duration::MAX } else { LOOK };
        self.inner.wait(timeout.map(|timeout| timeout.min(most)), completions);
        self.spoil(&mut completions[before..]);
        self.look(completions);
    }

    fn watch(&mut self, token: u64, descriptor: Arc<OwnedFd>) -> bool {
        self.watching.push((token, descriptor));
        true
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}

/// The smallest volume.
pub struct TestVolume {
    /// Where it is.
    pub environment: Environment,
    /// What its owner says of it.
    pub policy: Policy,
    /// Of its store.
    pub trouble: Trouble,
}

impl TestVolume {
    /// With a volume without an anchor that nobody has attached.
    pub fn new() -> Self {
        Self::with(Freshness::Off)
    }

    /// The same, and with an anchor if the level needs one.
    pub fn with(freshness: Freshness) -> Self {
        let shape = Shape::STANDARD;
        let options = CreateOptions {
            suite: SuiteCode::Aes256Gcm,
            confidentiality: true,
            integrity: true,
            freshness,
            provision: Provision::Thin,
            logical_blocks: Some(shape.min_logical),
            force: false,
            shape,
            argon2: Argon2Params::default(),
            label: String::new(),
            anchor_options: anchor::Options::default(),
        };
        let geometry = Geometry::for_logical(shape.min_logical, shape).unwrap();
        let memory = MemoryStore::new(geometry.physical_blocks).unwrap();
        let trouble = Trouble { queues: Arc::new(AtomicU64::new(u64::MAX)), fails: Arc::default() };
        let anchored = freshness != Freshness::Off;
        let environment = Environment {
            store: Arc::new(Troubled { memory, trouble: trouble.clone() }),
            anchor: anchored.then(|| Arc::new(MemoryAnchor::new()) as Arc<dyn anchor::Anchor>),
            random: Arc::new(seal::SystemRandom),
            clock: Arc::new(crate::system::SystemClock::new()),
        };
        let save = Box::new(|_: &_| Ok(()));
        let policy = volume::create(environment.clone(), options, key(), save).unwrap().block().unwrap();
        Self { environment, policy, trouble }
    }

    /// A session, without its threads.
    pub fn attach(&self) -> Volume {
        let (environment, policy) = (self.environment.clone(), self.policy.clone());
        volume::attach(environment, policy, key(), AttachOptions::default()).unwrap().block().unwrap()
    }
}

/// What opens it.
pub fn key() -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[7; 64]))
}
