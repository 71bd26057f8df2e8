//! A database whose bytes are not what was written there.
//!
//! redb answers some damage with an error, and some with a panic, or with a second panic on the way out of the first. So nothing of a database is
//! used before all of it was read, and a panic on the way says that it is damaged.

use crate::error::Error;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};

thread_local! {
    /// The database that this thread reads for the first time.
    static READING: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Does the first reading of the database at `path`.
///
/// # Errors
/// [`Error::Damaged`] instead of a panic.
pub(crate) fn first_reading<T>(path: &Path, read: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    READING.set(Some(path.to_owned()));
    // What it leaves behind is dropped with it.
    let outcome = catch_unwind(AssertUnwindSafe(read));
    READING.set(None);
    outcome.unwrap_or_else(|payload| Err(Error::Damaged(path.to_owned(), text(&*payload))))
}

/// Has the process end by `end` where a database turns out to be damaged by a panic: what is dropped on the way out may panic again, and then
/// the process would be aborted. For programs; without this, the error is returned where nothing panics twice.
pub fn end_when_damaged(end: fn(Error)) {
    let before = take_hook();
    set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
        let reading = READING.try_with(|reading| reading.borrow().clone()).ok().flatten();
        match reading {
            Some(path) => end(Error::Damaged(path, text(panic.payload()))),
            None => before(panic),
        }
    }));
}

fn text(payload: &(dyn Any + Send)) -> String {
    let literal = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    literal
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it cannot be read".into())
}
