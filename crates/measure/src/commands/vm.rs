//! Measuring inside virtual machines.

use clap::Args;

use super::measure::{AppsArgs, FioArgs, Order, SizeArgs, apps as apps_of, fio};
use crate::apps::App;
use crate::error::{Error, Result};
use crate::target::vm::settings::Kind;
use crate::target::{Settings, Spec, Vm, vm as machines};

/// fio or applications inside virtual machines that are booted for it, in turns
///
/// Each vm target is a machine of its own: QEMU boots a kernel (--guest-kernel) with an initramfs that is made of this machine's own busybox
/// and fio or applications and, where they take part, cryptsetup and cvmio. Machines whose turn it is not are stopped. Without targets, the
/// papers' matrix is measured: one setting of the plain machine is changed at a time. Other targets may take part, too.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: what forcing the bounce buffer costs, at each kind of disk
  cvmio bench vm --target vm --vary disk=virtio-blk,virtio-scsi,nvme,bounce=off,on

Example: data bases and an archiver, on each kind of encryption
  cvmio bench vm --apps sqlite,redis,tar --target vm --vary protect=none,dm-crypt,cvmio

Example: a kernel that was unpacked from its Debian package
  dpkg-deb -x linux-image-*-cloud-amd64_*.deb kernel && depmod -b kernel VERSION
  cvmio bench vm --guest-kernel kernel --only latency")]
pub struct VmArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub fio: FioArgs,
    /// Run these applications instead of fio, on a file system on each disk
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with_all = ["sets", "job_file", "only", "aged", "rate", "warm_up"])]
    pub apps: Vec<App>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub sizes: SizeArgs,
}

/// The papers' matrix, one setting at a time.
const MATRIX: [&str; 12] = [
    "vm",
    "vm:disk=virtio-scsi",
    "vm:disk=nvme",
    "vm:aio=native",
    "vm:aio=threads",
    "vm:cache=on",
    "vm:iothread=on",
    "vm:completion=poll",
    "vm:bounce=on",
    "vm:protect=dm-crypt",
    "vm:protect=dm-crypt-inline",
    "vm:protect=dm-integrity",
];

/// Measures in machines.
///
/// # Errors
/// When nothing can be measured.
pub fn vm(args: &VmArgs, order: Order) -> Result<()> {
    let mut plan = args.fio.clone();
    let targets = &mut plan.targets.targets;
    if targets.is_empty() {
        *targets = read(&MATRIX)?;
        targets.extend(read(&["vm:protect=cvmio"])?);
        targets.extend(confidential(&plan.targets.guests).ok().map(Spec::Vm));
    } else if !targets.iter().any(|target| matches!(target, Spec::Vm(_))) {
        return Err(Error::usage("none of the targets is a machine; add --target vm, or use bench fio"));
    }
    if !args.apps.is_empty() {
        let names: Vec<String> = args.apps.iter().map(|app| format!("{app:?}").to_lowercase()).collect();
        let order = order.titled(&format!("vm: {}", names.join(", ")));
        let (targets, apps, sizes) = (plan.targets, args.apps.clone(), args.sizes.clone());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is held within the bounds"
        )]
        let seconds = plan.seconds.ceil().clamp(1.0, 86_400.0) as u32;
        return apps_of(&AppsArgs { targets, apps, sizes, seconds }, order);
    }
    let sets: Vec<&str> = plan.sets.iter().map(|set| set.name()).collect();
    let title = plan.job_file.as_ref().map_or_else(|| sets.join(", "), |path| path.display().to_string());
    fio(&plan, order.titled(&format!("vm: {title}")))
}

/// Targets as they are written.
///
/// # Errors
/// When one is no target.
pub fn read(texts: &[&str]) -> Result<Vec<Spec>> {
    texts.iter().map(|text| text.parse().map_err(Error::usage)).collect()
}

/// A confidential machine of the kind that this one hosts.
///
/// # Errors
/// Why it hosts none.
pub fn confidential(guests: &machines::Guests) -> std::result::Result<Vm, String> {
    let kind = match machines::confidential(guests)? {
        Kind::Tdx => "tdx",
        _ => "snp",
    };
    let mut vm = Vm::default();
    vm.set("kind", kind)?;
    Ok(vm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_each_setting_that_qemu_can_do() {
        for target in read(&MATRIX).unwrap() {
            let Spec::Vm(vm) = &target else { panic!("{target}") };
            assert_eq!(vm.impossible(), None, "{target}");
        }
    }
}
