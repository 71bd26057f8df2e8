//! A volume whose key changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use seal::VolumeKey;
use volume::geometry::Geometry;
use volume::policy::Policy;
use volume::{
    CreateOptions, Driven, Environment, RekeyOrder, Rekeyed, Request, ResealProgress, ResealReport, Result,
    begin_rekey,
};

use super::sight::{Sight, signed};
use super::{Bench, Session, credential};

/// Logical blocks of the volumes here.
pub const BLOCKS: u64 = 4096;

pub struct Case {
    pub bench: Bench,
    pub policy: Policy,
}

impl Case {
    pub fn new(options: CreateOptions) -> Self {
        let blocks = Geometry::for_logical(BLOCKS, options.shape).expect("a size").physical_blocks;
        let bench = Bench::new(options, blocks);
        let policy = bench.create();
        Self { bench, policy }
    }

    /// One in which these blocks were written with round 0.
    pub fn written(options: CreateOptions, blocks: impl IntoIterator<Item = u64>) -> Self {
        let case = Self::new(options);
        let mut session = case.attach();
        session.write_each(blocks, 0);
        session.detach().expect("detached");
        case
    }

    pub fn attach(&self) -> Session {
        self.bench.attach(&self.policy).expect("attached")
    }

    pub fn attach_reading(&self) -> Session {
        self.bench.attach_reading(&self.policy).expect("attached")
    }

    /// Begins a change of key.
    pub fn begin(&self) -> Rekeyed {
        self.try_begin(RekeyOrder::default()).expect("begun")
    }

    pub fn try_begin(&self, order: RekeyOrder) -> Result<Rekeyed> {
        self.begin_on(&self.bench.environment, order)
    }

    pub fn begin_on(&self, environment: &Environment, order: RekeyOrder) -> Result<Rekeyed> {
        begin_rekey(environment.clone(), self.policy.clone(), credential(), order, self.bench.attach)?.block()
    }

    /// The volume key that the credential opens now.
    pub fn key(&self) -> VolumeKey {
        let image = self.bench.image();
        Sight::newest(&image, self.bench.options.shape, &credential()).expect("the credential opens").1
    }

    /// Whatever is on the store and in the anchor opens under the new key, and nothing of it under the old one.
    pub fn assert_only_new(&self, old: &VolumeKey) {
        // What stands in the slots of the session before is overwritten by the next one.
        self.attach().detach().expect("detached");
        let image = self.bench.image();
        let (sight, new) =
            Sight::newest(&image, self.bench.options.shape, &credential()).expect("the credential opens");
        assert_eq!(sight.header.rekeying, None);
        assert!(new != *old);
        assert!([0, 2].iter().all(|at| !sight.holds_at(*at, old)));
        assert!(sight.superblocks(old).is_empty());
        let (_, newest) = sight.newest_superblock(&new);
        assert!(newest.old_salts.is_absent());
        let reached = sight.reached(&new, &newest);
        assert!(reached.iter().filter(|it| it.is_data()).count() as u64 >= newest.mapped);
        for it in &reached {
            let by_new = sight.open(&new, it).unwrap_or_else(|| panic!("{} does not open", it.what));
            // Without a tag everything opens, but not as what it was; and what is no secret has no key.
            let tagged = sight.header.integrity || !it.is_data();
            let sealed = tagged || sight.header.confidentiality;
            let by_old = sight.open(old, it).filter(|by_old| tagged || *by_old == by_new);
            assert!(by_old.is_none() || !sealed, "{} opens under the old key", it.what);
        }
        if let Some(anchor) = &self.bench.environment.anchor {
            let stamp = anchor.read().now_or_never().expect("memory").unwrap().unwrap();
            assert!(signed(&stamp, &new) && !signed(&stamp, old));
        }
    }
}

/// A re-sealing beside a session.
pub struct Job {
    job: Driven<Result<ResealReport>>,
    pub ended: Option<Result<ResealReport>>,
    pub progress: Arc<ResealProgress>,
}

impl Job {
    pub fn new(session: &Session) -> Self {
        let progress = Arc::<ResealProgress>::default();
        Self { job: session.volume.reseal(Arc::clone(&progress)).unwrap(), ended: None, progress }
    }

    /// Moves it on.
    pub fn step(&mut self) {
        if self.ended.is_none() {
            self.ended = self.job.poll();
        }
    }

    /// Runs a request to its end, and this goes on meanwhile: they may wait for each other.
    pub fn beside(&mut self, session: &mut Session, request: Request) {
        session.queue.submit(0, request);
        let mut ended = Vec::new();
        for _ in 0..1_000_000 {
            session.queue.poll(&mut ended);
            if let Some(completion) = ended.pop() {
                return completion.result.unwrap();
            }
            session.step();
            self.step();
        }
        panic!("nothing moves: {:?} {:#?}", self.progress, session.volume.status());
    }

    /// Drives it and the session until it has sealed so many blocks anew, and has not ended.
    pub fn until(&mut self, session: &mut Session, resealed: u64) {
        while self.progress.resealed.load(Ordering::Relaxed) < resealed {
            self.step();
            assert!(self.ended.is_none());
            session.step();
        }
    }

    /// Drives it and the session to its end.
    pub fn end(mut self, session: &mut Session) -> Result<ResealReport> {
        for _ in 0..1_000_000 {
            self.step();
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            session.step();
        }
        panic!("nothing moves: {:?} {:#?}", self.progress, session.volume.status());
    }
}

/// Drives a re-sealing from its beginning to its end.
pub fn reseal(session: &mut Session) -> ResealReport {
    Job::new(session).end(session).expect("it ends")
}
