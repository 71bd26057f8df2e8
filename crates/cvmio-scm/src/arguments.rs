//! What can be asked for.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cli::input::{parse_size, parse_size_or_zero};
use seal::Suite;

/// Encrypted regions of storage-class memory: each page is encrypted on the medium, and decrypted for the VMM that touches it.
#[derive(Debug, Parser)]
#[command(name = "cvmio-scm", bin_name = "cvmio scm", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a region: a new file whose pages are all zeros, encrypted
    Create(Create),
    /// Serve a region to a VMM until a signal (SIGTERM, SIGINT) or an unmount; then encrypt all pages
    Serve(Serve),
    /// Count pages: of a server by its socket, or of a region at rest, as it claims
    Status(Status),
    /// Bring a region in order after a crash: finish what was under way, encrypt what was open
    Recover(Recover),
    /// Open every page of a region at rest, and change nothing
    Check(Check),
    /// Vouch again for pages that were open at a crash, as they are now, after a look at them (fsck in the guest, a comparison with a backup)
    Accept(Accept),
    /// Print the arguments with which QEMU uses a region as virtio-pmem
    QemuArgs(QemuArgs),
    /// Prints the grammar of these commands in JSON, for the completions of `cvmio`
    #[command(hide = true)]
    Grammar,
    /// Writes the manual pages of these commands; started by `cvmio man`
    #[command(hide = true)]
    Man { directory: PathBuf },
}

#[derive(Debug, Args)]
pub struct Create {
    /// The region's file, which must not exist; on tmpfs, hugetlbfs or a DAX file system, or for `--mode fuse` on any
    pub region: PathBuf,
    /// Bytes of data, with k, m, g or t for powers of 1024
    #[arg(long, value_parser = parse_size)]
    pub size: u64,
    /// A file of 32 or more random bytes that opens the region (make one: head -c 64 /dev/urandom > KEY); - is standard input
    #[arg(long)]
    pub key_file: PathBuf,
    /// Bytes of a page: 4k, or 2m for huge pages
    #[arg(long, default_value = "4k", value_parser = parse_size)]
    pub page_size: u64,
    /// Pages that can be under way at a time, 1 to 8
    #[arg(long, default_value_t = 4)]
    pub workers: u32,
    /// aes-256-gcm, aegis-128x2 or aegis-256x2
    #[arg(long, default_value = "aes-256-gcm")]
    pub suite: Suite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A file under a FUSE mount; the medium holds ciphertext only
    Fuse,
    /// Pages are decrypted in place at the VMM's first touch
    Userfaultfd,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// The region's file
    pub region: PathBuf,
    /// The key file
    #[arg(long)]
    pub key_file: PathBuf,
    /// How a VMM gets at it
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// With `--mode fuse`: the directory to mount on; the region is the file `region/pmem` in it
    #[arg(long, required_if_eq("mode", "fuse"))]
    pub mountpoint: Option<PathBuf>,
    /// A unix socket for `status`; with `--mode userfaultfd` VMMs register there
    #[arg(long, required_if_eq("mode", "userfaultfd"))]
    pub socket: Option<PathBuf>,
    /// With `--mode userfaultfd`: most bytes that are open, in plaintext, at a time
    #[arg(long, default_value = "256m", value_parser = parse_size)]
    pub open_limit: u64,
    /// With `--mode userfaultfd`: encrypt pages that were not touched for so many milliseconds
    #[arg(long, default_value_t = 1000)]
    pub idle_ms: u64,
    /// With `--mode userfaultfd`: encrypt a page only when the VMM has had no mapping of it for so many milliseconds: longer than any request of a
    /// disk, or of another device, into the region takes. What takes longer corrupts its page. 0 if there are no such requests
    #[arg(long, default_value_t = 5000)]
    pub io_ms: u64,
    /// The socket's mode, in octal
    #[arg(long, default_value = "600", value_parser = mode)]
    pub socket_mode: u32,
    /// The socket's owner, as numbers: UID or UID:GID, so that a VMM of another user gets at it
    #[arg(long, value_parser = owner)]
    pub socket_owner: Option<(u32, Option<u32>)>,
    /// With `--mode userfaultfd`: most bytes that are opened ahead while touches are sequential; 0 is none
    #[arg(long, default_value = "128k", value_parser = parse_size_or_zero)]
    pub read_ahead: u64,
    /// With `--mode userfaultfd`: percent of a processor that encrypting idle pages may use. It may use more while touches wait for room
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub cpu_percent: u32,
    /// Threads that take requests from the kernel
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
}

#[derive(Debug, Args)]
pub struct Status {
    /// The region's file, of a region that is not served
    #[arg(required_unless_present = "socket", conflicts_with = "socket")]
    pub region: Option<PathBuf>,
    /// The socket of a server
    #[arg(long)]
    pub socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print what Prometheus reads
    #[arg(long, conflicts_with = "json")]
    pub metrics: bool,
}

#[derive(Debug, Args)]
pub struct Recover {
    /// The region's file
    pub region: PathBuf,
    /// The key file
    #[arg(long)]
    pub key_file: PathBuf,
}

#[derive(Debug, Args)]
pub struct Check {
    /// The region's file
    pub region: PathBuf,
    /// The key file
    #[arg(long)]
    pub key_file: PathBuf,
    /// Write every page that opens to this new file, also if root, table or bitmap are damaged; the others are zeros there. Nothing tells an older
    /// state of a page from the latest then
    #[arg(long, value_name = "FILE")]
    pub salvage: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Accept {
    /// The region's file, of a region that is not served
    pub region: PathBuf,
    /// The key file
    #[arg(long)]
    pub key_file: PathBuf,
    /// A page's number, as `check` names it; several with commas
    #[arg(
        long = "page",
        value_name = "PAGE",
        value_delimiter = ',',
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub pages: Vec<u64>,
    /// All of them
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct QemuArgs {
    /// The directory that `serve --mode fuse` mounts on
    #[arg(long, required_unless_present = "socket", conflicts_with = "socket")]
    pub mountpoint: Option<PathBuf>,
    /// The socket of `serve --mode userfaultfd`
    #[arg(long)]
    pub socket: Option<PathBuf>,
}

/// Permissions: `660`.
fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).map_err(|_| format!("`{text}` is no mode in octal"))?;
    if mode > 0o777 { Err(format!("`{text}` is more than 777")) } else { Ok(mode) }
}

/// A user and a group: `107`, `107:36`.
fn owner(text: &str) -> Result<(u32, Option<u32>), String> {
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number of a user or group"));
    match text.split_once(':') {
        Some((user, group)) => Ok((number(user)?, Some(number(group)?))),
        None => Ok((number(text)?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
        assert_eq!((mode("660"), owner("7"), owner("7:8")), (Ok(0o660), Ok((7, None)), Ok((7, Some(8)))));
        for words in [
            "accept r --key-file k",
            "accept r --key-file k --all --page 1",
            "serve r --key-file k --mode userfaultfd",
            "serve r --key-file k --mode fuse",
            "serve r --key-file k --mode userfaultfd --socket s --cpu-percent 0",
            "serve r --key-file k --mode userfaultfd --socket s --socket-mode 1777",
            "serve r --key-file k --mode userfaultfd --socket s --socket-owner root",
            "qemu-args",
            "qemu-args --mountpoint m --socket s",
        ] {
            let words = ["cvmio-scm"].into_iter().chain(words.split(' '));
            assert!(Arguments::try_parse_from(words.clone()).is_err(), "{words:?}");
        }
        let sizes = "serve r --key-file k --mode userfaultfd --socket s --open-limit 1g --read-ahead 0";
        let arguments = Arguments::try_parse_from(["cvmio-scm"].into_iter().chain(sizes.split(' ')));
        let Command::Serve(serve) = arguments.unwrap().command else {
            panic!("something else was asked for")
        };
        assert_eq!((serve.open_limit, serve.read_ahead), (1 << 30, 0));
    }
}
