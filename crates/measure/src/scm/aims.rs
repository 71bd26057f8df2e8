//! What the run says about the aims, in sentences.

use report::figure::{number, percent};
use report::run::Run;
use report::statistics::Summary;

use super::stage::{ASLEEP, AWAKE, MEMORY, WITHOUT};

fn median(run: &Run, target: &str, case: &str) -> Option<f64> {
    Some(Summary::of(run.values(target, case).into_iter().map(|(_, value)| value))?.median.value)
}

/// A figure beside the value, as a median of all turns.
fn figure(run: &Run, target: &str, case: &str, name: &str) -> Option<f64> {
    let of = run.samples.iter().filter(|sample| sample.target == target && sample.case == case);
    Some(Summary::of(of.filter_map(|sample| sample.figures.get(name).copied()))?.median.value)
}

/// One sentence for each aim that the run has figures for.
pub fn notes(run: &Run) -> Vec<String> {
    let mut notes: Vec<String> =
        ["userfaultfd 4K", "userfaultfd 2M"].iter().filter_map(|target| open(run, target)).collect();
    notes
        .extend(["userfaultfd 2M", "userfaultfd 4K", WITHOUT].iter().filter_map(|target| first(run, target)));
    notes.extend(["userfaultfd 4K", "userfaultfd 2M"].iter().filter_map(|target| fault(run, target)));
    notes
}

fn open(run: &Run, target: &str) -> Option<String> {
    let cases = run.cases.iter().filter(|case| case.name.contains("-mmap-inside-"));
    let ratios: Vec<f64> = cases
        .filter_map(|case| Some(median(run, target, &case.name)? / median(run, MEMORY, &case.name)?))
        .collect();
    let (least, most) = (ratios.iter().copied().reduce(f64::min)?, ratios.iter().copied().reduce(f64::max)?);
    let middle = Summary::of(ratios.iter().copied())?.median.value;
    let near = ratios.iter().filter(|ratio| **ratio >= 0.97).count();
    Some(format!(
        "Aim, once open within 3 % of plain memory: {target} has {} to {} times its bandwidth, in the middle {}; {near} of {} cases are \
         within.",
        number(least),
        number(most),
        number(middle),
        ratios.len()
    ))
}

fn first(run: &Run, target: &str) -> Option<String> {
    let case = "scm-read-64k-mmap-first-t1";
    let lost = 1.0 - median(run, target, case)? / median(run, MEMORY, case)?;
    Some(format!(
        "Aim, sequential first touch with pages of 2 MiB within 25 %: {target} loses {} against plain memory.",
        percent(lost)
    ))
}

fn fault(run: &Run, target: &str) -> Option<String> {
    let case = "scm-fault-random";
    let ours = median(run, target, case)?;
    let steps = run.samples.iter().find(|sample| sample.target == target && sample.case == case)?;
    let names = steps.figures.keys().filter_map(|name| name.strip_prefix("step "));
    let steps: Vec<String> = names
        .filter_map(|name| {
            let value = figure(run, target, case, &format!("step {name}"))?;
            Some(format!("{name} {} µs", number(value / 1000.0)))
        })
        .collect();
    // The server does not sleep between faults that follow each other, so the handler that does not either is the one to hold it against.
    let beside = |bare: &str, how: &str| {
        let bare = median(run, bare, case)?;
        Some(format!(
            "the kernel's bare fault, with a handler that {how}, takes {} µs, so it is {} µs beside it",
            number(bare / 1000.0),
            number((ours - bare) / 1000.0)
        ))
    };
    let beside: Vec<String> = [beside(AWAKE, "does not sleep"), beside(ASLEEP, "sleeps in between")]
        .into_iter()
        .flatten()
        .collect();
    Some(format!(
        "Aim, from fault to resume no more than 2 µs beside the kernel's bare fault: {target} takes {} µs at the median; {}. Steps in the \
         server: {}.",
        number(ours / 1000.0),
        beside.join("; "),
        steps.join(", ")
    ))
}
