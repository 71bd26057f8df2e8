//! The command line of measuring: what is measured, and what is shown of it.

mod breakdown;
mod dump;
mod measure;
mod rq;
mod show;
mod targets;
mod vm;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::apps::memory;
use crate::error::{Context, Result};

pub use breakdown::BreakdownArgs;
pub use dump::DumpArgs;
pub use measure::{AppsArgs, FioArgs};
pub use rq::RqArgs;
pub use targets::TargetArgs;
pub use vm::VmArgs;

/// What can be measured with programs, and shown.
#[derive(Subcommand, Debug, Clone)]
#[expect(missing_docs, reason = "a text here would be the help instead of the one at the arguments")]
pub enum Measure {
    Fio(FioArgs),
    Apps(AppsArgs),
    Vm(VmArgs),
    Rq(RqArgs),
    Breakdown(BreakdownArgs),
    Dump(DumpArgs),
    Scm(crate::scm::ScmArgs),
    #[command(subcommand, hide = true)]
    ScmProbe(scm_probe::Probe),
    #[command(hide = true)]
    MemoryProbe(memory::Probe),
    Again(AgainArgs),
    Resume(ResumeArgs),
    Report(ReportArgs),
    Compare(CompareArgs),
}

/// Run again what a run file says, with the same command and the same job file
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: before and after a change
  cvmio bench again before.json --out after.json
  cvmio bench compare before.json after.json")]
pub struct AgainArgs {
    /// The run file
    pub run: PathBuf,
    /// Where the new run file goes [default: one named by the time]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Go on with a run that was interrupted or killed: what it has measured is not measured again
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example:
  cvmio bench resume disk.json")]
pub struct ResumeArgs {
    /// The run file, which is completed
    pub run: PathBuf,
}

/// Make a page with plots and tables of run files
///
/// The page is one HTML file with everything in it. With several run files, the others are also compared with the first.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: a page, and its plots for a paper
  cvmio bench report disk.json --out disk.html --plots figures --png")]
pub struct ReportArgs {
    /// The run files
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// Where the page goes [default: the first run file's name with .html]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The target that ratios refer to [default: the run's own]
    #[arg(long, value_name = "TARGET")]
    pub baseline: Option<String>,
    /// Leave out what the papers found
    #[arg(long)]
    pub without_papers: bool,
    /// Also write each plot as an SVG file into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Also write each plot as a PNG file
    #[arg(long, requires = "plots")]
    pub png: bool,
    /// TrueType font for PNG files
    #[arg(long, value_name = "FILE", default_value = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")]
    pub font: PathBuf,
    /// Print a summary in Markdown instead of making a page
    #[arg(long, conflicts_with_all = ["out", "plots"])]
    pub markdown: bool,
}

/// Print ratios with confidence, and which differences are noise
///
/// With one run file: each target against the baseline, by the pairs of their turns. With two: each target of the second against itself in
/// the first.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example:
  cvmio bench compare disk.json")]
pub struct CompareArgs {
    /// A run file
    pub first: PathBuf,
    /// Another one, which is compared with the first
    pub second: Option<PathBuf>,
    /// The target that ratios refer to [default: the run's own]
    #[arg(long, value_name = "TARGET", conflicts_with = "second")]
    pub baseline: Option<String>,
}

/// The words of a run file's command.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Words {
    #[command(subcommand)]
    measure: Measure,
}

/// Carries out a command. `words` are the arguments behind `cvmio bench`, as the run file is to have them, and `cvmio` is the program that
/// makes volumes.
///
/// # Errors
/// When it cannot be done; the error says what to do.
pub fn run(command: &Measure, words: Vec<String>, cvmio: PathBuf) -> Result<()> {
    match command {
        Measure::Fio(args) => measure::fio(args, measure::Order::new(words, cvmio)),
        Measure::Apps(args) => measure::apps(args, measure::Order::new(words, cvmio)),
        Measure::Vm(args) => vm::vm(args, measure::Order::new(words, cvmio)),
        Measure::Rq(args) => rq::rq(args, measure::Order::new(words, cvmio)),
        Measure::Breakdown(args) => breakdown::breakdown(args, measure::Order::new(words, cvmio)),
        Measure::Dump(args) => dump::dump(args, &cvmio),
        Measure::Scm(args) => measure::scm(args, measure::Order::new(words, cvmio)),
        Measure::ScmProbe(probe) => scm_probe::run(probe).doing("a probe"),
        Measure::MemoryProbe(probe) => probe.run().map(|figure| cli::output::print(&figure)),
        Measure::Again(args) => measure::again(args, cvmio),
        Measure::Resume(args) => measure::resume(args, cvmio),
        Measure::Report(args) => show::report(args),
        Measure::Compare(args) => show::compare(args),
    }
}
