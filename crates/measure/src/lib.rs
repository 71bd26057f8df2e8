//! Measures storage with the real programs, in turns that can be trusted, and keeps what came out.
//!
//! Targets ([`target`]) are made ready by the programs that their users run, `cvmio` among them; this crate links nothing of a volume. A
//! [`session::Work`] says what is done to them: fio jobs ([`fio`]) or applications ([`apps`]). The session takes turns, writes the run
//! file after each, and puts everything away. [`commands`] is the command line.

#![forbid(unsafe_code)]

pub mod apps;
mod breakdown;
pub mod commands;
pub mod dump;
pub mod error;
pub mod fio;
mod machine;
mod program;
mod progress;
pub mod scm;
pub mod session;
mod size;
pub mod target;
