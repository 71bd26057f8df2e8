//! The research questions of the thesis, and what a run answers to them.

use crate::page::{Options, sentences};
use crate::papers;
use crate::run::Run;

/// A research question. Source: thesis, chapter 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// 1 to 6.
    pub number: u8,
    /// As a question.
    pub text: &'static str,
    /// What the papers' numbers about it are about.
    pub about: &'static str,
}

const QUESTIONS: [Question; 6] = [
    Question {
        number: 1,
        text: "How does storage of a confidential VM differ from that of a plain VM?",
        about: "cvm",
    },
    Question { number: 2, text: "How much of that is the bounce buffer?", about: "bounce-buffer" },
    Question { number: 3, text: "How much of it are interrupts?", about: "polling" },
    Question { number: 4, text: "What does the host's cache do to it?", about: "host-cache" },
    Question { number: 5, text: "What does protection of the data cost?", about: "encryption" },
    Question {
        number: 6,
        text: "Does cvm-io bring a gain over the protection that Linux has?",
        about: "cvm-io",
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
        let mut answer = sentences(run, options);
        if answer.is_empty() {
            answer.push("Nothing was measured that answers this.".into());
        }
        let theirs = papers::statements().into_iter().filter(|statement| statement.about == self.about);
        answer.extend(theirs.map(|one| format!("{}, {}: {}", one.paper, one.place, one.text)));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
