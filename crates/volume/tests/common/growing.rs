//! A volume that grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

use seal::SecretBytes;
use seal::slot::Credential;
use store::{MemoryStore, Store};
use testkit::{InterceptingStore, Interceptor};
use volume::format::header::Header;
use volume::format::protections::{Freshness, Provision};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{CreateOptions, Environment, Error, Grown, Growth, Kind, Result, grow};

use super::{Bench, Session, credential, options};

/// Says that only the beginning of the store is there yet.
pub struct Partly {
    pub blocks: AtomicU64,
    /// How many it can become.
    most: u64,
}

impl Interceptor for Partly {
    fn blocks(&self, _medium: &dyn Store) -> u64 {
        self.blocks.load(Ordering::SeqCst)
    }
}

pub struct Case {
    pub bench: Bench,
    pub store: Arc<Partly>,
    pub policy: Policy,
    /// Whether the store cannot be made longer.
    pub fixed: bool,
}

impl Case {
    /// A volume of so many blocks on a store that can become `most` blocks long.
    pub fn new(logical: u64, most: u64, change: impl FnOnce(&mut CreateOptions)) -> Self {
        Self::shaped(Shape::TINY, logical, most, change)
    }

    pub fn shaped(shape: Shape, logical: u64, most: u64, change: impl FnOnce(&mut CreateOptions)) -> Self {
        let mut options = options(logical, shape);
        change(&mut options);
        let blocks = Geometry::for_logical(logical.min(4096), shape).expect("a size").physical_blocks;
        let medium = Arc::new(MemoryStore::new(most).expect("memory"));
        let store = Arc::new(Partly { blocks: AtomicU64::new(blocks), most });
        let mut bench = Bench::new(options, 8);
        bench.environment.store = InterceptingStore::new(medium, &store);
        let policy = bench.create();
        Self { bench, store, policy, fixed: false }
    }

    /// One of 200 blocks.
    pub fn at(freshness: Freshness) -> Self {
        Self::new(200, 6000, |options| options.freshness = freshness)
    }

    /// The same, all of it written with round 1.
    pub fn written(freshness: Freshness) -> Self {
        let case = Self::at(freshness);
        let mut session = case.attach();
        session.write_each(0..200, 1);
        session.commit().expect("committed");
        session.detach().expect("detached");
        case
    }

    /// What is asked for, and the policies that it saves.
    pub fn growth(&self, logical: Option<u64>, force: bool) -> (Growth, Receiver<Policy>) {
        let (sender, saved) = channel();
        let (store, fixed) = (Arc::clone(&self.store), self.fixed);
        let enlarge = Box::new(move |blocks: u64, _: Provision| {
            if !fixed && blocks <= store.most {
                store.blocks.fetch_max(blocks, Ordering::SeqCst);
            }
            Ok(())
        });
        let save = Box::new(move |policy: &Policy| {
            let _ = sender.send(policy.clone());
            Ok(())
        });
        (Growth { logical_blocks: logical, enlarge, save, force }, saved)
    }

    /// Grows, and leaves the policy that is used here as it is.
    pub fn grow_by(&self, credential: Credential, growth: Growth) -> Result<Grown> {
        let environment = self.bench.environment.clone();
        grow(environment, self.policy.clone(), credential, growth, self.bench.attach)?.block()
    }

    pub fn try_grow(&mut self, logical: Option<u64>, force: bool) -> Result<Grown> {
        self.try_grow_on(self.bench.environment.clone(), logical, force)
    }

    pub fn try_grow_on(
        &mut self,
        environment: Environment,
        logical: Option<u64>,
        force: bool,
    ) -> Result<Grown> {
        let (growth, saved) = self.growth(logical, force);
        let result = grow(environment, self.policy.clone(), credential(), growth, self.bench.attach)?.block();
        self.policy = saved.try_iter().last().unwrap_or_else(|| self.policy.clone());
        result
    }

    pub fn grow(&mut self, logical: u64) -> Grown {
        self.try_grow(Some(logical), false).expect("it grows")
    }

    pub fn refused(&mut self, logical: Option<u64>) -> Error {
        let before = self.bench.image();
        let error = self.try_grow(logical, false).expect_err("it must be refused");
        assert!(self.bench.image() == before, "something was written");
        error
    }

    /// Whoever has another key does not let it grow.
    pub fn assert_locked(&self, logical: u64) {
        let wrong = Credential::KeyFile(SecretBytes::from_slice(&[8; 64]));
        let (growth, _saved) = self.growth(Some(logical), false);
        assert_eq!(self.grow_by(wrong, growth).unwrap_err().kind(), Kind::Locked);
    }

    pub fn attach(&self) -> Session {
        self.bench.attach(&self.policy).expect("attached")
    }

    /// What the first copy of the header says.
    pub fn geometry(&self) -> Geometry {
        Header::decode_as(&self.bench.image()[0], self.bench.options.shape).expect("a header").geometry
    }
}
