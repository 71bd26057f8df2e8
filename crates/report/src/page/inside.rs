//! Plots of what happened inside the turns of a case.

use super::parts::warning;
use crate::figure::Unit;
use crate::plot::{Line, Lines};
use crate::run::{Case, Run};

/// Fewer points than this are no line.
const FEWEST: usize = 3;

/// A plot for each case whose program said how it stood now and then: a line for each turn, in its target's colour.
pub fn inside(run: &Run) -> Vec<Lines> {
    run.cases.iter().filter_map(|case| of_case(run, case)).collect()
}

fn of_case(run: &Run, case: &Case) -> Option<Lines> {
    let samples = || run.samples.iter().filter(|one| one.case == case.name && one.course.len() >= FEWEST);
    let values = samples().flat_map(|sample| sample.course.iter().map(|point| point.1));
    let unit = Unit::of(case.metric, values.reduce(f64::max)?);
    let mut lines = Vec::new();
    for (series, target) in run.targets.iter().enumerate() {
        lines.extend(samples().filter(|sample| sample.target == target.name).map(|sample| {
            let points = sample.course.iter().map(|(at, value)| {
                let value = value / unit.size;
                (*at, value, value, value)
            });
            Line { series, points: points.collect() }
        }));
    }
    let better = if case.metric.more_is_better() { "higher" } else { "lower" };
    Some(Lines {
        title: format!("Inside the turns: {}", case.name),
        note: format!("{}, each line a turn; {better} is better", unit.name),
        warning: warning(run),
        axis: "seconds into the turn".into(),
        marks: Vec::new(),
        series: run.targets.iter().map(|target| target.name.clone()).collect(),
        lines,
        logarithmic: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> Run {
        Run::parse(include_bytes!("../../tests/it/golden/run.json")).unwrap()
    }

    #[test]
    fn each_turn_is_a_line_in_its_target_s_colour() {
        let mut run = golden();
        assert!(inside(&run).is_empty(), "this run has none");
        let case = run.cases[0].name.clone();
        for sample in run.samples.iter_mut().filter(|sample| sample.case == case) {
            let value = sample.value;
            // One that stood still for a second, and one that is too short to be seen.
            let points = if sample.turn == 0 { 2 } else { 5 };
            sample.course =
                (1..=points).map(|at| (f64::from(at), if at == 3 { 0.0 } else { value })).collect();
        }
        let bytes = run.to_json().unwrap();
        assert_eq!(Run::parse(bytes.as_bytes()).unwrap(), run, "it is in the file");
        let plots = inside(&run);
        assert_eq!(plots.len(), 1);
        let plot = &plots[0];
        assert!(plot.title.ends_with(&case) && plot.axis == "seconds into the turn");
        let turns = run.samples.iter().filter(|sample| sample.case == case && sample.turn > 0).count();
        assert!(turns > 1 && plot.lines.len() == turns, "{} of {turns}", plot.lines.len());
        let still = |line: &Line| line.points.iter().position(|point| point.1 == 0.0);
        assert!(plot.lines.iter().all(|line| line.points.len() == 5 && still(line) == Some(2)));
        assert!(plot.svg().unwrap().contains("Inside the turns"));
    }

    #[test]
    fn a_course_whose_time_does_not_rise_is_refused() {
        for course in
            [vec![(2.0, 1.0), (1.0, 1.0)], vec![(0.0, 1.0)], vec![(1.0, -1.0)], vec![(1.0, 1.0), (1.0, 1.0)]]
        {
            let mut run = golden();
            run.samples[0].course = course;
            let refused = Run::parse(run.to_json().unwrap().as_bytes()).unwrap_err();
            assert!(refused.to_string().contains("a course that does not rise"), "{refused}");
        }
    }
}
