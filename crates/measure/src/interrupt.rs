//! A signal that asks for the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{Context, Error, Result};

/// Set by a signal; everything that takes time looks at it.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// When the system does not let it.
    pub fn on_signals() -> Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))
                .doing(format!("signal {signal}"))?;
        }
        Ok(interrupt)
    }

    /// As a signal does.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// # Errors
    /// When the end was asked for.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::SeqCst) { Err(Error::interrupted()) } else { Ok(()) }
    }
}
