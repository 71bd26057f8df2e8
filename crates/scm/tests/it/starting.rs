//! Regions that are opened beside programs that are started.
//!
//! A child process has its parent's files open until it runs its own program. Until then it keeps the lock of a region that the parent has
//! closed. So no test opens a region while another test starts a program.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock};

use scm::{Access, Error, Mapping};

static STARTING: RwLock<()> = RwLock::new(());

/// In the environment of a program that was started here.
const STARTED: &str = "CVMIO_TEST_STARTED";

/// Starts a program that goes on, and returns when it has none of our files any more.
///
/// `Command::spawn` returns before that: the kernel wakes the parent when the child has a memory of its own, and closes the files behind that
/// (execve: `exec_mmap`, then `do_close_on_exec`). A child that is kept from running just there has a region locked for as long as it takes.
pub fn spawn(program: &mut Command) -> std::io::Result<Child> {
    let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    let mut child = program.env(STARTED, "yes").spawn()?;
    // Its own environment is there when its files are closed.
    let environment = format!("/proc/{}/environ", child.id());
    let runs = || String::from_utf8_lossy(&std::fs::read(&environment).unwrap_or_default()).contains(STARTED);
    while !runs() && child.try_wait()?.is_none() {
        std::thread::yield_now();
    }
    Ok(child)
}

/// Runs a program to its end; nothing is opened meanwhile.
pub fn start<T>(program: impl FnOnce() -> T) -> T {
    let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    program()
}

pub fn open(path: &Path, access: Access) -> Result<Mapping, Error> {
    let _no_start = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    Mapping::open(path, access)
}
