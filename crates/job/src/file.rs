//! The job file: what is to run, on what, and what is to come back.
//!
//! It is written as TOML, or as JSON of the same shape. The JSON of the published framework (`sev-snp-in-memory-storage`, section 4) is read,
//! too; the module `published` says how it is understood.

mod kinds;
mod parse;
mod published;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use kinds::{Digest, GuestPath, KindError, Name, Seconds, Size};
pub use parse::{MAX_JOB, ParseError, schema};

/// A job, as its file has it and as the rules of [`Job::parse`] let it pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Job {
    /// What the job is called, in lists and in the manifest.
    pub name: Name,
    /// What is run.
    pub image: Image,
    /// How it is run.
    #[serde(default)]
    pub run: Run,
    /// Files and directories of the owner's that the container reads.
    #[serde(default)]
    pub inputs: Vec<Input>,
    /// Files and directories of the container that the owner gets.
    #[serde(default)]
    pub outputs: Vec<Output>,
    /// Files that the guest gets only once its evidence has passed.
    #[serde(default)]
    pub secrets: Vec<Secret>,
    /// Volumes that outlive the machine.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// What the container may take.
    #[serde(default)]
    pub limits: Limits,
    /// The machine.
    #[serde(default)]
    pub guest: Guest,
}

/// The container's image: one of two ways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Image {
    /// An OCI archive, as `podman save --format oci-archive` writes one.
    pub archive: Option<PathBuf>,
    /// Its digest: SHA-256 of the archive's file.
    pub digest: Option<Digest>,
    /// A directory whose Dockerfile is built in the guest, without a network.
    pub context: Option<PathBuf>,
    /// The Dockerfile's name in that directory; `Dockerfile` if it is left out.
    pub dockerfile: Option<String>,
    /// What the unpacked image takes, where that cannot be counted before: for a Dockerfile.
    pub unpacked: Option<Size>,
}

/// How the container is run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Run {
    /// Program and arguments, instead of the image's.
    pub command: Option<Vec<String>>,
    /// Variables in addition to the image's. They are in the manifest: secrets belong into files.
    pub environment: BTreeMap<String, String>,
    /// `UID` or `UID:GID`, in numbers, instead of the image's.
    pub user: Option<String>,
    /// The directory in which it starts, instead of the image's.
    pub directory: Option<GuestPath>,
}

/// A file or directory that the container reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Input {
    /// Where it is; from the job file's directory, if the path is relative.
    pub from: PathBuf,
    /// Where the container finds it.
    pub to: GuestPath,
    /// Whether the container may change its copy.
    #[serde(default)]
    pub writable: bool,
}

/// A file or directory that comes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Output {
    /// Where the container leaves it.
    pub from: GuestPath,
    /// The directory into which it is put; from the job file's directory, if the path is relative.
    pub to: PathBuf,
    /// Whether the job is done well without it.
    #[serde(default)]
    pub optional: bool,
    /// What it takes at most; it counts in the memory budget.
    #[serde(default)]
    pub size: Option<Size>,
}

/// A file that only an attested guest gets. It is never on a command line, in a variable, in the image or in the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Secret {
    /// Where it is.
    pub from: PathBuf,
    /// Where the container finds it, readable by its user only.
    pub to: GuestPath,
}

/// A protected volume whose file system the container reads and writes, and which outlives the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Volume {
    /// Where the container finds the file system.
    pub to: GuestPath,
    /// The disk: a file or block device of the machine that runs the guest, which nobody trusts.
    pub disk: PathBuf,
    /// The volume's attach policy, with an anchor that is out of that machine's reach.
    pub policy: PathBuf,
    /// A key file that opens the volume.
    pub key_file: PathBuf,
}

/// What the container may take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// Memory of its processes, without its files; what the budget leaves, if it is left out.
    pub memory: Option<Size>,
    /// Processors, 1.5 for one and a half.
    pub processors: Option<Hundredths>,
    /// Wall-clock time, as `90s` or `2h`.
    pub time: Option<Seconds>,
    /// Processes and threads.
    pub processes: Option<u32>,
    /// What it may write: image, inputs and outputs not counted.
    pub scratch: Option<Size>,
}

/// A number of processors, in hundredths.
pub type Hundredths = kinds::Hundredths;

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Guest {
    /// Memory: everything that is written lies in it, too.
    pub memory: Size,
    /// Virtual processors.
    pub processors: u16,
    /// How long it may take to boot and to show its evidence.
    pub boot_time: Seconds,
}

impl Default for Guest {
    fn default() -> Self {
        Self { memory: Size(2 << 30), processors: 2, boot_time: Seconds(300) }
    }
}
