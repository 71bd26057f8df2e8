//! A signal that asks for the end, for work that has something to put away.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;

/// Set by a signal; everything that takes time looks at it.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The end was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

impl Interrupt {
    /// Takes SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn on_signals() -> Result<Self, Failure> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))
                .map_err(|error| Failure::io(format!("signal {signal} cannot be handled: {error}")))?;
        }
        Ok(interrupt)
    }

    /// What the signal sets.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// As a signal does.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// The end of work that looks at this: a failure behind a signal is an interruption, whatever the work made of it.
    ///
    /// # Errors
    /// As the work.
    pub fn end<T>(&self, ended: Result<T, impl Into<Failure>>) -> Result<T, Failure> {
        ended.map_err(|failure| match (failure.into(), self.check()) {
            (failure, Ok(())) => failure,
            (failure, Err(Interrupted)) => Failure::interrupted(failure),
        })
    }

    /// Fails once a signal has come.
    ///
    /// # Errors
    /// Says that it was interrupted.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::SeqCst) { Err(Interrupted) } else { Ok(()) }
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted; everything was put away")
    }
}

impl std::error::Error for Interrupted {}

impl From<Interrupted> for Failure {
    fn from(interrupted: Interrupted) -> Self {
        Self::interrupted(interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_until_the_end_is_asked_for() {
        let interrupt = Interrupt::default();
        let elsewhere = interrupt.clone();
        assert_eq!(interrupt.check(), Ok(()));
        elsewhere.set();
        let failure = Failure::from(interrupt.check().unwrap_err());
        assert_eq!((failure.code(), failure.as_json()["kind"].as_str()), (130, Some("interrupted")));
    }

    #[test]
    fn a_failure_behind_a_signal_is_an_interruption() {
        let interrupt = Interrupt::default();
        let fails = || interrupt.end::<()>(Err(Failure::usage("a"))).unwrap_err();
        assert_eq!((fails().code(), fails().to_string()), (2, "a".to_string()));
        interrupt.set();
        assert_eq!((fails().code(), fails().to_string()), (130, "a".to_string()));
        assert_eq!(interrupt.end(Ok::<_, Failure>(1)).unwrap(), 1);
    }
}
