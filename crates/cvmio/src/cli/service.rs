//! Volumes as a service: what programs call at boot, in pods and in scripts.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueHint};
use volume::format::protections::{Freshness, SuiteCode};

use super::anchor::AnchorOptions;
use super::{FrontEnd, RuntimeArgs};
use cli::input::{parse_name, parse_size};

/// Where the table is.
pub const TAB: &str = "/etc/cvmiotab";

/// Make a policy and an anchor for a volume that `activate` makes on first use
///
/// The policy names a new volume and allows to make it, once: where the store is blank and the anchor was never claimed. No store is
/// needed yet. Keep both files where the host of the store cannot change them.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio volume prepare /etc/cvmio/ledger.toml --size 100G \\
      --anchor file:/var/lib/cvmio/ledger.anchor")]
pub struct Prepare {
    /// Where to write the policy
    #[arg(value_hint = ValueHint::FilePath)]
    pub policy: PathBuf,
    /// Size that the volume will show, such as 512M, 1G or 2T
    #[arg(long, value_parser = parse_size)]
    pub size: u64,
    /// Where freshness will be kept, such as file:/PATH; it is made if it can be
    #[arg(long, value_name = "ADDRESS")]
    pub anchor: String,
    #[command(flatten)]
    pub anchor_options: AnchorOptions,
    /// Cipher: aes-256-gcm, aegis-128x2 or aegis-256x2
    #[arg(long, default_value = "aes-256-gcm")]
    pub suite: SuiteCode,
    /// Let the host read the data; it still cannot change it
    #[arg(long)]
    pub no_confidentiality: bool,
    /// When old data is found out: strict, write, interval or transaction, as with `create`, and with the same default
    #[arg(long, value_name = "LEVEL")]
    pub freshness: Option<Freshness>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Bring a volume up, with its file system, whatever state it is in
///
/// Prints what is there as JSON, and the same again when it is called again. A volume whose daemon has died is attached anew. A volume is
/// made on first use if its policy allows that, the store is blank and the anchor was never claimed; so is the file system on it. It is shown
/// as the option `as` of the table, or the configuration, says; one that is shown otherwise already is refused.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["name", "config", "all"]), after_help = "\
Example: from a configuration, and all of /etc/cvmiotab
  echo '{\"name\": \"ledger\", \"store\": \"/dev/vdb\", \"policy\": \"/etc/cvmio/ledger.toml\",
      \"key-file\": \"/run/keys/ledger\", \"fs\": \"ext4\", \"mountpoint\": \"/srv/ledger\"}' |
      cvmio volume activate --config -
  cvmio volume activate --all")]
pub struct Activate {
    #[command(flatten)]
    pub which: Which,
    /// How to show the volume, whatever the table or the configuration says: as with `attach`, but nbd on the unix socket only
    #[arg(long = "as", value_name = "FRONT-END", value_enum, conflicts_with = "all")]
    pub front_end: Option<FrontEnd>,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}

/// Take a volume down, with its file system, whatever state it is in
///
/// Refuses while it is in use, and says by whom. When it returns, the process that served it is gone, and the store is free. Prints the same
/// again when it is called again.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["name", "config", "all"]), after_help = "\
Example:
  cvmio volume deactivate ledger")]
pub struct Deactivate {
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}

/// Which volumes.
#[derive(Args, Debug)]
pub struct Which {
    /// The volume's name; for `activate`, as it stands in the table
    #[arg(value_parser = parse_name)]
    pub name: Option<String>,
    /// Take the volume from a configuration in JSON (`-` for standard input)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// All volumes of the table but those with the options noauto or initramfs
    #[arg(long)]
    pub all: bool,
    /// The table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, default_value = TAB)]
    pub tab: PathBuf,
}

/// Write systemd units for the volumes of the table
///
/// For each line a drop-in for cvmio@NAME.service, and a link from local-fs.target. At boot `cvmio-generator` does it, which is this
/// program under another name; by hand it shows whether the table is right.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio volume units /tmp/units --tab /etc/cvmiotab")]
pub struct Units {
    /// Directory for the units; made if it does not exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// The table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, default_value = TAB)]
    pub tab: PathBuf,
}
