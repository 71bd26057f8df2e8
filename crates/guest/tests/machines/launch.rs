//! Command lines of confidential guests, against the parser of a real QEMU. **No machine here has such a chip**: nothing is booted.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use guest::Bed;
use vm::{Disk, Forward, Launch, Platform};

fn launch(bed: &Bed, directory: &Path, platform: Platform) -> Launch {
    let file = |name: &str| {
        let path = directory.join(name);
        fs::write(&path, [0; 65536]).unwrap();
        path
    };
    Launch {
        qemu: bed.qemu(),
        platform,
        kernel: bed.kernel_image(),
        initramfs: file("initramfs"),
        words: "console=ttyS0".into(),
        disks: vec![
            Disk { path: file("root"), read_only: true },
            Disk { path: file("a volume, with a comma"), read_only: false },
        ],
        memory: 256 << 20,
        processors: 2,
        forwards: vec![Forward { host: 0, guest: 22 }],
        files: vec![("seat".into(), file("seat"))],
        console: directory.join("console"),
    }
}

/// The words of a launch, each changed.
fn words(launch: &Launch, change: impl Fn(&str) -> String) -> Vec<String> {
    launch.command().get_args().map(|word| change(&word.to_string_lossy())).collect()
}

/// Starts QEMU without running the guest, and tells it to quit. Whether it came so far, and what it complained of.
fn parse(bed: &Bed, words: &[String]) -> (bool, String) {
    let mut command = Command::new(bed.qemu());
    command.args(words).args(["-S", "-qmp", "stdio"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may have ended before.
    let orders = b"{\"execute\": \"qmp_capabilities\"}\n{\"execute\": \"quit\"}\n";
    let _ = child.stdin.take().unwrap().write_all(orders);
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    // Emulation lacks some of what a processor has that it knows.
    let lines: Vec<&str> =
        said.lines().filter(|line| !line.contains("warning: TCG doesn't support")).collect();
    (ended.status.success(), lines.join("\n"))
}

/// The line without what needs the chip: everything else is parsed, and each device is made.
fn without_chip(launch: &Launch) -> Vec<String> {
    let words = words(launch, |word| match word.starts_with("q35") {
        true => "q35,accel=tcg".into(),
        // This machine's own processor is for KVM only.
        false if word == "host" => "max".into(),
        false => word.into(),
    });
    let mut kept = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let is_chip_s = |value: &String| value.starts_with("sev-snp-guest") || value.starts_with("tdx-guest");
        // The file that stands for the firmware is none.
        if word == "-bios" || (word == "-object" && words.peek().is_some_and(is_chip_s)) {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept
}

#[test]
fn the_lines_of_confidential_guests_are_those_that_qemu_reads() {
    let Some(bed) = guest::bed() else { return };
    let directory = tempfile::tempdir().unwrap();
    let firmware = directory.path().join("firmware");
    fs::write(&firmware, [0; 65536]).unwrap();
    let snp = launch(&bed, directory.path(), Platform::Snp { firmware: firmware.clone() });
    let tdx = launch(&bed, directory.path(), Platform::Tdx { firmware });

    // In emulation QEMU reads all of the machine, its memory and the object of the chip. Then it wants KVM.
    let emulated = |word: &str| word.replace("accel=kvm", "accel=tcg");
    let (whole, said) = parse(&bed, &words(&snp, emulated));
    assert!(!whole && said.contains("sev-snp-guest: KVM required") && said.lines().count() == 1, "{said}");
    // It would have said so of a property that it does not know, or of a value of another kind.
    for (right, wrong, complaint) in [
        ("kernel-hashes=on", "kernel-hash=on", "kernel-hash"),
        ("reduced-phys-bits=1", "reduced-phys-bits=x", "reduced-phys-bits"),
        ("memory-backend=ram", "memory-backends=ram", "memory-backends"),
    ] {
        let (_, said) = parse(&bed, &words(&snp, |word| emulated(word).replace(right, wrong)));
        assert!(said.contains(complaint), "{wrong}: {said}");
    }
    // QEMU has TDX from 10.1 on, and says that it lacks the object where it is older.
    let (whole, said) = parse(&bed, &words(&tdx, |word| emulated(word).replace(",kernel-irqchip=split", "")));
    let is_older = said.contains("does not accept value 'tdx-guest'");
    assert!(!whole && (is_older || said.contains("KVM")), "{said}");

    for launch in [&snp, &tdx] {
        assert_eq!(parse(&bed, &without_chip(launch)), (true, String::new()));
    }
    for (right, wrong) in [("iommu_platform", "iommu"), ("EPYC-v4", "EPYC-v44")] {
        let broken: Vec<String> = without_chip(&snp).iter().map(|word| word.replace(right, wrong)).collect();
        assert!(parse(&bed, &broken).1.contains(wrong), "{broken:?}");
    }
}
