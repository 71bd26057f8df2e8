//! A slow anchor on a thread of its own.
//!
//! Anchors behind a network or in a chip block for milliseconds, and stay away for hours. [`Threaded`] runs such a
//! [`BlockingAnchor`] on one thread, so that no thread of a volume ever waits for it, and keeps the rules that all of
//! them share:
//!
//! 1. A move whose answer was lost is resolved by reading. It is sent again only after a read that shows that it has not
//!    arrived; as every move is a compare-and-swap, one that arrives late then finds another stamp and changes nothing.
//! 2. A stamp that is older than one seen before is refused: the anchor was rolled back (`history.rs`).
//! 3. An anchor that is away is tried again, with pauses that grow, until it answers or [`Limits::timeout`] has passed. A move is
//!    answered when the anchor says that it moved, or that it holds something else: one that answers reads and refuses moves is away.

mod history;
#[cfg(test)]
mod tests;

use crate::{Anchor, AnchorFuture, Away, Error, Health, Stamp};
use history::History;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// An anchor whose calls block. Each call is one attempt, bounded by time-outs of its own (a few seconds).
pub trait BlockingAnchor: Send + 'static {
    /// The stamp, or `None` when the anchor was never claimed.
    ///
    /// # Errors
    /// See [`Failure`].
    fn read(&mut self) -> Result<Option<Stamp>, Failure>;

    /// Replaces `expected` by `new`, durably. One attempt, which is never repeated in here.
    ///
    /// # Errors
    /// [`Error::Conflict`] in [`Failure::Refused`] when the anchor holds something else; else see [`Failure`].
    fn advance(&mut self, expected: Option<&Stamp>, new: &Stamp) -> Result<(), Failure>;

    /// The address, as in a policy.
    fn address(&self) -> String;

    /// What its kind has to tell in the status, by name.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// See [`Health::space`].
    fn space(&self) -> Option<u64> {
        None
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It was not reached, or did not answer, or asks to come back later. Whether it moved is unknown.
    Away(String),
    /// It is there, but a person has to mend something first: a certificate, a password, the address. Before the first answer
    /// this ends the opening; a session that runs waits for it, as for an anchor that is away.
    Setup(String),
    /// A definite answer, which another attempt would not change.
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Io(why) => Failure::Away(why),
            other => Failure::Refused(other),
        }
    }
}

/// How long a [`Threaded`] anchor is patient.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For how long an anchor may be away before requests fail with [`Error::Io`]; `None` is for ever.
    pub timeout: Option<Duration>,
    /// The same before its first answer, and of moves before the first that was answered, where `timeout` says nothing: at that time a
    /// mistake in the address is likely, and nobody has acknowledged anything yet.
    pub first_contact: Duration,
    /// The pause after the first failed attempt; each further one is twice as long.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            timeout: None,
            first_contact: Duration::from_secs(10),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(2),
        }
    }
}

/// A [`BlockingAnchor`] on a thread of its own. Dropping it ends the thread, after the attempt that it is in.
pub struct Threaded {
    shared: Arc<Shared>,
    address: String,
}

struct Shared {
    state: Mutex<State>,
    /// A request came, or the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    /// There will be no more requests.
    closed: bool,
    /// The thread is gone.
    ended: bool,
    absence: Option<Absence>,
    facts: Vec<(&'static str, String)>,
    space: Option<u64>,
}

/// Since when the anchor is away.
#[derive(Clone)]
struct Absence {
    since: Instant,
    attempts: u64,
    error: String,
    /// A move was not answered, so that no read ends it.
    of_moves: bool,
}

/// What an anchor is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Read,
    Move,
}

struct Request {
    ask: Ask,
    reply: Arc<Reply>,
}

#[derive(Clone)]
enum Ask {
    Read,
    Advance { expected: Option<Stamp>, new: Box<Stamp> },
    Pause(Duration),
}

/// Where the thread puts an answer. The future that waits for it holds the other reference.
#[derive(Default)]
struct Reply(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    answer: Option<Result<Option<Stamp>, Error>>,
    waker: Option<Waker>,
}

impl Reply {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Result<Option<Stamp>, Error>> {
        let mut waiting = self.lock();
        match waiting.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn give(&self, answer: Result<Option<Stamp>, Error>) {
        let waker = {
            let mut waiting = self.lock();
            waiting.answer = Some(answer);
            waiting.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, ask: Ask) -> Arc<Reply> {
        let reply = Arc::new(Reply::default());
        let mut state = self.lock();
        if state.ended {
            reply.give(Err(gone()));
        } else {
            state.requests.push_back(Request { ask, reply: Arc::clone(&reply) });
            self.changed.notify_all();
        }
        reply
    }

    fn next(&self) -> Option<Request> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(request) = state.requests.pop_front() {
                return Some(request);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sleeps until the next request comes, but no longer than this.
    fn pause_for_requests(&self, length: Duration) {
        let state = self.lock();
        let idle = |state: &mut State| !state.closed && state.requests.is_empty();
        let _ = self.changed.wait_timeout_while(state, length, idle);
    }

    /// Sleeps, but not beyond the end.
    fn pause(&self, length: Duration) {
        let state = self.lock();
        let _ = self.changed.wait_timeout_while(state, length, |state| !state.closed);
    }
}

fn gone() -> Error {
    Error::Io("the anchor's thread has ended; detach the volume and attach it again".into())
}

impl Threaded {
    /// Starts the thread. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Io`] when the system gives no thread.
    pub fn spawn(anchor: impl BlockingAnchor, limits: Limits) -> Result<Arc<Threaded>, Error> {
        let address = anchor.address();
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let worker = Worker {
            anchor,
            limits,
            shared: Arc::clone(&shared),
            history: History::default(),
            contacted: false,
            has_moved: false,
        };
        std::thread::Builder::new()
            .name("anchor".into())
            .spawn(move || worker.run())
            .map_err(|error| Error::Io(format!("no thread for the anchor {address}: {error}")))?;
        Ok(Arc::new(Threaded { shared, address }))
    }

    async fn ask(&self, ask: Ask) -> Result<Option<Stamp>, Error> {
        let reply = self.shared.submit(ask);
        poll_fn(|context| reply.poll(context)).await
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Anchor for Threaded {
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
        Box::pin(self.ask(Ask::Read))
    }

    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
        let ask = Ask::Advance { expected: expected.cloned(), new: Box::new(new.clone()) };
        Box::pin(async { self.ask(ask).await.map(drop) })
    }

    fn pause(&self, time: Duration) -> AnchorFuture<'_, ()> {
        Box::pin(async move { self.ask(Ask::Pause(time)).await.map(drop) })
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn health(&self) -> Health {
        let state = self.shared.lock();
        let away = state.absence.as_ref().map(|absence| Away {
            duration: absence.since.elapsed(),
            attempts: absence.attempts,
            error: absence.error.clone(),
        });
        Health { away, facts: state.facts.clone(), space: state.space }
    }
}

struct Worker<T> {
    anchor: T,
    limits: Limits,
    shared: Arc<Shared>,
    history: History,
    /// Whether it has ever answered.
    contacted: bool,
    /// The same of a move.
    has_moved: bool,
}

/// When the thread ends, by a defect too, every request that waits for it gets an error.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let requests = {
            let mut state = self.0.lock();
            state.ended = true;
            std::mem::take(&mut state.requests)
        };
        for request in requests {
            request.reply.give(Err(gone()));
        }
    }
}

/// The answer for a request that the thread did not come to the end of.
struct Answering(Arc<Reply>);

impl Drop for Answering {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give(Err(gone()));
        }
    }
}

impl<T: BlockingAnchor> Worker<T> {
    fn run(mut self) {
        let _ending = Ending(Arc::clone(&self.shared));
        while let Some(Request { ask, reply }) = self.shared.next() {
            // Not to be counted as a caller that waits.
            let answering = Answering(reply);
            let answer = match &ask {
                Ask::Read => self.read(Want::Read, &answering.0),
                Ask::Pause(time) => {
                    self.shared.pause_for_requests(*time);
                    Ok(None)
                }
                Ask::Advance { expected, new } => {
                    self.advance(expected.as_ref(), new, &answering.0).map(|()| None)
                }
            };
            answering.0.give(answer);
        }
    }

    /// `want`: what the reading is for.
    fn read(&mut self, want: Want, reply: &Arc<Reply>) -> Result<Option<Stamp>, Error> {
        loop {
            let begun = Instant::now();
            match self.anchor.read() {
                Ok(found) => {
                    self.answered(Want::Read);
                    self.history.check(found.as_ref()).map_err(|why| self.rolled_back(&why))?;
                    return Ok(found);
                }
                Err(failure) => self.failed(want, failure, begun, reply)?,
            }
        }
    }

    fn advance(&mut self, expected: Option<&Stamp>, new: &Stamp, reply: &Arc<Reply>) -> Result<(), Error> {
        let mut unheard = false;
        loop {
            let begun = Instant::now();
            let conflict = match self.anchor.advance(expected, new) {
                Ok(()) => {
                    self.answered(Want::Move);
                    self.history.note(new);
                    return Ok(());
                }
                Err(Failure::Refused(Error::Conflict(_))) => {
                    self.answered(Want::Move);
                    true
                }
                Err(failure) => {
                    self.failed(Want::Move, failure, begun, reply)?;
                    unheard = true;
                    false
                }
            };
            let held = self.read(Want::Move, reply)?;
            // One of the attempts has arrived, though its answer was lost.
            if unheard && held.as_ref() == Some(new) {
                self.answered(Want::Move);
                return Ok(());
            }
            if conflict || held.as_ref() != expected {
                self.answered(Want::Move);
                return Err(Error::Conflict(held.map(Box::new)));
            }
        }
    }

    fn answered(&mut self, want: Want) {
        self.contacted = true;
        self.has_moved |= want == Want::Move;
        let (facts, space) = (self.anchor.facts(), self.anchor.space());
        let mut state = self.shared.lock();
        state.space = space;
        state.absence = state.absence.take().filter(|absence| absence.of_moves && want == Want::Read);
        state.facts = facts;
    }

    /// After a failed attempt: waits before the next one, or says why there is none.
    fn failed(
        &mut self,
        want: Want,
        failure: Failure,
        begun: Instant,
        reply: &Arc<Reply>,
    ) -> Result<(), Error> {
        let why = match failure {
            Failure::Refused(Error::Io(why)) | Failure::Away(why) => why,
            Failure::Refused(error) => return Err(error),
            Failure::Setup(why) if !self.contacted => return Err(Error::Unusable(why)),
            Failure::Setup(why) => why,
        };
        let facts = self.anchor.facts();
        let (absence, closed) = {
            let mut state = self.shared.lock();
            state.facts = facts;
            let new = Absence { since: begun, attempts: 0, error: String::new(), of_moves: false };
            let absence = state.absence.get_or_insert(new);
            absence.of_moves |= want == Want::Move;
            absence.attempts += 1;
            absence.error.clone_from(&why);
            (absence.clone(), state.closed)
        };
        let known = if want == Want::Move { self.has_moved } else { self.contacted };
        let limit = match known {
            true => self.limits.timeout,
            false => Some(self.limits.timeout.unwrap_or(self.limits.first_contact)),
        };
        let away = absence.since.elapsed();
        let rest = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(away));
        // The thread and the caller hold one reference each.
        let abandoned = closed || Arc::strong_count(reply) < 2;
        if rest.is_zero() || abandoned {
            return Err(Error::Io(format!("it has been away for {} s: {why}", away.as_secs())));
        }
        let doublings = u32::try_from(absence.attempts - 1).unwrap_or(u32::MAX).min(16);
        let pause = self.limits.first_pause.saturating_mul(1 << doublings).min(self.limits.longest_pause);
        self.shared.pause(pause.min(rest));
        Ok(())
    }

    fn rolled_back(&self, why: &str) -> Error {
        Error::Unusable(format!(
            "anchor {}: {why}. The anchor was rolled back, or another one answers under its address. Find out which, and \
             trust neither it nor the store before; a new anchor is set with `cvmio volume reanchor`",
            self.anchor.address()
        ))
    }
}
