//! The research questions of the thesis, and what a run answers to them.

use std::collections::BTreeSet;

use crate::compare::{Comparison, Verdict, floor};
use crate::figure::{interval, number};
use crate::page::{Options, Pair, sentences_of};
use crate::papers::{self, is_cvmio, protects};
use crate::run::{Run, Target};

/// Which targets a question compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    /// Machines that differ in this setting and in no other: each against the first of its kind in the run.
    Setting(&'static str),
    /// What protects data, against the run's baseline.
    Protection,
    /// cvm-io against each other protection.
    CvmIo,
}

/// A research question. Source: thesis, chapter 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// 1 to 6.
    pub number: u8,
    /// As a question.
    pub text: &'static str,
    /// What the papers' numbers about it are about.
    pub about: &'static str,
    /// What is compared, as the beginning of a sentence.
    pub subject: &'static str,
    compared: Compared,
}

const QUESTIONS: [Question; 6] = [
    Question {
        number: 1,
        text: "How does storage of a confidential VM differ from that of a plain VM?",
        about: "cvm",
        subject: "A confidential machine",
        compared: Compared::Setting("kind"),
    },
    Question {
        number: 2,
        text: "How much of that is the bounce buffer?",
        about: "bounce-buffer",
        subject: "The bounce buffer",
        compared: Compared::Setting("bounce"),
    },
    Question {
        number: 3,
        text: "How much of it are interrupts?",
        about: "polling",
        subject: "Completion by interrupts instead of polling",
        compared: Compared::Setting("completion"),
    },
    Question {
        number: 4,
        text: "What does the host's cache do to it?",
        about: "host-cache",
        subject: "The host's cache",
        compared: Compared::Setting("cache"),
    },
    Question {
        number: 5,
        text: "What does protection of the data cost?",
        about: "encryption",
        subject: "Protection",
        compared: Compared::Protection,
    },
    Question {
        number: 6,
        text: "Does cvm-io bring a gain over the protection that Linux has?",
        about: "cvm-io",
        subject: "Protection by cvm-io instead of what Linux and QEMU have",
        compared: Compared::CvmIo,
    },
];

impl Question {
    /// The question with a number.
    pub fn of(number: u8) -> Option<Self> {
        QUESTIONS.into_iter().find(|question| question.number == number)
    }

    /// Its title.
    pub fn title(self) -> String {
        format!("RQ{}: {}", self.number, self.text)
    }

    /// What a run answers, computed from its samples, and then what the papers say.
    pub fn answer(self, run: &Run, options: &Options) -> Vec<String> {
        let mut answer = self.here(run, options);
        let theirs = papers::statements().into_iter().filter(|statement| statement.about == self.about);
        answer.extend(theirs.map(|one| format!("{}, {}: {}", one.paper, one.place, one.text)));
        answer
    }

    /// What a run answers: a sentence, and then what it follows from.
    pub fn here(self, run: &Run, options: &Options) -> Vec<String> {
        let all = self.pairs(run, options);
        let cached = |name: &str| run.target(name).is_some_and(|target| target.page_cache);
        let is_fair = |pair: &Pair<'_>| cached(pair.subject) == cached(pair.baseline);
        let pairs: Vec<Pair<'_>> = all.iter().copied().filter(is_fair).collect();
        let mut answer = vec![self.verdict(run, &pairs)];
        let left_out: BTreeSet<&str> = all
            .iter()
            .filter(|pair| !is_fair(pair))
            .map(|pair| if cached(pair.subject) { pair.subject } else { pair.baseline })
            .collect();
        if !left_out.is_empty() {
            let names = left_out.into_iter().collect::<Vec<_>>().join(", ");
            answer.push(format!(
                "Left out of this answer, since it goes through the page cache and the others do not: {names}."
            ));
        }
        answer.extend(sentences_of(run, &all));
        answer
    }

    /// The targets whose difference is the answer. Others may be in the run: they are no part of it.
    fn pairs<'a>(self, run: &'a Run, options: &'a Options) -> Vec<Pair<'a>> {
        let all = || run.targets.iter().filter(|target| target.control_of.is_none());
        let pair = |subject: &'a Target, baseline: &'a str| Pair { subject: &subject.name, baseline };
        match self.compared {
            Compared::Setting(key) => {
                let first = |of: &str| all().find(|other| without(&other.spec, key).as_deref() == Some(of));
                let machines =
                    all().filter_map(|target| Some((target, first(&without(&target.spec, key)?)?)));
                let differ = machines.filter(|(target, first)| target.spec != first.spec);
                differ.map(|(target, first)| pair(target, &first.name)).collect()
            }
            Compared::Protection => {
                let Some(baseline) = options.baseline(run) else { return Vec::new() };
                let subjects = all().filter(|target| protects(&target.spec) && target.name != baseline);
                subjects.map(|target| pair(target, baseline)).collect()
            }
            Compared::CvmIo => {
                let ours = all().filter(|target| is_cvmio(&target.spec));
                let others = || all().filter(|target| protects(&target.spec) && !is_cvmio(&target.spec));
                ours.flat_map(|ours| others().map(move |other| pair(ours, &other.name))).collect()
            }
        }
    }

    /// The answer in one sentence: whether there is a difference, and where the largest is.
    fn verdict(self, run: &Run, pairs: &[Pair<'_>]) -> String {
        let all: Vec<Comparison> = pairs.iter().flat_map(|pair| pair.comparisons(run)).collect();
        let with = |verdict| all.iter().filter(|one| one.verdict == verdict).count();
        let clear = all.iter().filter(|one| matches!(one.verdict, Verdict::Better | Verdict::Worse));
        let size = |one: &&Comparison| one.ratio.value.ln().abs();
        let (count, subject) = (all.len(), self.subject);
        let comparisons = if count == 1 { "comparison" } else { "comparisons" };
        match clear.max_by(|a, b| size(a).total_cmp(&size(b))) {
            None if all.is_empty() => "Nothing was measured that answers this.".into(),
            None if with(Verdict::Unknown) == count => {
                format!("{subject}: there are too few turns to tell; ask again with more --turns.")
            }
            None => Self::no_difference(subject, &all),
            Some(most) => format!(
                "{subject} is better in {} and worse in {} of {count} {comparisons}. The largest difference is at {}: {} has {} times the {} of {} ({}).",
                with(Verdict::Better),
                with(Verdict::Worse),
                most.case,
                most.subject,
                number(most.ratio.value),
                most.metric.in_sentence(),
                most.baseline,
                interval(most.ratio.low, most.ratio.high)
            ),
        }
    }
}

/// Differences below this are none for anybody.
const SMALL: f64 = 0.05;

impl Question {
    /// The answer where no difference is clear: that there is none, if the intervals say so, and else how large it might be.
    fn no_difference(subject: &str, all: &[Comparison]) -> String {
        let bounded = || all.iter().filter(|one| one.ratio.high.is_finite());
        let reach = |one: &&Comparison| floor(&one.ratio);
        let widest = bounded().max_by(|a, b| reach(a).total_cmp(&reach(b)));
        let (count, comparisons) = (all.len(), if all.len() == 1 { "comparison" } else { "comparisons" });
        match widest {
            Some(widest) if floor(&widest.ratio) > SMALL.ln_1p() || bounded().count() < count => format!(
                "{subject}: no difference could be shown in {count} {comparisons}, and none is ruled out. The least certain is at {}: {} has {} ({}) \
                 times the {} of {}. More --turns would tell.",
                widest.case,
                widest.subject,
                number(widest.ratio.value),
                interval(widest.ratio.low, widest.ratio.high),
                widest.metric.in_sentence(),
                widest.baseline
            ),
            _ => format!(
                "{subject} makes no difference above {} %, in {count} {comparisons}.",
                number(SMALL * 100.0)
            ),
        }
    }
}

/// A machine's settings but for one; `None` if the target is no machine.
fn without(spec: &str, key: &str) -> Option<String> {
    let (name, settings) = spec.split_once(':').unwrap_or((spec, ""));
    let others = settings.split(',').filter(|one| one.split_once('=').is_none_or(|(name, _)| name != key));
    (name == "vm").then(|| others.collect::<Vec<&str>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_follows_from_the_samples() {
        let golden = include_bytes!("../tests/it/golden/run.json");
        let run = Run::parse(golden).unwrap();
        let answer = |run: &Run| Question::of(5).unwrap().answer(run, &Options::default()).swap_remove(0);
        let said = answer(&run);
        assert!(
            said.starts_with("Protection is better in ") && said.contains("The largest difference is at"),
            "{said}"
        );
        let mut few = run.clone();
        few.samples.retain(|sample| sample.turn == 0);
        assert!(answer(&few).contains("too few turns"));
        let mut same = run.clone();
        same.samples.iter_mut().for_each(|sample| sample.value = 100.0 + f64::from(sample.turn));
        assert!(answer(&same).contains("no difference above 5.00 %"), "{}", answer(&same));
        // Turns that differ wildly show nothing, and rule nothing out.
        let mut wild = run.clone();
        for sample in &mut wild.samples {
            let own = if sample.target == "cvmio" { 0.54 } else { 1.0 };
            sample.value = 100.0
                * own
                * if (sample.turn + u32::from(sample.target == "cvmio")) % 2 == 0 { 0.3 } else { 3.0 };
        }
        let said = answer(&wild);
        assert!(
            said.contains("none is ruled out")
                && said.contains("0.")
                && !said.contains("makes no difference"),
            "{said}"
        );
        same.samples.clear();
        assert!(answer(&same).contains("Nothing was measured"));
    }

    #[test]
    fn a_server_that_reads_from_memory_is_no_part_of_the_answer() {
        let mut run = Run::parse(include_bytes!("../tests/it/golden/run.json")).unwrap();
        let of = |run: &Run| Question::of(6).unwrap().here(run, &Options::default());
        assert!(of(&run)[0].contains("of 10 comparisons"), "{}", of(&run)[0]);
        run.targets
            .iter_mut()
            .filter(|target| target.name == "qemu LUKS")
            .for_each(|target| target.page_cache = true);
        let said = of(&run);
        assert_eq!(said[0], "Nothing was measured that answers this.");
        assert!(said[1].contains("Left out") && said[1].contains("qemu LUKS"), "{said:?}");
        assert!(said.iter().any(|one| one.contains("qemu LUKS goes through the page cache")), "{said:?}");
    }

    /// What is compared, of a run with these targets.
    fn compared(number: u8, specs: &[&str]) -> Vec<(String, String)> {
        let mut run = Run::parse(include_bytes!("../tests/it/golden/run.json")).unwrap();
        let target =
            |spec: &&str| Target { name: (*spec).into(), spec: (*spec).into(), ..run.targets[0].clone() };
        run.targets = specs.iter().map(target).collect();
        run.baseline = Some(specs[0].into());
        let (question, options) = (Question::of(number).unwrap(), Options::default());
        let pairs = question.pairs(&run, &options);
        pairs.iter().map(|pair| (pair.subject.to_string(), pair.baseline.to_string())).collect()
    }

    #[test]
    fn an_answer_is_about_what_was_asked_and_nothing_else() {
        let of = |subject: &str, baseline: &str| (subject.to_string(), baseline.to_string());
        // The kind of disk is no part of the bounce buffer's cost.
        assert_eq!(
            compared(2, &["vm", "vm:bounce=on", "vm:disk=nvme", "vm:disk=nvme,bounce=on", "tmpfs"]),
            [of("vm:bounce=on", "vm"), of("vm:disk=nvme,bounce=on", "vm:disk=nvme")]
        );
        assert_eq!(
            compared(3, &["vm:completion=poll", "vm", "vm:completion=poll,kind=snp", "vm:kind=snp"]),
            [of("vm", "vm:completion=poll"), of("vm:kind=snp", "vm:completion=poll,kind=snp")]
        );
        assert_eq!(compared(1, &["vm", "vm:kind=tdx"]), [of("vm:kind=tdx", "vm")]);
        assert_eq!(compared(4, &["vm", "vm:cache=on"]), [of("vm:cache=on", "vm")]);
        assert_eq!(compared(4, &["vm", "vm:bounce=on", "tmpfs"]), []);
        // A bare file without a server protects nothing.
        assert_eq!(
            compared(5, &["qemu", "/srv", "cvmio:level=off", "qemu-luks", "vm:protect=dm-crypt-inline"]),
            ["cvmio:level=off", "qemu-luks", "vm:protect=dm-crypt-inline"].map(|one| of(one, "qemu"))
        );
        assert_eq!(
            compared(6, &["qemu-luks", "qemu", "/cvmio", "dm-crypt", "cvmio"]),
            [of("cvmio", "qemu-luks"), of("cvmio", "dm-crypt")]
        );
        assert_eq!(
            compared(6, &["vm:protect=dm-integrity", "vm:protect=cvmio", "vm"]),
            [of("vm:protect=cvmio", "vm:protect=dm-integrity")]
        );
    }

    #[test]
    fn every_question_has_something_in_the_papers() {
        for number in 1..=6 {
            let question = Question::of(number).unwrap();
            let said = papers::statements().iter().any(|statement| statement.about == question.about)
                || papers::claims().iter().any(|claim| claim.about == question.about);
            assert!(said, "{number}");
        }
        assert!(Question::of(0).is_none() && Question::of(7).is_none());
    }
}
