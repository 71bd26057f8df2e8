//! What a VMM's command line needs. Values with commas are written as QEMU reads them.

use cli::failure::Failure;
use host::DiskSettings;

use crate::arguments::{Machine, Vmm};

/// What to add to QEMU's command line, one option a line.
pub fn qemu(disks: &[DiskSettings], args: &Vmm) -> String {
    let huge = if args.huge { ",hugetlb=on,hugetlbsize=2M" } else { "" };
    let mut lines = vec![format!("-object memory-backend-memfd,id=ram,size={},share=on{huge}", args.memory)];
    lines.push(format!("-m {}", args.memory));
    match args.machine {
        Machine::Plain => lines.push("-machine q35,memory-backend=ram".into()),
        Machine::SevSnp => {
            lines.push("-object sev-snp-guest,id=cc,cbitpos=51,reduced-phys-bits=1".into());
            lines.push("-machine q35,memory-backend=ram,confidential-guest-support=cc".into());
        }
        Machine::Tdx => {
            lines.push("-object tdx-guest,id=cc".into());
            lines.push(
                "-machine q35,kernel-irqchip=split,memory-backend=ram,confidential-guest-support=cc".into(),
            );
        }
    }
    for (number, disk) in disks.iter().enumerate() {
        let path = disk.socket.display().to_string().replace(',', ",,");
        lines.push(format!("-chardev socket,id=cvmio{number},path={path},reconnect-ms=500"));
        lines.push(format!(
            "-device vhost-user-blk-pci,chardev=cvmio{number},num-queues={},iommu_platform=on,disable-legacy=on",
            disk.queues_of_a_guest()
        ));
    }
    lines.iter().map(|line| quoted(line)).collect::<Vec<_>>().join(" \\\n")
}

/// The same for Cloud Hypervisor.
pub fn cloud_hypervisor(disks: &[DiskSettings], args: &Vmm) -> Result<String, Failure> {
    let huge = if args.huge { ",hugepages=on,hugepage_size=2M" } else { "" };
    let mut lines = vec![format!("--memory size={},shared=on{huge}", args.memory)];
    match args.machine {
        Machine::Plain => {}
        Machine::SevSnp => lines.push("--platform sev_snp=on".into()),
        Machine::Tdx => lines.push("--platform tdx=on".into()),
    }
    let mut words = "--disk".to_string();
    for disk in disks {
        let path = disk.socket.display().to_string();
        if path.contains(',') {
            let message =
                format!("{path}: Cloud Hypervisor takes no socket with a comma in its path; choose another");
            return Err(Failure::usage(message));
        }
        words +=
            &format!(" vhost_user=true,socket={path},num_queues={},queue_size=128", disk.queues_of_a_guest());
    }
    lines.push(words);
    Ok(lines.iter().map(|line| quoted(line)).collect::<Vec<_>>().join(" \\\n"))
}

/// A line for a shell. Words are apart by single spaces, but for those in a path.
fn quoted(line: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " -_=,./:".contains(c);
    if line.chars().all(is_plain) && line.matches(' ').count() < 2 {
        return line.into();
    }
    let (option, value) = line.split_once(' ').unwrap_or((line, ""));
    if option == "--disk" && value.chars().all(is_plain) {
        return line.into();
    }
    format!("{option} '{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(machine: Machine) -> Vmm {
        let what = crate::arguments::What { config: None, socket: None, queues: None };
        Vmm { what, memory: "2G".into(), huge: false, machine }
    }

    #[test]
    fn each_disk_of_each_kind_of_guest_is_on_the_command_line() {
        let disks = [DiskSettings::new("/run/a.sock", "a"), DiskSettings::new("/run/b, c.sock", "b")];
        for (machine, expected) in [
            (Machine::Plain, "-machine q35,memory-backend=ram"),
            (Machine::SevSnp, "sev-snp-guest"),
            (Machine::Tdx, "tdx-guest"),
        ] {
            let text = qemu(&disks, &args(machine));
            for expected in [
                expected,
                "-object memory-backend-memfd,id=ram,size=2G,share=on \\\n",
                "-chardev socket,id=cvmio0,path=/run/a.sock,reconnect-ms=500 \\\n",
                "-chardev 'socket,id=cvmio1,path=/run/b,, c.sock,reconnect-ms=500' \\\n",
                "-device vhost-user-blk-pci,chardev=cvmio1,num-queues=4,iommu_platform=on,disable-legacy=on",
            ] {
                assert!(text.contains(expected), "{expected}: {text}");
            }
        }
        let text = cloud_hypervisor(&disks[..1], &args(Machine::Plain)).unwrap();
        assert_eq!(
            text,
            "--memory size=2G,shared=on \\\n--disk vhost_user=true,socket=/run/a.sock,num_queues=4,queue_size=128"
        );
        assert!(cloud_hypervisor(&disks, &args(Machine::Plain)).is_err());
    }
}
