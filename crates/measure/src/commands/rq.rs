//! The thesis' research questions as experiments.

use std::fs;
use std::path::Path;

use clap::{Args, Parser};
use report::question::Question;

use super::measure::{FioArgs, Order, fio};
use super::{Measure, Words, show};
use crate::error::{Context, Error, Result};

/// Answer a research question of the thesis, or say why this machine cannot
///
/// 1: confidential against plain VM. 2: bounce buffer. 3: interrupts against polling. 4: host cache. 5: the cost of protection. 6: cvm-io's
/// gain. Questions 5 and 6 run the thesis' fio jobs on a bare file, on cvm-io, on cvm-io with one protection less at a time (5), and on what
/// Linux has. The run file and its report are like those of `bench fio`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: what each protection costs on the disk under /srv
  cvmio bench rq 5 -- --dir /srv --seconds 5")]
pub struct RqArgs {
    /// The question
    #[arg(value_parser = clap::value_parser!(u8).range(1..=6))]
    pub question: u8,
    /// Options of `bench fio`; targets among them replace those of the question
    #[arg(last = true)]
    pub options: Vec<String>,
}

/// Answers a question.
///
/// # Errors
/// When nothing can be measured.
pub fn rq(args: &RqArgs, order: Order) -> Result<()> {
    let question = Question::of(args.question).ok_or_else(|| Error::usage("questions are 1 to 6"))?;
    if let Some(why) = unmeasurable(args.question) {
        show::print(&format!("{}\nnot measurable here, because {why}", question.title()));
        return Ok(());
    }
    let mut words = vec!["fio".to_string()];
    words.extend(args.options.iter().cloned());
    let line = Words::try_parse_from(&words).doing("the options behind --")?;
    let Measure::Fio(mut plan) = line.measure else {
        return Err(Error::usage("the options are not those of bench fio"));
    };
    fill(args.question, &mut plan)?;
    fio(&plan, order.asking(args.question))
}

/// The targets of a question, unless the user has named some.
fn fill(question: u8, plan: &mut FioArgs) -> Result<()> {
    if !plan.targets.targets.is_empty() {
        return Ok(());
    }
    let directory = plan.targets.dir.canonicalize().map_err(|error| {
        Error::usage(format!("{}: choose another directory with --dir", plan.targets.dir.display()))
            .because(error)
    })?;
    let directory = directory.to_string_lossy().into_owned();
    let all: &[&str] = match question {
        // The bare file first, behind the same protocol as the volume: what is left is the cost of protection.
        5 => &["qemu", &directory, "cvmio", "qemu-luks", "dm-crypt", "dm-integrity"],
        _ => &["qemu-luks", "nbdkit-luks", "dm-crypt", "dm-integrity", "cvmio"],
    };
    plan.targets.one_less = question == 5;
    plan.targets.targets =
        all.iter().map(|text| text.parse().map_err(Error::usage)).collect::<Result<_>>()?;
    Ok(())
}

/// Why a question has no answer on this machine.
fn unmeasurable(question: u8) -> Option<String> {
    let guests = "it compares virtual machines, and this program does not boot any yet";
    match question {
        1 if !hosts_confidential_guests() => Some(
            "it needs a host of confidential guests: neither kvm_amd's sev_snp nor kvm_intel's tdx is on"
                .into(),
        ),
        1..=4 => Some(guests.into()),
        _ => None,
    }
}

fn hosts_confidential_guests() -> bool {
    let on = |path: &str| fs::read_to_string(Path::new(path)).is_ok_and(|text| text.trim() == "Y");
    on("/sys/module/kvm_amd/parameters/sev_snp") || on("/sys/module/kvm_intel/parameters/tdx")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_questions_of_protection_have_targets() {
        for (question, least) in [(5, 6), (6, 5)] {
            let Measure::Fio(mut plan) = Words::try_parse_from(["fio", "--dir", "/tmp"]).unwrap().measure
            else {
                panic!("not fio")
            };
            fill(question, &mut plan).unwrap();
            let (planned, baseline) = plan.targets.plan().unwrap();
            assert!(planned.len() >= least, "{planned:?}");
            assert_eq!(baseline, planned[0].name);
            assert_eq!(planned.iter().any(|one| one.name == "cvmio level=off"), question == 5);
        }
    }

    #[test]
    fn what_cannot_be_answered_says_why() {
        for question in 1..=4 {
            assert!(unmeasurable(question).is_some());
        }
        assert!(unmeasurable(5).is_none() && unmeasurable(6).is_none());
    }
}
