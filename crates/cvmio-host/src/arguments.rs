//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use host::Mode;

/// Where a service answers `status`.
pub const CONTROL: &str = "/run/cvmio-host/control";

/// Serves disks to confidential guests, from the host's side: vhost-user-blk, polled
#[derive(Debug, Parser)]
#[command(name = "cvmio-host", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve disks until SIGTERM or SIGINT
    Serve(Serve),
    /// Say how the disks of a server are
    Status(Status),
    /// Print what to add to QEMU's command line
    QemuArgs(Vmm),
    /// Print what to add to Cloud Hypervisor's command line
    CloudHypervisorArgs(Vmm),
    /// Measure what a request takes, by how it is noticed
    Bench(Bench),
    /// Prints the grammar of these commands in JSON, for the completions of `cvmio`
    #[command(hide = true)]
    Grammar,
    /// Writes the manual pages of these commands; started by `cvmio man`
    #[command(hide = true)]
    Man {
        /// Where to
        directory: PathBuf,
    },
}

/// What is served: one disk from the command line, or any number from a file.
#[derive(Debug, Args)]
pub struct What {
    /// Disks, and the cores that serve them, in a file (TOML)
    #[arg(long, value_name = "FILE", conflicts_with = "socket", required_unless_present = "socket")]
    pub config: Option<PathBuf>,
    /// Where the VMM connects
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How many queues the guest may use [default: 16; a VMM is told 4]
    #[arg(long, value_name = "COUNT", requires = "socket")]
    pub queues: Option<u16>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  cvmio-host serve --socket /run/vm1.sock --disk /dev/vg/vm1 --mode poll --core 2"
)]
pub struct Serve {
    #[command(flatten)]
    pub what: What,
    /// The disk: a file or a block device
    #[arg(long, value_name = "FILE", requires = "socket")]
    pub disk: Option<PathBuf>,
    /// How requests are noticed [default: adaptive]
    #[arg(long, requires = "socket")]
    pub mode: Option<ModeName>,
    /// For how long `adaptive` looks at a queue before it sleeps, in microseconds [default: 50]
    #[arg(long, value_name = "MICROSECONDS", requires = "socket")]
    pub spin_us: Option<u64>,
    /// Refuse writes
    #[arg(long, requires = "socket")]
    pub read_only: bool,
    /// Go through this machine's page cache
    #[arg(long, requires = "socket")]
    pub cached: bool,
    /// What the guest sees as serial number [default: the file's name]
    #[arg(long, value_name = "NAME", requires = "socket")]
    pub id: Option<String>,
    /// Most requests in a second
    #[arg(long, value_name = "COUNT", requires = "socket")]
    pub requests_per_second: Option<u32>,
    /// Most bytes in a second
    #[arg(long, value_name = "BYTES", requires = "socket")]
    pub bytes_per_second: Option<u64>,
    /// A core for a thread that serves; may be repeated
    #[arg(long = "core", value_name = "CORE")]
    pub cores: Vec<usize>,
    /// Answer `cvmio-host status` at this path
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Answer Prometheus at this address, without a password: a loopback address is best
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ModeName {
    Poll,
    Interrupt,
    Adaptive,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Poll => Self::Poll,
            ModeName::Interrupt => Self::Interrupt,
            ModeName::Adaptive => Self::Adaptive,
        }
    }
}

#[derive(Debug, Args)]
pub struct Status {
    /// Where the server answers
    #[arg(long, value_name = "PATH", default_value = CONTROL)]
    pub control: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-host bench --core 2 --driver-core 3")]
pub struct Bench {
    /// The core of the server
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// The core of the driver
    #[arg(long, value_name = "CORE")]
    pub driver_core: Option<usize>,
    /// Where a file of 16 MiB is made
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub dir: PathBuf,
    /// How long each mode is measured at each depth
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = cli::input::parse_duration)]
    pub time: Duration,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  cvmio-host qemu-args --socket /run/vm1.sock --memory 4G --machine sev-snp"
)]
pub struct Vmm {
    #[command(flatten)]
    pub what: What,
    /// The guest's memory, as the VMM writes sizes
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub memory: String,
    /// Memory in huge pages of 2 MiB
    #[arg(long)]
    pub huge: bool,
    /// What kind of guest it is
    #[arg(long, value_name = "KIND", default_value = "plain")]
    pub machine: Machine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// A guest that is not confidential, or one that only looks like it
    Plain,
    /// AMD SEV-SNP
    SevSnp,
    /// Intel TDX
    Tdx,
}
