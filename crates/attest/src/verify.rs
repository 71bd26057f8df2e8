//! One way in for evidence of every platform.

use crate::verdict::{Check, Claims, Platform, Reason, Verdict};
use crate::{Context, Evidence, Expected, Policy, ReportData, simulated, snp, tdx};

/// Judges evidence. Every check of its platform is made; none can be left out by the way in.
#[must_use]
pub fn verify(evidence: &Evidence, policy: &Policy, context: &Context<'_>) -> Verdict {
    let platform = evidence.platform();
    let mut findings = Findings::default();
    let claims = match evidence {
        Evidence::Snp { report, certificates } => {
            snp::judge(report, certificates, policy.snp.as_ref(), context, &mut findings)
                .map(|report| Claims::Snp(Box::new(report)))
        }
        Evidence::Tdx { quote, event_log } => {
            tdx::judge(quote, event_log.as_deref(), policy.tdx.as_ref(), context, &mut findings)
                .map(|report| Claims::Tdx(Box::new(report)))
        }
        Evidence::Simulated { report } => {
            simulated::judge(report, policy.simulated.as_ref(), context, &mut findings)
                .map(|report| Claims::Simulated(Box::new(report)))
        }
    };
    if context.report_data == Expected::Anything {
        findings.notes.push(
            "the report data was not compared with anything: this evidence may be old, or made for somebody else"
                .to_string(),
        );
    }
    if platform == Platform::Simulated {
        findings.notes.push("this is a simulated platform: no chip vouches for anything here".to_string());
    }
    Verdict::new(platform, claims, findings.reasons, findings.notes)
}

/// What checks have found so far, in the order in which they were made: the form, who signed it, what it says.
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
