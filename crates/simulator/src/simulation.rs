//! One run, from its plan to its report.

use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use memory::Buffer;
use seal::SecretBytes;
use seal::slot::Credential;
use testkit::ScriptedAnchor;
use testkit::hostile::{Faults, HostileStore, Image, Session};
use volume::format::backup::HeaderBackup;
use volume::format::protections::{Freshness, Provision};
use volume::geometry::Geometry;
use volume::policy::Policy;
use volume::{Environment, Error, Kind, Left};

use crate::attack::Attack;
use crate::audit::{Audit, Audited};
use crate::coverage::Coverage;
use crate::exporting::{Exporting, Stream};
use crate::following::Past;
use crate::guest::Guest;
use crate::importing::Wanted;
use crate::keyring::Keys;
use crate::model::{Model, Promise};
use crate::moving::LeftBehind;
use crate::plan::Plan;
use crate::trace::{Sink, Trace};
use crate::watch::{Watch, watching};
use crate::world::SeededRandom;

/// A run's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What it reached.
    pub coverage: Coverage,
    /// The same for the same seed.
    pub hash: u64,
    /// What was wrong, if anything was.
    pub failure: Option<String>,
}

/// Something that must not be.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

pub(crate) type Outcomes = Result<(), Failure>;

/// An image that the host keeps, to put it back one day.
pub(crate) struct Snapshot {
    pub(crate) image: Image,
    /// No record in it is behind this.
    pub(crate) generation: u64,
    /// What the anchor vouched for when it was made. Of the records behind that, some data may not have reached the disk yet.
    pub(crate) anchored: u64,
    /// The owner has taken another state: what of it still counts may be overwritten in this image.
    pub(crate) given_up: bool,
}

impl Snapshot {
    /// Whether one of its two pairs of header and key slots is this one. While the keys are changed, they differ.
    pub(crate) fn has_slots(&self, digest: &[u8; 32]) -> bool {
        [0, 2].iter().any(|at| seal::sha256(&[self.image.block(*at), self.image.block(at + 1)]) == *digest)
    }
}

pub(crate) struct Simulation {
    pub(crate) rng: Rng,
    pub(crate) plan: Plan,
    pub(crate) geometry: Geometry,
    pub(crate) store: HostileStore,
    pub(crate) anchor: Arc<ScriptedAnchor>,
    /// The anchor that the volume is on its way to.
    pub(crate) next_anchor: Option<Arc<ScriptedAnchor>>,
    /// The one that it has left.
    pub(crate) left_behind: Option<LeftBehind>,
    pub(crate) clock: Arc<testkit::ManualClock>,
    pub(crate) random: Arc<SeededRandom>,
    pub(crate) policy: Option<Policy>,
    pub(crate) keys: Keys,
    /// Volume keys that the volume had before.
    pub(crate) old_keys: Vec<seal::VolumeKey>,
    pub(crate) audit: Audit,
    pub(crate) model: Model,
    pub(crate) guest: Option<Guest>,
    /// A guest that is believed dead.
    pub(crate) zombie: Option<Guest>,
    /// Sessions of dead guests whose writes may still happen.
    pub(crate) dead: Vec<Session>,
    pub(crate) snapshots: Vec<Snapshot>,
    /// For the next attach.
    pub(crate) prepared: Option<Attack>,
    verbose: bool,
    pub(crate) trace: Trace,
    pub(crate) watch: Arc<Mutex<Watch>>,
    pub(crate) coverage: Coverage,
    /// What a recovery reads into, from one stretch to the next.
    pub(crate) scratch: Option<Buffer>,
    pub(crate) next_token: u64,
    pub(crate) next_version: u64,
    pub(crate) guests: u64,
    /// The host has changed something, or the disk may have: not all that is on it is what was written.
    pub(crate) tainted: bool,
    /// Kinds of errors that need no other reason.
    pub(crate) excused: Vec<Kind>,
    /// The volume cannot be attached any more, lawfully.
    pub(crate) lost: bool,
    /// The host has put something old in place and hopes to do so again before much happens.
    pub(crate) hasty: bool,
    /// What the disk held before the volume grew.
    pub(crate) before_growth: Option<Image>,
    /// Most blocks that were ever mapped or being written, and most units that were the predecessor's.
    pub(crate) most_in_use: (u64, u64),
    /// A superblock knows the last growth.
    pub(crate) lifted: bool,
    /// What the last guest left, if it has detached just now; what one left before; and what the next attach is to follow.
    pub(crate) left: Option<Past>,
    pub(crate) past: Option<Past>,
    pub(crate) follows: Option<Left>,
    /// Header and key slots as the owner has them.
    pub(crate) header_backup: Option<HeaderBackup>,
    /// The owner's last whole stream, and what is whole of one that was cut.
    pub(crate) stream: Option<Stream>,
    pub(crate) half_a_stream: Option<Vec<u8>>,
    /// An export beside a guest.
    pub(crate) export: Option<Exporting>,
    /// What the volume is to become.
    pub(crate) wanted: Option<Wanted>,
}

macro_rules! say {
    ($simulation:expr, $($arg:tt)*) => { $simulation.trace.say(format_args!($($arg)*)) };
}
pub(crate) use say;

/// Runs one seed with `operations` requests.
pub fn run(seed: u64, operations: u64, sink: Option<Sink>) -> Report {
    let verbose = sink.is_some();
    let mut simulation = Simulation::new(seed, sink, verbose);
    let result = simulation.run(operations);
    let failure = result.err().map(|Failure(what)| what);
    if let Some(what) = &failure {
        say!(simulation, "FAILURE: {what}");
    }
    simulation.finish_coverage();
    Report { coverage: simulation.coverage, hash: simulation.trace.hash(), failure }
}

impl Simulation {
    fn new(seed: u64, sink: Option<Sink>, verbose: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::of(&mut rng);
        let trace = Trace::new(sink);
        let geometry = plan.create.geometry(plan.store_blocks).expect("a plan is possible");
        let store = HostileStore::new(plan.store_blocks, rng.u64(..), Faults::default());
        store.set_telling(plan.told);
        let watch = Arc::new(Mutex::new(Watch::new(geometry)));
        let simulation = Self {
            model: Model::new(geometry.logical_blocks, plan.create.freshness),
            geometry,
            store,
            anchor: Arc::new(ScriptedAnchor::new(None)),
            next_anchor: None,
            left_behind: None,
            clock: Arc::default(),
            random: Arc::new(SeededRandom::new(rng.u64(..))),
            policy: None,
            keys: Keys::default(),
            old_keys: Vec::new(),
            audit: Audit::default(),
            guest: None,
            zombie: None,
            dead: Vec::new(),
            snapshots: Vec::new(),
            prepared: None,
            verbose,
            trace,
            watch,
            coverage: Coverage::default(),
            scratch: None,
            next_token: 1,
            next_version: 1,
            guests: 0,
            tainted: false,
            excused: Vec::new(),
            lost: false,
            hasty: false,
            before_growth: None,
            most_in_use: (0, 0),
            lifted: false,
            left: None,
            past: None,
            follows: None,
            header_backup: None,
            stream: None,
            half_a_stream: None,
            export: None,
            wanted: None,
            rng,
            plan,
        };
        simulation.watch_store();
        simulation
    }

    pub(crate) fn watch_store(&self) {
        self.store.set_trace(Some(watching(&self.watch, self.verbose.then(|| self.trace.clone()))));
    }

    fn run(&mut self, operations: u64) -> Outcomes {
        let create = &self.plan.create;
        say!(
            self,
            "{} volume of {} blocks on {} (map of {} levels), suite {}, confidentiality {}, integrity {}, freshness {}, {:?}",
            create.provision,
            self.geometry.logical_blocks,
            self.plan.store_blocks,
            self.geometry.map_levels(),
            create.suite,
            create.confidentiality,
            create.integrity,
            create.freshness,
            self.plan.mischief
        );
        if self.plan.mischief.anchor {
            self.excused.extend([Kind::Anchor, Kind::Fenced]);
        }
        self.create()?;
        self.perhaps_copy()?;
        self.recover()?;
        self.begin_faults();
        if self.plan.mischief.errors {
            self.excused.extend([Kind::Io, Kind::NoSpace]);
        }
        if self.plan.scarce {
            self.excused.push(Kind::NoSpace);
        }
        let mut step = 0;
        while self.coverage.requests < operations && !self.lost {
            step += 1;
            self.trace.set_step(step);
            self.step()?;
            self.check_commits()?;
            self.check_taken()?;
            if let Some(what) = self.audit.complaint() {
                return Err(Failure(what));
            }
        }
        if !self.lost {
            self.settle("at the end")?;
            self.crash_or_detach()?;
            self.recover()?;
        }
        Ok(())
    }

    /// The disk has its faults from now on; its lies begin later.
    pub(crate) fn begin_faults(&self) {
        if !self.plan.mischief.lies {
            self.store.set_faults(self.plan.faults);
        }
    }

    pub(crate) fn environment(&self, store: &Audited) -> Environment {
        Environment { store: Arc::new(store.clone()), ..self.bare_environment() }
    }

    /// For a store of another kind.
    pub(crate) fn bare_environment(&self) -> Environment {
        let anchored = self.plan.create.freshness != Freshness::Off;
        Environment {
            store: Arc::new(self.store.clone()),
            anchor: anchored.then(|| Arc::clone(&self.anchor) as Arc<dyn anchor::Anchor>),
            random: Arc::clone(&self.random) as Arc<dyn seal::Random>,
            clock: Arc::clone(&self.clock) as Arc<dyn volume::Clock>,
        }
    }

    pub(crate) fn credential() -> Credential {
        Credential::KeyFile(SecretBytes::from_slice(&[7; 64]))
    }

    /// One time in `n`.
    pub(crate) fn once_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    /// An error must have a reason.
    pub(crate) fn expect(&self, error: &Error, what: &str) -> Outcomes {
        if self.excused.contains(&error.kind()) {
            return Ok(());
        }
        Err(Failure(format!("{what}: unexpected {:?}: {error}", error.kind())))
    }

    /// Whether nothing that is read can be wrong without being told.
    pub(crate) fn contents_count(&self) -> bool {
        self.plan.create.integrity || !self.tainted
    }

    pub(crate) fn is_thin(&self) -> bool {
        self.plan.create.provision == Provision::Thin
    }

    /// A thin volume takes no more of its store than the documents say, whatever others leave it.
    fn check_taken(&mut self) -> Outcomes {
        let Some(guest) = self.guest.as_ref().filter(|_| self.plan.create.provision == Provision::Thin)
        else {
            return Ok(());
        };
        let status = guest.volume.status();
        let (mapped, foreign) = &mut self.most_in_use;
        // What is being written has its blocks before it is mapped.
        let writing: u64 = guest.outstanding.values().map(|request| request.asked.written()).sum();
        let in_use = status.mapped_blocks + writing;
        (*mapped, *foreign) = ((*mapped).max(in_use), (*foreign).max(status.foreign_units));
        let mischief = &self.plan.mischief;
        // What the host writes, or has written by one that it runs beside, is not the volume's; nor is what a dead guest's writes take that
        // happen when nobody counts on them any more.
        let by_others = mischief.fork || mischief.undead || mischief.late;
        let excused = self.tainted || by_others || mischief.lies || mischief.rollback;
        let (taken, most) = (self.store.taken(), self.geometry.most_taken(*mapped, *foreign, self.plan.told));
        self.coverage.bounds += u64::from(!excused && most < self.geometry.physical_blocks);
        if excused || taken <= most {
            return Ok(());
        }
        Err(Failure(format!(
            "the volume has taken {taken} blocks of its store, and may take {most}; at most {mapped} were mapped or being written, and {foreign} units the predecessor's"
        )))
    }

    /// What survives, should the session end now.
    pub(crate) fn promise(&self, host_is_honest: bool) -> Promise {
        if host_is_honest && !self.tainted {
            return Promise::Flushed;
        }
        match self.plan.create.freshness {
            Freshness::Off => Promise::Whatever,
            Freshness::Interval => Promise::Anchored(self.anchored()),
            _ => Promise::Flushed,
        }
    }

    fn finish_coverage(&mut self) {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        self.coverage.ring_wraps = watch.ring_wraps;
        self.coverage.bitmap_evictions = watch.bitmap_evictions;
    }
}
