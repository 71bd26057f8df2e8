//! One change of a page's state, crash-safe at each store: the paper's three steps, duplicate, transform and update (section 5).
//!
//! Unlike in the paper, the buffer always gets the page's *ciphertext*: the one that it had when it is opened, the one that it will have when
//! it is encrypted. So the buffer never holds plaintext, and recovery from every step is to put that ciphertext in place.
//!
//! | step | stores, write-backs, fence | a crash before the fence or in the next step leaves |
//! | --- | --- | --- |
//! | duplicate | buffer, log | the page as it was; the buffer is ignored |
//! | mark copied | progress := page, direction, copy-finish | as above, or as below |
//! | transform | the page | the page torn; recovery puts the buffer in place |
//! | mark transformed | crypto-finish | as above; the page may be whole |
//! | update | entry, root, bitmap | old or new root: recovery finds which, with the log |
//! | finish | progress := none | the new state, or as above |
//!
//! Invariants: each step's words are durable (written back and fenced) before the next step stores one; table entry and bitmap bit of a page
//! count only while no progress field names the page; the worker goes back to the pool behind the last fence.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use crate::Error;
use crate::engine::{Engine, OPEN, UNVERIFIED, Worker};
use crate::entry::ENTRY_SIZE;
use crate::geometry::LINE;
use crate::medium::Fault;
use crate::mutation::{Mutation, mutated};
use crate::progress::{Direction, LOG_AT, LOG_SIZE, Log, Progress, State};
use crate::root::Root;

/// What is done to a page.
#[derive(Debug, Clone, Copy)]
pub enum Action<'a> {
    /// Decrypt it in place.
    Open,
    /// Encrypt it in place.
    Close,
    /// Its content is gone: give it a tag that nothing fits, so that every touch is an error.
    Lose,
    /// Give it this content, encrypted; and whether it is not vouched for.
    Rewrite(&'a [u8], bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Duplicate,
    MarkCopied,
    Transform,
    MarkTransformed,
    Update,
    Finish,
    Done,
}

/// A change under way. It must be driven to its end, or the engine dropped.
pub struct Transition<'a> {
    engine: &'a Engine,
    _lock: MutexGuard<'a, ()>,
    worker: Option<Worker>,
    page: u64,
    old: State,
    new: State,
    step: Step,
    rewrites: bool,
}

impl<'a> Transition<'a> {
    /// Everything that needs a key, and nothing that stores.
    pub(crate) fn prepare(
        engine: &'a Engine,
        lock: MutexGuard<'a, ()>,
        mut worker: Worker,
        page: u64,
        action: Action<'_>,
    ) -> Result<Transition<'a>, Error> {
        match states(engine, &mut worker, page, action) {
            Ok((old, new)) => Ok(Transition {
                engine,
                _lock: lock,
                worker: Some(worker),
                page,
                old,
                new,
                step: Step::Duplicate,
                rewrites: matches!(action, Action::Rewrite(..)),
            }),
            Err(error) => {
                engine.give_back(worker);
                Err(error)
            }
        }
    }

    /// Does the next step; `false` behind the last one.
    ///
    /// # Errors
    /// [`Error::Medium`]: the engine has stopped.
    pub fn step(&mut self) -> Result<bool, Error> {
        let result = match self.step {
            Step::Duplicate => self.duplicate(),
            Step::MarkCopied => self.mark(false),
            Step::Transform => self.transform(),
            Step::MarkTransformed => self.mark(true),
            Step::Update if mutated(Mutation::UpdateBeforeTransform) => Ok(()),
            Step::Update => self.update(),
            Step::Finish => self.finish(),
            Step::Done => return Ok(false),
        };
        self.engine.stop_on(result)?;
        self.step = match self.step {
            Step::Duplicate => Step::MarkCopied,
            Step::MarkCopied => Step::Transform,
            Step::Transform => Step::MarkTransformed,
            Step::MarkTransformed => Step::Update,
            Step::Update => Step::Finish,
            Step::Finish | Step::Done => Step::Done,
        };
        if self.step == Step::Done {
            self.settle();
        }
        Ok(self.step != Step::Done)
    }

    fn duplicate(&mut self) -> Result<(), Fault> {
        let Engine { medium, geometry, keys, session, .. } = self.engine;
        let worker = self.worker();
        let mac = match self.direction() {
            Direction::Encrypt => keys.sign_log(session, worker.number, self.page, &self.old, &self.new),
            Direction::Decrypt => [0; 32],
        };
        let log = Log { old: self.old, new: self.new, mac };
        let (buffer_at, log_at) =
            (geometry.buffer_at(worker.number), geometry.worker_at(worker.number) + LOG_AT);
        let plain = mutated(Mutation::PlaintextInBuffer);
        medium.write(buffer_at, if plain { &worker.plain } else { &worker.sealed })?;
        medium.write_back(buffer_at, geometry.page_size())?;
        medium.write(log_at, &log.encode())?;
        medium.write_back(log_at, LOG_SIZE as u64)?;
        if mutated(Mutation::UpdateBeforeTransform) {
            medium.fence()?;
            return self.update();
        }
        if mutated(Mutation::CopyNotFenced) {
            return Ok(());
        }
        medium.fence()
    }

    fn mark(&self, crypto_finish: bool) -> Result<(), Fault> {
        let Engine { medium, geometry, .. } = self.engine;
        let progress = Progress { page: self.page, direction: self.direction(), crypto_finish };
        let at = geometry.worker_at(self.worker().number);
        medium.store(at, progress.encode())?;
        if !mutated(Mutation::CopyMarkNotWrittenBack) {
            medium.write_back(at, 8)?;
        }
        if mutated(Mutation::CopyMarkNotFenced) && !crypto_finish {
            return Ok(());
        }
        medium.fence()
    }

    fn transform(&self) -> Result<(), Fault> {
        let Engine { medium, geometry, .. } = self.engine;
        let worker = self.worker();
        let content = if self.new.is_some() { &worker.sealed } else { &worker.plain };
        let at = geometry.page_at(self.page);
        medium.write(at, content)?;
        if !mutated(Mutation::TransformNotWrittenBack) {
            medium.write_back(at, geometry.page_size())?;
        }
        medium.fence()
    }

    fn update(&self) -> Result<(), Fault> {
        let Engine { medium, geometry, keys, session, .. } = self.engine;
        let change = keys.share(self.page, &self.old) ^ keys.share(self.page, &self.new);
        let mut root = self.engine.root.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = &self.new {
            medium.write(geometry.entry_at(self.page), &entry.encode())?;
            medium.write_back(geometry.entry_at(self.page), ENTRY_SIZE as u64)?;
        }
        let next = Root { generation: root.generation + 1, sum: root.sum ^ change };
        next.store(&**medium, geometry, keys, Some(session))?;
        let at = geometry.bitmap_at(self.page);
        let bit = 1 << (self.page % 64);
        let word = medium.load(at)?;
        medium.store(at, if self.new.is_some() { word | bit } else { word & !bit })?;
        medium.write_back(at, 8)?;
        if !mutated(Mutation::UpdateNotFenced) {
            medium.fence()?;
        }
        *root = next;
        Ok(())
    }

    fn finish(&self) -> Result<(), Fault> {
        let Engine { medium, geometry, .. } = self.engine;
        let at = geometry.worker_at(self.worker().number);
        medium.store(at, 0)?;
        if mutated(Mutation::BufferReusedEarly) {
            return Ok(());
        }
        medium.write_back(at, LINE)?;
        medium.fence()
    }

    /// What memory knows, behind the last fence.
    fn settle(&mut self) {
        let (engine, page) = (self.engine, self.page);
        engine.set(page, OPEN, self.new.is_none());
        if let Some(entry) = &self.new {
            engine.set(page, UNVERIFIED, entry.unverified);
        }
        let stats = &engine.stats;
        let counter = match (self.rewrites, self.direction()) {
            (true, _) => &stats.rewritten,
            (false, Direction::Encrypt) => &stats.closed,
            (false, Direction::Decrypt) => &stats.opened,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            engine.give_back(worker);
        }
    }

    fn direction(&self) -> Direction {
        if self.new.is_some() { Direction::Encrypt } else { Direction::Decrypt }
    }

    fn worker(&self) -> &Worker {
        self.worker.as_ref().expect("it is there until the last step")
    }
}

/// Fills the worker's private memory, and tells the page's state before and after.
fn states(
    engine: &Engine,
    worker: &mut Worker,
    page: u64,
    action: Action<'_>,
) -> Result<(State, State), Error> {
    let Engine { medium, geometry, keys, .. } = engine;
    let at = geometry.page_at(page);
    let old = if engine.is_open(page) { None } else { Some(engine.entry(page)) };
    match action {
        Action::Open => {
            let entry = old.unwrap_or(Err(Error::CorruptPage { page }))?;
            engine.stop_on(medium.read(at, &mut worker.sealed))?;
            keys.open(page, &entry, &worker.sealed, &mut worker.plain)?;
            Ok((Some(entry), None))
        }
        Action::Close => {
            // One copy, of which all else is made: whoever wrote to the page meanwhile would not be believed twice.
            engine.stop_on(medium.read(at, &mut worker.plain))?;
            let mut entry = keys.seal(page, &worker.plain, &mut worker.sealed);
            entry.unverified = engine.is_unverified(page);
            Ok((None, Some(entry)))
        }
        Action::Lose => {
            worker.plain.fill(0);
            let mut entry = keys.seal(page, &worker.plain, &mut worker.sealed);
            entry.tag[0] ^= 1;
            Ok((None, Some(entry)))
        }
        Action::Rewrite(content, unverified) => {
            worker.plain.copy_from_slice(content);
            let mut entry = keys.seal(page, &worker.plain, &mut worker.sealed);
            entry.unverified = unverified;
            Ok((old.transpose()?, Some(entry)))
        }
    }
}
