//! What `cvmio bench scm` measures by itself, since no program does: the time of single touches, served or by the kernel alone, and the
//! paper's naive way, in which every load and store traps.
//!
//! Each is a process of its own, started as a hidden command: a served touch needs the preloaded library, a bare one another process that
//! answers it, and the naive way handles signals.

mod faults;
mod mapped;
#[cfg(target_arch = "x86_64")]
mod naive;

use std::io;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// What is measured. Prints one JSON object.
#[derive(Subcommand, Debug, Clone)]
pub enum Probe {
    /// The first touch of each of so many pages, in random order
    Faults(FaultsArgs),
    /// Answers touches of another process, whose userfaultfd is the standard input
    Answer(AnswerArgs),
    /// Loads or stores of eight bytes in memory in which each one traps
    Naive(NaiveArgs),
}

/// Of [`Probe::Faults`].
#[derive(Args, Debug, Clone)]
pub struct FaultsArgs {
    /// The file that is mapped
    #[arg(long)]
    pub file: PathBuf,
    /// Bytes of it
    #[arg(long)]
    pub length: usize,
    /// Bytes of a page
    #[arg(long, default_value_t = 4096)]
    pub page: usize,
    /// Touch in order instead
    #[arg(long)]
    pub in_order: bool,
    /// Have another process answer them, which does nothing but let them go on; without this they are the library's
    #[arg(long, value_enum)]
    pub bare: Option<Answering>,
}

/// How the other process waits for the next touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Answering {
    /// It sleeps.
    Asleep,
    /// It looks all the time.
    Awake,
}

/// Of [`Probe::Answer`].
#[derive(Args, Debug, Clone)]
pub struct AnswerArgs {
    /// How it waits
    #[arg(value_enum)]
    pub how: Answering,
    /// Bytes of a page
    pub page: u64,
}

/// The order of the naive way's accesses, and what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Loads, in order.
    Read,
    /// Loads of records at random places.
    Randread,
    /// Stores, in order.
    Write,
    /// Stores of records at random places.
    Randwrite,
}

/// Of [`Probe::Naive`].
#[derive(Args, Debug, Clone)]
pub struct NaiveArgs {
    /// Bytes of memory
    #[arg(long)]
    pub length: usize,
    /// Bytes of a record
    #[arg(long)]
    pub record: usize,
    /// What is done
    #[arg(long, value_enum)]
    pub kind: Kind,
    /// For so long
    #[arg(long)]
    pub seconds: f64,
}

/// Runs a probe, and prints what came out.
///
/// # Errors
/// When the system does not let it.
pub fn run(probe: &Probe) -> io::Result<()> {
    match probe {
        Probe::Faults(args) => faults::faults(args),
        Probe::Answer(args) => faults::answer(args),
        #[cfg(target_arch = "x86_64")]
        Probe::Naive(args) => naive::naive(args),
        #[cfg(not(target_arch = "x86_64"))]
        Probe::Naive(_) => Err(io::Error::other("single steps are made on x86-64 only")),
    }
}
