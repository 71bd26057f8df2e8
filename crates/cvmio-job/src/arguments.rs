//! What can be typed: the commands of `cvmio` that this program carries out.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Containers on machines that nobody trusts, and results that can be trusted.
#[derive(Parser, Debug)]
#[command(name = "cvmio", bin_name = "cvmio", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Run(Box<Run>),
    /// List, follow, fetch and end jobs that run
    #[command(subcommand)]
    Job(Job),
    /// Build the image that guests boot
    #[command(subcommand)]
    Image(Image),
    /// What a guest does; the image starts it
    #[command(subcommand, hide = true)]
    Guest(Guest),
    /// Prints the grammar of these commands in JSON, for the completions of `cvmio`
    #[command(hide = true)]
    Grammar,
    /// Writes the manual pages of these commands; started by `cvmio man`
    #[command(hide = true)]
    Man {
        directory: PathBuf,
    },
}

/// How a guest's memory is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// AMD SEV-SNP
    Snp,
    /// Intel TDX
    Tdx,
    /// Not at all: for trying it out, on a machine without such a chip
    Simulated,
}

/// Run a container in an attested guest and bring its signed result back; the exit code is the container's
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  cvmio run compress.toml --image guest.image --allow-simulated
  cvmio run compress.toml --image guest.image --platform snp --firmware OVMF.fd --policy owner.toml --cache collateral
  cvmio run --verify compress.manifest.json --policy owner.toml")]
pub struct Run {
    /// The job file, in TOML or JSON
    #[arg(required_unless_present_any = ["verify", "schema"])]
    pub file: Option<PathBuf>,
    /// The directory that `cvmio image build` has made
    #[arg(long, value_name = "DIR", env = "CVMIO_IMAGE", required_unless_present_any = ["verify", "schema"])]
    pub image: Option<PathBuf>,
    /// How the guest's memory is protected
    #[arg(long, value_enum, default_value = "simulated")]
    pub platform: Kind,
    /// The guest's firmware (OVMF), for SEV-SNP and TDX
    #[arg(long, value_name = "FILE", required_if_eq_any = [("platform", "snp"), ("platform", "tdx")])]
    pub firmware: Option<PathBuf>,
    /// QEMU
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    pub qemu: PathBuf,
    /// Return when the container has begun; `cvmio job resume` brings the result
    #[arg(long)]
    pub detach: bool,
    /// Verify a manifest that an earlier run has left, and the results beside it
    #[arg(long, value_name = "MANIFEST", conflicts_with_all = ["file", "image", "detach", "replace"])]
    pub verify: Option<PathBuf>,
    /// Print the JSON schema of job files
    #[arg(long, conflicts_with_all = ["file", "image", "detach", "replace", "verify"])]
    pub schema: bool,
    #[command(flatten)]
    pub trust: Trust,
    /// Replace results that are there
    #[arg(long)]
    pub replace: bool,
    /// Print how it ended in JSON; what the container prints goes to standard error then
    #[arg(long)]
    pub json: bool,
}

/// By what evidence is judged.
#[derive(Args, Debug)]
pub struct Trust {
    /// The evidence policy
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// A directory of `cvmio attest fetch`: certificates, revocation lists and collateral
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Let a simulated platform pass: no chip vouches for anything then
    #[arg(long)]
    pub allow_simulated: bool,
    /// The public key of another machine's simulated platform; this machine's own one is known
    #[arg(long, value_name = "HEX", requires = "allow_simulated")]
    pub simulated_root: Option<String>,
}

/// What to do with a job that runs.
#[derive(Subcommand, Debug)]
pub enum Job {
    /// List jobs that run
    List {
        /// Print them in JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a job prints, from its beginning, until it ends
    Logs {
        /// The job's name
        name: String,
    },
    /// Wait for a job's end, bring its result and power its machine off
    #[command(visible_alias = "fetch")]
    Resume {
        /// The job's name
        name: String,
        /// Print how it ended in JSON; what the container prints goes to standard error then
        #[arg(long)]
        json: bool,
    },
    /// End a job and its machine; all that was in its memory is gone
    Stop {
        /// The job's name
        name: String,
    },
}

/// What to do with images.
#[derive(Subcommand, Debug)]
pub enum Image {
    Build(Build),
    Policy(Policy),
}

/// Print an evidence policy for guests of an image that run a job on a simulated platform
///
/// The measurement covers kernel, initramfs and command line, and the command line has the size of the job's storage. For SEV-SNP and TDX,
/// `cvmio attest measure` computes the measurement of the same files and command line.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  cvmio image policy guest.image compress.toml > owner.toml")]
pub struct Policy {
    /// The directory that `cvmio image build` has made
    pub image: PathBuf,
    /// The job file
    pub file: PathBuf,
    /// Print the command line that is measured instead
    #[arg(long)]
    pub command_line: bool,
}

/// Build the image that guests boot: the same packages, programs and date make the same bytes
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  cvmio image build --out guest.image
  cvmio image build --out again.image --lock guest.image/packages.lock")]
pub struct Build {
    /// The directory that is made
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The lock file of an earlier build: the same packages and date, or none
    #[arg(long, value_name = "FILE")]
    pub lock: Option<PathBuf>,
    /// Where Debian's packages are fetched from
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
    /// The date of all files, in seconds since 1970; of today's midnight if it is left out
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH", conflicts_with = "lock")]
    pub date: Option<u64>,
}

/// What a guest does.
#[derive(Subcommand, Debug)]
pub enum Guest {
    /// From the end of the boot to the end of the machine
    Boot,
    /// One word of the owner's
    Session,
    /// The container
    Work,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_must_not_be_forgotten_is_asked_for() {
        let refusal = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap_err().to_string();
        assert!(refusal("cvmio run job.toml").contains("--image"));
        assert!(refusal("cvmio run job.toml --image i --platform snp").contains("--firmware"));
        assert!(refusal("cvmio run --verify m job.toml").contains("cannot be used with"));
        assert!(refusal("cvmio run --verify m --simulated-root 00").contains("--allow-simulated"));
    }
}
