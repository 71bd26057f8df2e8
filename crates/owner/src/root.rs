//! What the service's own freshness stands on: its disk, or an anchor that holds the end of its audit log.

use crate::database::Reached;
use crate::error::Error;
use crate::log::Head;
use anchor::{Anchor, MOVED_TO_SIZE, Stamp, State};
use futures::executor::block_on;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two attempts at an anchor that is away.
const PAUSE: Duration = Duration::from_millis(500);

/// What the service stands on.
pub enum Root {
    /// Only the owner can put back the disk of the service.
    Disk,
    /// An anchor, and what it holds.
    Anchored(Arc<dyn Anchor>, Box<Stamp>),
}

/// The stamp for the end of a log. Its volume is the database, its generation the number of the last entry.
fn stamp(database: [u8; 16], head: Head, session: [u8; 16], claims: u64) -> Stamp {
    Stamp {
        volume: database,
        generation: head.number,
        head: head.hash,
        session,
        claims,
        header_digest: [0; 32],
        state: State::Claimed,
        moved_to: [0; MOVED_TO_SIZE],
        mac: [0; 32],
    }
}

/// What the anchor of a database vouches for. Nothing has moved.
pub struct Look {
    anchor: Arc<dyn Anchor>,
    held: Stamp,
}

impl Look {
    /// Up to where the log is vouched for.
    #[must_use]
    pub fn covered(&self) -> Head {
        Head { number: self.held.generation, hash: self.held.head }
    }

    /// Takes the anchor for this run of the service. `reached` is evidence that the database has what it vouches for: a rolled-back copy
    /// must not take it from the service that runs.
    ///
    /// # Errors
    /// If the anchor can't be moved; [`Error::Fenced`] if another process has.
    pub fn claim(self, session: [u8; 16], reached: &Reached) -> Result<Root, Error> {
        let covered = self.covered();
        if reached.head() != covered {
            return Err(Error::Fenced(
                "another entry was looked for than the one that it vouches for".into(),
            ));
        }
        let new = stamp(self.held.volume, covered, session, self.held.claims + 1);
        let mut root = Root::Anchored(self.anchor, Box::new(self.held));
        root.advance(new, &AtomicBool::new(false), &mut |_| {})?;
        Ok(root)
    }
}

impl Root {
    /// Takes an anchor that was never used for a new database.
    ///
    /// # Errors
    /// If the anchor holds something, or can't be used.
    pub fn make(anchor: &dyn Anchor, database: [u8; 16], head: Head) -> Result<(), Error> {
        let new = Stamp { state: State::Released, ..stamp(database, head, [0; 16], 0) };
        block_on(anchor.advance(None, &new)).map_err(|error| match error {
            anchor::Error::Conflict(_) => Error::Usage(format!(
                "the anchor {} is in use already; give one that was never used",
                anchor.address()
            )),
            error => Error::Root(error),
        })
    }

    /// Looks at the anchor of a database, before anything is moved.
    ///
    /// # Errors
    /// If the anchor belongs to something else, or can't be read.
    pub fn look(anchor: Arc<dyn Anchor>, database: [u8; 16]) -> Result<Look, Error> {
        let held = block_on(anchor.read()).map_err(Error::Root)?;
        let held = held.filter(|held| held.volume == database).ok_or_else(|| {
            Error::Usage(format!(
                "the anchor {} does not belong to this database: give the one that `cvmio-owner init` was given",
                anchor.address()
            ))
        })?;
        Ok(Look { anchor, held })
    }

    /// Makes the anchor vouch for the log up to `head`. An anchor that is away is asked again and again, since the entries are in the
    /// database already: nothing may be answered before the anchor covers them.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another process has moved the anchor; [`Error::Root`] if it can't be used, or `stop` was set.
    pub fn cover(
        &mut self,
        head: Head,
        stop: &AtomicBool,
        report: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let Root::Anchored(_, held) = self else { return Ok(()) };
        let new = stamp(held.volume, head, held.session, held.claims);
        self.advance(new, stop, report)
    }

    /// Ends this run of the service.
    ///
    /// # Errors
    /// As [`Root::cover`].
    pub fn release(&mut self) -> Result<(), Error> {
        let Root::Anchored(_, held) = self else { return Ok(()) };
        let new = Stamp { state: State::Released, ..(**held).clone() };
        self.advance(new, &AtomicBool::new(true), &mut |_| {})
    }

    /// One compare-and-swap. Repeating it is safe: if a lost attempt was done after all, the conflict says so.
    fn advance(&mut self, new: Stamp, stop: &AtomicBool, report: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let Root::Anchored(anchor, held) = self else { return Ok(()) };
        loop {
            match block_on(anchor.advance(Some(held), &new)) {
                Ok(()) => break,
                Err(anchor::Error::Conflict(Some(there))) if *there == new => break,
                Err(error @ anchor::Error::Conflict(_)) => return Err(Error::Fenced(error.to_string())),
                Err(error @ anchor::Error::Io(_)) if !stop.load(Ordering::Relaxed) => {
                    report(&format!("the service's own anchor {} is away: {error}", anchor.address()));
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(Error::Root(error)),
            }
        }
        **held = new;
        Ok(())
    }

    /// What the service stands on, in a sentence for its first line.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Root::Disk => "stands on its disk: putting back this disk rolls back every volume".into(),
            Root::Anchored(anchor, _) => {
                format!("stands on the anchor {}: a database that was put back is refused", anchor.address())
            }
        }
    }
}
