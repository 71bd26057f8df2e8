//! Regions that are opened beside programs that are started.
//!
//! A child process has its parent's files open until it runs its own program. Until then it keeps the lock of a region that the parent has
//! closed. So no test opens a region while another test starts a program.

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
