//! One session ends and another begins, while those who use the volume wait: for a change of key, and for growth.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use seal::slot::Credential;
use volume::{Grown, Left, Rekeyed, Volume};

use super::{Running, Service};
use crate::disk::Idle;
use crate::environment::{Rekeying, SessionEnvironment};
use crate::input;
use crate::maintenance::Maintenance;
use crate::rekey::Rekey;
use crate::scrub::Scrub;
use crate::{Event, by_errno};
use cli::failure::Failure;

impl Service {
    /// Gives the volume a new key, in a session of its own: those who use it wait while the one ends and the next begins. Then goes on
    /// with the change in the background.
    ///
    /// # Errors
    /// What speaks against it; those who use the volume have seen nothing of it then. When the session cannot be ended, it has failed as any
    /// other does. When the volume fails in between, a session goes on under the key that it has; if there is none to be had, or somebody
    /// else had the volume meanwhile, whatever is asked of the device fails.
    pub fn begin_rekey(&self, wanted: &Rekeying) -> Result<Rekeyed, Failure> {
        let begun = self.between_sessions(
            &wanted.credential,
            |environment| environment.check_rekey(wanted).map(|()| true),
            |environment, left| environment.begin_rekey(wanted, left),
        )?;
        let begun = begun.ok_or_else(|| Failure::internal("a change of key that was to begin did not"))?;
        self.rekey()?;
        Ok(begun)
    }

    /// Lets the volume grow to so many blocks, or as its store allows, in a session of its own; those who use it wait meanwhile. If it is as
    /// large already, nothing happens. Also: whether the policy file says so.
    ///
    /// # Errors
    /// As of [`begin_rekey`](Self::begin_rekey).
    pub fn grow(
        &self,
        credential: &Credential,
        logical_blocks: Option<u64>,
    ) -> Result<(Grown, Result<(), Failure>), Failure> {
        if self.volume()?.is_rekeying() {
            return Err(Failure::usage(
                "a change of key is under way; wait for its end (`cvmio volume rekey`), and grow the volume then",
            ));
        }
        if !self.disk.keeps_what_is_flushed() {
            return Err(Failure::usage(
                "at freshness transaction the end of a session forgets what was not committed, under those who use it; detach the volume, and grow it by the path of its store",
            ));
        }
        let mut found = None;
        let grown = self.between_sessions(
            credential,
            |environment| {
                let will = environment.check_growth(credential, logical_blocks)?;
                let changes = will.before != will.now;
                found = Some((will, if changes { Ok(()) } else { environment.save_policy() }));
                Ok(changes)
            },
            |environment, _| {
                let grown = environment.grow(credential, logical_blocks)?;
                Ok((grown, environment.save_policy()))
            },
        )?;
        grown.or(found).ok_or_else(|| Failure::internal("a growth was neither refused nor found done"))
    }

    /// Ends the session, changes the volume, and begins another session, while those who use it wait. Nothing, if there is nothing to change,
    /// which is found out before.
    ///
    /// # Errors
    /// See [`begin_rekey`](Self::begin_rekey).
    fn between_sessions<T>(
        &self,
        credential: &Credential,
        check: impl FnOnce(&mut SessionEnvironment) -> Result<bool, Failure>,
        change: impl FnOnce(&mut SessionEnvironment, Left) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        // Held to the end: who puts the volume away waits for the next session.
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let running = threads.as_mut().ok_or_else(|| by_errno(rustix::io::Errno::SHUTDOWN))?;
        let volume = self.volume()?;
        self.check_undisturbed(&volume)?;
        if !check(&mut running.environment)? {
            return Ok(None);
        }
        let changing = self.begin_change()?;
        let idle = self.disk.idle()?;
        // What it came to stays in the status.
        self.rekey.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(Rekey::join);
        let failed = |failure: &Failure| drop(self.events.send(Event::Failed(failure.clone())));
        if let Err(failure) = running.maintenance.take().map_or(Ok(()), Maintenance::end) {
            // What it had promised may be lost, or another session may have the volume: its users must hear of that, and not of a next one.
            failed(&failure);
            return idle.go_on(&volume).and(Err(failure));
        }
        let left = volume.left();
        let changed = change(&mut running.environment, left);
        if let Err(failure) = self.next_session(running, idle, credential, left) {
            failed(&failure);
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
            return Err(failure);
        }
        drop((changing, threads));
        changed.map(Some)
    }

    /// Whether nothing is at work that the end of a session would cut short.
    fn check_undisturbed(&self, volume: &Volume) -> Result<(), Failure> {
        if volume.status().read_only {
            return Err(Failure::usage("the volume is attached for reading only, and stays as it is"));
        }
        if let Some(failure) = volume.failure() {
            return Err(failure.into());
        }
        self.begin_change().map(drop)
    }

    /// Keeps scrubs and checks from beginning until what is returned is dropped: the end of a session would cut them short, and the next one
    /// knows nothing of what they read.
    ///
    /// # Errors
    /// When one is under way.
    fn begin_change(&self) -> Result<Changing<'_>, Failure> {
        let checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
        let scrub = self.scrub.lock().unwrap_or_else(PoisonError::into_inner);
        if scrub.as_ref().is_some_and(Scrub::is_running) {
            return Err(Failure::usage(
                "a scrub is under way; wait for its end, or stop it with `scrub --stop`",
            ));
        }
        if checking.strong_count() > 0 {
            return Err(Failure::usage("a check is under way; wait for its end"));
        }
        self.changing.store(true, Ordering::SeqCst);
        Ok(Changing(&self.changing))
    }

    /// Refuses what needs a session, while one ends and the next begins.
    pub(super) fn check_no_change(&self) -> Result<(), Failure> {
        match self.changing.load(Ordering::SeqCst) {
            true => {
                Err(Failure::usage("the volume is being given a new key or more room; ask again in a moment"))
            }
            false => Ok(()),
        }
    }

    /// Begins another session of the volume, behind the one that has left this.
    fn next_session(
        &self,
        running: &mut Running,
        idle: Idle,
        credential: &Credential,
        left: Left,
    ) -> Result<(), Failure> {
        let volume = running.environment.attach(input::copy(credential), Some(left))?;
        running.maintenance = Some(Maintenance::start(&volume, &self.events, &self.tamper)?);
        *self.volume.lock().unwrap_or_else(PoisonError::into_inner) = Some(volume.clone());
        idle.go_on(&volume)?;
        self.disk.take_size(&volume);
        Ok(())
    }
}

/// A change of session that is under way.
struct Changing<'a>(&'a AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
