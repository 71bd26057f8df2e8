//! Tables for terminals, pages and documents, and the tables of a run.

use std::fmt::Write;

use crate::compare::{self, Comparison};
use crate::figure::{Unit, interval, number, percent};
use crate::run::{Metric, Run};
use crate::statistics::Summary;

/// A table of texts; the first column is to the left, the others to the right.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// What stands above it.
    pub caption: String,
    /// The columns' names.
    pub head: Vec<String>,
    /// Each as long as the head.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(caption: impl Into<String>, head: &[&str]) -> Self {
        let head = head.iter().map(|name| (*name).to_string()).collect();
        Self { caption: caption.into(), head, rows: Vec::new() }
    }

    fn widths(&self) -> Vec<usize> {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| {
            all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..self.head.len()).map(width).collect()
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let line = |row: &Vec<String>| {
            let mut text = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = match at {
                    0 => write!(text, "{cell:<width$}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            text.trim_end().to_string() + "\n"
        };
        let mut text = format!("{}\n", self.caption);
        for row in std::iter::once(&self.head).chain(&self.rows) {
            text += &line(row);
        }
        text
    }

    /// For a document in Markdown.
    pub fn markdown(&self) -> String {
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = format!("{}\n\n{}", self.caption, line(&self.head));
        let rule = |at: usize| if at == 0 { "---" } else { "---:" };
        let _ = writeln!(text, "| {} |", (0..self.head.len()).map(rule).collect::<Vec<_>>().join(" | "));
        for row in &self.rows {
            text += &line(row);
        }
        text
    }

    /// For a page, in a box that scrolls by itself where the page is narrow.
    pub fn html(&self) -> String {
        let row = |cells: &Vec<String>, tag: &str| {
            let one = |cell: &String| {
                // What is better or worse is seen before it is read.
                let class = match cell.rsplit(' ').next() {
                    Some("better") => " class=\"better\"",
                    Some("worse") => " class=\"worse\"",
                    _ => "",
                };
                format!("<{tag}{class}>{}</{tag}>", crate::page::escape(cell))
            };
            let cells: String = cells.iter().map(one).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let body: String = self.rows.iter().map(|cells| row(cells, "td")).collect();
        format!(
            "<div class=\"table\"><table>\n<caption>{}</caption>\n<thead>{}</thead>\n<tbody>{body}</tbody>\n</table></div>\n",
            crate::page::escape(&self.caption),
            row(&self.head, "th"),
        )
    }
}

/// The metrics of a run, in the order of its cases.
pub fn metrics(run: &Run) -> Vec<Metric> {
    let mut all = Vec::new();
    for case in &run.cases {
        if !all.contains(&case.metric) {
            all.push(case.metric);
        }
    }
    all
}

/// The names of the cases of a metric.
pub fn cases(run: &Run, metric: Metric) -> impl Iterator<Item = &str> {
    run.cases.iter().filter(move |case| case.metric == metric).map(|case| case.name.as_str())
}

/// The unit in which all values of a metric are shown: the one that fits the median.
pub fn unit(run: &Run, metric: Metric) -> Unit {
    let of = |name: &str| run.case(name).is_some_and(|case| case.metric == metric);
    let values = run.samples.iter().filter(|sample| of(&sample.case)).map(|sample| sample.value);
    Unit::of(metric, Summary::of(values).map_or(0.0, |summary| summary.median.value))
}

/// How many turns were planned.
pub fn turns(run: &Run) -> String {
    counted(run.turns)
}

fn counted(turns: u32) -> String {
    if turns == 1 { "1 turn".into() } else { format!("{turns} turns") }
}

/// How many turns were taken, by those that had any, and how many were planned if that is another number.
fn taken(run: &Run, metric: Metric) -> String {
    let counts = || {
        let cells = cases(run, metric).flat_map(|case| run.targets.iter().map(move |target| (case, target)));
        let counts = cells
            .map(|(case, target)| u32::try_from(run.values(&target.name, case).len()).unwrap_or(u32::MAX));
        counts.filter(|count| *count > 0)
    };
    match (counts().min(), counts().max()) {
        (Some(least), Some(most)) if least == most && most == run.turns => counted(most),
        (Some(least), Some(most)) if least == most => format!("{} of {} planned", counted(most), run.turns),
        (Some(least), Some(most)) if most == run.turns => format!("{least} to {}", counted(most)),
        (Some(least), Some(most)) => format!("{least} to {} of {} planned", counted(most), run.turns),
        _ => "no turns".into(),
    }
}

/// What stands in the caption of each table of figures from an emulated machine.
fn warning(emulated: bool) -> String {
    if emulated { format!(" ({})", crate::page::EMULATED) } else { String::new() }
}

/// The values of one metric: a row for each case, a column for each target.
pub fn values(run: &Run, metric: Metric) -> Table {
    let unit = unit(run, metric);
    let better = if metric.more_is_better() { "higher" } else { "lower" };
    let caption = format!(
        "{} in {}: median and spread of {}; {better} is better{}",
        metric.title(),
        unit.name,
        taken(run, metric),
        warning(run.emulated)
    );
    let mut table = Table::new(caption, &["case"]);
    table.head.extend(run.targets.iter().map(|target| target.name.clone()));
    for case in cases(run, metric) {
        let cell = |target: &str| {
            let values = run.values(target, case).into_iter().map(|(_, value)| value);
            Summary::of(values).map_or_else(
                || "-".to_string(),
                |summary| {
                    let value = unit.show(summary.median.value);
                    // One turn has no spread, which is not a spread of nothing.
                    if summary.median.count == 1 {
                        return value;
                    }
                    format!("{value} ± {}", percent(summary.spread / 2.0))
                },
            )
        };
        let mut row = vec![case.to_string()];
        row.extend(run.targets.iter().map(|target| cell(&target.name)));
        table.rows.push(row);
    }
    table
}

/// What each target makes of the baseline: the ratios with their intervals.
pub fn ratios(run: &Run, baseline: &str) -> Table {
    let caption =
        format!("Ratio to {baseline}, with 95 % interval over the pairs of turns{}", warning(run.emulated));
    let head = ["case", "target", "here", baseline, "ratio", "95 % interval", "overhead", "verdict"];
    let mut table = Table::new(caption, &head);
    for comparison in comparisons(run, baseline) {
        let mut cells = row(&comparison);
        cells.insert(6, overhead(comparison.ratio.value, comparison.metric));
        if run.on_other_disk(&comparison.subject, baseline).is_some() {
            cells[1] += " (another disk)";
        }
        table.rows.push(cells);
    }
    table
}

/// What a ratio means as an overhead over the baseline, as the thesis has it: how much longer a request takes, or of a rate, by how much the
/// baseline's is higher. Source: thesis, chapter 5; an overhead above 100 % of a rate can be read in no other way.
fn overhead(ratio: f64, metric: Metric) -> String {
    percent(if metric.more_is_better() { ratio.recip() } else { ratio } - 1.0)
}

/// The latency that half, 99 % and 99.9 % of the requests stay below: a row for each case and direction, a column for each target.
pub fn percentiles(run: &Run) -> Table {
    const QUANTILES: [&str; 3] = ["p50", "p99", "p99.9"];
    let figures = |target: &str, case: &str, kind: &str| {
        let of = |quantile: &str| run.figure(target, case, &format!("{kind}-{quantile}"));
        let all: Option<Vec<f64>> = QUANTILES.iter().map(|quantile| of(quantile)).collect();
        all
    };
    let rows = || run.cases.iter().flat_map(|case| ["read", "write"].map(|kind| (case, kind)));
    let all = rows().flat_map(|(case, kind)| {
        run.targets.iter().filter_map(move |target| figures(&target.name, &case.name, kind))
    });
    let unit = Unit::of(
        Metric::Latency,
        Summary::of(all.map(|one| one[0])).map_or(0.0, |summary| summary.median.value),
    );
    let caption = format!(
        "Latency in {}: p50 / p99 / p99.9, each the median of its turns{}",
        unit.name,
        warning(run.emulated)
    );
    let mut table = Table::new(caption, &["case"]);
    table.head.extend(run.targets.iter().map(|target| target.name.clone()));
    for (case, kind) in rows() {
        let cell = |target: &str| {
            let figures = figures(target, &case.name, kind)?;
            Some(figures.into_iter().map(|value| unit.show(value)).collect::<Vec<_>>().join(" / "))
        };
        let cells: Vec<Option<String>> = run.targets.iter().map(|target| cell(&target.name)).collect();
        if cells.iter().any(Option::is_some) {
            let mut row = vec![format!("{}, {kind}", case.name)];
            row.extend(cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into())));
            table.rows.push(row);
        }
    }
    table
}

/// The processor time that each target took, with the program that measures it: processors that were busy, and time for each request.
pub fn processors(run: &Run) -> Table {
    let caption = format!(
        "Processors busy with the target, its servers and the program that measures, and processor time for each request{}",
        warning(run.emulated)
    );
    let mut table = Table::new(caption, &["case"]);
    table.head.extend(run.targets.iter().map(|target| target.name.clone()));
    for case in &run.cases {
        let cell = |target: &str| {
            let busy = run.figure(target, &case.name, "processors")?;
            let each = run
                .figure(target, &case.name, "iops")
                .filter(|rate| *rate > 0.0)
                .map(|rate| busy / rate * 1e9);
            Some(match each {
                Some(time) => {
                    let unit = Unit::of(Metric::Latency, time);
                    format!("{} ({} {})", number(busy), unit.show(time), unit.name)
                }
                None => number(busy),
            })
        };
        let cells: Vec<Option<String>> = run.targets.iter().map(|target| cell(&target.name)).collect();
        if cells.iter().any(Option::is_some) {
            let mut row = vec![case.name.clone()];
            row.extend(cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into())));
            table.rows.push(row);
        }
    }
    table
}

/// Each target against the baseline, at each case.
pub fn comparisons(run: &Run, baseline: &str) -> Vec<Comparison> {
    let others = || run.targets.iter().map(|target| target.name.as_str()).filter(|name| *name != baseline);
    let cases = run.cases.iter().map(|case| case.name.as_str());
    cases
        .flat_map(|case| others().filter_map(move |target| compare::within(run, case, baseline, target)))
        .collect()
}

/// Two runs: each target of the second against itself in the first.
pub fn across(first: &Run, second: &Run) -> Table {
    let caption = format!(
        "{} ({}) against {} ({}){}",
        second.title,
        second.started,
        first.title,
        first.started,
        warning(first.emulated || second.emulated)
    );
    let head =
        ["case", "target", "second", "first", "ratio", "against the baseline", "95 % interval", "verdict"];
    let mut table = Table::new(caption, &head);
    for comparison in compare::runs(first, second) {
        let mut cells = row(&comparison);
        let (own, limits) = match comparison.own {
            Some(own) => (number(own.value), interval(own.low, own.high)),
            None => ("-".into(), interval(comparison.ratio.low, comparison.ratio.high)),
        };
        cells[5] = limits;
        cells.insert(5, own);
        table.rows.push(cells);
    }
    table
}

/// What the columns of [`across`] mean.
pub fn about_across(first: &Run, second: &Run) -> String {
    let begin = "The two runs were not taken in turns, so what changed on the machine between them is part of the plain ratio.";
    let same = first.baseline.as_ref().filter(|baseline| second.baseline.as_ref() == Some(*baseline));
    match same {
        Some(baseline) => format!(
            "{begin} The ratio against the baseline is what is left when the change of {baseline} is taken out, and verdicts follow from it; a \
             difference no larger than the control's is noise. A difference of {baseline} itself is only called changed."
        ),
        None => format!(
            "{begin} The runs have no baseline in common that would tell a change of the machine from one of a target, so differences are only called \
             changed; measure beside a target that stays as it is."
        ),
    }
}

fn row(comparison: &Comparison) -> Vec<String> {
    let [base, of] = &comparison.values;
    let unit = Unit::of(comparison.metric, of.median.value.max(base.median.value));
    vec![
        comparison.case.clone(),
        comparison.subject.clone(),
        format!("{} {}", unit.show(of.median.value), unit.name),
        format!("{} {}", unit.show(base.median.value), unit.name),
        number(comparison.ratio.value),
        interval(comparison.ratio.low, comparison.ratio.high),
        comparison.verdict.text().into(),
    ]
}
