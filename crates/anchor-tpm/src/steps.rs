//! How the anchor moves, step by step, and what a cut after each step leaves.
//!
//! | step | what is done | cut right after it |
//! | --- | --- | --- |
//! | 1 | read the index's value, load the file, follow the value to the state; compare | nothing has changed |
//! | 2 | write the attempt, and what a reader needs, into the slot not in force | a slot is torn, the other is enough; nothing has changed |
//! | 3 | sync the file | the attempt is *open*: it may never be extended. The state is the old one |
//! | 4 | extend the index by the attempt's digest | the state is the new one; the caller was not told |
//! | 5 | read the value again, and follow it: did this attempt win, or another that came first? | as after 4 |
//!
//! The TPM does step 4 wholly or not at all: its index is never orderly, so it is in non-volatile memory when the answer is sent. An answer
//! that is lost is a cut after 3 or 4, and the next reader sees which.
//!
//! An open attempt whose base is the current value could still be extended: by a command that is on its way. A reader that may write
//! *settles* first: it makes an attempt that leaves the state as it is, and extends it. Then the open one comes too late for ever, and if
//! it was faster, the reader sees that it has won. So a state that was read stays until a later move. Open attempts stay in the file, 24
//! at most: one that is extended after all has lost, and is recognised.

use anchor::Stamp;
use seal::Random;

use crate::attempt::{Attempt, Value};
use crate::companion::MAX_ATTEMPTS;
use crate::error::Error;
use crate::replay::{Standing, follow};

/// Most open attempts that are kept.
const MAX_OPEN: usize = 24;

/// An index of type Extend.
pub trait Chip {
    /// Its value, proven.
    ///
    /// # Errors
    /// Those of the TPM.
    fn value(&mut self) -> Result<Value, Error>;

    /// Extends it.
    ///
    /// # Errors
    /// Whether it was extended is then unknown.
    fn extend(&mut self, digest: &[u8; 32]) -> Result<(), Error>;
}

/// Where the attempts are kept. It need not be trusted.
pub trait Log {
    /// All attempts that are there, in any order.
    ///
    /// # Errors
    /// Those of the file.
    fn load(&mut self) -> Result<Vec<Attempt>, Error>;

    /// Replaces them, durably; if that is cut short, those that were loaded last are still there.
    ///
    /// # Errors
    /// Those of the file.
    fn store(&mut self, attempts: &[Attempt]) -> Result<(), Error>;

    /// What to say when the attempts don't lead to the index's value.
    fn unknown(&self) -> Error;
}

/// Where the index stands: step 1.
///
/// # Errors
/// Those of chip and log, and [`Log::unknown`].
pub fn look(chip: &mut dyn Chip, log: &mut dyn Log) -> Result<Standing, Error> {
    let value = chip.value()?;
    let attempts = log.load()?;
    follow(&value, &attempts).ok_or_else(|| log.unknown())
}

/// The state, which stays until a later move.
///
/// # Errors
/// As [`look`].
pub fn read(chip: &mut dyn Chip, log: &mut dyn Log, random: &dyn Random) -> Result<Standing, Error> {
    let standing = look(chip, log)?;
    if !standing.is_open() {
        return Ok(standing);
    }
    let same = next(&standing, standing.winner.stamp.clone(), random);
    write(log, &standing, &same)?;
    chip.extend(&same.digest())?;
    look(chip, log)
}

/// Moves the anchor from `expected` to `new`.
///
/// # Errors
/// [`Error::Conflict`] if it holds another stamp, or another move came first; else as [`look`]. Whether it has moved is then unknown.
pub fn advance(
    chip: &mut dyn Chip,
    log: &mut dyn Log,
    random: &dyn Random,
    expected: Option<&Stamp>,
    new: &Stamp,
) -> Result<Standing, Error> {
    let attempt = prepare(chip, log, random, expected, new)?;
    finish(chip, log, &attempt)
}

/// Steps 1 to 3.
pub(crate) fn prepare(
    chip: &mut dyn Chip,
    log: &mut dyn Log,
    random: &dyn Random,
    expected: Option<&Stamp>,
    new: &Stamp,
) -> Result<Attempt, Error> {
    let standing = look(chip, log)?;
    if standing.winner.stamp.as_ref() != expected {
        return Err(Error::Conflict(standing.winner.stamp.map(Box::new)));
    }
    let attempt = next(&standing, Some(new.clone()), random);
    write(log, &standing, &attempt)?;
    Ok(attempt)
}

/// Steps 4 and 5.
pub(crate) fn finish(chip: &mut dyn Chip, log: &mut dyn Log, attempt: &Attempt) -> Result<Standing, Error> {
    chip.extend(&attempt.digest())?;
    let standing = look(chip, log)?;
    if standing.winner == *attempt {
        Ok(standing)
    } else {
        Err(Error::Conflict(standing.winner.stamp.map(Box::new)))
    }
}

fn next(standing: &Standing, stamp: Option<Stamp>, random: &dyn Random) -> Attempt {
    let mut id = [0; 16];
    random.fill(&mut id);
    Attempt { base: standing.value, random: id, number: standing.extends().saturating_add(1), stamp }
}

fn write(log: &mut dyn Log, standing: &Standing, attempt: &Attempt) -> Result<(), Error> {
    let mut kept = standing.clone();
    kept.open.sort_by_key(|open| std::cmp::Reverse(open.number));
    kept.open.truncate(MAX_OPEN);
    let mut attempts = kept.needed();
    attempts.push(attempt.clone());
    debug_assert!(attempts.len() <= MAX_ATTEMPTS);
    log.store(&attempts)
}

#[cfg(test)]
mod tests;
