//! A signal that asks for the end, for work that has something to put away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;

/// Set by a signal; everything that takes time looks at it.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .map_err(|error| Failure::io(format!("signal {signal} cannot be handled: {error}")))?;
        }
        Ok(Self(flag))
    }

    /// What the signal sets.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Fails once a signal has come.
    ///
    /// # Errors
    /// Says that it was interrupted.
    pub fn check(&self) -> Result<(), Failure> {
        if self.0.load(Ordering::SeqCst) {
            return Err(Failure::usage("interrupted; everything was put away"));
        }
        Ok(())
    }
}
