//! Findings of the checks of one piece of evidence.

use crate::reason::{Check, Reason};
use crate::{Context, Expected, ReportData};

/// Everything that checks have found so far, in the order in which they were made: the form, who signed it, what it says.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) reasons: Vec<Reason>,
    pub(crate) notes: Vec<String>,
}

impl Findings {
    /// A check says no.
    pub(crate) fn no(&mut self, check: Check, detail: impl Into<String>) {
        self.reasons.push(Reason::new(check, detail));
    }

    /// A check says no, unless `is_fine`.
    pub(crate) fn require(&mut self, is_fine: bool, check: Check, detail: impl FnOnce() -> String) {
        if !is_fine {
            self.no(check, detail());
        }
    }

    /// The report data must be what this exchange asked for.
    pub(crate) fn report_data(&mut self, found: ReportData, context: &Context<'_>) {
        if let Expected::Exactly(expected) = context.report_data {
            self.require(found == expected, Check::ReportData, || {
                format!("found {found}, expected {expected}: it answers another exchange")
            });
        }
    }
}
