//! Where a request's time goes.

use std::collections::BTreeMap;

use clap::Args;

use super::TargetArgs;
use super::measure::{Order, carry_out};
use super::vm::read;
use crate::breakdown::Breakdown;
use crate::error::{Error, Result};
use crate::program::version;
use crate::target::vm::settings::Disk;
use crate::target::{Spec, Vm};
use cli::interrupt::Interrupt;

/// Where a request's time goes between a guest's program and the host's file
///
/// A guest reads and writes 4 KiB, one request at a time. Its kernel's ftrace says when a system call, the driver and the interrupt came, and
/// QEMU's own events when it took up the request and gave it back. submission: from the system call to the driver. exit: leaving the guest
/// and interrupting it, which is what the guest waits for the device beyond what QEMU takes. backend: what QEMU takes. completion: from
/// the interrupt to the program. Each figure is the median of many requests.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: with and without a thread of the device's own
  cvmio bench breakdown --target vm --target vm:iothread=on --guest-kernel kernel")]
pub struct BreakdownArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub targets: TargetArgs,
    /// Requests of each turn
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=20_000))]
    pub requests: u32,
}

/// Measures the parts.
///
/// # Errors
/// When nothing can be measured.
pub fn breakdown(args: &BreakdownArgs, order: Order) -> Result<()> {
    let interrupt = Interrupt::on_signals()?;
    let mut targets = args.targets.clone();
    if targets.targets.is_empty() {
        targets.targets = read(&["vm", "vm:iothread=on", "vm:bounce=on"])?;
    }
    let fits = |spec: &Spec| matches!(spec, Spec::Vm(Vm { disk: Disk::VirtioBlk, .. }));
    if let Some(other) = targets.targets.iter().find(|spec| !fits(spec)) {
        return Err(Error::usage(format!(
            "{other}: only machines with virtio-blk can be looked into, since QEMU's events of other disks do not name their requests"
        )));
    }
    targets.guests.traced = true;
    let programs =
        BTreeMap::from_iter(version("fio", &interrupt).map(|version| ("fio".to_string(), version)));
    let work = Breakdown::new(args.requests, targets.size);
    let title = "breakdown: where a request's time goes".to_string();
    carry_out(&targets, order, title, programs, BTreeMap::new(), &work, &interrupt)
}
