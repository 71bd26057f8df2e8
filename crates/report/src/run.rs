//! The run file: everything that one run measured, and what is needed to run the same again.
//!
//! The fields are documented for readers of the file in `docs/measuring.md`. A file is parsed in one place, [`Run::parse`]; the values that
//! come out of it refer to each other without gaps.

mod parse;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::statistics::Summary;
pub use parse::ParseError;

/// What the field `format` says in each run file.
pub const FORMAT: &str = "cvmio-bench-run";
/// The version of the schema that this program writes, and the only one that it reads.
pub const VERSION: u32 = 2;

/// How far a run came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The program is at work, or was killed at work.
    Running,
    /// A signal ended it.
    Interrupted,
    /// Everything was measured that could be.
    Complete,
}

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Bytes in a second.
    Bandwidth,
    /// Requests in a second.
    Iops,
    /// Nanoseconds for one request.
    Latency,
    /// Seconds for a whole task.
    Duration,
    /// Operations of a program in a second.
    Rate,
}

impl Metric {
    /// Whether a larger value is the better one.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::Bandwidth | Self::Iops | Self::Rate)
    }

    /// Its name within a sentence.
    pub fn in_sentence(self) -> String {
        match self {
            // An abbreviation.
            Self::Iops => self.title().into(),
            _ => self.title().to_lowercase(),
        }
    }

    /// Whether that name is of several things.
    pub fn is_plural(self) -> bool {
        matches!(self, Self::Iops | Self::Rate)
    }

    /// The name of its group in reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bandwidth => "Bandwidth",
            Self::Iops => "IOPS",
            Self::Latency => "Latency",
            Self::Duration => "Time to completion",
            Self::Rate => "Operations per second",
        }
    }
}

/// The machine that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Machine {
    /// The processor's name for itself.
    pub cpu: String,
    /// Logical processors.
    pub cores: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Kernel release.
    pub kernel: String,
    /// As in `uname -m`.
    pub architecture: String,
    /// The hypervisor under the machine, if it knows of one.
    pub hypervisor: Option<String>,
    /// `SEV-SNP` or `TDX`, if the machine is a confidential guest.
    pub confidential: Option<String>,
    /// The file system and device that the targets' files lie on.
    pub storage: String,
    /// What else speed depends on, by name: `governor`, `microcode`, `flags`, and of the disk `disk`, `scheduler` and the like.
    pub details: BTreeMap<String, String>,
}

/// One thing that is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Target {
    /// Unique in the run.
    pub name: String,
    /// As it was asked for.
    pub spec: String,
    /// The name of the target that this one is measured again as, to show the noise.
    pub control_of: Option<String>,
    /// The commands that set it up, as a shell would take them.
    pub commands: Vec<String>,
    /// Why it could not be measured here.
    pub unavailable: Option<String>,
    /// The file system and device that it lies on; none if it was not made, or that is not known.
    pub storage: Option<String>,
    /// Whether its requests may end in this machine's page cache, without the disk.
    pub page_cache: bool,
}

/// One thing that is done to each target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Case {
    /// Unique in the run.
    pub name: String,
    /// What its figures count.
    pub metric: Metric,
    /// Whether the target was first overwritten at random.
    pub aged: bool,
    /// The command, with TARGET for what names the target.
    pub command: String,
}

/// What else went on while a sample was taken.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Disturbance {
    /// Processors that other programs kept busy, on average.
    pub others: f64,
    /// Processors that the hypervisor gave to others, on average.
    pub steal: f64,
    /// The programs that took the most, with the processors that they took.
    pub programs: Vec<(String, f64)>,
}

/// One turn of one target at one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sample {
    /// A target's name.
    pub target: String,
    /// A case's name.
    pub case: String,
    /// From 0.
    pub turn: u32,
    /// Seconds since the run began.
    pub at: f64,
    /// In the case's metric.
    pub value: f64,
    /// Everything else that the program said in figures.
    pub figures: BTreeMap<String, f64>,
    /// The value inside the turn: seconds since its time began, rising, and the value over the time since the point before. Empty where the
    /// program does not say it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub course: Vec<(f64, f64)>,
    /// What else went on.
    pub meanwhile: Disturbance,
}

impl Case {
    /// The value of one of fio's options in the command, the last if it is there twice.
    pub fn option(&self, key: &str) -> Option<&str> {
        let words = self.command.split_whitespace().map(|word| word.trim_start_matches("--"));
        let mut values = words.filter_map(|word| word.split_once('=').filter(|(name, _)| *name == key));
        values.next_back().map(|(_, value)| value)
    }
}

/// A turn that gave no sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Failure {
    /// A target's name.
    pub target: String,
    /// A case's name; none if the target could not be prepared.
    pub case: Option<String>,
    /// What happened, with what the program printed.
    pub message: String,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Run {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// What was run, in a few words.
    pub title: String,
    /// The research question that it is to answer, 1 to 6.
    pub question: Option<u8>,
    /// UTC, as in RFC 3339.
    pub started: String,
    /// How far it came.
    pub state: State,
    /// Whether the processor was emulated, so that no figure says anything about speed.
    pub emulated: bool,
    /// The arguments behind `cvmio bench`.
    pub command: Vec<String>,
    /// Content of the files that the command named, by the name in the command.
    pub files: BTreeMap<String, String>,
    /// Where it was run.
    pub machine: Machine,
    /// Versions of the programs that took part, by name.
    pub programs: BTreeMap<String, String>,
    /// SHA-256 of files that took part, in hexadecimal digits, by their paths.
    pub hashes: BTreeMap<String, String>,
    /// What was measured.
    pub targets: Vec<Target>,
    /// What was done to it.
    pub cases: Vec<Case>,
    /// The target that ratios refer to.
    pub baseline: Option<String>,
    /// How often each target has its turn at each case.
    pub turns: u32,
    /// What came out.
    pub samples: Vec<Sample>,
    /// What failed.
    pub failures: Vec<Failure>,
    /// What a reader must know to understand the figures.
    pub notes: Vec<String>,
}

impl Run {
    /// A case by its name.
    pub fn case(&self, name: &str) -> Option<&Case> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// A target by its name.
    pub fn target(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// The control run, if there is one: the baseline measured a second time in each turn.
    pub fn control(&self) -> Option<&Target> {
        self.targets.iter().find(|target| target.control_of.is_some() && target.control_of == self.baseline)
    }

    /// The values of one target at one case, with their turns, in the order of the turns.
    pub fn values(&self, target: &str, case: &str) -> Vec<(u32, f64)> {
        let of = |sample: &&Sample| sample.target == target && sample.case == case;
        let mut values: Vec<(u32, f64)> =
            self.samples.iter().filter(of).map(|sample| (sample.turn, sample.value)).collect();
        values.sort_by_key(|(turn, _)| *turn);
        values
    }

    /// One of the other figures of one target at one case, as the median of its turns.
    pub fn figure(&self, target: &str, case: &str, figure: &str) -> Option<f64> {
        let of = |sample: &&Sample| sample.target == target && sample.case == case;
        let values = self.samples.iter().filter(of).filter_map(|sample| sample.figures.get(figure).copied());
        Summary::of(values).map(|summary| summary.median.value)
    }

    /// Whether two targets lie on different disks, as far as that is known. Memory is no disk.
    pub fn on_other_disk(&self, one: &str, other: &str) -> Option<(&str, &str)> {
        let storage = |name: &str| {
            self.target(name)?.storage.as_deref().filter(|storage| !storage.starts_with("tmpfs "))
        };
        let (one, other) = (storage(one)?, storage(other)?);
        // Where it is mounted says nothing of the disk.
        let disk = |storage: &str| storage.split(", mounted at").next().map(String::from);
        (disk(one) != disk(other)).then_some((one, other))
    }

    /// Whether a turn has been taken.
    pub fn has(&self, target: &str, case: &str, turn: u32) -> bool {
        self.samples
            .iter()
            .any(|sample| sample.target == target && sample.case == case && sample.turn == turn)
    }

    /// What is otherwise on a machine with these programs than where the run was begun, in words.
    pub fn differences(&self, machine: &Machine, programs: &BTreeMap<String, String>) -> Vec<String> {
        let (was, is) = (&self.machine, machine);
        let memory = |machine: &Machine| format!("{} GiB", machine.memory >> 30);
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".into());
        let mut pairs = vec![
            ("processor".to_string(), was.cpu.clone(), is.cpu.clone()),
            ("cores".into(), was.cores.to_string(), is.cores.to_string()),
            ("memory".into(), memory(was), memory(is)),
            ("kernel".into(), was.kernel.clone(), is.kernel.clone()),
            ("hypervisor".into(), name(&was.hypervisor), name(&is.hypervisor)),
            ("confidential".into(), name(&was.confidential), name(&is.confidential)),
            ("storage".into(), was.storage.clone(), is.storage.clone()),
        ];
        for program in
            self.programs.keys().chain(programs.keys().filter(|one| !self.programs.contains_key(*one)))
        {
            let version =
                |all: &BTreeMap<String, String>| all.get(program).cloned().unwrap_or_else(|| "none".into());
            pairs.push((program.clone(), version(&self.programs), version(programs)));
        }
        let differ = pairs.into_iter().filter(|(_, was, is)| was != is);
        differ.map(|(what, was, is)| format!("{what} was {was} and is {is}")).collect()
    }

    /// The file's content.
    ///
    /// # Errors
    /// Only when a value is no number, which this crate's users must not put there.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}
