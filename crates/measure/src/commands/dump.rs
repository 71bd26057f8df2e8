//! What the host sees of a guest.

use std::path::{Path, PathBuf};

use clap::Args;
use report::table::Table;

use super::vm::confidential;
use crate::dump::{Row, search};
use crate::error::Result;
use crate::target::{Contents, Environment, Guests, Need, Vm};
use cli::interrupt::Interrupt;

/// What a host finds in the memory and on the disks of a virtual machine
///
/// Boots a machine, has it read a secret from a bare disk and another from a cvm-io volume, writes its memory to a file by QEMU's
/// dump-guest-memory, and searches that and the disks. The same in a confidential machine, where this one hosts them.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example:
  cvmio bench dump --dir /srv --guest-kernel kernel")]
pub struct DumpArgs {
    /// Directory for disks and the dump, which are removed
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub guests: Guests,
    /// Print tables in Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// Shows what is found.
///
/// # Errors
/// When the guest cannot be booted or dumped.
pub fn dump(args: &DumpArgs, cvmio: &Path) -> Result<()> {
    let interrupt = Interrupt::on_signals()?;
    let environment = Environment {
        need: Need::Blocks,
        directory: &args.dir,
        size: 0,
        cvmio,
        destroy: &[],
        guests: &args.guests,
        contents: &Contents::default(),
        interrupt: &interrupt,
    };
    show_found(args, "Plain virtual machine", &search(&Vm::default(), &environment)?);
    match confidential(&args.guests) {
        Ok(vm) => show_found(args, &format!("Confidential machine ({vm})"), &search(&vm, &environment)?),
        Err(why) => cli::output::print(&format!("Confidential machine: not on this machine, because {why}.")),
    }
    Ok(())
}

fn show_found(args: &DumpArgs, what: &str, rows: &[Row]) {
    let head = ["secret", "found in the machine's memory", "found on its disk"];
    let mut table = Table::new(format!("{what}: how often the host finds"), &head);
    let times = |count: usize| match count {
        0 => "not found".to_string(),
        1 => "once".to_string(),
        more => format!("{more} times"),
    };
    table.rows.extend(rows.iter().map(|row| vec![row.what.to_string(), times(row.memory), times(row.disk)]));
    cli::output::print(&if args.markdown { table.markdown() } else { table.text() });
}
