//! Plots of lines: what a figure does over depth, jobs, size, and time; and bars of several runs beside each other.

use std::collections::BTreeMap;

use super::parts::warning;
use crate::figure::Unit;
use crate::plot::{Bar, Group, Line, Lines, Plot, Scale};
use crate::run::{Case, Metric, Run};
use crate::statistics::Summary;
use crate::table;

/// What may be swept: fio's option, and what its values count.
const SWEPT: [(&str, &str); 3] = [("iodepth", "depth"), ("numjobs", "jobs"), ("bs", "bytes of a request")];
/// The options that tell jobs from others.
const TELLING: [&str; 9] =
    ["rw", "readwrite", "rwmixread", "bs", "iodepth", "numjobs", "fsync", "fdatasync", "rate_iops"];
/// Fewer points than this are no line.
const FEWEST: usize = 3;

/// What cases of one line have in common: metric, age, and the options that tell jobs apart.
type Alike<'a> = (Metric, bool, Vec<&'a str>);

/// A plot for each group of cases that differ in one number only.
pub fn sweeps(run: &Run) -> Vec<Lines> {
    let mut plots = Vec::new();
    for (option, counted) in SWEPT {
        let mut groups: BTreeMap<Alike<'_>, Vec<(f64, &Case)>> = BTreeMap::new();
        for case in &run.cases {
            let Some(place) = case.option(option).and_then(number_of) else { continue };
            let others = TELLING.iter().filter(|telling| **telling != option);
            let others = others.map(|telling| case.option(telling).unwrap_or_default()).collect();
            groups.entry((case.metric, case.aged, others)).or_default().push((place, case));
        }
        for ((metric, ..), mut cases) in groups {
            cases.sort_by(|a, b| a.0.total_cmp(&b.0));
            cases.dedup_by(|a, b| a.0.total_cmp(&b.0).is_eq());
            plots.extend(
                Some(cases)
                    .filter(|cases| cases.len() >= FEWEST)
                    .and_then(|cases| sweep(run, metric, counted, &cases)),
            );
        }
    }
    plots
}

fn sweep(run: &Run, metric: Metric, counted: &str, cases: &[(f64, &Case)]) -> Option<Lines> {
    let summary = |target: &str, case: &Case| {
        Summary::of(run.values(target, &case.name).into_iter().map(|(_, value)| value))
            .map(|summary| summary.median)
    };
    let all = || {
        run.targets.iter().flat_map(|target| cases.iter().filter_map(|(_, case)| summary(&target.name, case)))
    };
    let unit = Unit::of(metric, all().map(|median| median.value).reduce(f64::max)?);
    let lines: Vec<Line> = run
        .targets
        .iter()
        .enumerate()
        .map(|(series, target)| {
            let points = cases.iter().filter_map(|(place, case)| {
                let median = summary(&target.name, case)?;
                Some((*place, median.value / unit.size, median.low / unit.size, median.high / unit.size))
            });
            Line { series, points: points.collect() }
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    let better = if metric.more_is_better() { "higher" } else { "lower" };
    let names: Vec<&str> = cases.iter().map(|(_, case)| case.name.as_str()).collect();
    Some(Lines {
        title: format!("{} over {counted}: {}", metric.title(), common(&names)),
        note: format!("{}, median with interval; {better} is better", unit.name),
        warning: warning(run),
        axis: counted.into(),
        marks: cases.iter().map(|(place, _)| (*place, short(*place))).collect(),
        series: run.targets.iter().map(|target| target.name.clone()).collect(),
        lines,
        logarithmic: true,
    })
}

/// What names begin with, all of them.
fn common(names: &[&str]) -> String {
    let Some((first, others)) = names.split_first() else { return String::new() };
    let same = |at: usize, letter: char| others.iter().all(|other| other.chars().nth(at) == Some(letter));
    let begin: String = first
        .chars()
        .enumerate()
        .take_while(|(at, letter)| same(*at, *letter))
        .map(|(_, letter)| letter)
        .collect();
    begin.trim_end_matches(['-', '_', ' ']).into()
}

/// fio's numbers: with k, m and g for powers of 1024.
fn number_of(text: &str) -> Option<f64> {
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match text[digits.len()..].chars().next() {
        None => 1.0,
        Some('k') => 1024.0,
        Some('m') => 1_048_576.0,
        Some('g') => 1_073_741_824.0,
        Some(_) => return None,
    };
    digits.parse::<f64>().ok().filter(|number| *number > 0.0).map(|number| number * factor)
}

fn short(place: f64) -> String {
    for (size, letter) in [(1_048_576.0, "M"), (1024.0, "K")] {
        if place >= size && place % size == 0.0 {
            return format!("{}{letter}", place / size);
        }
    }
    format!("{place}")
}

/// Each turn over the median of its target at its case, in the order in which they were taken: whether the machine or a target changed meanwhile.
pub fn course(run: &Run) -> Option<Lines> {
    let ends = run.samples.iter().map(|sample| sample.at);
    let length = ends.reduce(f64::max)?;
    let (size, axis) = if length >= 300.0 {
        (60.0, "minutes since the run began")
    } else {
        (1.0, "seconds since the run began")
    };
    let mut medians: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for target in &run.targets {
        for case in &run.cases {
            let values = run.values(&target.name, &case.name);
            if values.len() > 1 {
                let summary = Summary::of(values.into_iter().map(|(_, value)| value));
                medians.extend(
                    summary.map(|summary| ((target.name.as_str(), case.name.as_str()), summary.median.value)),
                );
            }
        }
    }
    let lines = run.targets.iter().enumerate().map(|(series, target)| {
        let own = run.samples.iter().filter(|sample| sample.target == target.name);
        let points = own.filter_map(|sample| {
            let median = medians.get(&(sample.target.as_str(), sample.case.as_str()))?;
            let value = sample.value / median;
            Some((sample.at / size, value, value, value))
        });
        let mut points: Vec<_> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { series, points }
    });
    let lines: Vec<Line> = lines.filter(|line| line.points.len() >= FEWEST).collect();
    (!lines.is_empty()).then(|| Lines {
        title: "Course of the run".into(),
        note: "each turn over its own median; level lines are steady".into(),
        warning: warning(run),
        axis: axis.into(),
        marks: Vec::new(),
        series: run.targets.iter().map(|target| target.name.clone()).collect(),
        lines,
        logarithmic: false,
    })
}

/// The targets of several runs beside each other, for each metric.
pub fn together(runs: &[Run]) -> Vec<Plot> {
    let mut metrics: Vec<Metric> = runs.iter().flat_map(table::metrics).collect();
    metrics.sort_unstable();
    metrics.dedup();
    let names = runs
        .iter()
        .zip(1..)
        .flat_map(|(run, number)| run.targets.iter().map(move |target| (number, run, target.name.as_str())));
    let series: Vec<(i32, &Run, &str)> = names.collect();
    let mut plots = Vec::new();
    for metric in metrics {
        let mut cases: Vec<&str> = Vec::new();
        for case in runs.iter().flat_map(|run| table::cases(run, metric)) {
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        let median = |run: &Run, target: &str, case: &str| {
            let own = run.case(case).filter(|case| case.metric == metric)?;
            Some(Summary::of(run.values(target, &own.name).into_iter().map(|(_, value)| value))?.median)
        };
        let all = cases
            .iter()
            .flat_map(|case| series.iter().filter_map(|(_, run, target)| median(run, target, case)));
        let Some(middle) = Summary::of(all.map(|one| one.value)) else { continue };
        let unit = Unit::of(metric, middle.median.value);
        let group = |case: &&str| {
            let bars = series.iter().enumerate().filter_map(|(index, (_, run, target))| {
                let one = median(run, target, case)?;
                let [value, low, high] = [one.value, one.low, one.high].map(|value| value / unit.size);
                Some(Bar { series: index, value, low, high })
            });
            let bars: Vec<Bar> = bars.collect();
            (!bars.is_empty()).then(|| Group { label: (*case).into(), bars })
        };
        let longer = if metric.more_is_better() { "longer" } else { "shorter" };
        plots.push(Plot {
            title: format!("{} of all runs", metric.title()),
            note: format!("{}, median with interval; {longer} bars are better", unit.name),
            warning: runs.iter().find_map(warning),
            series: series.iter().map(|(number, _, target)| format!("{number}: {target}")).collect(),
            groups: cases.iter().filter_map(group).collect(),
            scale: Scale::Absolute,
        });
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> Run {
        Run::parse(include_bytes!("../../tests/it/golden/run.json")).unwrap()
    }

    #[test]
    fn cases_that_differ_in_one_number_are_a_line() {
        let mut run = golden();
        let jobs = ["1", "4", "16"];
        for (case, jobs) in
            run.cases.iter_mut().filter(|case| case.metric != Metric::Latency).zip(jobs.iter().cycle())
        {
            case.metric = Metric::Iops;
            case.command = format!("fio TARGET --rw=randwrite --bs=4k --iodepth=1 --numjobs={jobs}");
        }
        run.cases[3].command = "fio TARGET --rw=randread --bs=4k --iodepth=1 --numjobs=1".into();
        let plots = sweeps(&run);
        assert_eq!(plots.len(), 1);
        let lines = &plots[0];
        assert_eq!(lines.marks.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), jobs);
        assert!(lines.title.starts_with("IOPS over jobs") && lines.lines.len() == 5, "{lines:?}");
        assert!(lines.lines.iter().all(|line| line.points.len() == 3));
        assert!(lines.svg().unwrap().matches("<circle").count() >= 15);
        assert_eq!(
            (number_of("4k"), number_of("1m"), number_of("512"), number_of("4x")),
            (Some(4096.0), Some(1_048_576.0), Some(512.0), None)
        );
        assert_eq!(
            (short(65536.0), short(3.0), common(&["scm-read-1k", "scm-read-4k"])),
            ("64K".into(), "3".into(), "scm-read".into())
        );
    }

    #[test]
    fn the_course_of_a_steady_run_is_level() {
        let lines = course(&golden()).unwrap();
        assert_eq!(lines.lines.len(), 5);
        let values = || lines.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        assert!(values().all(|value| (0.9..1.1).contains(&value)));
        assert!(lines.lines.iter().all(|line| line.points.windows(2).all(|pair| pair[0].0 <= pair[1].0)));
        let mut short = golden();
        short.samples.retain(|sample| sample.turn == 0);
        assert!(course(&short).is_none());
    }

    #[test]
    fn all_runs_stand_in_one_plot() {
        let plots = together(&[golden(), golden(), golden()]);
        assert_eq!(plots.len(), 3);
        assert!(plots[0].series.contains(&"3: cvmio".to_string()));
        assert_eq!(plots[0].groups[0].bars.len(), 15);
    }
}
