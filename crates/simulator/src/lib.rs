//! The volume under crash and attack, by seed.
//!
//! One thread drives the real code of the volume: its queues, its maintenance job and its attach, on a hostile disk, with a scripted
//! anchor, a simulated clock and seeded randomness. At each step the seed chooses who goes on. A reference model says what each read
//! may return, and what must have survived each crash; the host's attacks must end in the errors that the design names, and never in
//! a wrong byte, a panic or a hang.
//!
//! The same seed gives the same run, to the last byte of its trace.
#![forbid(unsafe_code)]

mod answers;
mod attack;
mod audit;
mod backups;
mod content;
mod copying;
mod coverage;
mod creation;
mod ending;
mod exporting;
mod following;
mod forgery;
mod growing;
mod guest;
mod importing;
mod keyring;
mod looking;
mod model;
mod moving;
#[cfg(feature = "mutations")]
pub mod mutants;
mod plan;
mod reanchoring;
mod recovery;
mod rekeying;
mod requests;
mod running;
mod schedule;
mod scrubbing;
mod simulation;
mod tag;
mod trace;
mod watch;
mod window;
mod world;
mod zombies;

pub use coverage::Coverage;
pub use running::run_caught;
pub use simulation::{Report, run};
pub use tag::{tag, untag};
pub use trace::Sink;
