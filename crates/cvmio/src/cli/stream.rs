//! What belongs to streams: a volume's content as a file, or through a pipe.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use super::{CredentialArgs, NewVolume, Offline};
use cli::input::parse_size;

/// What opens a stream, which has a key of its own; without either, a passphrase is asked for.
#[derive(Args, Debug, Clone, Default)]
pub struct StreamCredential {
    /// The stream's own key: the content of FILE (at least 32 random bytes)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "stream_passphrase_file")]
    pub stream_key_file: Option<PathBuf>,
    /// The stream's own passphrase: the first line of FILE; without either, it is asked for
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub stream_passphrase_file: Option<PathBuf>,
}

impl StreamCredential {
    /// As one of a volume's.
    pub fn as_credential(&self) -> CredentialArgs {
        CredentialArgs {
            key_file: self.stream_key_file.clone(),
            passphrase_file: self.stream_passphrase_file.clone(),
            ..CredentialArgs::default()
        }
    }
}

/// Write the content of a volume that is not attached as a sealed stream
///
/// For backups, and for moving to another host, through places that need not be trusted: there the stream can't be read, nor be changed or cut
/// short unnoticed. Only data is in it, holes take no room. It holds the state that the anchor vouches for now, and is named by it; note the
/// state, if `import --expect` shall refuse an older stream. Changes nothing on STORE. If it is cut short, go on with --resume.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: a backup
  head -c 32 /dev/urandom > backup.key
  cvmio volume export /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --to /mnt/nas/ledger.stream --stream-key-file backup.key

Example: straight into a volume on other storage
  cvmio volume export /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --to - --stream-key-file pipe.key |
    cvmio volume import - --to /mnt/new/ledger.img --stream-key-file pipe.key \\
      --policy /etc/cvmio/new.toml --anchor file:/var/lib/cvmio/new.anchor --key-file new.key")]
pub struct Export {
    #[command(flatten)]
    pub offline: Offline,
    /// File to be made (none is overwritten), or `-` for standard output
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub to: PathBuf,
    #[command(flatten)]
    pub credential: StreamCredential,
    /// Go on with FILE, if it holds the beginning of a stream of this volume in this state: what is there is verified first
    #[arg(long)]
    pub resume: bool,
    /// Go on although a session may be writing. A block that it uses again then ends the export as corrupt
    #[arg(long)]
    pub force: bool,
}

/// Make a new volume of a stream that `export` wrote
///
/// The new volume has an id, key, policy and anchor of its own, and may differ in everything but its content. Until all of the stream has been
/// verified, its policy lies at POLICY.importing, and no attach takes it for a whole volume. If it is cut short, run the same command again:
/// what is there already is compared, and not written again. One that had ended says so, if all that the volume holds is still what the stream
/// holds.
///
/// With --check no volume is made: the stream is verified from its beginning to its end, and what it holds is said. That needs the stream's
/// own key and nothing else. Check each backup when it is made, and now and then where it lies.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: restore a backup to a new volume
  cvmio volume import /mnt/nas/ledger.stream --to /mnt/host/ledger-2.img \\
      --stream-key-file backup.key --key-file ledger-2.key \\
      --policy /etc/cvmio/ledger-2.toml --anchor file:/var/lib/cvmio/ledger-2.anchor \\
      --expect 41:9f3ac2d17be0a455

Example: is the backup whole, and of the state that it should be of?
  cvmio volume import /mnt/nas/ledger.stream --check --stream-key-file backup.key \\
      --expect 41:9f3ac2d17be0a455")]
pub struct Import {
    /// File with a stream, or `-` for standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub from: PathBuf,
    /// File (made if it does not exist) or block device for the new volume
    #[arg(long, value_name = "STORE", value_hint = ValueHint::AnyPath, required_unless_present = "check")]
    to: Option<PathBuf>,
    /// Only verify all of the stream, and say what it holds
    #[arg(long, conflicts_with_all = NEEDLESS)]
    pub check: bool,
    #[command(flatten)]
    pub stream: StreamCredential,
    /// Refuse a stream that holds another state of its volume, as `export` named it
    #[arg(long, value_name = "GENERATION:HEAD")]
    pub expect: Option<volume::StateName>,
    /// Size that the new volume shows [default: that of the stream's volume]
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub new: NewVolume,
}

/// Options that are about a volume, where none is made.
const NEEDLESS: [&str; 18] = [
    "to",
    "size",
    "anchor",
    "policy",
    "suite",
    "no_confidentiality",
    "no_integrity",
    "freshness",
    "provision",
    "key_file",
    "passphrase_file",
    "key_from",
    "key_from_ca",
    "release_dir",
    "simulated_seat",
    "label",
    "buffered",
    "force",
];

impl Import {
    /// Where the new volume goes. Without --check it is always named.
    pub fn to(&self) -> &Path {
        self.to.as_deref().unwrap_or(Path::new(""))
    }
}
