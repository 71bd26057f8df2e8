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

/// How many turns there were.
pub fn turns(run: &Run) -> String {
    match run.turns {
        1 => "1 turn".into(),
        more => format!("{more} turns"),
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
        turns(run),
        warning(run.emulated)
    );
    let mut table = Table::new(caption, &["case"]);
    table.head.extend(run.targets.iter().map(|target| target.name.clone()));
    for case in cases(run, metric) {
        let cell = |target: &str| {
            let values = run.values(target, case).into_iter().map(|(_, value)| value);
            Summary::of(values).map_or_else(
                || "-".to_string(),
                |summary| format!("{} ± {}", unit.show(summary.median.value), percent(summary.spread / 2.0)),
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
    let head = ["case", "target", "here", baseline, "ratio", "95 % interval", "verdict"];
    let mut table = Table::new(caption, &head);
    for comparison in comparisons(run, baseline) {
        table.rows.push(row(&comparison, &comparison.subject));
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
    let head = ["case", "target", "second", "first", "ratio", "95 % interval", "verdict"];
    let mut table = Table::new(caption, &head);
    for comparison in compare::runs(first, second) {
        table.rows.push(row(&comparison, &comparison.subject));
    }
    table
}

fn row(comparison: &Comparison, subject: &str) -> Vec<String> {
    let [base, of] = &comparison.values;
    let unit = Unit::of(comparison.metric, of.median.value.max(base.median.value));
    vec![
        comparison.case.clone(),
        subject.into(),
        format!("{} {}", unit.show(of.median.value), unit.name),
        format!("{} {}", unit.show(base.median.value), unit.name),
        number(comparison.ratio.value),
        interval(comparison.ratio.low, comparison.ratio.high),
        comparison.verdict.text().into(),
    ]
}
