//! The owner's side of a job.
//!
//! [`Flow::launch`] starts the machine, judges its evidence and hands the job over; [`Flow::finish`] follows the log, fetches what came back,
//! checks it against the manifest, and powers the machine off. Between the two the owner may leave: [`state`] keeps what the second needs.

mod collect;
mod flow;
mod launch;
mod prepare;
mod ssh;
pub mod state;
mod verify;

pub use flow::{Done, Flow, Options, put_away};
pub use launch::Machine;
pub use prepare::Prepared;
pub use verify::{Judge, Verified, now, simulated_root, verify};
