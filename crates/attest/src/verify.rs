//! One way in for evidence of every platform.

use crate::findings::Findings;
use crate::reason::Platform;
use crate::verdict::{Claims, Verdict};
use crate::{Context, Evidence, Expected, Policy, simulated, snp, tdx};

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
