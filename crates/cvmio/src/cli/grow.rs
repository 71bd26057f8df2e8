//! What makes a volume larger.

use clap::Args;

use super::{Offline, RuntimeArgs};
use cli::input::parse_size;

/// Let a volume use more of its store
///
/// Nothing moves and nothing is lost: the content stays, and the new space reads as zeros. A file is made longer where that is needed; make a
/// disk larger first. The policy file gets the new size, so replace copies of it. If it is cut short, do it again.
/// A volume grows 16 times at most, and never shrinks.
///
/// Also takes the NAME of an attached volume. Its users wait a moment while one session ends and the next begins, and go on. Then its file
/// and loop device have the new size, and NBD clients that connect from then on see it. A ublk device keeps its size: detach the volume first.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: of an attached volume, and of the file system on its loop device
  cvmio volume grow ledger --size 200G --key-file ledger.key && resize2fs /dev/loop0

Example: of one that is not attached
  cvmio volume grow /mnt/host/ledger.img --size 200G --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key")]
pub struct Grow {
    #[command(flatten)]
    pub offline: Offline,
    /// Size that the volume shows then, such as 512M, 1G or 2T; without it, as much as STORE holds (a thin volume keeps its size, and has
    /// more space for it)
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Go on although a session did not detach (a session that still runs is fenced)
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}
