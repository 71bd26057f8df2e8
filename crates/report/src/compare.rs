//! Ratios with confidence, and what may be said about them.

use crate::run::{Metric, Run};
use crate::statistics::{Estimate, Summary, paired_ratio, unpaired_ratio};

/// What a ratio allows to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The subject is better than the baseline.
    Better,
    /// The subject is worse than the baseline.
    Worse,
    /// The interval holds 1, or the difference is no larger than the one of the control run.
    Noise,
    /// There are too few samples for an interval.
    Unknown,
}

impl Verdict {
    /// In a table's cell.
    pub fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Noise => "noise",
            Self::Unknown => "too few turns",
        }
    }

    /// Of a ratio `subject` : `baseline`; `noise` is the ratio of the control run, if there was one.
    pub fn of(ratio: &Estimate, metric: Metric, noise: Option<&Estimate>) -> Self {
        if ratio.high.is_infinite() {
            return Self::Unknown;
        }
        let difference = ratio.value.ln().abs();
        let within = |noise: &Estimate| noise.high.is_finite() && difference <= floor(noise);
        if ratio.holds(1.0) || noise.is_some_and(within) {
            return Self::Noise;
        }
        if (ratio.value > 1.0) == metric.more_is_better() { Self::Better } else { Self::Worse }
    }
}

/// The largest difference, as a logarithm, that the control run calls possible between a target and itself.
pub(crate) fn floor(noise: &Estimate) -> f64 {
    noise.low.ln().abs().max(noise.high.ln().abs())
}

/// One target against another at one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The case's name.
    pub case: String,
    /// What its figures count.
    pub metric: Metric,
    /// What the other one is compared with.
    pub baseline: String,
    /// The target that the ratio is about.
    pub subject: String,
    /// The values of both.
    pub values: [Summary; 2],
    /// `subject` : `baseline`.
    pub ratio: Estimate,
    /// Whether the ratio comes from pairs of turns.
    pub paired: bool,
    /// What may be said.
    pub verdict: Verdict,
}

/// One target against another at a case of one run, by the pairs of their turns.
pub fn within(run: &Run, case: &str, baseline: &str, subject: &str) -> Option<Comparison> {
    let metric = run.case(case)?.metric;
    let (base, of) = (run.values(baseline, case), run.values(subject, case));
    let ratio = paired_ratio(&pairs(&base, &of))?;
    // The control's own ratio is within the noise, since it is the noise.
    let noise = run.control().and_then(|control| {
        let against = run.values(control.control_of.as_deref()?, case);
        paired_ratio(&pairs(&against, &run.values(&control.name, case)))
    });
    let values = [summary(&base)?, summary(&of)?];
    let verdict = Verdict::of(&ratio, metric, noise.as_ref());
    Some(Comparison {
        case: case.into(),
        metric,
        baseline: baseline.into(),
        subject: subject.into(),
        values,
        ratio,
        paired: true,
        verdict,
    })
}

/// The same target at the same case in two runs, the second against the first. The machine may have changed between them, so nothing pairs
/// their turns.
pub fn across(first: &Run, second: &Run, case: &str, target: &str) -> Option<Comparison> {
    let metric = first.case(case)?.metric;
    if second.case(case)?.metric != metric {
        return None;
    }
    let (base, of) = (first.values(target, case), second.values(target, case));
    let plain = |values: &[(u32, f64)]| values.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    let ratio = unpaired_ratio(&plain(&base), &plain(&of))?;
    Some(Comparison {
        case: case.into(),
        metric,
        baseline: target.into(),
        subject: target.into(),
        values: [summary(&base)?, summary(&of)?],
        ratio,
        paired: false,
        verdict: Verdict::of(&ratio, metric, None),
    })
}

/// Each target of both runs at each of their common cases.
pub fn runs(first: &Run, second: &Run) -> Vec<Comparison> {
    let cases = first.cases.iter().map(|case| case.name.as_str());
    let all = cases.flat_map(|case| {
        first.targets.iter().filter_map(move |target| across(first, second, case, &target.name))
    });
    all.collect()
}

fn summary(values: &[(u32, f64)]) -> Option<Summary> {
    Summary::of(values.iter().map(|(_, value)| *value))
}

/// The ratios `subject` : `baseline` of the turns that both have.
fn pairs(baseline: &[(u32, f64)], subject: &[(u32, f64)]) -> Vec<f64> {
    let of = |(turn, value): &(u32, f64)| {
        let (_, base) = baseline.iter().find(|(other, _)| other == turn)?;
        Some(value / base)
    };
    subject.iter().filter_map(of).collect()
}
