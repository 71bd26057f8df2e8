//! The state in which virtual processors start.

use std::fmt;
use std::str::FromStr;

use super::{Firmware, PAGE, sha384};

/// The first processor starts here.
const FIRST: u32 = 0xffff_fff0;

/// The VMM, which sets some registers in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Vmm {
    /// QEMU.
    #[default]
    Qemu,
    /// Amazon's.
    Ec2,
}

impl fmt::Display for Vmm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Qemu => "qemu",
            Self::Ec2 => "ec2",
        })
    }
}

impl FromStr for Vmm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "qemu" => Ok(Self::Qemu),
            "ec2" => Ok(Self::Ec2),
            other => Err(format!("the VMM {other:?} is not known; known are qemu and ec2")),
        }
    }
}

/// Types of virtual processors in QEMU's words, each with its family, model and stepping. Versions of a type have the same.
pub const PROCESSORS: [(&str, [u32; 3]); 5] = [
    ("EPYC", [23, 1, 2]),
    ("EPYC-Rome", [23, 49, 0]),
    ("EPYC-Milan", [25, 1, 1]),
    ("EPYC-Genoa", [25, 17, 0]),
    ("EPYC-Turin", [26, 0, 0]),
];

/// The signature (CPUID leaf 1, EAX) of a type of virtual processors, such as `EPYC-v4`, `EpycMilan` or `epyc-genoa`.
#[must_use]
pub fn processor_signature(name: &str) -> Option<u32> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "");
    let name = plain(name);
    // A version, as in `EPYC-v4`, does not count.
    let name = match name.rsplit_once('v') {
        Some((base, version))
            if !version.is_empty() && version.bytes().all(|digit| digit.is_ascii_digit()) =>
        {
            base
        }
        _ => name.strip_suffix("ibpb").unwrap_or(&name),
    };
    PROCESSORS.iter().find(|(known, _)| plain(known) == name).map(|(_, parts)| signature(*parts))
}

/// A family above 15 is written in two parts, and so is a model.
pub(super) fn signature([family, model, stepping]: [u32; 3]) -> u32 {
    let (low, high) = if family > 15 { (15, family - 15) } else { (family, 0) };
    high << 20 | (model >> 4) << 16 | low << 8 | (model & 15) << 4 | stepping & 15
}

/// Digests of the pages with the state of the first processor and of each other.
pub(super) struct Pages {
    pub(super) first: [u8; 48],
    pub(super) others: [u8; 48],
}

impl Pages {
    pub(super) fn new(firmware: &Firmware, processor: u32, features: u64, vmm: Vmm) -> Self {
        let page = |start| sha384(&page(start, processor, features, vmm));
        Self { first: page(FIRST), others: page(firmware.reset()) }
    }
}

/// The state save area of a processor that starts at `start`.
fn page(start: u32, processor: u32, features: u64, vmm: Vmm) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = page.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    let is_first = start == FIRST;
    let (code, stack, task, rdx, mxcsr, fcw): (u16, u16, u16, u32, u32, u16) = match vmm {
        Vmm::Qemu => (0x9b, 0x93, 0x8b, processor, 0x1f80, 0x37f),
        Vmm::Ec2 => (if is_first { 0x9a } else { 0x9b }, 0x92, 0x83, 0, 0, 0),
    };
    // ES, CS, SS, DS, FS, GS, GDTR, LDTR, IDTR, TR: selector 2, attributes 2, limit 4, base 8.
    let attributes = [0x93, code, stack, 0x93, 0x93, 0x93, 0, 0x82, 0, task];
    for (place, attributes) in attributes.into_iter().enumerate() {
        put(16 * place + 2, &attributes.to_le_bytes());
        put(16 * place + 4, &0xffff_u32.to_le_bytes());
    }
    put(0x10, &0xf000_u16.to_le_bytes());
    put(0x18, &u64::from(start & 0xffff_0000).to_le_bytes());
    let registers: [(usize, u64); 11] = [
        (0xd0, 0x1000),                     // EFER
        (0x148, 0x40),                      // CR4
        (0x158, 0x10),                      // CR0
        (0x160, 0x400),                     // DR7
        (0x168, 0xffff_0ff0),               // DR6
        (0x170, 2),                         // RFLAGS
        (0x178, u64::from(start & 0xffff)), // RIP
        (0x268, 0x0007_0406_0007_0406),     // G_PAT
        (0x310, u64::from(rdx)),            // RDX
        (0x3b0, features),                  // SEV_FEATURES
        (0x3e8, 1),                         // XCR0
    ];
    for (at, value) in registers {
        put(at, &value.to_le_bytes());
    }
    put(0x408, &mxcsr.to_le_bytes());
    put(0x410, &fcw.to_le_bytes());
    page
}
