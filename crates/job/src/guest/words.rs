//! What the owner may say to the guest, and what it hears.

use cli::failure::Failure;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::End;

/// One thing that the owner asks for: the command of an SSH session. Its bytes are its standard input, the answer is its standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// A [`Setup`] comes; once.
    Setup,
    /// The image comes: an archive, or a context as a stream; once.
    Image,
    /// An input comes, as a stream.
    Input(usize),
    /// A secret comes.
    Secret(usize),
    /// What opens a volume comes.
    Volume(usize),
    /// Begin.
    Start,
    /// Send the log from this byte on until the job has ended, then its [`State`].
    Follow(u64),
    /// Send an output, as a stream.
    Output(usize),
    /// Send the manifest.
    Manifest,
    /// Say the [`State`].
    State,
    /// Forget everything and power off.
    Wipe,
}

impl Word {
    /// Reads one.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, number) = text.split_once(' ').map_or((text, None), |(name, number)| (name, Some(number)));
        let number = number.map(str::parse::<u64>).transpose().ok().flatten();
        let place = number.and_then(|number| usize::try_from(number).ok());
        match (name, number, place) {
            ("setup", None, _) => Ok(Self::Setup),
            ("image", None, _) => Ok(Self::Image),
            ("input", _, Some(place)) => Ok(Self::Input(place)),
            ("secret", _, Some(place)) => Ok(Self::Secret(place)),
            ("volume", _, Some(place)) => Ok(Self::Volume(place)),
            ("start", None, _) => Ok(Self::Start),
            ("follow", Some(from), _) => Ok(Self::Follow(from)),
            ("output", _, Some(place)) => Ok(Self::Output(place)),
            ("manifest", None, _) => Ok(Self::Manifest),
            ("state", None, _) => Ok(Self::State),
            ("wipe", None, _) => Ok(Self::Wipe),
            _ => Err(Error::protocol(format!("the guest does not know {text:?}"))),
        }
    }
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Setup => f.write_str("setup"),
            Self::Image => f.write_str("image"),
            Self::Input(place) => write!(f, "input {place}"),
            Self::Secret(place) => write!(f, "secret {place}"),
            Self::Volume(place) => write!(f, "volume {place}"),
            Self::Start => f.write_str("start"),
            Self::Follow(from) => write!(f, "follow {from}"),
            Self::Output(place) => write!(f, "output {place}"),
            Self::Manifest => f.write_str("manifest"),
            Self::State => f.write_str("state"),
            Self::Wipe => f.write_str("wipe"),
        }
    }
}

/// A job, as the owner sets it up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Setup {
    /// The job file's name, without what follows the last dot.
    pub name: String,
    /// The job file, whole.
    pub file: String,
    /// Bytes for the container: its processes, and what they write.
    pub container: u64,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct State {
    /// Where it stands.
    pub phase: Phase,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// How the container ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Files are still coming.
    Waiting,
    /// The image is unpacked or built.
    Preparing,
    /// The container runs.
    Running,
    /// It has ended, and a manifest says how.
    Ended,
    /// The guest could not run it; there is no manifest.
    Failed,
}

impl State {
    /// In this phase, with nothing more to say.
    #[must_use]
    pub fn new(phase: Phase) -> Self {
        Self { phase, failure: None, end: None }
    }

    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.phase, Phase::Ended | Phase::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_others_are_refused() {
        let words = [
            Word::Setup,
            Word::Image,
            Word::Input(3),
            Word::Secret(0),
            Word::Volume(2),
            Word::Start,
            Word::Follow(9),
            Word::Output(1),
            Word::Manifest,
            Word::State,
            Word::Wipe,
        ];
        for word in words {
            assert_eq!(Word::parse(&word.to_string()).unwrap(), word);
        }
        for bad in ["", "sh", "input", "input x", "input -1", "wipe 1", "start; sh", "input 1 2", "follow"] {
            assert!(Word::parse(bad).is_err(), "{bad}");
        }
    }
}
