//! Reports against a run that never changes.

mod browser;
mod page;
mod run_file;
mod widths;

use report::run::Run;

/// The run in `golden/`, with a target that is missing and one that fails.
fn golden() -> Run {
    Run::parse(include_bytes!("golden/run.json")).unwrap()
}
