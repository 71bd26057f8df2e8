//! What is measured: two stores on the same medium, and a volume on one of them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anchor::{Anchor, FileAnchor, MemoryAnchor};
use clap::Args;
use indicatif::ProgressBar;
use measure::ledger::Place;
use seal::slot::{Argon2Params, Credential};
use seal::{SecretBytes, SystemRandom};
use store::{BLOCK_SIZE, FileStore, MemoryStore, Options, Store};
use volume::format::protections::{Freshness, Provision};
use volume::geometry::Shape;
use volume::policy::Policy;
use volume::{
    AttachOptions, CreateOptions, Environment, Error, Kind, RekeyOrder, Result, attach, begin_rekey, create,
};

use super::case::Case;
use super::lane::{Lane, Protected, Raw};
use super::load::{Load, Until};
use super::{Protections, Scale};
use cli::failure::Failure;
use cli::interrupt::Interrupt;
use cli::output;
use daemon::session::Session;
use daemon::system::SystemClock;

/// Where the blocks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// A file, past the page cache
    File,
    /// Memory of this process: what is left is the cost of the processor
    Memory,
}

/// The options of every benchmark that sets up both contestants in this process.
#[derive(Args, Debug, Clone)]
pub struct Setup {
    /// Where the blocks lie
    #[arg(long, value_enum, default_value = "file")]
    pub medium: Medium,
    #[command(flatten)]
    pub scale: Scale,
    /// Percent of the logical blocks that hold data; all requests go there
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub fill: u8,
    /// Memory for changes and for the map's cache, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: u64,
    #[command(flatten)]
    pub protections: Protections,
}

/// The two contestants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Raw,
    Protected,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Protected => "protected",
        }
    }
}

/// Both contestants, ready.
pub struct Contestants {
    pub raw: Arc<dyn Store>,
    /// In the place of the bare store: the same volume without freshness.
    off: Option<Session>,
    pub session: Session,
    attachable: Attachable,
    /// Logical blocks of either.
    pub blocks: u64,
    /// How many of them, from the first on, are to hold data.
    pub filled: u64,
    /// Holds the anchor's file, which is removed also if a signal ends this process.
    _directory: Guarded,
}

impl Contestants {
    /// Makes, creates, attaches. Both backing stores are written once from beginning to end before that.
    pub fn new(setup: &Setup) -> Result<Self> {
        Self::with_anchor(setup, None)
    }

    /// The same with this anchor, and beside it a volume at level `off` in the place of the bare store.
    pub fn with_anchor(setup: &Setup, given: Option<Arc<dyn Anchor>>) -> Result<Self> {
        let Setup { medium, scale, fill, memory, protections } = setup;
        let blocks = (scale.size << 20) / BLOCK_SIZE as u64;
        let options = options_of(protections, blocks);
        let physical = options.geometry(u64::MAX)?.physical_blocks;
        let directory = match medium {
            Medium::File => {
                let made = Place::new_in(&scale.dir, "cvmio-bench-");
                let failed = |error| Error::new(Kind::Io, format!("{}: {error}", scale.dir.display()));
                Some(made.map_err(failed)?)
            }
            Medium::Memory => None,
        };
        let directory = Guarded::new(directory)?;
        let place = directory.path.as_deref();
        let raw = allocated(place, "raw", if given.is_some() { physical } else { blocks })?;
        let store = allocated(place, "protected", physical)?;
        let off = match &given {
            None => None,
            Some(_) => Some(attached_off(Arc::clone(&raw), protections, blocks, memory << 20)?),
        };
        let anchor: Option<Arc<dyn Anchor>> = match (options.freshness, place) {
            (Freshness::Off, _) => None,
            _ if given.is_some() => given,
            (_, Some(place)) => Some(Arc::new(FileAnchor::create(&place.join("anchor"))?)),
            (_, None) => Some(Arc::new(MemoryAnchor::new())),
        };
        let environment = Environment {
            store,
            anchor,
            random: Arc::new(SystemRandom),
            clock: Arc::new(SystemClock::new()),
        };
        let attachable = Attachable::new(environment, options, memory << 20)?;
        let session = attachable.attach()?;
        let filled = (blocks * u64::from(*fill) / 100).max(1);
        Ok(Self { raw, off, session, attachable, blocks, filled, _directory: directory })
    }

    /// Detaches, gives the volume a new key, and attaches: everything is to be sealed anew.
    pub fn rekeyed(self) -> Result<Self> {
        let Self { session, attachable, .. } = self;
        session.end()?;
        attachable.begin_rekey()?;
        let session = attachable.attach()?;
        Ok(Self { session, attachable, ..self })
    }

    /// What the volume is compared with.
    pub fn rival(&self) -> &'static str {
        if self.off.is_some() { "off" } else { Side::Raw.name() }
    }

    /// Detaches.
    pub fn end(self) -> Result<()> {
        self.off.map_or(Ok(()), Session::end)?;
        self.session.end()
    }

    /// A queue of one of the contestants, for the calling thread.
    pub fn lane(&self, side: Side, depth: u32) -> Result<Box<dyn Lane>> {
        Ok(match side {
            Side::Raw => match &self.off {
                Some(session) => Box::new(Protected::new(&session.volume, depth)?),
                None => Box::new(Raw::new(self.raw.as_ref(), depth)?),
            },
            Side::Protected => Box::new(Protected::new(&self.session.volume, depth)?),
        })
    }

    /// Gives one contestant its data, in order.
    pub fn fill(&self, side: Side) -> Result<()> {
        let what = match side {
            Side::Raw => "filling the bare store",
            Side::Protected => "filling the volume",
        };
        fill(self.lane(side, FILL_DEPTH)?.as_mut(), what, self.filled)
    }

    /// Overwrites the data at random, as much as twice the volume.
    pub fn age(&self) -> Result<()> {
        let case: Case =
            "randwrite-4k-q32".parse().map_err(|error: String| Error::new(Kind::Usage, error))?;
        let mut lane = self.lane(Side::Protected, case.depth)?;
        let bar = output::bar("overwriting the volume at random", 2 * self.blocks);
        let until = Until::Requests(2 * self.blocks, &bar);
        let done = Load { case: &case, range: 0..self.filled, until, seed: 1 }.run(lane.as_mut());
        bar.finish_and_clear();
        done.map(drop)
    }
}

/// A directory, if there is one, that is removed when this is dropped, and when a signal asks for the end: nothing else of this process outlives
/// it, so it may end at once.
struct Guarded {
    path: Option<PathBuf>,
    place: Arc<Mutex<Option<Place>>>,
}

/// How often it is looked whether a signal has come.
const GLANCE: Duration = Duration::from_millis(50);

impl Guarded {
    fn new(place: Option<Place>) -> Result<Self> {
        let interrupt =
            Interrupt::on_signals().map_err(|failure| Error::new(Kind::Io, failure.to_string()))?;
        let path = place.as_ref().map(|place| place.path().to_path_buf());
        let place = Arc::new(Mutex::new(place));
        let weak = Arc::downgrade(&place);
        thread::spawn(move || {
            while let Some(place) = weak.upgrade() {
                if let Err(end) = interrupt.check() {
                    let failure = Failure::from(end);
                    drop(place.lock().unwrap_or_else(PoisonError::into_inner).take());
                    output::error(&failure);
                    std::process::exit(i32::from(failure.code()));
                }
                drop(place);
                thread::sleep(GLANCE);
            }
        });
        Ok(Self { path, place })
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.place.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn options_of(protections: &Protections, blocks: u64) -> CreateOptions {
    CreateOptions {
        suite: protections.suite,
        confidentiality: !protections.no_confidentiality,
        integrity: !protections.no_integrity,
        freshness: protections.freshness,
        provision: Provision::Full,
        logical_blocks: Some(blocks),
        force: true,
        shape: Shape::STANDARD,
        argon2: Argon2Params::default(),
        label: "bench".into(),
        anchor_options: anchor::Options::default(),
    }
}

/// A volume on this store that is like the other one, but without freshness.
fn attached_off(
    store: Arc<dyn Store>,
    protections: &Protections,
    blocks: u64,
    memory: u64,
) -> Result<Session> {
    let protections = Protections { freshness: Freshness::Off, ..protections.clone() };
    let (random, clock) = (Arc::new(SystemRandom), Arc::new(SystemClock::new()));
    let environment = Environment { store, anchor: None, random, clock };
    Attachable::new(environment, options_of(&protections, blocks), memory)?.attach()
}

const FILL_DEPTH: u32 = 32;

/// Blocks in a request of the fill.
const FILL_BLOCKS: u64 = 32;

fn fill(lane: &mut dyn Lane, what: &'static str, blocks: u64) -> Result<()> {
    let bar = output::bar(what, blocks);
    let filled = fill_showing(lane, blocks, &bar);
    bar.finish_and_clear();
    filled
}

fn fill_showing(lane: &mut dyn Lane, blocks: u64, bar: &ProgressBar) -> Result<()> {
    let whole = blocks - blocks % FILL_BLOCKS;
    for (kib, range) in [(128, 0..whole), (4, whole..blocks)] {
        if range.is_empty() {
            continue;
        }
        let case: Case = format!("seqwrite-{kib}k-q{FILL_DEPTH}")
            .parse()
            .map_err(|error: String| Error::new(Kind::Usage, error))?;
        let requests = (range.end - range.start) / (kib / 4);
        Load { case: &case, range, until: Until::Requests(requests, bar), seed: 1 }.run(lane)?;
    }
    lane.flush(0);
    let mut ended = Vec::new();
    lane.wait(&mut ended);
    ended.into_iter().try_for_each(|end| end.result)
}

/// A store all of whose blocks have been written once, so that no first touch of the medium is measured.
fn allocated(directory: Option<&Path>, name: &str, blocks: u64) -> Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = match directory {
        None => Arc::new(MemoryStore::new(blocks)?),
        Some(directory) => {
            let path = directory.join(name);
            let store = FileStore::open(&path, Options { create: Some(blocks), ..Options::default() })?;
            // It stays for as long as it is open, and goes whatever becomes of this process.
            std::fs::remove_file(&path).map_err(|error| io_error(&error, &path))?;
            Arc::new(store)
        }
    };
    fill(&mut Raw::new(store.as_ref(), FILL_DEPTH)?, "making room", blocks)?;
    Ok(store)
}

fn io_error(error: &std::io::Error, path: &Path) -> Error {
    Error::new(Kind::Io, format!("{}: {error}", path.display()))
}

/// A volume that can be attached any number of times.
struct Attachable {
    environment: Environment,
    policy: Policy,
    key: SecretBytes,
    options: AttachOptions,
}

impl Attachable {
    /// Creates the volume.
    fn new(environment: Environment, options: CreateOptions, memory: u64) -> Result<Self> {
        let mut key = [0; 64];
        environment.random.fill(&mut key);
        let key = SecretBytes::from_slice(&key);
        let attached = AttachOptions { memory, shape: options.shape, ..AttachOptions::default() };
        let policy = create(environment.clone(), options, credential(&key), Box::new(|_| Ok(())))?.block()?;
        Ok(Self { environment, policy, key, options: attached })
    }

    fn attach(&self) -> Result<Session> {
        let (environment, policy) = (self.environment.clone(), self.policy.clone());
        Session::begin(attach(environment, policy, credential(&self.key), self.options)?.block()?)
    }

    fn begin_rekey(&self) -> Result<()> {
        let (environment, policy) = (self.environment.clone(), self.policy.clone());
        let order = RekeyOrder::default();
        begin_rekey(environment, policy, credential(&self.key), order, self.options)?.block().map(drop)
    }
}

fn credential(key: &SecretBytes) -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(key.expose()))
}
