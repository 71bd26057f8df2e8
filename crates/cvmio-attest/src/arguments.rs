//! What can be asked for.

use std::path::PathBuf;

use attest::snp::measure::{Vmm, processor_signature};
use attest::{Hex, ReportData};
use clap::{Args, Parser, Subcommand};

/// Evidence that a chip gives about a confidential VM: made, judged and predicted.
#[derive(Debug, Parser)]
#[command(name = "cvmio-attest", bin_name = "cvmio attest", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// In a confidential VM: have its chip make evidence, as one JSON document
    Report(Report),
    /// Judge evidence by a policy: yes, or no with every reason
    Verify(Box<Verify>),
    /// Compute the measurement that a guest must have, from what it boots
    Measure(Measure),
    /// Keep certificates, revocation lists and collateral in a directory, for verifying without a network
    Fetch(Fetch),
    /// Say what this machine can do, and what is missing
    Doctor(Doctor),
    /// Evidence without a chip, for trying things: it proves nothing
    #[command(subcommand)]
    Simulate(Simulate),
    /// Prints the grammar of these commands in JSON, for the completions of `cvmio`
    #[command(hide = true)]
    Grammar,
    /// Writes the manual pages of these commands; started by `cvmio man`
    #[command(hide = true)]
    Man { directory: PathBuf },
}

fn parse_report_data(text: &str) -> Result<ReportData, String> {
    Hex::parse(text)
}

fn parse_nonce(text: &str) -> Result<Nonce, String> {
    let bytes = hex::decode(text).map_err(|error| format!("expected hexadecimal digits: {error}"))?;
    if (16..=64).contains(&bytes.len()) {
        Ok(Nonce(bytes))
    } else {
        Err("expected 16 to 64 bytes".to_string())
    }
}

fn parse_features(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

fn parse_processor(text: &str) -> Result<u32, String> {
    processor_signature(text).ok_or_else(|| {
        let known = attest::snp::measure::PROCESSORS.map(|(name, _)| name).join(", ");
        format!(
            "this type of processors is not known; known are {known}, each also with a version such as -v4"
        )
    })
}

/// A nonce of a verifier.
#[derive(Debug, Clone)]
pub struct Nonce(pub Vec<u8>);

#[derive(Debug, Args)]
pub struct Report {
    /// The verifier's nonce, 16 to 64 bytes as hexadecimal digits
    #[arg(long, value_parser = parse_nonce, required_unless_present = "report_data")]
    pub nonce: Option<Nonce>,
    /// The report data itself, 64 bytes as hexadecimal digits
    #[arg(long, value_parser = parse_report_data, conflicts_with = "nonce")]
    pub report_data: Option<ReportData>,
    /// What the launcher of a simulated platform has handed over; the evidence is simulated then
    #[arg(long, value_name = "SEAT")]
    pub simulated: Option<PathBuf>,
    /// The privilege level to ask as (SNP)
    #[arg(long)]
    pub vmpl: Option<u32>,
    /// Where the evidence goes, instead of standard output
    #[arg(long)]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Verify {
    /// The evidence: a JSON document of `cvmio attest report`, or an SNP report or a TDX quote as the chip made it
    pub evidence: PathBuf,
    /// The evidence policy
    #[arg(long)]
    pub policy: PathBuf,
    /// The nonce that the evidence must answer
    #[arg(long, value_parser = parse_nonce, required_unless_present_any = ["report_data", "any_report_data"])]
    pub nonce: Option<Nonce>,
    /// The report data that the evidence must have
    #[arg(long, value_parser = parse_report_data, conflicts_with = "nonce")]
    pub report_data: Option<ReportData>,
    /// Do not look at the report data: the evidence may be old, or another guest's
    #[arg(long, conflicts_with_all = ["nonce", "report_data"])]
    pub any_report_data: bool,
    /// Certificates, PEM or DER; can be given more than once
    #[arg(long, value_name = "FILE")]
    pub certificates: Vec<PathBuf>,
    /// A revocation list, PEM or DER; can be given more than once
    #[arg(long, value_name = "FILE")]
    pub crl: Vec<PathBuf>,
    /// Intel's collateral, JSON
    #[arg(long, value_name = "FILE")]
    pub collateral: Option<PathBuf>,
    /// The event log of a TDX guest
    #[arg(long, value_name = "FILE")]
    pub event_log: Option<PathBuf>,
    /// A directory of `cvmio attest fetch`
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// The time to judge at, in seconds since 1970, instead of this machine's
    #[arg(long, value_name = "SECONDS")]
    pub time: Option<u64>,
    /// Let evidence of a simulated platform pass, by the public key of its root (hexadecimal digits, or a file with them). It proves nothing
    #[arg(long, value_name = "ROOT")]
    pub allow_simulated: Option<String>,
    /// Where the measurement is another one: try what people get wrong with this launch
    #[arg(long, requires = "firmware")]
    pub explain: bool,
    #[command(flatten)]
    pub launch: Launch,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Launch {
    /// The image of the guest's firmware (OVMF)
    #[arg(long, value_name = "FILE")]
    pub firmware: Option<PathBuf>,
    /// The kernel, if it is booted directly
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// The initrd
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub initrd: Option<PathBuf>,
    /// The kernel's command line, exactly as the VMM has it
    #[arg(
        long,
        value_name = "TEXT",
        requires = "kernel",
        default_value_if("kernel", clap::builder::ArgPredicate::IsPresent, "")
    )]
    pub append: Option<String>,
    /// How many virtual processors
    #[arg(long, default_value_t = 1)]
    pub vcpus: u32,
    /// Their type, as in QEMU
    #[arg(long, default_value = "EPYC-v4", value_parser = parse_processor)]
    pub vcpu_type: u32,
    /// SEV features: 0x1, and with debug swap 0x21
    #[arg(long, default_value = "0x1", value_parser = parse_features)]
    pub guest_features: u64,
    /// The VMM: qemu or ec2
    #[arg(long, default_value_t)]
    pub vmm: Vmm,
    /// Another firmware that the guest may have been launched with, for `--explain`; can be given more than once
    #[arg(long, value_name = "FILE")]
    pub or_firmware: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Measure {
    #[command(flatten)]
    pub launch: Launch,
    /// Measure as a simulated platform does: kernel, initrd and command line
    #[arg(long, requires = "kernel", conflicts_with = "firmware")]
    pub simulated: bool,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Fetch {
    /// The directory to keep them in
    #[arg(long)]
    pub cache: PathBuf,
    /// A directory with certificates and revocation lists (PEM or DER) and collateral (JSON)
    #[arg(long, value_name = "DIR", required_unless_present_any = ["table", "url"])]
    pub from: Option<PathBuf>,
    /// A certificate table, as a host gives it beside a report (auxblob)
    #[arg(long, value_name = "FILE")]
    pub table: Option<PathBuf>,
    /// Where a server has a certificate, a chain, a revocation list or collateral, http or https; can be given more than once. What comes is
    /// judged by its signatures, not by where it is from
    #[arg(long, value_name = "URL")]
    pub url: Vec<String>,
    /// Authorities that may vouch for the servers (PEM)
    #[arg(long, value_name = "FILE", requires = "url", default_value = "/etc/ssl/certs/ca-certificates.crt")]
    pub url_ca: PathBuf,
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Simulate {
    /// Make a root key, and print its public key
    Root {
        /// The file for the private key, which must not exist
        #[arg(long)]
        key: PathBuf,
    },
    /// Vouch for a guest: write what it needs to make evidence
    Launch(SimulateLaunch),
}

#[derive(Debug, Args)]
pub struct SimulateLaunch {
    /// The root's private key
    #[arg(long)]
    pub key: PathBuf,
    /// The kernel
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// The initrd
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// The kernel's command line
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub append: String,
    /// The version of what stands for firmware
    #[arg(long, default_value_t = 0)]
    pub tcb: u64,
    /// 32 bytes of the launcher's choice, as hexadecimal digits
    #[arg(long, value_parser = Hex::<32>::parse, default_value_t = Hex::<32>::default())]
    pub host_data: Hex<32>,
    /// The machine's number, as hexadecimal digits
    #[arg(long, value_parser = Hex::<32>::parse, default_value_t = Hex::<32>::default())]
    pub machine_id: Hex<32>,
    /// The file for the guest, which must not exist. Whoever has it speaks for the guest
    #[arg(long)]
    pub out: PathBuf,
}
