//! A new volume key.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::{Offline, RuntimeArgs};

/// Give a volume a new key, and seal everything anew under it
///
/// For when the volume key may be known to others: to remove a key slot does not help then. The change begins as fast as `key add`; from then on
/// whatever is written is under the new key. Then everything that was there before is read, verified and sealed anew, and in the end the
/// old key opens nothing that the volume refers to. What is no longer used stays on STORE as it was until it is overwritten.
///
/// Also takes the NAME of an attached volume. Its users wait a moment while one session ends and the next begins; then they go on, and the
/// sealing leaves them three quarters of the time. This command waits for the end, and shows how far it is, as `status` does; run again, it
/// goes on waiting. Of a volume that is not attached this command seals everything itself.
///
/// It may be interrupted at any time. Run it again and it goes on; and an attached volume goes on by itself.
///
/// The new key is put into the key slots whose passphrase or key file is given here. Other slots are removed with --remove-other-slots;
/// without it they are a reason to refuse. Make a new header backup afterwards: older ones open nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: of an attached volume, beside those who use it
  cvmio volume rekey ledger --key-file ledger.key --remove-other-slots

Example: at once, and another slot stays
  cvmio volume rekey /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --keep-key-file spare.key")]
pub struct Rekey {
    #[command(flatten)]
    pub offline: Offline,
    /// Also keep the slot that the content of FILE opens; may be given several times
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub keep_key_file: Vec<PathBuf>,
    /// Also keep the slot that the passphrase in the first line of FILE opens; may be given several times
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub keep_passphrase_file: Vec<PathBuf>,
    /// Remove the slots that nothing was given for
    #[arg(long)]
    pub remove_other_slots: bool,
    /// Only begin: an attached volume goes on by itself, another one when it is attached
    #[arg(long)]
    pub begin: bool,
    /// Begin although a session did not detach (a session that still runs is fenced)
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}
