//! What belongs to header, key slots and anchor of a volume.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::{Offline, RuntimeArgs};

/// Add, remove and list what opens a volume
#[derive(Subcommand, Debug)]
pub enum Key {
    Add(KeyAdd),
    Remove(KeyRemove),
    List(KeyList),
}

/// Let another passphrase or key file open a volume
///
/// Also takes the NAME of an attached volume; its users notice nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: a passphrase for emergencies, and a key file beside the users of an attached volume
  cvmio volume key add /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --label emergency
  cvmio volume key add ledger --key-file ledger.key --new-key-file spare.key")]
pub struct KeyAdd {
    #[command(flatten)]
    pub offline: Offline,
    /// The new key: the content of FILE (at least 32 random bytes)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "new_passphrase_file")]
    pub new_key_file: Option<PathBuf>,
    /// The new passphrase: the first line of FILE; without either, it is asked for
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub new_passphrase_file: Option<PathBuf>,
    /// The new key: what the owner's service will release to a guest, from FILE (at least 32 random bytes)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["new_key_file", "new_passphrase_file"])]
    pub new_released_file: Option<PathBuf>,
    /// Name of the new slot
    #[arg(long, default_value = "")]
    pub label: String,
    /// Go on although a session did not detach (a session that still runs is fenced)
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}

/// Empty a key slot of a volume
///
/// Also takes the NAME of an attached volume; its users notice nothing. A removed passphrase opens no slot any more, and an
/// older header cannot be put back unless freshness is off. A copy of the volume key itself stays good: `cvmio volume rekey` replaces that key.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio volume key remove /mnt/host/ledger.img 1 --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key")]
pub struct KeyRemove {
    #[command(flatten)]
    pub offline: Offline,
    /// The slot's number, as in `key list`
    pub slot: usize,
    /// Go on although a session did not detach (a session that still runs is fenced)
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}

/// List the key slots of a volume
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio volume key list /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml")]
pub struct KeyList {
    /// File or block device with a volume on it, or the name of an attached one
    #[arg(value_hint = ValueHint::AnyPath)]
    pub store: PathBuf,
    /// The volume's attach policy [default: STORE.policy.toml]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Go through the page cache, where STORE cannot do direct I/O
    #[arg(long)]
    pub buffered: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}

/// Save header and key slots of a volume, and put them back
#[derive(Subcommand, Debug)]
pub enum Header {
    Backup(HeaderBackup),
    Restore(HeaderRestore),
}

/// Save the header and the key slots of a volume to a file
///
/// Without them the volume key is lost, and all data with it. The file holds no secret in the clear, but its passphrases can be guessed at.
/// Make a new one after each change of the keys: an older one cannot be put back, unless freshness is off. Also takes the NAME of an attached
/// volume, which needs no key and no policy; its users notice nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: of a volume that is not attached, and of one that is
  cvmio volume header backup /mnt/host/ledger.img /root/ledger.header \\
      --policy /etc/cvmio/ledger.toml --key-file ledger.key
  cvmio volume header backup ledger /root/ledger.header")]
pub struct HeaderBackup {
    #[command(flatten)]
    pub offline: Offline,
    /// File to be made (none is overwritten), or `-` for standard output
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}

/// Put the header and the key slots of a volume back from a file
///
/// For a store whose first blocks were damaged. Refuses a header of another volume, one that contradicts the policy, and one that the
/// anchor does not vouch for. Data is not touched. If it is cut short, do it again.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio volume header restore /mnt/host/ledger.img /root/ledger.header \\
      --policy /etc/cvmio/ledger.toml --key-file ledger.key")]
pub struct HeaderRestore {
    #[command(flatten)]
    pub offline: Offline,
    /// File that `header backup` made, or `-` for standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

/// Choose the state that counts, when store and anchor no longer agree
///
/// For faults without an attacker: a backup was put back, the anchor was lost or is to move, a disk has lied. Shows the states that STORE
/// offers and what the anchor says, and checks the chosen state; with --confirm that state counts from now on. What came after it is given up,
/// and a session that still runs is fenced. The host of STORE decides what it offers: confirm only what you expected to find.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: look first, then accept what was shown
  cvmio volume reanchor /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --to latest
  cvmio volume reanchor /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --to latest --confirm 41:9f3ac2d17be0a455

Example: the anchor is lost
  cvmio volume reanchor /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --lost-anchor --anchor file:/var/lib/cvmio/ledger-2.anchor")]
pub struct Reanchor {
    #[command(flatten)]
    pub offline: Offline,
    /// The state: `latest` (what an attach would begin from, if it is there), a generation such as 41, or generation and head such as
    /// 41:9f3ac2d17be0a455
    #[arg(long, value_name = "STATE", default_value = "latest")]
    pub to: volume::Choice,
    /// Accept the state, named by generation and head as it was shown
    #[arg(long, value_name = "GENERATION:HEAD")]
    pub confirm: Option<volume::StateName>,
    /// Move to this anchor, which is made if it can be. The old one ends, and the policy file is written anew
    #[arg(long, value_name = "ADDRESS")]
    pub anchor: Option<String>,
    #[command(flatten)]
    pub anchor_options: super::anchor::AnchorOptions,
    /// Go on although the old anchor cannot be read; a session that it keeps alive somewhere is not fenced
    #[arg(long, requires = "anchor")]
    pub lost_anchor: bool,
    /// Accept a state with damaged blocks; they stay unreadable until they are written again
    #[arg(long)]
    pub accept_damage: bool,
}
