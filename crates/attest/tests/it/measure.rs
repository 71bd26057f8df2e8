//! Launch measurements against published vectors, and what explains another one.

use std::collections::BTreeMap;
use std::fs;

use attest::Hex;
use attest::snp::measure::{
    Candidates, Difference, Firmware, KernelHashes, Launch, MAX_VCPUS, MeasureError, explain,
    launch_measurement, processor_signature,
};

use crate::real::folder;

/// The two images of the vectors' folder.
fn images(test: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let folder = folder(test)?.join("snp-measure");
    let names = ["ovmf_AmdSev_suffix.bin", "ovmf_OvmfX64_suffix.bin"];
    Some(names.map(|name| (name.to_string(), fs::read(folder.join(name)).unwrap())).into())
}

#[test]
fn all_published_vectors_agree() {
    let Some(images) = images("launch measurements") else { return };
    let vectors = fs::read_to_string(folder("vectors").unwrap().join("snp-measure/vectors.tsv")).unwrap();
    let mut count = 0;
    for line in vectors.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, vcpus, processor, image, features, kernel, command_line, digest, vmm, expected] =
            columns[..]
        else {
            panic!("a line of {} columns: {line}", columns.len())
        };
        let mut firmware = Firmware::parse(&images[image]).unwrap();
        if !digest.is_empty() {
            firmware = firmware.with_digest(Hex::parse(digest).unwrap());
        }
        let launch = Launch {
            firmware: &firmware,
            // The vectors' kernel and initrd are empty files.
            kernel: (!kernel.is_empty()).then(|| KernelHashes::new(b"", b"", command_line)),
            vcpus: vcpus.parse().unwrap(),
            processor: processor_signature(processor).unwrap(),
            guest_features: u64::from_str_radix(features.trim_start_matches("0x"), 16).unwrap(),
            vmm: vmm.parse().unwrap(),
        };
        match launch_measurement(&launch) {
            Ok(measurement) => assert_eq!(measurement.to_string(), expected, "{name}"),
            Err(error) => assert_eq!((expected, error), ("ERROR", MeasureError::NoKernelHashes), "{name}"),
        }
        count += 1;
    }
    assert_eq!(count, 15);
}

#[test]
fn what_people_get_wrong_is_found() {
    let Some(images) = images("explanations") else { return };
    let firmware = Firmware::parse(&images["ovmf_AmdSev_suffix.bin"]).unwrap();
    let other = Firmware::parse(&images["ovmf_OvmfX64_suffix.bin"]).unwrap();
    let line = "console=ttyS0 quiet";
    let expected = Launch {
        firmware: &firmware,
        kernel: Some(KernelHashes::new(b"kernel", b"initrd", line)),
        vcpus: 2,
        processor: processor_signature("EPYC-v4").unwrap(),
        guest_features: 0x1,
        vmm: attest::snp::measure::Vmm::Qemu,
    };
    let candidates = Candidates { firmware: vec![("other".to_string(), &other)], command_line: Some(line) };
    let found = |launch: &Launch<'_>| explain(&expected, &candidates, launch_measurement(launch).unwrap());
    assert_eq!(found(&expected), Some(Vec::new()));
    let debug_swap = Launch { guest_features: 0x21, ..expected.clone() };
    assert_eq!(found(&debug_swap), Some(vec![Difference::GuestFeatures(0x21)]));
    let more = Launch { vcpus: 64, ..expected.clone() };
    assert_eq!(found(&more), Some(vec![Difference::Vcpus(64)]));
    let milan = Launch { processor: processor_signature("EPYC-Milan").unwrap(), ..expected.clone() };
    assert_eq!(found(&milan), Some(vec![Difference::Processor("EPYC-Milan")]));
    let blank = format!("{line} ");
    let kernel = Some(KernelHashes::new(b"kernel", b"initrd", &blank));
    let trailing = Launch { kernel, guest_features: 0x21, ..expected.clone() };
    let differences = vec![Difference::CommandLine(blank), Difference::GuestFeatures(0x21)];
    assert_eq!(found(&trailing), Some(differences));
    let without = Launch { kernel: None, ..expected.clone() };
    assert_eq!(found(&without), Some(vec![Difference::NoKernelHashes]));
    let elsewhere = Launch { firmware: &other, kernel: None, ..expected.clone() };
    let differences = vec![Difference::Firmware("other".to_string()), Difference::NoKernelHashes];
    assert_eq!(found(&elsewhere), Some(differences));
    assert_eq!(explain(&expected, &candidates, Hex([1; 48])), None);
    let many = Launch { vcpus: MAX_VCPUS + 1, ..expected.clone() };
    assert_eq!(launch_measurement(&many), Err(MeasureError::Vcpus(MAX_VCPUS + 1)));
}

#[test]
fn an_image_that_is_no_firmware_is_refused() {
    for image in [&[][..], &[0; 4096], &[0; 100], &[0xff; 8192]] {
        assert!(matches!(Firmware::parse(image), Err(MeasureError::Firmware(_))), "{} bytes", image.len());
    }
    let Some(images) = images("broken images") else { return };
    // No byte of an image can make the reader panic.
    let image = &images["ovmf_AmdSev_suffix.bin"];
    for at in 0..image.len() {
        for value in [0, 0xff, image[at] ^ 0x80] {
            let mut changed = image.clone();
            changed[at] = value;
            _ = Firmware::parse(&changed);
        }
    }
}
