//! Checks a log from its first entry to its last.

use super::entry::{Entry, EntryError, Event};
use super::state::{State, StateError};
use std::fmt;

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Number of the last entry; 0 if there is none.
    pub number: u64,
    /// Its hash.
    pub hash: [u8; 32],
}

/// A walk along a log. It takes the entries in their order, and knows what is held after each.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    head: Head,
    state: State,
    /// What was held before a snapshot whose entries are being read.
    snapshot: Option<State>,
}

/// What is wrong with a log, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// This entry was changed, or damaged.
    Changed(u64, EntryError),
    /// Another entry stands where this one should: entries are missing, or in another order.
    Misplaced {
        /// The number that comes next.
        expected: u64,
        /// The number that the entry has.
        found: u64,
    },
    /// This entry was written behind another one than the one that stands before it.
    Broken(u64),
    /// This entry can't follow on those before it.
    Impossible(u64, StateError),
    /// The log ends at `found`, although it reached at least to `expected`: its end was cut off.
    Cut {
        /// Where it must reach.
        expected: u64,
        /// Where it ends.
        found: u64,
    },
    /// The log has another entry of this number than the one that is vouched for.
    Other(u64),
    /// The table of volumes does not say what the log says.
    Table(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Changed(number, error) => {
                write!(f, "entry {number} of the audit log was changed: {error}")
            }
            Fault::Misplaced { expected, found } => write!(
                f,
                "the audit log has entry {found} where entry {expected} belongs: entries are missing or in another order"
            ),
            Fault::Broken(number) => write!(
                f,
                "entry {number} of the audit log does not belong behind the entry before it: one of the two was exchanged"
            ),
            Fault::Impossible(number, error) => {
                write!(f, "entry {number} of the audit log can't follow on those before it: {error}")
            }
            Fault::Cut { expected, found } => write!(
                f,
                "the audit log ends at entry {found}, but it reached entry {expected} before: its end was cut off, or an older copy was put back"
            ),
            Fault::Other(number) => write!(
                f,
                "the audit log has another entry {number} than the one that is vouched for: it was rewritten, or an older copy went its own way"
            ),
            Fault::Table(what) => {
                write!(f, "the table of volumes does not say what the audit log says: {what}")
            }
        }
    }
}

impl std::error::Error for Fault {}

impl Chain {
    /// Takes the next entry.
    ///
    /// # Errors
    /// The first fault. The chain can't be used after it.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Entry, Fault> {
        let expected = self.head.number + 1;
        let (entry, previous, hash) =
            Entry::decode(bytes).map_err(|error| Fault::Changed(expected.max(1), error))?;
        let begins = self.head.number == 0;
        // A log whose older entries are archived begins with a snapshot.
        let may_begin = begins && matches!(entry.event, Event::Snapshot { .. });
        if entry.number != expected && !may_begin {
            return Err(Fault::Misplaced { expected, found: entry.number });
        }
        if previous != self.head.hash && !may_begin {
            return Err(Fault::Broken(entry.number));
        }
        self.follow_snapshot(&entry)?;
        self.state.apply(&entry).map_err(|error| Fault::Impossible(entry.number, error))?;
        self.head = Head { number: entry.number, hash };
        Ok(entry)
    }

    /// A snapshot must end with what was held before it.
    fn follow_snapshot(&mut self, entry: &Entry) -> Result<(), Fault> {
        let within =
            matches!(entry.event, Event::KeptVolume(..) | Event::KeptClient(..) | Event::KeptStamp(..));
        if !within {
            self.end_snapshot()?;
        }
        if matches!(entry.event, Event::Snapshot { .. }) && self.state.database.is_some() {
            self.snapshot = Some(self.state.clone());
        }
        Ok(())
    }

    fn end_snapshot(&mut self) -> Result<(), Fault> {
        match self.snapshot.take() {
            Some(before) if before != self.state => Err(Fault::Impossible(
                self.head.number,
                StateError("the snapshot is not what was held before it".into()),
            )),
            _ => Ok(()),
        }
    }

    /// The end of the log, and what is held there.
    ///
    /// # Errors
    /// If the log ends within a snapshot that does not say what was held before.
    pub fn end(mut self) -> Result<(Head, State), Fault> {
        self.end_snapshot()?;
        Ok((self.head, self.state))
    }

    /// The last entry so far.
    #[must_use]
    pub fn head(&self) -> Head {
        self.head
    }

    /// What is held after it.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }
}

#[cfg(test)]
mod tests;
