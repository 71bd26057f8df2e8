//! QEMU's command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::settings::{Completion, Disk, Kind, Vm};
use super::{Contents, Guests};
use crate::error::{Context, Error, Result};
use crate::program::{find, package};

/// How the processor of a guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Accel {
    /// By the processor itself
    Kvm,
    /// Emulated: slow, and no figure of it says anything about speed
    Tcg,
}

impl Accel {
    /// What this machine can do.
    pub fn of_this_machine() -> Self {
        let opens = fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
        let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        // A machine may have the device, and a processor that cannot virtualize.
        let can = flags.split_whitespace().any(|flag| flag == "svm" || flag == "vmx");
        if opens && can { Self::Kvm } else { Self::Tcg }
    }
}

/// Names of files in a guest's directory.
pub const AGENT: &str = "agent";
/// The control socket.
pub const QMP: &str = "qmp";
/// What the guest's kernel says.
pub const CONSOLE: &str = "console";
/// QEMU's own events, with their times.
pub const TRACE: &str = "trace";
/// The guest's initramfs.
pub const IMAGE: &str = "initramfs";
/// The disk that is measured.
pub const DISK: &str = "disk";

/// A disk beside the one that is measured: virtio-blk.
#[derive(Debug, Clone)]
pub struct More {
    /// The file.
    pub path: PathBuf,
    /// Whether several guests share it, and its serial number says what it is.
    pub read_only: bool,
}

/// Slots of 2 KiB of the bounce buffer: 256 MiB, more than any job has under way.
const BOUNCE: &str = "swiotlb=131072,force";
/// Queues that the guest looks into by itself; two of four in the thesis, section 5, and Linux takes no more than it has processors.
const POLLED: &str = "poll_queues=2";
/// QEMU's events at which virtio-blk takes up a request and gives it back.
const EVENTS: [&str; 3] = ["virtio_blk_handle_read", "virtio_blk_handle_write", "virtio_blk_req_complete"];

/// Why this machine cannot have a guest of this kind.
pub fn unavailable(kind: Kind, guests: &Guests) -> Option<String> {
    let on = |path: &str| fs::read_to_string(path).is_ok_and(|text| matches!(text.trim(), "Y" | "1"));
    let (hosts, what) = match kind {
        Kind::Plain => return None,
        Kind::Snp => {
            (on("/sys/module/kvm_amd/parameters/sev_snp"), "SEV-SNP guests (kvm_amd's sev_snp is not on)")
        }
        Kind::Tdx => (on("/sys/module/kvm_intel/parameters/tdx"), "TDX guests (kvm_intel's tdx is not on)"),
    };
    if !hosts {
        return Some(format!("this machine hosts no {what}"));
    }
    guests.firmware.is_none().then(|| "its firmware is to be named by --guest-firmware".into())
}

/// Memory that a guest with a bounce buffer needs: the buffer, which the kernel takes at once, and as much for all else.
const BOUNCE_MEMORY: u64 = 512 << 20;

/// Why a guest cannot have its settings in the memory that it is given.
pub fn too_small(vm: &Vm, guests: &Guests) -> Option<String> {
    let bounces = vm.bounce || vm.kind != Kind::Plain;
    (bounces && guests.memory < BOUNCE_MEMORY).then(|| {
        format!(
            "its bounce buffer takes 256 MiB, and with --guest-memory of {} MiB too little is left; give it 512M or more",
            guests.memory >> 20
        )
    })
}

/// The kernel module of a disk, with its parameters.
pub fn modules(vm: &Vm) -> (&'static [&'static str], &'static str) {
    let polled = if vm.completion == Completion::Poll { POLLED } else { "" };
    match vm.disk {
        Disk::VirtioBlk => (&["virtio_blk"], polled),
        Disk::VirtioScsi => (&["virtio_scsi", "sd_mod"], ""),
        Disk::Nvme => (&["nvme"], polled),
    }
}

/// The disk's name in the guest.
pub fn device(disk: Disk) -> &'static str {
    match disk {
        Disk::VirtioBlk => "/dev/vda",
        Disk::VirtioScsi => "/dev/sda",
        Disk::Nvme => "/dev/nvme0n1",
    }
}

/// Words for the guest's kernel.
fn words(vm: &Vm, accel: Accel) -> String {
    let mut words = String::from("console=ttyS0 quiet oops=panic panic=-1");
    if accel == Accel::Tcg {
        // On a busy machine an emulated timer is so late that the kernel takes it for broken, and panics.
        words += " no_timer_check";
    }
    if vm.bounce {
        words = format!("{words} {BOUNCE}");
    }
    if vm.completion == Completion::Poll && vm.disk == Disk::Nvme {
        // Where the driver is part of the kernel, its parameters are here.
        words = format!("{words} nvme.{POLLED}");
    }
    words
}

/// The command that boots a guest from what lies in `place`; further disks are attached as virtio-blk.
///
/// # Errors
/// When QEMU is not installed.
pub fn command(vm: &Vm, guests: &Guests, kernel: &Path, place: &Path, more: &[More]) -> Result<Command> {
    let qemu = find(&guests.qemu).ok_or_else(|| {
        Error::usage(format!(
            "{} is not installed; it is in Debian's package {}",
            guests.qemu,
            package("qemu-system-x86_64")
        ))
    })?;
    // It is started in another directory.
    let qemu = qemu.canonicalize().doing(qemu.display())?;
    // It ends with this program, however that ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(qemu).current_dir(place);
    let kvm = guests.accel() == Accel::Kvm;
    let mut machine = format!("q35,accel={}", if kvm { "kvm" } else { "tcg" });
    let mut processor = if kvm { "host" } else { "max,pku=off,la57=off" };
    let memory = guests.memory;
    match vm.kind {
        Kind::Plain => {}
        Kind::Snp => {
            processor = "EPYC-v4";
            machine += ",confidential-guest-support=cgs,memory-backend=ram";
            let ram = format!("memory-backend-memfd,id=ram,size={memory},share=on");
            command.args(["-object", &ram]);
            let snp = "sev-snp-guest,id=cgs,cbitpos=51,reduced-phys-bits=1,policy=0x30000,kernel-hashes=on";
            command.args(["-object", snp]);
        }
        Kind::Tdx => {
            machine += ",kernel-irqchip=split,confidential-guest-support=cgs";
            command.args(["-object", "tdx-guest,id=cgs"]);
        }
    }
    if let (Kind::Snp | Kind::Tdx, Some(firmware)) = (vm.kind, &guests.firmware) {
        command.arg("-bios").arg(firmware.canonicalize().doing(firmware.display())?);
    }
    command.args(["-M", &machine, "-cpu", processor, "-m", &format!("{}M", memory >> 20)]);
    command.args(["-smp", &guests.processors.to_string()]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot"]);
    command.arg("-kernel").arg(kernel).args(["-initrd", IMAGE, "-append", &words(vm, guests.accel())]);
    command.args(["-serial", &format!("file:{CONSOLE}"), "-device", &virtio("virtio-serial-pci", vm)]);
    command.args(["-chardev", &format!("socket,id=agent,path={AGENT},server=on,wait=off")]);
    command.args(["-device", "virtserialport,chardev=agent,name=agent"]);
    command.args(["-qmp", &format!("unix:{QMP},server=on,wait=off")]);
    disk(vm, guests, &mut command);
    for (number, More { path, read_only }) in more.iter().enumerate() {
        let path = path.display().to_string().replace(',', ",,");
        let (how, serial) = match read_only {
            true => ("cache=writeback,readonly=on", Contents::SERIAL),
            false => ("cache=none", "more"),
        };
        command.args(["-drive", &format!("if=none,id=more{number},format=raw,{how},file={path}")]);
        let device = format!("virtio-blk-pci,drive=more{number},serial={serial}");
        command.args(["-device", &virtio(&device, vm)]);
    }
    if guests.traced {
        command.args(["-msg", "timestamp=on", "-D", TRACE]);
        command.args(EVENTS.iter().flat_map(|event| ["-trace", event]));
    }
    Ok(command)
}

/// A virtio device as confidential guests need it: its memory is what the guest shares, by way of the bounce buffer.
fn virtio(device: &str, vm: &Vm) -> String {
    let shared = vm.bounce || vm.kind != Kind::Plain;
    format!("{device}{}", if shared { ",iommu_platform=on,disable-legacy=on" } else { "" })
}

fn disk(vm: &Vm, guests: &Guests, command: &mut Command) {
    let direct = if vm.cache { "off" } else { "on" };
    let file = format!(
        "driver=file,node-name=file,filename={DISK},cache.direct={direct},aio={},discard=unmap",
        vm.aio.qemu()
    );
    command.args(["-blockdev", &file]);
    command.args(["-blockdev", "driver=raw,node-name=disk,file=file,discard=unmap"]);
    let mut thread = "";
    if vm.iothread {
        command.args(["-object", "iothread,id=thread"]);
        thread = ",iothread=thread";
    }
    // With polling, one queue of each kind at least.
    let queues = guests.processors.max(2);
    match vm.disk {
        Disk::VirtioBlk => {
            let device = format!("virtio-blk-pci,drive=disk,num-queues={queues}{thread}");
            command.args(["-device", &virtio(&device, vm)]);
        }
        Disk::VirtioScsi => {
            let controller = format!("virtio-scsi-pci,id=scsi,num_queues={queues}{thread}");
            command.args(["-device", &virtio(&controller, vm), "-device", "scsi-hd,drive=disk,bus=scsi.0"]);
        }
        Disk::Nvme => {
            let pairs = queues + 2;
            command.args(["-device", &format!("nvme,drive=disk,serial=cvmio,max_ioqpairs={pairs}")]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::shown;
    use crate::target::Spec;

    fn line(text: &str, guests: &Guests) -> String {
        let Spec::Vm(vm) = text.parse().unwrap() else { panic!("{text}") };
        shown(&command(&vm, guests, Path::new("/boot/vmlinuz"), Path::new("/"), &[]).unwrap())
    }

    fn guests(accel: Accel) -> Guests {
        // A program that is there.
        Guests { qemu: "/bin/sh".into(), accel: Some(accel), ..Guests::default() }
    }

    #[test]
    fn settings_reach_qemu_and_the_kernel() {
        let line = |text: &str| line(text, &guests(Accel::Tcg));
        let usual = line("vm");
        for word in [
            "cache.direct=on",
            "aio=io_uring",
            "virtio-blk-pci,drive=disk,num-queues=2",
            "no_timer_check",
            "accel=tcg",
        ] {
            assert!(usual.contains(word), "{word}: {usual}");
        }
        assert!(
            !usual.contains("swiotlb") && !usual.contains("iothread") && !usual.contains("iommu"),
            "{usual}"
        );
        let other = line("vm:cache=on,aio=threads,iothread=on,bounce=on");
        for word in ["cache.direct=off", "aio=threads", "iothread=thread", "swiotlb=131072,force"] {
            assert!(other.contains(word), "{word}: {other}");
        }
        assert!(
            other.contains("num-queues=2,iothread=thread,iommu_platform=on,disable-legacy=on"),
            "{other}"
        );
        assert!(line("vm:disk=virtio-scsi,iothread=on").contains("scsi-hd,drive=disk"));
        assert!(line("vm:disk=nvme,completion=poll").contains("nvme.poll_queues=2"));
    }

    #[test]
    fn further_disks_are_attached_in_order_and_data_only_to_be_read() {
        let more = ["/x/volume", "/x/a,b"].map(PathBuf::from);
        let more: Vec<More> = more
            .iter()
            .zip([false, true])
            .map(|(path, read_only)| More { path: path.clone(), read_only })
            .collect();
        let vm = Vm { bounce: true, ..Vm::default() };
        let (kernel, place) = (Path::new("/boot/vmlinuz"), Path::new("/"));
        let line = shown(&command(&vm, &guests(Accel::Tcg), kernel, place, &more).unwrap());
        for word in [
            "id=more0,format=raw,cache=none,file=/x/volume",
            "id=more1,format=raw,cache=writeback,readonly=on,file=/x/a,,b",
            "drive=more1,serial=data,iommu_platform=on",
        ] {
            assert!(line.contains(word), "{word}: {line}");
        }
        assert!(line.find("drive=disk").unwrap() < line.find("drive=more0").unwrap(), "{line}");
    }

    #[test]
    fn confidential_guests_have_their_objects() {
        let mut guests = guests(Accel::Kvm);
        let firmware = tempfile::NamedTempFile::with_suffix("-OVMF.fd").unwrap();
        guests.firmware = Some(firmware.path().into());
        let snp = line("vm:kind=snp", &guests);
        for word in
            ["sev-snp-guest,id=cgs", "memory-backend=ram", "-OVMF.fd", "iommu_platform=on", "accel=kvm"]
        {
            assert!(snp.contains(word), "{word}: {snp}");
        }
        assert!(line("vm:kind=tdx", &guests).contains("kernel-irqchip=split"));
    }
}
