//! Where the secret comes from that opens a key slot.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use daemon::input::{Released, Source, release_address};

/// Where the secret comes from that opens a key slot; without any of these, a passphrase is asked for.
#[derive(Args, Debug, Clone, Default)]
pub struct CredentialArgs {
    /// Use the content of FILE as the key (at least 32 random bytes)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "passphrase_file")]
    pub key_file: Option<PathBuf>,
    /// Read the passphrase from the first line of FILE (`-` for standard input) instead of the terminal
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    pub release: ReleaseArgs,
}

/// A key that the owner releases to this guest, by the evidence of its chip.
#[derive(Args, Debug, Clone, Default)]
pub struct ReleaseArgs {
    /// Have the owner release the key to this guest, by its evidence: kbs+https://HOST:PORT/REPOSITORY/TYPE/TAG
    #[arg(long, value_name = "ADDRESS", value_parser = release_address, conflicts_with_all = ["key_file", "passphrase_file"])]
    pub key_from: Option<kbs::Address>,
    /// With --key-from: authorities that may vouch for the owner's service (PEM) [default: the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "key_from")]
    pub key_from_ca: Option<PathBuf>,
    /// With --key-from and TYPE `volume`: the directory for policy and credentials that are released with the key; in memory, such as
    /// below /run
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "key_from")]
    pub release_dir: Option<PathBuf>,
    /// With --key-from: evidence of a simulated platform, by what its launcher handed over. It proves nothing
    #[arg(long, value_name = "SEAT", value_hint = ValueHint::FilePath, requires = "key_from")]
    pub simulated_seat: Option<PathBuf>,
}

impl ReleaseArgs {
    /// Where the key is released, if it is.
    pub fn released(&self) -> Option<Released> {
        Some(Released {
            address: self.key_from.clone()?,
            authorities: self.key_from_ca.clone(),
            directory: self.release_dir.clone(),
            seat: self.simulated_seat.clone(),
        })
    }
}

impl CredentialArgs {
    /// Whether any is named; if not, a passphrase would be asked for.
    pub fn is_named(&self) -> bool {
        self.key_file.is_some() || self.passphrase_file.is_some() || self.release.key_from.is_some()
    }
}

impl From<&CredentialArgs> for Source {
    fn from(args: &CredentialArgs) -> Self {
        Self {
            key_file: args.key_file.clone(),
            passphrase_file: args.passphrase_file.clone(),
            released: args.release.released(),
        }
    }
}
