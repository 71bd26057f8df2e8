//! Commands on a volume that is not attached: `check`, `dump`, `key`.

use crate::cli::{Dump, Key, Offline};
use crate::failure::Failure;

pub fn check(_args: &Offline) -> Result<(), Failure> {
    Err(Failure::usage("a volume cannot be checked by this version yet"))
}

pub fn dump(_args: &Dump) -> Result<(), Failure> {
    Err(Failure::usage("not yet"))
}

pub fn key(_args: &Key) -> Result<(), Failure> {
    Err(Failure::usage("not yet"))
}
