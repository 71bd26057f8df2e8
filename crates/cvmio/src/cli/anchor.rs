//! Anchors, and what can be done with them.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand, ValueHint};

/// What an anchor needs beside its address.
#[derive(Args, Debug, Clone, Default)]
pub struct AnchorOptions {
    /// What the anchor needs beside its address, for the policy's [anchor-options]; may be said more than once. KEY=@FILE takes the value
    /// from FILE, as is right for a secret
    #[arg(long = "anchor-option", value_name = "KEY=VALUE")]
    pub anchor_options: Vec<String>,
}

/// Look at anchors, make them, and move volumes from one to another
#[derive(Subcommand, Debug)]
#[command(after_help = "Example:\n  cvmio anchor show --policy /etc/cvmio/ledger.toml")]
pub enum AnchorCommand {
    Show(Show),
    Init(Init),
    Migrate(Migrate),
    Verify(Verify),
}

impl AnchorCommand {
    /// The store of a command that takes a path only, and no NAME of an attached volume.
    pub fn path_only(&self) -> Option<&Path> {
        match self {
            Self::Show(_) | Self::Init(_) => None,
            Self::Migrate(args) => Some(&args.offline.store),
            Self::Verify(args) => Some(&args.offline.store),
        }
    }
}

/// An anchor, by its address or by the policy that names it.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["address", "policy"]))]
pub struct Which {
    /// The anchor's address, such as file:/PATH
    pub address: Option<String>,
    #[command(flatten)]
    pub options: AnchorOptions,
    /// Take address and options from this policy
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "anchor_options")]
    pub policy: Option<PathBuf>,
}

/// Show what an anchor holds
///
/// The stamp is shown unverified. `anchor verify`, which takes the volume's key, checks that it is the volume's own.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio anchor show file:/var/lib/cvmio/ledger.anchor
  cvmio anchor show --policy /etc/cvmio/ledger.toml --json")]
pub struct Show {
    #[command(flatten)]
    pub which: Which,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Make a new anchor, and say what it protects against
///
/// Where nothing has to be made, it checks that the anchor can be reached and that no volume uses it. `volume create` does the same
/// by itself.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio anchor init file:/var/lib/cvmio/ledger.anchor")]
pub struct Init {
    /// The anchor's address, such as file:/PATH
    pub address: String,
    #[command(flatten)]
    pub options: AnchorOptions,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Move a volume to another anchor
///
/// The volume must be detached. The old anchor gets a last stamp, by which nothing can be attached any more; then the new one is claimed;
/// then the policy file is written anew. So there is never a moment without freshness, nor one with two anchors. If it is cut short, nothing
/// can be attached until it is done again. For an anchor that is lost, and for a store that does not agree with it: `volume reanchor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio anchor migrate /dev/vdb --policy /etc/cvmio/ledger.toml --key-file ledger.key \\
      --to etcd:https://h1:2379,https://h2:2379,https://h3:2379/cvmio/ledger \\
      --anchor-option ca-file=/etc/cvmio/etcd-ca.pem")]
pub struct Migrate {
    #[command(flatten)]
    pub offline: super::Offline,
    /// The new anchor's address
    #[arg(long, value_name = "ADDRESS")]
    pub to: String,
    #[command(flatten)]
    pub options: AnchorOptions,
    /// Go on although the last session did not detach: it crashed, or is alive elsewhere and is fenced by this
    #[arg(long)]
    pub force: bool,
}

/// Check a volume's store against its anchor
///
/// Opens the volume as an attach for reading does, and claims and changes nothing. Exit code 5 is an older store, 6 one with a history of
/// its own.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio anchor verify /dev/vdb --policy /etc/cvmio/ledger.toml --key-file ledger.key")]
pub struct Verify {
    #[command(flatten)]
    pub offline: super::Offline,
}
