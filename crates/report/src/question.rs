//! The research questions of the thesis, and what a run answers to them.

use crate::compare::{Comparison, Verdict};
use crate::figure::{interval, number};
use crate::page::{Options, sentences};
use crate::papers;
use crate::run::Run;
use crate::table;

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
}

const QUESTIONS: [Question; 6] = [
    Question {
        number: 1,
        text: "How does storage of a confidential VM differ from that of a plain VM?",
        about: "cvm",
        subject: "A confidential machine",
    },
    Question {
        number: 2,
        text: "How much of that is the bounce buffer?",
        about: "bounce-buffer",
        subject: "The bounce buffer",
    },
    Question {
        number: 3,
        text: "How much of it are interrupts?",
        about: "polling",
        subject: "Completion by interrupts instead of polling",
    },
    Question {
        number: 4,
        text: "What does the host's cache do to it?",
        about: "host-cache",
        subject: "The host's cache",
    },
    Question {
        number: 5,
        text: "What does protection of the data cost?",
        about: "encryption",
        subject: "Protection",
    },
    Question {
        number: 6,
        text: "Does cvm-io bring a gain over the protection that Linux has?",
        about: "cvm-io",
        subject: "Another protection",
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
        let mut answer = vec![self.verdict(run, options)];
        answer.extend(sentences(run, options));
        let theirs = papers::statements().into_iter().filter(|statement| statement.about == self.about);
        answer.extend(theirs.map(|one| format!("{}, {}: {}", one.paper, one.place, one.text)));
        answer
    }

    /// The answer in one sentence: whether there is a difference, and where the largest is.
    fn verdict(self, run: &Run, options: &Options) -> String {
        let all = options.baseline(run).map(|baseline| table::comparisons(run, baseline)).unwrap_or_default();
        let subjects =
            |one: &&Comparison| run.target(&one.subject).is_some_and(|target| target.control_of.is_none());
        let all: Vec<&Comparison> = all.iter().filter(subjects).collect();
        let clear = || all.iter().filter(|one| matches!(one.verdict, Verdict::Better | Verdict::Worse));
        let size = |one: &&&Comparison| one.ratio.value.ln().abs();
        let (count, subject) = (all.len(), self.subject);
        match clear().max_by(|a, b| size(a).total_cmp(&size(b))) {
            None if all.is_empty() => "Nothing was measured that answers this.".into(),
            None if all.iter().all(|one| one.verdict == Verdict::Unknown) => {
                format!("{subject}: there are too few turns to tell; ask again with more --turns.")
            }
            None => {
                format!("{subject} makes no difference that can be told from noise, in {count} comparisons.")
            }
            Some(most) => format!(
                "{subject} makes a difference in {} of {count} comparisons. The largest is at {}: {} has {} times the {} of {} ({}).",
                clear().count(),
                most.case,
                most.subject,
                number(most.ratio.value),
                most.metric.title().to_lowercase(),
                most.baseline,
                interval(most.ratio.low, most.ratio.high)
            ),
        }
    }
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
            said.starts_with("Protection makes a difference in ") && said.contains("The largest is at"),
            "{said}"
        );
        let mut few = run.clone();
        few.samples.retain(|sample| sample.turn == 0);
        assert!(answer(&few).contains("too few turns"));
        let mut same = run.clone();
        same.samples.iter_mut().for_each(|sample| sample.value = 100.0 + f64::from(sample.turn));
        assert!(answer(&same).contains("no difference"), "{}", answer(&same));
        same.samples.clear();
        assert!(answer(&same).contains("Nothing was measured"));
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
