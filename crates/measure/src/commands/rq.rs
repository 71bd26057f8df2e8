//! The thesis' research questions as experiments.

use clap::{Args, Parser};
use report::question::Question;

use super::measure::{FioArgs, Order, fio};
use super::vm::{confidential, read};
use super::{Measure, Words};
use crate::error::{Context, Error, Result};
use crate::target::{Spec, Vm};

/// Answer a research question of the thesis, or say why this machine cannot
///
/// 1: confidential against plain VM. 2: bounce buffer. 3: interrupts against polling. 4: host cache. 5: the cost of protection. 6: cvm-io's
/// gain. Questions 1 to 4 boot virtual machines, as bench vm does. Questions 5 and 6 run on this machine, or with --in-guest in one that
/// is booted: a bare file, cvm-io, cvm-io with one protection less at a time (5), and what Linux has. The run file and its report are
/// like those of bench fio; the report begins with the answer.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: what each protection costs on the disk under /srv
  cvmio bench rq 5 -- --dir /srv --seconds 5

Example: interrupts against polling, with a kernel that was unpacked
  cvmio bench rq 3 -- --guest-kernel kernel")]
pub struct RqArgs {
    /// The question
    #[arg(value_parser = clap::value_parser!(u8).range(1..=6))]
    pub question: u8,
    /// Answer question 5 or 6 inside a virtual machine
    #[arg(long)]
    pub in_guest: bool,
    /// Options of bench fio; targets among them replace those of the question
    #[arg(last = true)]
    pub options: Vec<String>,
}

/// Answers a question.
///
/// # Errors
/// When nothing can be measured.
pub fn rq(args: &RqArgs, order: Order) -> Result<()> {
    let question = Question::of(args.question).ok_or_else(|| Error::usage("questions are 1 to 6"))?;
    if args.in_guest && args.question < 5 {
        return Err(Error::usage("questions 1 to 4 are about guests in any case; leave --in-guest out"));
    }
    let mut words = vec!["fio".to_string()];
    words.extend(args.options.iter().cloned());
    let line = Words::try_parse_from(&words).doing("the options behind --")?;
    let Measure::Fio(mut plan) = line.measure else {
        return Err(Error::usage("the options are not those of bench fio"));
    };
    if let Err(why) = fill(args, &mut plan)? {
        cli::output::print(&format!("{}\nnot measurable here, because {why}", question.title()));
        return Ok(());
    }
    fio(&plan, order.asking(args.question))
}

/// The targets of a question, unless the user has named some; or why there are none here.
fn fill(args: &RqArgs, plan: &mut FioArgs) -> Result<std::result::Result<(), String>> {
    if !plan.targets.targets.is_empty() {
        return Ok(Ok(()));
    }
    let directory = plan.targets.dir.canonicalize().map_err(|error| {
        Error::usage(format!("{}: choose another directory with --dir", plan.targets.dir.display()))
            .because(error)
    })?;
    let directory = directory.to_string_lossy().into_owned();
    let all: &[&str] = match (args.question, args.in_guest) {
        (1, _) => &["vm"],
        (2, _) => &["vm", "vm:bounce=on", "vm:disk=nvme", "vm:disk=nvme,bounce=on"],
        // The papers give what interrupts cost over polling.
        (3, _) => &["vm:completion=poll", "vm"],
        (4, _) => &["vm", "vm:cache=on"],
        (_, true) => &[
            "vm",
            "vm:protect=cvmio",
            "vm:protect=dm-crypt",
            "vm:protect=dm-crypt-inline",
            "vm:protect=dm-integrity",
        ],
        // The bare file first, behind the same protocol as the volume: what is left is the cost of protection.
        (5, _) => &["qemu", &directory, "cvmio", "qemu-luks", "dm-crypt", "dm-integrity"],
        _ => &["qemu-luks", "nbdkit-luks", "dm-crypt", "dm-integrity", "cvmio"],
    };
    plan.targets.one_less = args.question == 5 && !args.in_guest;
    plan.targets.targets = read(all)?;
    if args.question == 6 && args.in_guest {
        // Against what Linux has, not against nothing.
        plan.targets.targets = read(&all[1..])?;
        plan.targets.baseline.get_or_insert_with(|| "vm:protect=dm-integrity".into());
    }
    let guests = &plan.targets.guests;
    let confidential = confidential(guests);
    match (args.question, confidential) {
        (1, Err(why)) => return Ok(Err(why)),
        (1, Ok(vm)) => plan.targets.targets.push(Spec::Vm(vm)),
        // The thesis compares the effect in both kinds of machine. A confidential one always has the bounce buffer of question 2.
        (3..=4, Ok(kind)) => {
            let more = of_kind(&plan.targets.targets, &kind);
            plan.targets.targets.extend(more);
        }
        _ => {}
    }
    Ok(Ok(()))
}

/// The same machines with another kind of memory.
fn of_kind(targets: &[Spec], kind: &Vm) -> Vec<Spec> {
    let machines = targets.iter().filter_map(|target| match target {
        Spec::Vm(vm) => Some(Spec::Vm(Vm { kind: kind.kind, ..vm.clone() })),
        _ => None,
    });
    machines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(question: u8, in_guest: bool) -> std::result::Result<(Vec<String>, String), String> {
        let Measure::Fio(mut plan) = Words::try_parse_from(["fio", "--dir", "/tmp"]).unwrap().measure else {
            panic!("not fio")
        };
        fill(&RqArgs { question, in_guest, options: Vec::new() }, &mut plan).unwrap()?;
        let (planned, baseline) = plan.targets.plan().unwrap();
        Ok((planned.into_iter().map(|one| one.name).collect(), baseline))
    }

    #[test]
    fn every_question_has_targets_and_something_to_compare_them_with() {
        for (question, in_guest, least, base) in [
            (2, false, 4, "vm"),
            (3, false, 2, "vm completion=poll"),
            (4, false, 2, "vm"),
            (5, false, 6, "qemu file"),
            (6, false, 5, "qemu LUKS"),
            (5, true, 5, "vm"),
            (6, true, 4, "vm protect=dm-integrity"),
        ] {
            let (names, baseline) = filled(question, in_guest).unwrap();
            assert!(names.len() >= least && baseline == base, "{question}: {names:?} {baseline}");
            assert_eq!(names.iter().any(|name| name == "cvmio level=off"), question == 5 && !in_guest);
        }
    }

    #[test]
    fn a_question_is_asked_of_each_kind_of_machine() {
        let machines = read(&["vm:completion=poll", "vm", "tmpfs"]).unwrap();
        let Ok(Spec::Vm(snp)) = "vm:kind=snp".parse() else { panic!("no machine") };
        let names: Vec<String> = of_kind(&machines, &snp).iter().map(Spec::to_string).collect();
        assert_eq!(names, ["vm:completion=poll,kind=snp", "vm:kind=snp"]);
    }

    #[test]
    fn a_machine_that_hosts_no_confidential_guests_says_so() {
        match filled(1, false) {
            Ok((names, _)) => assert_eq!(names.len(), 2),
            Err(why) => assert!(why.contains("SEV-SNP") && why.contains("TDX"), "{why}"),
        }
    }
}
