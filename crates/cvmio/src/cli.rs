//! What can be typed, and the help for it.

pub mod anchor;
#[cfg(test)]
mod answer;
mod credential;
pub mod dash;
#[cfg(test)]
mod documents;
pub mod grow;
pub mod header;
pub mod manual;
pub mod rekey;
mod runtime;
pub mod service;
pub mod stream;
pub mod top;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use volume::format::protections::{Freshness, Provision, SuiteCode};

use cli::input::{parse_duration, parse_name, parse_size, parse_switch};
pub use credential::CredentialArgs;
pub use runtime::RuntimeArgs;

const AFTER_HELP: &str = "\
Example: everything at once, and what it costs here
  cvmio demo
  cvmio bench volume --dir /srv

Exit codes:
   0  done
   1  defect: of cvmio itself
   2  usage: it cannot be done as asked, and nothing was changed
   3  io: the store failed, or does not answer
   4  corrupt: something on the store is not what was written there
   5  stale: the store is older than what the anchor vouches for (a rollback)
   6  forked: the store has a history of its own beside the anchored one
   7  fenced: another session has claimed the volume
   8  anchor: it cannot be reached, or holds nothing usable
   9  no-space: none is left on the volume
  10  locked: the passphrase or key file opens no key slot
  11  policy: it is missing or unreadable, or the store contradicts it
 130  interrupted: by a signal; what was made for the work alone was put away

With --json, a failure is also printed on standard output:
  {\"error\":{\"code\":5,\"kind\":\"stale\",\"message\":\"...\"}}";

/// Disks for confidential VMs, on storage that need not be trusted.
///
/// An untrusted file or disk becomes a block device that its host can neither read, nor change, nor roll back.
#[derive(Parser, Debug)]
#[command(name = "cvmio", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Create, attach and look after volumes
    #[command(
        subcommand,
        after_help = "\
Example: a volume on the second disk, as a block device
  cvmio volume create /dev/vdb --policy /etc/ledger.toml --anchor file:/var/lib/ledger.anchor
  cvmio volume attach /dev/vdb --policy /etc/ledger.toml --name ledger --as auto"
    )]
    Volume(Box<VolumeCommand>),
    #[command(subcommand)]
    Anchor(Box<anchor::AnchorCommand>),
    #[command(display_order = 90)]
    Completions(manual::Completions),
    #[command(display_order = 91)]
    Man(manual::Manual),
}

#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    Create(Create),
    Attach(Attach),
    Detach(Detach),
    List(List),
    /// Show what an attached volume is doing
    #[command(after_help = "Example:\n  cvmio volume status ledger --json")]
    Status(Named),
    Top(top::Top),
    /// Make everything written so far durable and fresh
    ///
    /// With freshness `transaction` this ends the transaction; at the other levels it moves the anchor at once.
    #[command(after_help = "Example:\n  sync /srv/ledger && cvmio volume commit ledger")]
    Commit(Named),
    Scrub(Scrub),
    Check(Check),
    Dump(Dump),
    #[command(
        subcommand,
        after_help = "Example:\n  cvmio volume key list /dev/vdb --policy /etc/cvmio/ledger.toml"
    )]
    Key(header::Key),
    Rekey(rekey::Rekey),
    #[command(
        subcommand,
        after_help = "Example:\n  cvmio volume header backup /dev/vdb ledger.header --policy /etc/cvmio/ledger.toml"
    )]
    Header(header::Header),
    Export(stream::Export),
    Import(stream::Import),
    Grow(grow::Grow),
    Reanchor(header::Reanchor),
    Prepare(service::Prepare),
    Activate(service::Activate),
    Deactivate(service::Deactivate),
    Units(service::Units),
    /// Serves one volume; started by `attach`
    #[command(hide = true)]
    Serve {
        /// For people who look at the list of processes
        name: String,
    },
    /// Makes a loop device of a file; started by the daemon, which must not wait for itself
    #[command(hide = true)]
    LoopAttach {
        #[arg(long)]
        read_only: bool,
        file: PathBuf,
    },
    /// Has a loop device take the size of its file; started by the daemon
    #[command(hide = true)]
    LoopResize {
        device: PathBuf,
    },
    /// Detaches a loop device; started by the daemon
    #[command(hide = true)]
    LoopDetach {
        device: PathBuf,
    },
}

impl VolumeCommand {
    /// The store of a command that takes a path only, and no NAME of an attached volume; not of `attach`.
    pub fn path_only(&self) -> Option<&Path> {
        Some(match self {
            Self::Create(args) => &args.store,
            Self::Dump(args) => &args.offline.store,
            Self::Reanchor(args) => &args.offline.store,
            Self::Header(header::Header::Restore(args)) => &args.offline.store,
            Self::Export(args) => &args.offline.store,
            Self::Import(args) if !args.check => args.to(),
            _ => return None,
        })
    }
}

/// Create a volume on a file or a block device
///
/// Writes the volume's header to STORE, an attach policy, and the first stamp to a new anchor. The policy and the anchor are what the
/// volume is checked against from then on: keep both where the host of STORE cannot change them.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: 100 GiB in a sparse file
  head -c 32 /dev/urandom > ledger.key
  cvmio volume create /mnt/host/ledger.img --size 100G --key-file ledger.key \\
      --policy /etc/cvmio/ledger.toml --anchor file:/var/lib/cvmio/ledger.anchor")]
pub struct Create {
    /// File (made if it does not exist) or block device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub store: PathBuf,
    /// Size that the volume shows, such as 512M, 1G or 2T; without it, as much as STORE holds
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub new: NewVolume,
}

/// What a new volume is like, and what vouches for it.
#[derive(Args, Debug)]
pub struct NewVolume {
    /// Where freshness is kept, such as file:/PATH; it is made if it can be. Needed unless freshness is off
    #[arg(long, value_name = "ADDRESS")]
    pub anchor: Option<String>,
    #[command(flatten)]
    pub anchor_options: anchor::AnchorOptions,
    /// Where to write the attach policy [default: STORE.policy.toml]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Cipher: aes-256-gcm, aegis-128x2, aegis-256x2, or aes-256-xts (only without integrity) [default: aes-256-gcm]
    #[arg(long)]
    pub suite: Option<SuiteCode>,
    /// Let the host read the data; it still cannot change it
    #[arg(long)]
    pub no_confidentiality: bool,
    /// Let the host change the data unnoticed; needs --freshness off
    #[arg(long)]
    pub no_integrity: bool,
    /// When old data is found out: strict (all flushed data is fresh), write (all written data), interval (all but the last second),
    /// transaction (as of the last `commit` or `detach`), off [default: strict; with a tpm: anchor, which wears out, transaction]
    #[arg(long, value_name = "LEVEL")]
    pub freshness: Option<Freshness>,
    /// full: take all space now, so that overwrites never run out of it; thin: promise the size, and take space as it is written
    #[arg(long, default_value = "full")]
    pub provision: Provision,
    #[command(flatten)]
    pub credential: CredentialArgs,
    /// Name of the first key slot
    #[arg(long, default_value = "first")]
    pub label: String,
    /// Go through the page cache, where STORE cannot do direct I/O
    #[arg(long)]
    pub buffered: bool,
    /// Overwrite what is on STORE, and the policy file
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

impl NewVolume {
    /// When old data is found out, as named or as is right for the anchor.
    pub fn level(&self) -> Freshness {
        daemon::wear::level(self.freshness, self.anchor.as_deref())
    }
}

/// Make a volume usable as a file or a block device
///
/// Checks STORE against the policy and the anchor, claims it, and starts a process that serves it. Returns when the device is there.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: a file system on a volume
  cvmio volume attach /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --loop
  mkfs.ext4 /dev/loop0 && mount /dev/loop0 /srv/ledger

Example: for programs that speak NBD
  cvmio volume attach /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --as nbd
  nbdinfo 'nbd+unix:///?socket=/run/cvmio/ledger/nbd.sock'

Example: one image for many guests
  cvmio volume attach /mnt/host/image.img --policy /etc/cvmio/image.toml \\
      --key-file image.key --loop --read-only
  mount -o ro,noload /dev/loop0 /srv/image")]
pub struct Attach {
    /// File or block device with a volume on it; or vhost-user:SOCKET, a disk that a server gives there
    #[arg(value_hint = ValueHint::AnyPath)]
    pub store: PathBuf,
    /// The volume's attach policy [default: STORE.policy.toml]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Name for `detach`, `status` and `commit` [default: STORE's name without its extension]
    #[arg(long, value_parser = parse_name)]
    pub name: Option<String>,
    /// Memory for changes and for the map's cache; all else takes less than 64M
    #[arg(long, value_parser = parse_size, default_value = "256M")]
    pub memory: u64,
    /// Memory in addition for blocks that were read or written, sealed as STORE has them, so that reading them again need not ask it; none
    /// if this is not said
    #[arg(long, value_name = "MEMORY", value_parser = parse_size)]
    pub block_cache: Option<u64>,
    /// Give what is free back to STORE, in the background: on or off [default: on for a thin volume, off for a full one]
    #[arg(long, value_name = "on|off", value_parser = parse_switch)]
    pub discard: Option<bool>,
    /// Threads that seal and open blocks
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub queues: u8,
    /// How these wait for requests
    #[arg(long, value_name = "HOW", default_value = "off")]
    pub poll: Poll,
    /// How the volume is shown
    #[arg(long = "as", value_enum, value_name = "FRONT-END", default_value_t = FrontEnd::Fuse)]
    pub front_end: FrontEnd,
    /// Make a block device, /dev/loopN, of the volume's file (only with --as fuse)
    #[arg(long = "loop")]
    pub use_loop: bool,
    /// Show the state that the anchor vouches for now, and claim and write nothing; any number of guests may do so at once
    #[arg(long)]
    pub read_only: bool,
    /// With --read-only: go on although a session may be writing. Blocks that it uses again then fail as corrupt
    #[arg(long, requires = "read_only")]
    pub force: bool,
    /// Show the volume as the file `disk` in DIR (an empty directory) instead of in the runtime directory (only with --as fuse)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub mount: Option<PathBuf>,
    #[command(flatten)]
    pub nbd: NbdArgs,
    /// Stay in the foreground until SIGTERM or SIGINT
    #[arg(long)]
    pub foreground: bool,
    /// The root file system is to lie on the volume: mark the process as one that systemd must not kill at shutdown
    #[arg(long, conflicts_with = "foreground")]
    pub for_root: bool,
    /// What the device does once a block is not what was written there, or another session has claimed the volume
    #[arg(long, value_name = "WHAT", default_value = "continue")]
    pub on_tamper: OnTamper,
    /// Then also run PROGRAM, without a shell, with CVMIO_NAME, _STORE, _KIND, _OPERATION, _BLOCKS, _COUNT and _MESSAGE in its
    /// environment; at most one every 10 seconds
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    pub tamper_hook: Option<PathBuf>,
    /// With freshness `interval`: how far the anchor may lag behind [default: 1s; with a tpm: anchor, which wears out, 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub interval: Option<Duration>,
    /// End the session when the anchor has been away for so long, instead of waiting until it is back
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub anchor_timeout: Option<Duration>,
    /// End the session when STORE has left a request without an answer for so long [default: 5m; vhost-user: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub store_timeout: Option<Duration>,
    /// Go through the page cache, where STORE cannot do direct I/O
    #[arg(long)]
    pub buffered: bool,
    /// Serve metrics for Prometheus on a Unix socket, unix:PATH, or a port of the loopback interface, 127.0.0.1:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<daemon::metrics::Address>,
    #[command(flatten)]
    pub credential: CredentialArgs,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// How an attached volume is shown.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontEnd {
    /// A file, and with --loop a block device
    Fuse,
    /// An NBD server, for QEMU, nbdkit's tools or the kernel's nbd driver
    Nbd,
    /// A block device, /dev/ublkbN, of the kernel's ublk driver (Linux 6.5 or later, as root)
    Ublk,
    /// A block device: ublk where the kernel has it, else a loop device on a file
    Auto,
}

impl From<FrontEnd> for ::service::FrontEnd {
    fn from(front_end: FrontEnd) -> Self {
        match front_end {
            FrontEnd::Fuse => Self::Fuse,
            FrontEnd::Nbd => Self::Nbd,
            FrontEnd::Ublk => Self::Ublk,
            FrontEnd::Auto => Self::Auto,
        }
    }
}

/// What the device does after the first block that is not what was written, or after another session has claimed the volume.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTamper {
    /// Go on: what is damaged fails, the rest works
    Continue,
    /// Refuse writes from then on
    ReadOnly,
    /// Refuse everything from then on
    Stop,
}

impl From<OnTamper> for daemon::tamper::OnTamper {
    fn from(on: OnTamper) -> Self {
        match on {
            OnTamper::Continue => Self::Continue,
            OnTamper::ReadOnly => Self::ReadOnly,
            OnTamper::Stop => Self::Stop,
        }
    }
}

/// How queue threads wait for requests.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Asleep
    Off,
    /// Looking for a bounded time while requests come close together, then asleep
    Adaptive,
    /// Never asleep: each takes a processor for itself
    Always,
}

impl From<Poll> for daemon::polling::Poll {
    fn from(poll: Poll) -> Self {
        match poll {
            Poll::Off => Self::Off,
            Poll::Adaptive => Self::Adaptive,
            Poll::Always => Self::Always,
        }
    }
}

/// Where NBD clients connect, and who may.
#[derive(Args, Debug, Clone, Default)]
pub struct NbdArgs {
    /// Listen on TCP (port 0: any that is free) instead of on a unix socket in the runtime directory; beyond loopback only with TLS for
    /// both sides (only with --as nbd)
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// The server's certificate, in PEM form; clients then need TLS (only with --as nbd)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities of clients: each client needs a certificate of one of them
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
}

/// Put a volume away
///
/// Refuses while the device is mounted or open, and says by whom. When it returns, everything that was written is durable and anchored, the
/// process that served the volume is gone, and the store is free. With freshness `transaction` it commits. A ublk device whose daemon was
/// killed is taken away even while it is in use, unless it was attached again.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  umount /srv/ledger && cvmio volume detach ledger")]
pub struct Detach {
    #[command(flatten)]
    pub named: Named,
    /// With freshness `transaction`: go back to the last `commit`, and lose what was written since then
    #[arg(long)]
    pub discard_uncommitted: bool,
    /// Also while somebody uses the device, or flushes wait for room on the store. Programs get errors, and what they wrote and did not flush is
    /// lost; all that was flushed is safe
    #[arg(long)]
    pub force: bool,
}

#[derive(Args, Debug)]
pub struct Named {
    /// The attached volume's name, as in `cvmio volume list`
    #[arg(value_parser = parse_name)]
    pub name: String,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// Print the result as JSON
    #[arg(long, action = ArgAction::SetTrue)]
    pub json: bool,
}

/// Read and verify every block of an attached volume in the background
///
/// Returns at once; `status` shows how far it is, and what is damaged. What it finds counts for `attach --on-tamper` and the tamper hook.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio volume scrub ledger --rate 50M
  cvmio volume status ledger")]
pub struct Scrub {
    #[command(flatten)]
    pub named: Named,
    /// Bytes a second that it may read
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "100M", conflicts_with = "stop")]
    pub rate: u64,
    /// End the one that is under way
    #[arg(long)]
    pub stop: bool,
}

/// List the attached volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio volume list --json")]
pub struct List {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// A volume, mostly one that is not attached.
#[derive(Args, Debug)]
pub struct Offline {
    /// File or block device with a volume on it
    #[arg(value_hint = ValueHint::AnyPath)]
    pub store: PathBuf,
    /// The volume's attach policy [default: STORE.policy.toml]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    pub credential: CredentialArgs,
    /// Go through the page cache, where STORE cannot do direct I/O
    #[arg(long)]
    pub buffered: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Read and verify every block of a volume, attached or not
///
/// Lists the blocks that are not what was written there. Changes nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: a volume that is not attached, and one that is
  cvmio volume check /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key
  cvmio volume check ledger")]
pub struct Check {
    #[command(flatten)]
    pub offline: Offline,
    #[command(flatten)]
    pub runtime: RuntimeArgs,
}

/// Show what a store holds: header, key slots, superblocks
///
/// For finding faults; changes nothing. Without a key file or passphrase file it shows what the host can see too: header and
/// key slots, unverified. Keys are never shown.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  cvmio volume dump /mnt/host/ledger.img --policy /etc/cvmio/ledger.toml \\
      --key-file ledger.key --json")]
pub struct Dump {
    #[command(flatten)]
    pub offline: Offline,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }
}
