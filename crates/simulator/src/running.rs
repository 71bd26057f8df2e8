//! Runs whose panics are reports.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::coverage::Coverage;
use crate::simulation::{Report, run};

/// How the failure of a run that panicked begins.
pub(crate) const PANIC: &str = "panic: ";

/// Runs a seed; a panic is a failure like any other.
#[must_use]
pub fn run_caught(seed: u64, operations: u64) -> Report {
    catch_unwind(AssertUnwindSafe(|| run(seed, operations, None))).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|what| (*what).to_string()))
            .unwrap_or_default();
        Report { coverage: Coverage::default(), hash: 0, failure: Some(format!("{PANIC}{what}")) }
    })
}
