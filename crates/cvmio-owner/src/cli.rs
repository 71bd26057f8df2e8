//! The command line.

use attest::simulated::RootKey;
use clap::{Args, Parser, Subcommand};
use cli::input::parse_duration;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Keeps the stamps of protected volumes on a machine that the volumes' host does not hold
#[derive(Debug, Parser)]
#[command(name = "cvmio-owner", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a state directory, and an authority with a certificate for the service
    Init(Init),
    /// Serve volumes until SIGTERM or SIGINT
    Serve(Serve),
    /// Give certificates another 825 days, with the keys that they have
    Renew(Renew),
    /// List the volumes
    List(List),
    /// Add volumes, and say which clients may move them
    #[command(subcommand)]
    Volume(Volume),
    /// Show and check the audit log
    #[command(subcommand)]
    Audit(Audit),
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

#[derive(Debug, Args)]
pub struct Place {
    /// The state directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cvmio-owner")]
    pub state: PathBuf,
    /// The service's own anchor, as it was given to `init`
    #[arg(long, value_name = "ADDRESS")]
    pub anchor: Option<String>,
    /// An option of the service's own anchor; KEY=@FILE reads the value from a file
    #[arg(long, value_name = "KEY=VALUE", requires = "anchor")]
    pub anchor_option: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-owner init --host owner.example")]
pub struct Init {
    #[command(flatten)]
    pub place: Place,
    /// A name or IP address under which clients reach the service; may be repeated
    #[arg(long = "host", value_name = "HOST", required_unless_present = "no_authority")]
    pub hosts: Vec<String>,
    /// Make no authority and no certificate: you have your own
    #[arg(long, conflicts_with = "hosts")]
    pub no_authority: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  cvmio-owner serve --listen 0.0.0.0:7443\n  cvmio-owner serve --listen 0.0.0.0:7443 --releases ./releases.toml --release-listen 0.0.0.0:8080"
)]
pub struct Serve {
    #[command(flatten)]
    pub place: Place,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// The service's certificate (PEM) [default: the one that `init` made]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The authority of clients' certificates (PEM) [default: the one that `init` made]
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    #[command(flatten)]
    pub releases: Releases,
}

/// Secrets for attested guests.
#[derive(Debug, Args)]
pub struct Releases {
    /// Also release secrets to attested guests, as the file says (TOML); needs --release-listen
    #[arg(long, value_name = "FILE", requires = "release_listen")]
    pub releases: Option<PathBuf>,
    /// Where guests ask for them, by the KBS protocol over TLS
    #[arg(long, value_name = "ADDRESS:PORT", requires = "releases")]
    pub release_listen: Option<SocketAddr>,
    /// A directory of `cvmio attest fetch`, with what evidence is judged by
    #[arg(long, value_name = "DIR", requires = "releases")]
    pub evidence_cache: Option<PathBuf>,
    /// Let evidence of simulated platforms count, by the public key of its root (hexadecimal digits). It proves nothing
    #[arg(long, value_name = "ROOT", requires = "releases", value_parser = RootKey::parse)]
    pub allow_simulated: Vec<RootKey>,
    /// How long a guest's attestation counts
    #[arg(long, value_name = "TIME", requires = "releases", default_value = "5m", value_parser = parse_duration)]
    pub attestation_lifetime: Duration,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  cvmio-owner renew\n  cvmio-owner renew --client ./ledger-client/client.pem"
)]
pub struct Renew {
    /// The state directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cvmio-owner")]
    pub state: PathBuf,
    /// Renew these certificates of clients (PEM), and not the service's; may be repeated
    #[arg(long = "client", value_name = "FILE", conflicts_with_all = ["hosts", "authority"])]
    pub clients: Vec<PathBuf>,
    /// A name or IP address for the service's new certificate; may be repeated [default: those that it has]
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Renew the authority's certificate as well, for 10 years
    #[arg(long)]
    pub authority: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-owner list --json")]
pub struct List {
    #[command(flatten)]
    pub place: Place,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Make a place for a volume's stamp
    Add(Add),
    /// Let one more client move a volume
    Allow(Allow),
    /// Do not let a client move a volume any more
    Disallow(Disallow),
    /// Never move a volume's stamp again; it stays readable
    #[command(after_help = "Example:\n  cvmio-owner volume retire ledger")]
    Retire(Named),
    /// Give up a volume's place, with its stamp
    #[command(after_help = "Example:\n  cvmio-owner volume remove ledger")]
    Remove(Named),
}

#[derive(Debug, Args)]
pub struct Named {
    #[command(flatten)]
    pub place: Place,
    /// The volume's name at the service
    pub name: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-owner volume add ledger --new-client ./ledger-client")]
pub struct Add {
    #[command(flatten)]
    pub named: Named,
    /// A client that may move it: its certificate (PEM), or 64 hexadecimal digits; may be repeated
    #[arg(long = "client", value_name = "CLIENT")]
    pub clients: Vec<String>,
    /// Make a key and a certificate for a new client that may move it, in this directory
    #[arg(long, value_name = "DIR")]
    pub new_client: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false, id = "which-client")]
pub struct WhichClient {
    /// The client: its certificate (PEM), or 64 hexadecimal digits
    #[arg(long, value_name = "CLIENT")]
    pub client: Option<String>,
    /// Make a key and a certificate for a new client, in this directory
    #[arg(long, value_name = "DIR")]
    pub new_client: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-owner volume allow ledger --client ./other-client/client.pem")]
pub struct Allow {
    #[command(flatten)]
    pub named: Named,
    #[command(flatten)]
    pub client: WhichClient,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-owner volume disallow ledger --client ./other-client/client.pem")]
pub struct Disallow {
    #[command(flatten)]
    pub named: Named,
    /// The client: its certificate (PEM), or 64 hexadecimal digits
    #[arg(long, value_name = "CLIENT")]
    pub client: String,
}

#[derive(Debug, Subcommand)]
pub enum Audit {
    /// Check the chain of entries from the first to the last
    Verify(Verify),
    /// Print the entries, one a line
    Show(Show),
    /// Write the entries that the database has into a file, to check them elsewhere
    Export(Export),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-owner audit verify")]
pub struct Verify {
    #[command(flatten)]
    pub place: Place,
    /// An entry that the log must have, as an earlier check printed it
    #[arg(long, value_name = "NUMBER:HASH")]
    pub head: Option<String>,
    /// Check these files instead of the state directory: archives and exports, in their order
    #[arg(conflicts_with_all = ["anchor", "anchor_option"])]
    pub files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-owner audit show")]
pub struct Show {
    #[command(flatten)]
    pub place: Place,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cvmio-owner audit export ./ledger.log")]
pub struct Export {
    #[command(flatten)]
    pub place: Place,
    /// The file to make
    pub file: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_and_manual_pages_have_every_command() {
        let grammar = cli::grammar::Grammar::of(&Cli::command());
        let names = |grammar: &cli::grammar::Grammar| {
            grammar.commands.iter().map(|command| command.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&grammar), ["init", "serve", "renew", "list", "volume", "audit"]);
        let directory = tempfile::tempdir().unwrap();
        cli::manual::write(Cli::command(), directory.path(), |_| true).unwrap();
        for page in ["cvmio-owner.1", "cvmio-owner-serve.1", "cvmio-owner-volume-add.1"] {
            assert!(directory.path().join(page).exists(), "{page}");
        }
        assert!(!directory.path().join("cvmio-owner-grammar.1").exists());
    }
}
