//! For how long a host has not answered, counted only while we were there to hear it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a queue with requests in flight looks whether one of them is late.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// What passes on the clock at one look, at most.
const STEP: Duration = LOOK.saturating_mul(2);

/// The clock of one queue. It stands still while its thread does not run: a machine that was suspended, or a process that was stopped, must not
/// find on its return that the host was silent all the time.
#[derive(Debug)]
pub(crate) struct Clock {
    time: Duration,
    looked: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { time: Duration::ZERO, looked: Instant::now() }
    }

    /// What it says, as of the last look.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    /// Lets it go on. Says whether it is time to look for late requests.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked);
        if passed < LOOK {
            return false;
        }
        self.time += passed.min(STEP);
        self.looked = now;
        true
    }
}

/// Why a store ends that its user waits for no longer.
pub(crate) const GIVEN_UP: &str = "the host does not answer, and is waited for no longer";
/// Whether a request has been in flight for longer than it may. The clock may have gone on by a step when it was sent.
pub(crate) fn is_late(silent: Duration, deadline: Duration) -> bool {
    silent > deadline.saturating_add(STEP)
}

/// Shorter silences are nothing to speak of.
const NOTABLE: Duration = Duration::from_secs(1);

/// For how long the host has left a request of each queue of a store without an answer, as far as it is notable.
#[derive(Debug, Default)]
pub(crate) struct Silences {
    numbers: AtomicU64,
    of: Mutex<BTreeMap<u64, Duration>>,
}

impl Silences {
    /// A number for a queue.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// What a queue finds when it looks; zero when it has nothing in flight. Says whether it is notable: then the queue looks each time, to take it
    /// back when the host has answered.
    pub(crate) fn note(&self, number: u64, silent: Duration) -> bool {
        let is_notable = silent >= NOTABLE;
        if is_notable {
            self.of().insert(number, silent);
        } else {
            self.of().remove(&number);
        }
        is_notable
    }

    /// The longest one now.
    pub(crate) fn longest(&self) -> Option<Duration> {
        self.of().values().max().copied()
    }

    fn of(&self) -> MutexGuard<'_, BTreeMap<u64, Duration>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that the host may leave unanswered for ever, and that a thread of its own asks, so that nobody else is held up.
#[derive(Debug)]
pub(crate) struct Question<T> {
    ask: Option<Sender<()>>,
    answers: Arc<Answers<T>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Answers<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    is_asked: bool,
    last: Option<T>,
}

impl<T> Answers<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Copy + Send + 'static> Question<T> {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(crate) fn new(question: impl Fn() -> Option<T> + Send + 'static) -> std::io::Result<Self> {
        let (ask, asked) = channel();
        let state = Mutex::new(State { is_asked: false, last: None });
        let answers = Arc::new(Answers { state, changed: Condvar::new() });
        let told = Arc::clone(&answers);
        let work = move || Self::run(&asked, &told, question);
        let thread = thread::Builder::new().name("store-asks".into()).spawn(work)?;
        Ok(Self { ask: Some(ask), answers, thread: Some(thread) })
    }

    fn run(asked: &Receiver<()>, answers: &Answers<T>, question: impl Fn() -> Option<T>) {
        while asked.recv().is_ok() {
            let answer = question();
            let mut state = answers.state();
            *state = State { is_asked: false, last: answer };
            answers.changed.notify_all();
        }
    }

    /// The answer; or, where there is none within `patience`, the one before.
    pub(crate) fn answer(&self, patience: Duration) -> Option<T> {
        let mut state = self.answers.state();
        if state.is_asked {
            // Nobody waits twice for a host that is silent.
            return state.last;
        }
        self.ask.as_ref()?.send(()).ok()?;
        state.is_asked = true;
        let waited = self.answers.changed.wait_timeout_while(state, patience, |state| state.is_asked);
        waited.unwrap_or_else(PoisonError::into_inner).0.last
    }
}

impl<T> Drop for Question<T> {
    fn drop(&mut self) {
        drop(self.ask.take());
        // One that still asks is left to the kernel.
        if !self.answers.state().is_asked
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn a_clock_stands_still_while_nobody_looks() {
        let mut clock = Clock::new();
        let begun = clock.looked;
        assert!(!clock.look(begun + LOOK / 2));
        assert!(clock.look(begun + LOOK));
        assert_eq!(clock.time(), LOOK);
        assert!(clock.look(begun + Duration::from_hours(1)));
        assert_eq!(clock.time(), LOOK + STEP);
    }

    #[test]
    fn a_question_without_an_answer_holds_up_nobody() {
        let (answer, answers) = sync_channel::<Option<u32>>(8);
        let question = Question::new(move || answers.recv().ok().flatten()).unwrap();
        let long = Duration::from_secs(60);
        answer.send(Some(1)).unwrap();
        assert_eq!(question.answer(long), Some(1));
        // It is silent now: once it is waited for, and then no more.
        assert_eq!(question.answer(Duration::from_millis(1)), Some(1));
        let begun = Instant::now();
        assert_eq!(question.answer(long), Some(1));
        assert!(begun.elapsed() < long);
        answer.send(Some(2)).unwrap();
        answer.send(Some(3)).unwrap();
        while question.answer(long) != Some(3) {}
        // Its end does not wait for the last one.
        assert_eq!(question.answer(Duration::from_millis(1)), Some(3));
        drop(question);
    }
}
