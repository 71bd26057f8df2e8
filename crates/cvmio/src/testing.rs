//! A volume in memory, for tests of what is around one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential};
use store::{MemoryStore, Queue, Store};
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{AttachOptions, CreateOptions, Environment, Volume};

/// A store whose kernel can run out of what a queue needs.
struct Scarce {
    memory: MemoryStore,
    refuses: Arc<AtomicBool>,
}

impl Store for Scarce {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }

    fn name(&self) -> String {
        self.memory.name()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, store::Error> {
        match self.refuses.load(Ordering::SeqCst) {
            true => Err(store::Error::from_errno(rustix::io::Errno::NOMEM.raw_os_error(), "queue", "here")),
            false => self.memory.queue(depth),
        }
    }
}

/// The smallest volume, without an anchor.
pub struct Bench {
    environment: Environment,
    policy: Policy,
    /// Whether the store gives no queue.
    pub refuses: Arc<AtomicBool>,
}

impl Bench {
    /// With a volume that nobody has attached.
    pub fn new() -> Self {
        let shape = Shape::STANDARD;
        let options = CreateOptions {
            suite: SuiteCode::Aes256Gcm,
            confidentiality: true,
            integrity: true,
            freshness: Freshness::Off,
            provision: Provision::Thin,
            logical_blocks: Some(shape.min_logical),
            force: false,
            shape,
            argon2: Argon2Params::default(),
            label: String::new(),
        };
        let geometry = Geometry::for_logical(shape.min_logical, shape).unwrap();
        let memory = MemoryStore::new(geometry.physical_blocks).unwrap();
        let refuses = Arc::new(AtomicBool::new(false));
        let environment = Environment {
            store: Arc::new(Scarce { memory, refuses: Arc::clone(&refuses) }),
            anchor: None,
            random: Arc::new(seal::SystemRandom),
            clock: Arc::new(crate::system::SystemClock::new()),
        };
        let save = Box::new(|_: &_| Ok(()));
        let policy = volume::create(environment.clone(), options, key(), save).unwrap().block().unwrap();
        Self { environment, policy, refuses }
    }

    /// A session, without its threads.
    pub fn attach(&self) -> Volume {
        let (environment, policy) = (self.environment.clone(), self.policy.clone());
        volume::attach(environment, policy, key(), AttachOptions::default()).unwrap().block().unwrap()
    }
}

fn key() -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[7; 64]))
}
