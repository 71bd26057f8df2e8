//! How a guest's memory is protected, and what that asks of QEMU.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// How a guest's memory is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Platform {
    /// AMD SEV-SNP; its firmware is measured, and checks the hashes of kernel, initramfs and command line.
    Snp {
        /// OVMF with a table for those hashes.
        firmware: PathBuf,
    },
    /// Intel TDX (QEMU 10.1 or later).
    Tdx {
        /// OVMF or TDVF.
        firmware: PathBuf,
    },
    /// Not at all, on this machine's processor.
    Kvm,
    /// Not at all, and every instruction emulated.
    Emulated,
}

/// Why this machine has no such guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a switch of a kernel module is on.
fn is_on(path: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
}

/// Whether guests can run on this machine's processor. A machine may have the device, and a processor that cannot virtualize.
fn has_kvm() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let can = flags.split_whitespace().any(|flag| flag == "svm" || flag == "vmx");
    can && fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

impl Platform {
    /// The best that this machine has for a guest that is not confidential.
    #[must_use]
    pub fn unprotected() -> Self {
        if has_kvm() { Self::Kvm } else { Self::Emulated }
    }

    /// Whether a chip vouches for the guest.
    #[must_use]
    pub fn is_confidential(&self) -> bool {
        matches!(self, Self::Snp { .. } | Self::Tdx { .. })
    }

    /// Whether this machine has it.
    ///
    /// # Errors
    /// Why not, and what would have to be there.
    pub fn check(&self) -> Result<(), Unavailable> {
        let needs = |there: bool, what: &str| if there { Ok(()) } else { Err(Unavailable(what.into())) };
        match self {
            Self::Emulated => Ok(()),
            Self::Kvm => needs(has_kvm(), "/dev/kvm cannot be opened for reading and writing"),
            Self::Snp { .. } => {
                needs(
                    is_on("/sys/module/kvm_amd/parameters/sev_snp"),
                    "this machine hosts no SEV-SNP guests: the parameter `sev_snp` of kvm_amd is not on",
                )?;
                needs(has_kvm(), "/dev/kvm cannot be opened for reading and writing")
            }
            Self::Tdx { .. } => {
                needs(
                    is_on("/sys/module/kvm_intel/parameters/tdx"),
                    "this machine hosts no TDX guests: the parameter `tdx` of kvm_intel is not on",
                )?;
                needs(has_kvm(), "/dev/kvm cannot be opened for reading and writing")
            }
        }
    }

    /// QEMU's name for the processor.
    pub(crate) fn processor(&self) -> &'static str {
        match self {
            Self::Snp { .. } => "EPYC-v4",
            Self::Tdx { .. } | Self::Kvm => "host",
            // All that is emulated, but protection keys and five levels of pages, which only make that slower.
            Self::Emulated => "max,pku=off,la57=off",
        }
    }

    /// What a virtio device has in addition: a confidential guest shares its bounce buffer only.
    pub(crate) fn device(&self) -> &'static str {
        if self.is_confidential() { ",iommu_platform=on,disable-legacy=on" } else { "" }
    }

    /// Adds the machine's properties and the objects that it needs.
    pub(crate) fn arguments(&self, memory: u64, machine: &mut String, command: &mut Command) {
        match self {
            Self::Emulated => *machine += ",accel=tcg",
            Self::Kvm => *machine += ",accel=kvm",
            Self::Snp { firmware } => {
                *machine += ",accel=kvm,confidential-guest-support=cgs,memory-backend=ram";
                command.args(["-object", &format!("memory-backend-memfd,id=ram,size={memory},share=on")]);
                command.args([
                    "-object",
                    "sev-snp-guest,id=cgs,cbitpos=51,reduced-phys-bits=1,policy=0x30000,kernel-hashes=on",
                ]);
                command.arg("-bios").arg(firmware);
            }
            Self::Tdx { firmware } => {
                *machine += ",accel=kvm,kernel-irqchip=split,confidential-guest-support=cgs";
                command.args(["-object", "tdx-guest,id=cgs"]).arg("-bios").arg(firmware);
            }
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Snp { .. } => "snp",
            Self::Tdx { .. } => "tdx",
            Self::Kvm | Self::Emulated => "simulated",
        })
    }
}
