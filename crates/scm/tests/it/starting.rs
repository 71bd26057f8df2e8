//! Regions that are opened beside programs that are started.
//!
//! A child has all that its parent has open until it becomes the program that it was started for, and so it keeps a region locked that the
//! parent has closed meanwhile. Tests that open one wait for those moments.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use scm::{Access, Error, Mapping};

static STARTING: RwLock<()> = RwLock::new(());

/// Starts a program; nothing is opened meanwhile.
pub fn start<T>(program: impl FnOnce() -> T) -> T {
    let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    program()
}

pub fn open(path: &Path, access: Access) -> Result<Mapping, Error> {
    let _no_start = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    Mapping::open(path, access)
}
