//! The page engine: a region whose pages are encrypted, or open while somebody uses them.
//!
//! A page's states and the ways between them (each is a [`Transition`]; what a crash leaves in each step is in its module):
//!
//! ```text
//!             open_page (first touch)
//!   encrypted ----------------------> open
//!      |  ^  <----------------------   |
//!      |  |   close_page (taken back)  | crash
//!      +--+                            v
//!     rewrite            encrypted and Unverified (by recovery)
//! ```
//!
//! Invariants:
//! * one transition at a time for each page: it holds the page's lock;
//! * one transition at a time for each worker: it has the worker until its progress field is durably clear;
//! * root, bitmap and the sum in memory change together, under the root's lock;
//! * after a failure of the medium nothing is changed any more ([`Error::Stopped`]).

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use seal::Random;
use seal::slot::Credential;
use zeroize::Zeroizing;

use crate::Error;
use crate::entry::{ENTRY_SIZE, Entry};
use crate::geometry::Geometry;
use crate::header::Header;
use crate::keys::Keys;
use crate::medium::Medium;
use crate::mutation::{Mutation, mutated};
use crate::recovery::{self, Report};
use crate::root::Root;
use crate::stats::{Clock, Stats, Status};
use crate::transition::{Action, Transition};
use crate::unlock;

pub(crate) const OPEN: u8 = 1;
pub(crate) const UNVERIFIED: u8 = 2;
/// Locks of pages.
const STRIPES: u64 = 1024;

/// A region that is being served. Shared by all threads.
pub struct Engine {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) geometry: Geometry,
    pub(crate) keys: Keys,
    pub(crate) session: [u8; 32],
    pub(crate) root: Mutex<Root>,
    pub(crate) stats: Stats,
    /// For each page [`OPEN`] and [`UNVERIFIED`].
    states: Vec<AtomicU8>,
    pages: Vec<Mutex<()>>,
    workers: Mutex<Vec<Worker>>,
    returned: Condvar,
    stopped: AtomicBool,
}

/// A worker: its number, and the private memory of its transitions.
pub(crate) struct Worker {
    pub(crate) number: u32,
    pub(crate) plain: Zeroizing<Vec<u8>>,
    pub(crate) sealed: Vec<u8>,
}

impl Engine {
    /// Opens a region for reading and writing, and recovers it: what was under way is finished or undone, a new session begins, and pages that
    /// were open are encrypted and marked. `progress` hears how many of all pages were looked at.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no region, or one of another size or version; [`Error::Key`]; [`Error::CorruptRegion`];
    /// [`Error::Medium`]. A region that cannot be opened is as it was.
    pub fn open(
        medium: Arc<dyn Medium>,
        credential: &Credential,
        random: Arc<dyn Random>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(Engine, Report), Error> {
        let (headers, key) = unlock::unlock(&*medium, credential)?;
        let keys = Keys::of(key, &headers, random);
        let (unlocked, survey) = recovery::find(&*medium, headers, &keys, progress)?;
        let Header { geometry, .. } = unlocked.header;
        let mut report = survey.report();
        let (mut root, states) = survey.settle(&*medium, &unlocked.header, &keys, &mut report)?;
        let header = unlock::begin_session(&*medium, &unlocked, &keys, &mut root)?;
        let worker = |number| {
            let size = usize::try_from(geometry.page_size()).expect("a page fits into memory");
            Worker { number, plain: vec![0; size].into(), sealed: vec![0; size] }
        };
        let engine = Engine {
            pages: (0..geometry.pages().min(STRIPES)).map(|_| Mutex::default()).collect(),
            states: states.into_iter().map(AtomicU8::new).collect(),
            // The last is taken first.
            workers: Mutex::new((0..geometry.workers()).rev().map(worker).collect()),
            returned: Condvar::new(),
            root: Mutex::new(root),
            session: header.session,
            stats: Stats::default(),
            stopped: AtomicBool::new(false),
            medium,
            geometry,
            keys,
        };
        for page in 0..geometry.pages() {
            if engine.is_open(page) {
                if !mutated(Mutation::UnverifiedForgotten) {
                    engine.set(page, UNVERIFIED, true);
                }
                engine.close_page(page)?;
            }
        }
        engine.vouch_again()?;
        Ok((engine, report))
    }

    /// The region's shape.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What happened.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Whether a page is open.
    #[must_use]
    pub fn is_open(&self, page: u64) -> bool {
        self.has(page, OPEN)
    }

    /// Whether a page was open at a crash and was not written whole since.
    #[must_use]
    pub fn is_unverified(&self, page: u64) -> bool {
        self.has(page, UNVERIFIED)
    }

    /// Begins to change a page's state. Callers other than tests use [`open_page`](Engine::open_page) and the like.
    ///
    /// # Errors
    /// [`Error::CorruptPage`], [`Error::Medium`], [`Error::Stopped`]; nothing was changed.
    #[doc(hidden)]
    pub fn begin<'a>(&'a self, page: u64, action: Action<'_>) -> Result<Option<Transition<'a>>, Error> {
        let lock = self.lock(page);
        self.begin_locked(lock, page, action)
    }

    /// Leaves out nonces of the present epoch, up to this one: the next page is sealed as if so many had been. For tests of an epoch's end
    /// ([`EPOCH_LIMIT`](crate::entry::EPOCH_LIMIT)), which is years away. The counter only goes up, so no nonce is used twice.
    #[doc(hidden)]
    pub fn skip_nonces(&self, until: u64) {
        self.keys.skip_nonces(until);
    }

    fn begin_locked<'a>(
        &'a self,
        lock: MutexGuard<'a, ()>,
        page: u64,
        action: Action<'_>,
    ) -> Result<Option<Transition<'a>>, Error> {
        self.check()?;
        if match action {
            Action::Open => self.is_open(page),
            Action::Close | Action::Lose => !self.is_open(page),
            Action::Rewrite(..) => false,
        } {
            return Ok(None);
        }
        let worker = self.take_worker();
        Transition::prepare(self, lock, worker, page, action).map(Some)
    }

    fn run(&self, transition: Option<Transition<'_>>) -> Result<bool, Error> {
        let Some(mut transition) = transition else { return Ok(false) };
        while transition.step()? {}
        Ok(true)
    }

    /// Decrypts a page in place. `false` if it is open already.
    ///
    /// # Errors
    /// [`Error::CorruptPage`]: it stays as it is. [`Error::Medium`], [`Error::Stopped`].
    pub fn open_page(&self, page: u64) -> Result<bool, Error> {
        let opened = self.begin(page, Action::Open).and_then(|transition| self.run(transition));
        self.count(&opened);
        opened
    }

    /// Decrypts a page in place unless it is open, and then does `work` before anybody can change its state again. `is_timed` notes how long each
    /// step took; `is_missing` says that the medium has no memory for a part of it.
    ///
    /// # Errors
    /// As [`open_page`](Engine::open_page), and [`Error::CorruptPage`] for a page that is open and missing; a corrupt page is not counted.
    pub(crate) fn open_then<T>(
        &self,
        page: u64,
        is_timed: bool,
        is_missing: bool,
        work: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        let mut clock = Clock::new(is_timed.then_some(&self.stats.steps));
        let lock = self.lock(page);
        if self.is_open(page) {
            return if is_missing { Err(Error::CorruptPage { page }) } else { Ok(work()) };
        }
        let Some(mut transition) = self.begin_locked(lock, page, Action::Open)? else { return Ok(work()) };
        clock.step();
        while transition.step()? {
            clock.step();
        }
        clock.step();
        let done = work();
        clock.step();
        drop(transition);
        Ok(done)
    }

    /// Counts a touch of a corrupt page.
    pub(crate) fn count_corrupt(&self, error: &Error) {
        if matches!(error, Error::CorruptPage { .. }) {
            self.stats.corrupt.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Vouches for the content of a page that was open at a crash, as it is now: somebody looked at it. `false` if it is not marked. Nobody may
    /// have the page mapped.
    ///
    /// # Errors
    /// [`Error::CorruptPage`], [`Error::Medium`], [`Error::Stopped`].
    pub fn accept(&self, page: u64) -> Result<bool, Error> {
        let lock = self.lock(page);
        if !self.is_unverified(page) {
            return Ok(false);
        }
        let content = self.read_locked(page)?;
        let transition = self.begin_locked(lock, page, Action::Rewrite(&content, false))?;
        self.run(transition)
    }

    /// Encrypts an open page in place. `false` if it is not open. Nobody may write to the page meanwhile.
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Stopped`].
    pub fn close_page(&self, page: u64) -> Result<bool, Error> {
        let transition = self.begin(page, Action::Close)?;
        self.run(transition)
    }

    /// As [`close_page`](Engine::close_page), if `allowed` says so once the page's lock is held: from then on nobody opens it. A page that is not
    /// whole, since the medium has no memory for it any more, becomes one that is corrupt.
    ///
    /// # Errors
    /// As [`close_page`](Engine::close_page).
    pub(crate) fn close_page_if(
        &self,
        page: u64,
        allowed: impl FnOnce() -> bool,
        is_whole: impl FnOnce() -> bool,
    ) -> Result<bool, Error> {
        let lock = self.lock(page);
        if !self.is_open(page) || !allowed() {
            return Ok(false);
        }
        let action = if is_whole() { Action::Close } else { Action::Lose };
        if matches!(action, Action::Lose) {
            let error = Error::CorruptPage { page };
            eprintln!("error: the region's file lacks what was there while it was open: {error}");
            self.count_corrupt(&error);
        }
        let transition = self.begin_locked(lock, page, action)?;
        self.run(transition)
    }

    /// Reads a part of a page, from `offset` on, without opening it.
    ///
    /// # Errors
    /// [`Error::CorruptPage`], [`Error::Medium`], [`Error::Stopped`].
    pub fn read(&self, page: u64, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let _lock = self.lock(page);
        self.stats.read.fetch_add(1, Ordering::Relaxed);
        let result = self.read_locked(page).map(|plain| {
            out.copy_from_slice(&plain[offset..offset + out.len()]);
        });
        self.count(&result);
        result
    }

    fn read_locked(&self, page: u64) -> Result<Zeroizing<Vec<u8>>, Error> {
        self.check()?;
        let size = self.page_bytes();
        let mut content = Zeroizing::new(vec![0; size]);
        self.stop_on(self.medium.read(self.geometry.page_at(page), &mut content))?;
        if self.is_open(page) {
            return Ok(content);
        }
        let mut plain = Zeroizing::new(vec![0; size]);
        let entry = self.entry(page)?;
        self.keys.open(page, &entry, &content, &mut plain)?;
        Ok(plain)
    }

    /// Writes a part of a page, from `offset` on; the page stays, or becomes, encrypted. When this returns, it is durable. A page that is
    /// written whole is vouched for again, whatever it was.
    ///
    /// # Errors
    /// [`Error::CorruptPage`] of a page that is not written whole, [`Error::Medium`], [`Error::Stopped`].
    pub fn write(&self, page: u64, offset: usize, data: &[u8]) -> Result<(), Error> {
        let lock = self.lock(page);
        let result = self.write_locked(lock, page, offset, data);
        self.count(&result);
        result
    }

    fn write_locked(
        &self,
        lock: MutexGuard<'_, ()>,
        page: u64,
        offset: usize,
        data: &[u8],
    ) -> Result<(), Error> {
        let transition = if data.len() == self.page_bytes() {
            self.begin_locked(lock, page, Action::Rewrite(data, false))?
        } else {
            let mut whole = self.read_locked(page)?;
            whole[offset..offset + data.len()].copy_from_slice(data);
            self.begin_locked(lock, page, Action::Rewrite(&whole, self.is_unverified(page)))?
        };
        self.run(transition).map(drop)
    }

    /// Encrypts all pages that are open: the clean stop. Nobody may have pages mapped any more. Returns how many there were.
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Stopped`].
    pub fn stop(&self) -> Result<u64, Error> {
        let mut closed = 0;
        for page in 0..self.geometry.pages() {
            if !mutated(Mutation::StopLeavesOpen) && self.is_open(page) {
                closed += u64::from(self.close_page(page)?);
            }
        }
        self.check()?;
        self.vouch_again()?;
        Ok(closed)
    }

    /// Has both roots vouch for the same: behind this, the state before the last step is none any more, for which the medium could be made to look.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub(crate) fn vouch_again(&self) -> Result<(), Error> {
        if mutated(Mutation::RootBeforeKept) {
            return Ok(());
        }
        let mut root = self.root.lock().unwrap_or_else(PoisonError::into_inner);
        let again = root.again(&*self.medium, &self.geometry, &self.keys, &self.session);
        self.stop_on(again)
    }

    /// All counts at this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        let count = |flag| {
            self.states.iter().filter(|state| state.load(Ordering::Relaxed) & flag != 0).count() as u64
        };
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (open, pages, stats) = (count(OPEN), self.geometry.pages(), &self.stats);
        let times = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Status {
            page_size: self.geometry.page_size(),
            pages,
            open,
            encrypted: pages - open,
            unverified: count(UNVERIFIED),
            opened: get(&stats.opened),
            closed: get(&stats.closed),
            rewritten: get(&stats.rewritten),
            read: get(&stats.read),
            corrupt: get(&stats.corrupt),
            faults: get(&stats.faults),
            fault_p50_ns: stats.fault_latency.permille(500),
            fault_p99_ns: stats.fault_latency.permille(990),
            fault_p999_ns: stats.fault_latency.permille(999),
            kept: get(&stats.kept),
            batches: get(&stats.batches),
            fault_steps: stats.steps.summary(),
            ahead: get(&stats.ahead),
            taking_cpu_ms: get(&stats.taking_cpu_us) / 1000,
            cpu_ms: u64::try_from(times.tv_sec * 1000 + times.tv_nsec / 1_000_000).unwrap_or(0),
            stopped: self.stopped.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn entry(&self, page: u64) -> Result<Entry, Error> {
        let mut bytes = [0; ENTRY_SIZE];
        self.stop_on(self.medium.read(self.geometry.entry_at(page), &mut bytes))?;
        Entry::decode(&bytes).ok_or(Error::CorruptPage { page })
    }

    pub(crate) fn set(&self, page: u64, flag: u8, on: bool) {
        let state = &self.states[index(page)];
        if on {
            state.fetch_or(flag, Ordering::AcqRel);
        } else {
            state.fetch_and(!flag, Ordering::AcqRel);
        }
    }

    /// Notes that the medium failed.
    pub(crate) fn stop_on<T>(&self, result: Result<T, crate::Fault>) -> Result<T, Error> {
        if result.is_err() {
            self.stopped.store(true, Ordering::Release);
        }
        Ok(result?)
    }

    pub(crate) fn give_back(&self, mut worker: Worker) {
        worker.plain.fill(0);
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        self.returned.notify_one();
    }

    fn take_worker(&self) -> Worker {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(worker) = workers.pop() {
                return worker;
            }
            workers = self.returned.wait(workers).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.stopped.load(Ordering::Acquire) { Err(Error::Stopped) } else { Ok(()) }
    }

    fn count<T>(&self, result: &Result<T, Error>) {
        if let Err(error) = result {
            self.count_corrupt(error);
        }
    }

    fn has(&self, page: u64, flag: u8) -> bool {
        self.states[index(page)].load(Ordering::Acquire) & flag != 0
    }

    fn lock(&self, page: u64) -> MutexGuard<'_, ()> {
        let stripe = index(page % self.pages.len() as u64);
        self.pages[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page_bytes(&self) -> usize {
        index(self.geometry.page_size())
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("64-bit, as seal demands")
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}
