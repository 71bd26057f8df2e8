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
    /// It differs between two runs, and nothing says whether that is the target or the machine.
    Changed,
}

impl Verdict {
    /// In a table's cell.
    pub fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Noise => "noise",
            Self::Unknown => "too few turns",
            Self::Changed => "changed",
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
    /// Of two runs, the same with what the run's baseline has changed taken out.
    pub own: Option<Estimate>,
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
    let noise = control(run, case);
    let values = [summary(&base)?, summary(&of)?];
    let verdict = Verdict::of(&ratio, metric, noise.as_ref());
    Some(Comparison {
        case: case.into(),
        metric,
        baseline: baseline.into(),
        subject: subject.into(),
        values,
        ratio,
        own: None,
        paired: true,
        verdict,
    })
}

/// How much a target differs from itself at a case of a run.
fn control(run: &Run, case: &str) -> Option<Estimate> {
    let control = run.control()?;
    let against = run.values(control.control_of.as_deref()?, case);
    paired_ratio(&pairs(&against, &run.values(&control.name, case)))
}

/// The same target at the same case in two runs, the second against the first. The machine may have changed between them, so nothing pairs
/// their turns, and all targets may have become faster or slower together. So a target is judged by its ratio to the baseline, in one run
/// against the other: what changed for both is no difference of the target. The baseline itself cannot be judged so.
pub fn across(first: &Run, second: &Run, case: &str, target: &str) -> Option<Comparison> {
    let metric = first.case(case)?.metric;
    if second.case(case)?.metric != metric {
        return None;
    }
    let (base, of) = (first.values(target, case), second.values(target, case));
    let plain = |values: &[(u32, f64)]| values.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    let ratio = unpaired_ratio(&plain(&base), &plain(&of))?;
    let own = reference(first, second, target).and_then(|reference| {
        let relative = |run: &Run, own: &[(u32, f64)]| pairs(&run.values(reference, case), own);
        unpaired_ratio(&relative(first, &base), &relative(second, &of))
    });
    // The run that was more restless says what may be noise.
    let noise = [first, second].into_iter().filter_map(|run| control(run, case));
    let noise = noise.filter(|noise| noise.high.is_finite()).max_by(|a, b| floor(a).total_cmp(&floor(b)));
    let verdict = match Verdict::of(own.as_ref().unwrap_or(&ratio), metric, noise.as_ref()) {
        Verdict::Better | Verdict::Worse if own.is_none() => Verdict::Changed,
        other => other,
    };
    Some(Comparison {
        case: case.into(),
        metric,
        baseline: target.into(),
        subject: target.into(),
        values: [summary(&base)?, summary(&of)?],
        ratio,
        own,
        paired: false,
        verdict,
    })
}

/// The target that tells a change of the machine from one of `target`: the baseline of both runs, unless that is the target.
pub fn reference<'a>(first: &'a Run, second: &Run, target: &str) -> Option<&'a str> {
    let baseline =
        first.baseline.as_deref().filter(|baseline| second.baseline.as_deref() == Some(*baseline))?;
    let is_control =
        first.target(target).is_some_and(|target| target.control_of.as_deref() == Some(baseline));
    (target != baseline && !is_control).then_some(baseline)
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
