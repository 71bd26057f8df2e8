//! An anchor that does what a script says, when the script says so.

use anchor::{Anchor, AnchorFuture, Error, Stamp};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What becomes of one `advance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It compares and swaps, and says which.
    Proceed,
    /// It answers [`Error::Io`], and the anchor has not moved.
    FailBefore,
    /// It answers [`Error::Io`], yet the anchor has moved (if the comparison held).
    FailAfter,
}

/// An anchor in memory whose moves wait for a controller or follow a script. It has no thread, no
/// clock and no randomness, so a run repeats exactly.
///
/// A move that a caller has begun stays with the anchor also when the caller drops its future, as a
/// request that is on its way over a network does: it moves the anchor when it is completed, or
/// never, if [`ScriptedAnchor::lose_next`] loses it.
#[derive(Debug, Default)]
pub struct ScriptedAnchor {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    held: Option<Stamp>,
    holding: bool,
    script: VecDeque<Outcome>,
    next_ticket: u64,
    waiting: VecDeque<Move>,
    results: BTreeMap<u64, Result<(), Error>>,
    wakers: BTreeMap<u64, Waker>,
    read_answer: Option<Result<Option<Stamp>, Error>>,
    history: Vec<Stamp>,
}

#[derive(Debug)]
struct Move {
    ticket: u64,
    expected: Option<Stamp>,
    new: Stamp,
}

/// Compare-and-swap.
fn swap(held: &mut Option<Stamp>, expected: Option<&Stamp>, new: Stamp) -> Result<(), Error> {
    if held.as_ref() != expected {
        return Err(Error::Conflict(held.clone().map(Box::new)));
    }
    *held = Some(new);
    Ok(())
}

impl Inner {
    fn execute(&mut self, expected: Option<&Stamp>, new: Stamp, outcome: Outcome) -> Result<(), Error> {
        if outcome == Outcome::FailBefore {
            return Err(Error::Io("scripted: failed before it moved".into()));
        }
        let result = swap(&mut self.held, expected, new.clone());
        if result.is_ok() {
            self.history.push(new);
        }
        if outcome == Outcome::FailAfter {
            return Err(Error::Io("scripted: failed after it moved".into()));
        }
        result
    }

    /// Begins a move: at once, or in the queue when moves are held back.
    fn begin(&mut self, expected: Option<Stamp>, new: Stamp) -> Result<u64, Result<(), Error>> {
        if !self.holding {
            let outcome = self.script.pop_front().unwrap_or(Outcome::Proceed);
            return Err(self.execute(expected.as_ref(), new, outcome));
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.push_back(Move { ticket, expected, new });
        Ok(ticket)
    }

    fn poll(&mut self, ticket: u64, context: &Context<'_>) -> Poll<Result<(), Error>> {
        match self.results.remove(&ticket) {
            Some(result) => Poll::Ready(result),
            None => {
                self.wakers.insert(ticket, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl ScriptedAnchor {
    /// An anchor that holds `stamp` (`None`: never claimed) and so far behaves well.
    #[must_use]
    pub fn new(stamp: Option<Stamp>) -> ScriptedAnchor {
        let history = stamp.iter().cloned().collect();
        ScriptedAnchor { inner: Mutex::new(Inner { held: stamp, history, ..Inner::default() }) }
    }

    /// From now on, moves stay pending until they are completed (`true`), or proceed at once (`false`).
    /// Moves that wait already go on waiting.
    pub fn hold(&self, holding: bool) {
        self.lock().holding = holding;
    }

    /// Adds the outcome of one move to come, after those that were added before. Moves beyond the
    /// script proceed.
    pub fn script(&self, outcome: Outcome) {
        self.lock().script.push_back(outcome);
    }

    /// How many moves wait.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Completes the oldest waiting move as the script says. Returns false if none waits.
    pub fn complete_next(&self) -> bool {
        let outcome = {
            let mut inner = self.lock();
            if inner.waiting.is_empty() {
                return false;
            }
            inner.script.pop_front().unwrap_or(Outcome::Proceed)
        };
        self.complete_next_with(outcome)
    }

    /// Completes the oldest waiting move in this way. Returns false if none waits.
    pub fn complete_next_with(&self, outcome: Outcome) -> bool {
        let waker = {
            let mut inner = self.lock();
            let Some(Move { ticket, expected, new }) = inner.waiting.pop_front() else { return false };
            let result = inner.execute(expected.as_ref(), new, outcome);
            // Without a waker the caller has dropped its future, and nobody will ask.
            let waker = inner.wakers.remove(&ticket);
            if waker.is_some() {
                inner.results.insert(ticket, result);
            }
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Loses the oldest waiting move, as a crash on the way does: it never happens, and its caller,
    /// if there still is one, waits for ever. Returns false if none waits.
    pub fn lose_next(&self) -> bool {
        self.lock().waiting.pop_front().is_some()
    }

    /// What `read` answers from now on, whatever is held: an older stamp, or an error. `None` makes
    /// it honest again. Comparisons always use what is held.
    pub fn answer_reads_with(&self, answer: Option<Result<Option<Stamp>, Error>>) {
        self.lock().read_answer = answer;
    }

    /// What the anchor holds in truth.
    #[must_use]
    pub fn held(&self) -> Option<Stamp> {
        self.lock().held.clone()
    }

    /// Every stamp that was ever held, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<Stamp> {
        self.lock().history.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a caller that stopped waiting.
struct Interest<'a> {
    anchor: &'a ScriptedAnchor,
    ticket: u64,
}

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        let mut inner = self.anchor.lock();
        inner.wakers.remove(&self.ticket);
        inner.results.remove(&self.ticket);
    }
}

impl Anchor for ScriptedAnchor {
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
        Box::pin(async {
            let inner = self.lock();
            inner.read_answer.clone().unwrap_or_else(|| Ok(inner.held.clone()))
        })
    }

    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
        let (expected, new) = (expected.cloned(), new.clone());
        Box::pin(async move {
            let begun = self.lock().begin(expected, new);
            match begun {
                Err(done) => done,
                Ok(ticket) => {
                    let interest = Interest { anchor: self, ticket };
                    poll_fn(|context| self.lock().poll(interest.ticket, context)).await
                }
            }
        })
    }

    fn address(&self) -> String {
        "scripted:".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use futures::{FutureExt, poll};

    fn sample(generation: u64) -> Stamp {
        Stamp {
            volume: [0x11; 16],
            generation,
            head: [0x22; 32],
            session: [0x33; 16],
            claims: 5,
            header_digest: [0x44; 32],
            state: anchor::State::Claimed,
            moved_to: [0; anchor::MOVED_TO_SIZE],
            mac: [0x55; 32],
        }
    }

    #[test]
    fn a_held_move_happens_when_it_is_completed() {
        let anchor = ScriptedAnchor::new(None);
        anchor.hold(true);
        assert!(!anchor.complete_next());
        block_on(async {
            let (first, second) = (sample(1), sample(2));
            let mut moves = [anchor.advance(None, &first), anchor.advance(Some(&first), &second)];
            assert!(poll!(&mut moves[0]).is_pending());
            assert!(poll!(&mut moves[1]).is_pending());
            assert_eq!((anchor.pending(), anchor.held()), (2, None));

            assert!(anchor.complete_next());
            assert_eq!(anchor.held(), Some(first.clone()));
            assert!(poll!(&mut moves[1]).is_pending());
            assert_eq!(poll!(&mut moves[0]), Poll::Ready(Ok(())));

            assert!(anchor.complete_next());
            assert_eq!(poll!(&mut moves[1]), Poll::Ready(Ok(())));
            assert_eq!(anchor.history(), [first, second]);
        });
    }

    #[test]
    fn completing_wakes_the_caller() {
        let anchor = ScriptedAnchor::new(None);
        anchor.hold(true);
        let new = sample(1);
        let caller = anchor.advance(None, &new);
        let controller = async { assert!(anchor.complete_next()) };
        assert_eq!(block_on(futures::future::join(caller, controller)).0, Ok(()));
    }

    #[test]
    fn failures_come_before_or_after_the_move() {
        let anchor = ScriptedAnchor::new(None);
        anchor.script(Outcome::FailBefore);
        anchor.script(Outcome::FailAfter);
        assert!(matches!(block_on(anchor.advance(None, &sample(1))), Err(Error::Io(_))));
        assert_eq!(anchor.held(), None);
        assert!(matches!(block_on(anchor.advance(None, &sample(1))), Err(Error::Io(_))));
        assert_eq!(anchor.held(), Some(sample(1)));
        assert_eq!(block_on(anchor.advance(Some(&sample(1)), &sample(2))), Ok(()));

        anchor.hold(true);
        anchor.script(Outcome::FailAfter);
        let new = sample(3);
        let mut held = anchor.advance(Some(&sample(2)), &new);
        assert!((&mut held).now_or_never().is_none());
        assert!(anchor.complete_next());
        assert!(matches!(held.now_or_never(), Some(Err(Error::Io(_)))));
        assert_eq!(anchor.held(), Some(new));
    }

    #[test]
    fn a_move_outlives_its_caller_unless_it_is_lost() {
        let anchor = ScriptedAnchor::new(None);
        anchor.hold(true);
        assert!(anchor.advance(None, &sample(1)).now_or_never().is_none());
        assert!(anchor.advance(None, &sample(2)).now_or_never().is_none());
        assert!(anchor.lose_next());
        assert!(anchor.complete_next());
        assert_eq!(anchor.held(), Some(sample(2)));
        assert!(anchor.lock().results.is_empty() && anchor.lock().wakers.is_empty());
    }

    #[test]
    fn a_stale_read_does_not_change_what_is_compared() {
        let anchor = ScriptedAnchor::new(Some(sample(1)));
        block_on(anchor.advance(Some(&sample(1)), &sample(2))).unwrap();
        anchor.answer_reads_with(Some(Ok(Some(sample(1)))));
        assert_eq!(block_on(anchor.read()), Ok(Some(sample(1))));
        assert_eq!(
            block_on(anchor.advance(Some(&sample(1)), &sample(3))),
            Err(Error::Conflict(Some(Box::new(sample(2)))))
        );
        anchor.answer_reads_with(None);
        assert_eq!(block_on(anchor.read()), Ok(Some(sample(2))));
    }
}
