//! How long the lock of an anchor's file is waited for. Others have it for a moment; one that keeps it makes the anchor an absent one.

use crate::lock::{Lock, lock_within};
use crate::{Away, Limits};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long others may have the lock before the anchor counts as away.
const MOMENT: Duration = Duration::from_millis(100);

/// As of an anchor on a thread of its own: see [`Limits`].
#[derive(Debug)]
pub(super) struct Patience {
    timeout: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The lock was had before.
    contacted: bool,
    absence: Option<Absence>,
}

#[derive(Debug)]
struct Absence {
    since: Instant,
    attempts: u64,
    error: String,
}

impl Patience {
    pub(super) fn new(timeout: Option<Duration>) -> Patience {
        Patience { timeout, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock. Once it was waited for in vain, the next ones try it once, until one has it.
    pub(super) fn lock(&self, file: &File) -> io::Result<()> {
        let begun = Instant::now();
        let (limit, since) = {
            let state = self.state();
            let first = self.timeout.unwrap_or(Limits::default().first_contact);
            let limit = if state.contacted { self.timeout } else { Some(first) };
            (limit, state.absence.as_ref().map_or(begun, |absence| absence.since))
        };
        let rest = || limit.map(|limit| limit.saturating_sub(since.elapsed()));
        let briefly =
            lock_within(file, Lock::Exclusive, Some(rest().map_or(MOMENT, |rest| rest.min(MOMENT))));
        let mut taken = briefly;
        if let Err(error) = &taken
            && error.kind() == ErrorKind::TimedOut
        {
            self.note(since, error);
            if rest().is_none_or(|rest| !rest.is_zero()) {
                taken = lock_within(file, Lock::Exclusive, rest());
            }
        }
        match taken {
            Ok(()) => {
                *self.state() = State { contacted: true, absence: None };
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                let waited = since.elapsed().as_secs_f64();
                Err(io::Error::new(error.kind(), format!("it has been away for {waited:.1} s: {error}")))
            }
            Err(error) => Err(error),
        }
    }

    fn note(&self, since: Instant, error: &io::Error) {
        let mut state = self.state();
        let absence = state.absence.get_or_insert(Absence { since, attempts: 0, error: String::new() });
        absence.attempts += 1;
        absence.error = error.to_string();
    }

    /// Since when the lock is waited for, if it is.
    pub(super) fn away(&self) -> Option<Away> {
        let state = self.state();
        let Absence { since, attempts, error } = state.absence.as_ref()?;
        Some(Away { duration: since.elapsed(), attempts: *attempts, error: error.clone() })
    }
}
