//! Keeping secrets inside the process: no core dumps, no tracing by others, no swap.

use std::fmt;
use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use crate::{Random, SystemRandom, locked};

/// Whether the memory of secrets is locked against swapping.
///
/// This covers [`crate::Secret`], [`crate::SecretBytes`] and aws-lc's heap, with prepared keys and the state of
/// its random generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// All of it.
    All,
    /// Some of it could not be locked.
    Some {
        /// Bytes that may be swapped out.
        unlocked: u64,
        /// RLIMIT_MEMLOCK in bytes; `None` if there is no limit.
        limit: Option<u64>,
    },
}

impl fmt::Display for Locking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Locking::All => f.write_str("the memory of keys is locked"),
            Locking::Some { unlocked, limit } => {
                write!(f, "{unlocked} bytes of keys could not be locked and may be swapped out ")?;
                match limit {
                    Some(limit) => write!(f, "(RLIMIT_MEMLOCK is {limit} bytes): raise `ulimit -l`")?,
                    None => f.write_str("(the system refuses): allow mlock(2)")?,
                }
                f.write_str(", or turn swap off")
            }
        }
    }
}

/// How it stands now.
pub fn locking() -> Locking {
    match locked::unlocked() {
        0 => Locking::All,
        unlocked => Locking::Some { unlocked, limit: getrlimit(Resource::Memlock).current },
    }
}

/// Forbids core dumps and tracing by other processes of the same user, raises RLIMIT_MEMLOCK as far as it
/// goes, and tries to lock memory for keys. Call it first thing, before any secret is read; it holds for
/// the whole process. A process that may not be dumped has a `/proc/self` that belongs to root.
///
/// # Errors
/// If the system refuses to forbid dumps. That locking failed is no error, but told in the result.
pub fn protect_process() -> io::Result<Locking> {
    let told = |call| move |error| told(call, error);
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(told("prctl(PR_SET_DUMPABLE)"))?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(told("setrlimit(RLIMIT_CORE)"))?;
    let maximum = getrlimit(Resource::Memlock).maximum;
    // Up to the maximum anybody may raise it. Should that fail all the same, `locking` tells what it led to.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    // The first key maps the first chunk, and random bytes most of what aws-lc needs, so that the answer is known now.
    drop(locked::Locked::zeroed(1));
    SystemRandom.fill(&mut [0]);
    Ok(locking())
}

fn told(call: &str, error: rustix::io::Errno) -> io::Error {
    let error = io::Error::from(error);
    let message = format!("core dumps of keys can't be forbidden: {call}: {error}; allow that system call");
    io::Error::new(error.kind(), message)
}
