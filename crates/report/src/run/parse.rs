//! From bytes to a [`Run`]: the only place where a run file is read.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde_json::error::Category;

use super::{FORMAT, Run, VERSION};
use crate::question::Question;

/// Files above this are not read: a run of a thousand samples has one megabyte.
const LARGEST: usize = 64 << 20;

/// Why bytes are no run file.
#[derive(Debug)]
pub enum ParseError {
    /// The file ends before the JSON does.
    Cut(serde_json::Error),
    /// It is no JSON.
    NotJson(serde_json::Error),
    /// It is JSON, but no run file.
    NotARun,
    /// It is a run file of another version of the schema.
    OtherVersion(u64),
    /// A field is missing, unknown, or of another type.
    Field(serde_json::Error),
    /// Fields contradict each other.
    Inconsistent(String),
    /// Too large to be one; the number of its bytes.
    TooLarge(usize),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut(error) => {
                write!(f, "the file is cut off ({error}); use an older copy, or measure again")
            }
            Self::NotJson(error) => write!(f, "this is no JSON ({error}), so it is no run file"),
            Self::NotARun => {
                write!(f, "this is no run file: its field `format` does not say `{FORMAT}`")
            }
            Self::OtherVersion(found) => write!(
                f,
                "this run file has version {found} of the schema, and this program reads version {VERSION}; \
                 use the program that wrote it"
            ),
            Self::Field(error) => write!(f, "the run file does not follow its schema: {error}"),
            Self::Inconsistent(what) => write!(f, "the run file contradicts itself: {what}"),
            Self::TooLarge(bytes) => {
                write!(f, "the file has {bytes} bytes; a run file has at most {LARGEST}")
            }
        }
    }
}

impl std::error::Error for ParseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Cut(error) | Self::NotJson(error) | Self::Field(error) => Some(error),
            Self::NotARun | Self::OtherVersion(_) | Self::Inconsistent(_) | Self::TooLarge(_) => None,
        }
    }
}

/// What tells a run file from other JSON, and its version from others.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<u64>,
}

impl Run {
    /// Reads a run file.
    ///
    /// # Errors
    /// See [`ParseError`]. What is returned has only samples and failures of targets and cases that are there, at most one sample for each
    /// turn, and only finite values; the times of a course rise.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > LARGEST {
            return Err(ParseError::TooLarge(bytes.len()));
        }
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| {
            if error.classify() == Category::Eof {
                ParseError::Cut(error)
            } else {
                ParseError::NotJson(error)
            }
        })?;
        let head = Head::deserialize(&value).map_err(|_| ParseError::NotARun)?;
        if head.format.as_deref() != Some(FORMAT) {
            return Err(ParseError::NotARun);
        }
        match head.version {
            Some(version) if version == u64::from(VERSION) => {}
            Some(other) => return Err(ParseError::OtherVersion(other)),
            None => return Err(ParseError::NotARun),
        }
        // From the bytes again, not from the value: these errors name line and column.
        let run: Self = serde_json::from_slice(bytes).map_err(ParseError::Field)?;
        run.check().map_err(ParseError::Inconsistent)?;
        Ok(run)
    }

    fn check(&self) -> Result<(), String> {
        if let Some(number) = self.question.filter(|number| Question::of(*number).is_none()) {
            return Err(format!("there is no research question {number}"));
        }
        let targets = names("target", self.targets.iter().map(|target| &target.name))?;
        let cases = names("case", self.cases.iter().map(|case| &case.name))?;
        let known = |what: &str, set: &BTreeSet<&str>, name: &str| {
            if set.contains(name) { Ok(()) } else { Err(format!("there is no {what} `{name}`")) }
        };
        if let Some(baseline) = &self.baseline {
            known("target", &targets, baseline)?;
        }
        for of in self.targets.iter().filter_map(|target| target.control_of.as_ref()) {
            known("target", &targets, of)?;
        }
        let mut turns = BTreeSet::new();
        for sample in &self.samples {
            known("target", &targets, &sample.target)?;
            known("case", &cases, &sample.case)?;
            let place = format!("turn {} of `{}` at `{}`", sample.turn, sample.target, sample.case);
            if sample.turn >= self.turns {
                return Err(format!("{place}, of {} turns", self.turns));
            }
            if !turns.insert((&sample.target, &sample.case, sample.turn)) {
                return Err(format!("{place} is there twice"));
            }
            // JSON has no infinity, but numbers above the largest double become one.
            if !(sample.value.is_finite() && sample.value > 0.0 && sample.at.is_finite()) {
                return Err(format!("{place} has the value {}", sample.value));
            }
            let before = std::iter::once(0.0).chain(sample.course.iter().map(|point| point.0));
            let is_point = |(before, (at, value)): (f64, &(f64, f64))| {
                *at > before && at.is_finite() && value.is_finite() && *value >= 0.0
            };
            if !before.zip(&sample.course).all(is_point) {
                return Err(format!(
                    "{place} has a course that does not rise in time, or values that are none"
                ));
            }
        }
        for failure in &self.failures {
            known("target", &targets, &failure.target)?;
            if let Some(case) = &failure.case {
                known("case", &cases, case)?;
            }
        }
        Ok(())
    }
}

fn names<'a>(what: &str, all: impl Iterator<Item = &'a String>) -> Result<BTreeSet<&'a str>, String> {
    let mut seen = BTreeSet::new();
    for name in all {
        if !seen.insert(name.as_str()) {
            return Err(format!("two {what}s have the name `{name}`"));
        }
    }
    Ok(seen)
}
