//! What a page says about a run: plots, sentences, and the tables beside the values.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{EMULATED, Options, escape};
use crate::compare::{self, Comparison, Verdict};
use crate::figure::{interval, number, percent};
use crate::papers;
use crate::plot::{Bar, Group, Plot, Scale};
use crate::run::{Metric, Run};
use crate::statistics::Summary;
use crate::table::{self, Table};

pub fn warning(run: &Run) -> Option<String> {
    run.emulated.then(|| EMULATED.to_string())
}

/// For each metric, the values and their ratio to the baseline.
pub fn plots(run: &Run, options: &Options) -> Vec<Plot> {
    let mut plots = Vec::new();
    for metric in table::metrics(run) {
        plots.push(absolute(run, metric));
        if let Some(baseline) = options.baseline(run) {
            plots.push(ratio(run, metric, baseline));
        }
    }
    plots.retain(|plot| !plot.groups.is_empty());
    plots
}

fn names(run: &Run) -> Vec<String> {
    run.targets.iter().map(|target| target.name.clone()).collect()
}

fn groups<'a>(
    run: &'a Run,
    metric: Metric,
    bar: impl Fn(&str, usize, &str) -> Option<Bar> + 'a,
) -> Vec<Group> {
    let of = |case: &str| {
        let targets = run.targets.iter().enumerate();
        let bars: Vec<Bar> = targets.filter_map(|(index, target)| bar(case, index, &target.name)).collect();
        (!bars.is_empty()).then(|| Group { label: case.into(), bars })
    };
    table::cases(run, metric).filter_map(of).collect()
}

fn direction(metric: Metric) -> &'static str {
    if metric.more_is_better() { "longer bars are better" } else { "shorter bars are better" }
}

fn absolute(run: &Run, metric: Metric) -> Plot {
    let unit = table::unit(run, metric);
    let bar = |case: &str, series: usize, target: &str| {
        let median = Summary::of(run.values(target, case).into_iter().map(|(_, value)| value))?.median;
        let [value, low, high] = [median.value, median.low, median.high].map(|value| value / unit.size);
        Some(Bar { series, value, low, high })
    };
    Plot {
        title: metric.title().into(),
        note: format!("{}, median with interval; {}", unit.name, direction(metric)),
        warning: warning(run),
        series: names(run),
        groups: groups(run, metric, bar),
        scale: Scale::Absolute,
    }
}

fn ratio(run: &Run, metric: Metric, baseline: &str) -> Plot {
    let bar = |case: &str, series: usize, target: &str| {
        let ratio =
            (target != baseline).then(|| compare::within(run, case, baseline, target)).flatten()?.ratio;
        Some(Bar { series, value: ratio.value, low: ratio.low, high: ratio.high })
    };
    let better = if metric.more_is_better() { "right" } else { "left" };
    Plot {
        title: format!("{}: ratio to {baseline}", metric.title()),
        note: format!("ratio of pairs with 95 % interval; bars to the {better} are better"),
        warning: warning(run),
        series: names(run),
        groups: groups(run, metric, bar),
        scale: Scale::Ratio,
    }
}

/// Two runs: for each metric, the ratios of the second to the first.
pub fn plots_between(first: &Run, second: &Run) -> Vec<Plot> {
    let of = |metric: Metric| {
        let bar = |case: &str, series: usize, target: &str| {
            let comparison = compare::across(first, second, case, target)?;
            let ratio = comparison.own.unwrap_or(comparison.ratio);
            Some(Bar { series, value: ratio.value, low: ratio.low, high: ratio.high })
        };
        Plot {
            title: format!("{}: second run to first", metric.title()),
            note: "ratio with 95 % interval, the baseline's change taken out".into(),
            warning: warning(first).or_else(|| warning(second)),
            series: names(first),
            groups: groups(first, metric, bar),
            scale: Scale::Ratio,
        }
    };
    table::metrics(first).into_iter().map(of).filter(|plot| !plot.groups.is_empty()).collect()
}

/// Each target against the baseline, one cell for all cases of a metric: the geometric mean of their ratios, and their verdict if they agree.
pub fn glance(run: &Run, options: &Options) -> Table {
    let Some(baseline) = options.baseline(run) else { return Table::default() };
    let all = table::comparisons(run, baseline);
    let warning = warning(run).map(|text| format!(" ({text})")).unwrap_or_default();
    let caption = format!("Ratio to {baseline}, mean of all cases{warning}");
    let mut table = Table::new(caption, &["target"]);
    let metrics = table::metrics(run);
    table.head.extend(metrics.iter().map(|metric| metric.title().to_string()));
    for target in run.targets.iter().filter(|target| target.name != baseline && target.control_of.is_none()) {
        let cell = |metric: &Metric| {
            let of = |one: &&Comparison| one.subject == target.name && one.metric == *metric;
            let own: Vec<&Comparison> = all.iter().filter(of).collect();
            let Some(first) = own.first() else { return "-".to_string() };
            let count = f64::from(u32::try_from(own.len()).unwrap_or(u32::MAX));
            let mean = (own.iter().map(|one| one.ratio.value.ln()).sum::<f64>() / count).exp();
            let agree = own.iter().all(|one| one.verdict == first.verdict);
            format!("{} {}", number(mean), if agree { first.verdict.text() } else { "mixed" })
        };
        let mut row = vec![target.name.clone()];
        row.extend(metrics.iter().map(cell));
        if row.iter().skip(1).any(|cell| cell != "-") {
            table.rows.push(row);
        }
    }
    table
}

/// What follows from a run, computed from its samples.
pub fn sentences(run: &Run, options: &Options) -> Vec<String> {
    let Some(baseline) = options.baseline(run) else { return Vec::new() };
    let others = run.targets.iter().filter(|target| target.name != baseline && target.control_of.is_none());
    let pairs: Vec<Pair<'_>> =
        others.map(|target| Pair { subject: target.name.as_str(), baseline }).collect();
    sentences_of(run, &pairs)
}

/// A target, and what it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The target that ratios are about.
    pub subject: &'a str,
    /// The other one.
    pub baseline: &'a str,
}

impl Pair<'_> {
    /// All cases that both measured.
    pub fn comparisons(self, run: &Run) -> Vec<Comparison> {
        let cases = run.cases.iter();
        cases.filter_map(|case| compare::within(run, &case.name, self.baseline, self.subject)).collect()
    }
}

/// The same for these pairs of targets.
pub fn sentences_of(run: &Run, pairs: &[Pair<'_>]) -> Vec<String> {
    let mut sentences = Vec::new();
    for pair in pairs {
        let all = pair.comparisons(run);
        for metric in table::metrics(run) {
            let own: Vec<&Comparison> = all.iter().filter(|one| one.metric == metric).collect();
            sentences.extend(sentence(pair.subject, metric, pair.baseline, &own));
        }
        if !all.is_empty() {
            sentences.extend(doubts(run, *pair));
        }
    }
    sentences.extend(noise(run));
    sentences
}

/// Why a ratio is not only about what the two targets are.
fn doubts(run: &Run, pair: Pair<'_>) -> Vec<String> {
    let Pair { subject, baseline } = pair;
    let mut doubts = Vec::new();
    if let Some((one, other)) = run.on_other_disk(subject, baseline) {
        doubts.push(format!(
            "{subject} lies on {one}, and {baseline} on {other}: what differs between the two disks is part of the ratio."
        ));
    }
    let cached = |name: &str| run.target(name).is_some_and(|target| target.page_cache);
    let through = |cached: &str, other: &str| {
        format!(
            "{cached} goes through the page cache, so what was written there is read from memory, and {other} does not."
        )
    };
    match (cached(subject), cached(baseline)) {
        (true, false) => doubts.push(through(subject, baseline)),
        (false, true) => doubts.push(through(baseline, subject)),
        _ => {}
    }
    doubts
}

fn sentence(target: &str, metric: Metric, baseline: &str, own: &[&Comparison]) -> Option<String> {
    let ratios = || own.iter().map(|one| one.ratio.value);
    let (least, most) = (ratios().reduce(f64::min)?, ratios().reduce(f64::max)?);
    let with = |verdict| own.iter().filter(|one| one.verdict == verdict).count();
    let size = match own {
        [one] => format!("{} ({})", number(one.ratio.value), interval(one.ratio.low, one.ratio.high)),
        _ if number(least) == number(most) => number(least),
        _ => format!("{} to {}", number(least), number(most)),
    };
    let times = if metric.is_plural() { "times those of" } else { "times that of" };
    let mut text = format!("{target}: {} {size} {times} {baseline}", metric.in_sentence());
    let counts = [
        (Verdict::Worse, "worse"),
        (Verdict::Better, "better"),
        (Verdict::Noise, "within the noise"),
        (Verdict::Unknown, "with too few turns to tell"),
    ];
    let parts: Vec<String> = counts
        .iter()
        .filter(|(verdict, _)| with(*verdict) > 0)
        .map(|(verdict, word)| format!("{} {word}", with(*verdict)))
        .collect();
    let cases = if own.len() == 1 { "case" } else { "cases" };
    let _ = write!(text, "; of {} {cases} {}.", own.len(), parts.join(", "));
    Some(text)
}

/// What the control run says.
fn noise(run: &Run) -> Option<String> {
    let control = run.control()?;
    let of = control.control_of.as_deref()?;
    let cases = run.cases.iter();
    let ratios: Vec<_> =
        cases.filter_map(|case| Some(compare::within(run, &case.name, of, &control.name)?.ratio)).collect();
    let largest = ratios.iter().map(|ratio| (ratio.value - 1.0).abs()).reduce(f64::max)?;
    let seen = format!("Noise: {of} measured against itself differs by up to {}", percent(largest));
    // What is called noise is what the interval holds, which is wide with few turns.
    let possible = ratios.iter().map(compare::floor).filter(|floor| floor.is_finite()).reduce(f64::max);
    Some(match possible {
        Some(possible) => {
            let size = match possible.exp() {
                // Few turns, or very unlike ones.
                times if times > 10.0 => "more than a factor of 10".into(),
                times => format!("up to {}", percent(times - 1.0)),
            };
            format!(
                "{seen}, or with its 95 % interval by {size}; a difference that is no larger than this interval's at the same case is called noise."
            )
        }
        None => format!("{seen}; there are too few turns for its interval."),
    })
}

/// The papers' ratios beside those of comparable targets.
pub fn papers(run: &Run, options: &Options) -> Table {
    let head = ["case", "here", "ratio here", "paper", "there", "ratio there", "as stated", "doubt"];
    let emulated = warning(run).map(|text| format!(" (here {text})")).unwrap_or_default();
    let mut table = Table::new(format!("Beside the papers (their machines, their units){emulated}"), &head);
    let Some(baseline) = options.baseline(run) else { return table };
    let base = run.target(baseline).map_or("", |target| target.spec.as_str());
    let claims = papers::claims();
    for comparison in table::comparisons(run, baseline) {
        let Some(target) = run.target(&comparison.subject).filter(|target| target.control_of.is_none())
        else {
            continue;
        };
        let Some(about) = papers::about(base, &target.spec) else { continue };
        let fits = |claim: &&papers::Claim| claim.case == comparison.case && claim.about == about;
        for claim in claims.iter().filter(fits) {
            table.rows.push(vec![
                comparison.case.clone(),
                format!("{} : {baseline}", comparison.subject),
                number(comparison.ratio.value),
                format!("{}, {}", claim.paper, claim.place),
                format!("{} : {} ({})", claim.subject, claim.baseline, claim.platform),
                number(claim.ratio),
                claim.stated.clone(),
                claim.doubt.clone().unwrap_or_default(),
            ]);
        }
    }
    table
}

/// The papers' findings in words that concern the run's targets.
pub fn statements(run: &Run) -> Vec<String> {
    let scm = run.cases.iter().any(|case| case.name.starts_with("scm-"));
    let base = run.baseline.as_deref().and_then(|name| run.target(name));
    let base = base.map_or("", |target| target.spec.as_str());
    let mut topics: Vec<&str> =
        run.targets.iter().filter_map(|target| papers::about(base, &target.spec)).collect();
    topics.extend(scm.then_some("scm"));
    let concerns = |statement: &papers::Statement| topics.contains(&statement.about.as_str());
    let all = papers::statements().into_iter().filter(concerns);
    all.map(|statement| format!("{}, {}: {}", statement.paper, statement.place, statement.text)).collect()
}

/// What else the machine did, by target.
pub fn meanwhile(run: &Run) -> Table {
    let head = ["target", "processors busy with other programs", "taken by the hypervisor", "most by"];
    let mut table = Table::new("Meanwhile on the machine, on average over the turns", &head);
    for target in &run.targets {
        let samples: Vec<_> = run.samples.iter().filter(|sample| sample.target == target.name).collect();
        let count = f64::from(u32::try_from(samples.len()).unwrap_or(u32::MAX));
        if samples.is_empty() {
            continue;
        }
        let others = samples.iter().map(|sample| sample.meanwhile.others).sum::<f64>() / count;
        let steal = samples.iter().map(|sample| sample.meanwhile.steal).sum::<f64>() / count;
        let mut programs: BTreeMap<&str, f64> = BTreeMap::new();
        for (name, share) in samples.iter().flat_map(|sample| &sample.meanwhile.programs) {
            *programs.entry(name).or_default() += share / count;
        }
        let most = programs.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let most = most.map_or_else(|| "-".into(), |(name, share)| format!("{name} ({})", number(share)));
        table.rows.push(vec![target.name.clone(), number(others), number(steal), most]);
    }
    table
}

/// What could not be measured, and why.
pub fn missing(run: &Run) -> Vec<String> {
    let unavailable = run.targets.iter().filter_map(|target| {
        let why = target.unavailable.as_ref()?;
        Some(format!("{}: not measurable here, because {why}", target.name))
    });
    let failed = run.failures.iter().map(|failure| match &failure.case {
        Some(case) => format!("{} at {case}: {}", failure.target, failure.message),
        None => format!("{}: {}", failure.target, failure.message),
    });
    unavailable.chain(failed).collect()
}

/// What the run was, in full, folded away.
pub fn details(run: &Run) -> String {
    let mut text = format!("cvmio bench {}\n\n", super::words(&run.command));
    let machine = &run.machine;
    let _ = writeln!(text, "storage: {}", machine.storage);
    for (name, detail) in &machine.details {
        let _ = writeln!(text, "{name}: {detail}");
    }
    let _ = writeln!(
        text,
        "hypervisor: {}",
        machine.hypervisor.as_deref().unwrap_or("none that the machine knows of")
    );
    for (name, version) in &run.programs {
        let _ = writeln!(text, "{name}: {version}");
    }
    for (path, hash) in &run.hashes {
        let _ = writeln!(text, "{hash}  {path}");
    }
    for target in &run.targets {
        let storage = target.storage.as_deref().map(|storage| format!(", on {storage}")).unwrap_or_default();
        let _ = writeln!(text, "\n{} ({}{storage})", target.name, target.spec);
        for command in &target.commands {
            let _ = writeln!(text, "  {command}");
        }
    }
    text.push('\n');
    for case in &run.cases {
        let _ = writeln!(text, "{}\n  {}", case.name, case.command);
    }
    format!(
        "<details>\n<summary>Machine, versions, commands</summary>\n<pre>{}</pre>\n</details>\n",
        escape(&text)
    )
}
