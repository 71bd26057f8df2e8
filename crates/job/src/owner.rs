//! The owner's side of a job.
//!
//! [`Flow::launch`] starts the machine, judges its evidence and hands the job over. [`Flow::follow`] copies the log, [`Flow::fetch`] brings what
//! came back and checks it against the manifest, and [`Flow::wipe`] powers the machine off. In between the owner may leave: [`state`] keeps what
//! is needed to go on.

mod collect;
mod flow;
mod launch;
mod prepare;
mod ssh;
pub mod state;
mod verify;
mod volumes;

pub use flow::{Done, Flow, Options, put_away};
pub use launch::Machine;
pub use prepare::Prepared;
pub use verify::{Judge, Verified, now, simulated_root, verify};
