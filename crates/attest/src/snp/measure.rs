//! The launch measurement that a guest must have, from what it boots.
//!
//! The firmware of the security processor extends a digest with each page that the host gives to a guest before its start: the image of the virtual
//! firmware, the pages that the image asks for (one of them holds digests of kernel, initrd and command line), and the state of each virtual
//! processor. Sources: AMD publication 56860, "SNP_LAUNCH_UPDATE" and "PAGE_INFO"; AMD64 Architecture Programmer's Manual, volume 2, table B-4
//! (state save area); edk2, `OvmfPkg/ResetVector` (the tables in the image); QEMU, `target/i386/sev.c` (digests of kernel, initrd, command line).

mod explain;
mod firmware;
mod processor;

use std::fmt;

use aws_lc_rs::digest::{SHA256, SHA384, digest};

use crate::Hex;

pub use explain::{Candidates, Difference, explain};
pub use firmware::Firmware;
pub use processor::{PROCESSORS, Vmm, processor_signature};

use firmware::SectionKind;

/// Most virtual processors.
pub const MAX_VCPUS: u32 = 4096;
const PAGE: usize = 4096;
/// Where the state of each processor counts as being.
const VMSA_ADDRESS: u64 = 0xffff_ffff_f000;

/// Kinds of pages, by the numbers of the specification.
#[derive(Debug, Clone, Copy)]
enum PageKind {
    Normal = 1,
    Vmsa = 2,
    Zero = 3,
    Secrets = 5,
    Cpuid = 6,
}

/// Why a launch cannot be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeasureError {
    /// The image is no firmware of the form that is understood; what is wrong with it.
    Firmware(String),
    /// The image has no place for digests of kernel, initrd and command line, so a guest that is started with them can't be measured.
    NoKernelHashes,
    /// The number of virtual processors is not between 1 and [`MAX_VCPUS`].
    Vcpus(u32),
}

impl fmt::Display for MeasureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Firmware(what) => write!(f, "the firmware's image cannot be measured: {what}"),
            Self::NoKernelHashes => f.write_str(
                "the firmware has no place for the digests of kernel, initrd and command line, so they would not be measured; take a build that \
                 has one, such as edk2's AmdSevX64",
            ),
            Self::Vcpus(count) => write!(f, "{count} virtual processors; 1 to {MAX_VCPUS} can be measured"),
        }
    }
}

impl std::error::Error for MeasureError {}

/// Digests (SHA-256) of what is booted directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelHashes {
    kernel: [u8; 32],
    initrd: [u8; 32],
    command_line: [u8; 32],
}

impl KernelHashes {
    /// Of the files' bytes, and of the command line as the VMM was given it, to the last blank. Without an initrd, no bytes.
    #[must_use]
    pub fn new(kernel: &[u8], initrd: &[u8], command_line: &str) -> Self {
        let hashes = Self { kernel: sha256(kernel), initrd: sha256(initrd), command_line: [0; 32] };
        hashes.with_command_line(command_line)
    }

    /// The same with another command line.
    #[must_use]
    pub fn with_command_line(mut self, command_line: &str) -> Self {
        // The VMM hands it over with a zero at its end.
        self.command_line = sha256(&[command_line.as_bytes(), &[0]].concat());
        self
    }

    /// The table, as the VMM writes it into the page that the firmware names.
    fn table(&self) -> Vec<u8> {
        const HEADER: u128 = 0x9438_d606_4f22_4cc9_b479_a793_d411_fd21;
        const COMMAND_LINE: u128 = 0x97d0_2dd8_bd20_4c94_aa78_e771_4d36_ab2a;
        const INITRD: u128 = 0x44ba_f731_3a2f_4bd7_9af1_41e2_9169_781d;
        const KERNEL: u128 = 0x4de7_9437_abd2_427f_b835_d5b1_72d2_045b;
        let entries = [(COMMAND_LINE, self.command_line), (INITRD, self.initrd), (KERNEL, self.kernel)];
        let mut table = firmware::guid(HEADER).to_vec();
        table.extend(168_u16.to_le_bytes());
        for (name, hash) in entries {
            table.extend(firmware::guid(name));
            table.extend(50_u16.to_le_bytes());
            table.extend(hash);
        }
        table
    }

    /// The whole page, with the table at its place.
    fn page(&self, address: u64) -> Result<[u8; PAGE], MeasureError> {
        let mut page = [0; PAGE];
        let at = usize::try_from(address).unwrap_or(usize::MAX) % PAGE;
        let table = self.table();
        let place = page.get_mut(at..at + table.len());
        place.ok_or(MeasureError::NoKernelHashes)?.copy_from_slice(&table);
        Ok(page)
    }
}

/// What is launched.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// The firmware.
    pub firmware: &'a Firmware,
    /// Kernel, initrd and command line, if they are booted directly.
    pub kernel: Option<KernelHashes>,
    /// How many virtual processors.
    pub vcpus: u32,
    /// Signature of their type (CPUID leaf 1, EAX); see [`PROCESSORS`].
    pub processor: u32,
    /// SEV features: 0x1, and with debug swap 0x21.
    pub guest_features: u64,
    /// The VMM.
    pub vmm: Vmm,
}

/// The measurement of a launch.
///
/// # Errors
/// If the firmware has no place for the kernel's digests, or there are too many virtual processors.
pub fn launch_measurement(launch: &Launch<'_>) -> Result<Hex<48>, MeasureError> {
    if !(1..=MAX_VCPUS).contains(&launch.vcpus) {
        return Err(MeasureError::Vcpus(launch.vcpus));
    }
    let mut state = before_processors(launch.firmware, launch.kernel.as_ref(), launch.vmm)?;
    let pages = processor::Pages::new(launch.firmware, launch.processor, launch.guest_features, launch.vmm);
    state.processor(&pages.first);
    for _ in 1..launch.vcpus {
        state.processor(&pages.others);
    }
    Ok(state.0)
}

/// The digest behind firmware and its pages.
fn before_processors(
    firmware: &Firmware,
    kernel: Option<&KernelHashes>,
    vmm: Vmm,
) -> Result<State, MeasureError> {
    if kernel.is_some() && !firmware.has_kernel_hashes() {
        return Err(MeasureError::NoKernelHashes);
    }
    let mut state = State(firmware.digest());
    for section in firmware.sections() {
        let address = u64::from(section.address);
        match section.kind {
            SectionKind::Memory | SectionKind::Caa => state.zeros(address, section.size),
            SectionKind::Secrets => state.extend(PageKind::Secrets, address, &[0; 48]),
            // EC2 gives this page last.
            SectionKind::Cpuid if vmm == Vmm::Ec2 => {}
            SectionKind::Cpuid => state.extend(PageKind::Cpuid, address, &[0; 48]),
            SectionKind::KernelHashes => match kernel {
                Some(kernel) => {
                    let page =
                        kernel.page(firmware.hash_table_address().ok_or(MeasureError::NoKernelHashes)?)?;
                    state.extend(PageKind::Normal, address, &sha384(&page));
                }
                None => state.zeros(address, section.size),
            },
        }
    }
    if vmm == Vmm::Ec2 {
        let late = firmware.sections().iter().filter(|section| section.kind == SectionKind::Cpuid);
        late.for_each(|section| state.extend(PageKind::Cpuid, u64::from(section.address), &[0; 48]));
    }
    Ok(state)
}

/// The digest so far.
#[derive(Debug, Clone, Copy)]
struct State(Hex<48>);

impl State {
    /// Extends by one page: its kind, its address, and the digest of its content (zeros where the content is not measured).
    fn extend(&mut self, kind: PageKind, address: u64, content: &[u8; 48]) {
        let mut info = self.0.0.to_vec();
        info.extend(content);
        info.extend(0x70_u16.to_le_bytes());
        // Kind; not an initial migration image; no permissions of other levels; reserved.
        info.extend([kind as u8, 0, 0, 0, 0, 0]);
        info.extend(address.to_le_bytes());
        self.0 = Hex(sha384(&info));
    }

    fn zeros(&mut self, address: u64, size: u32) {
        for offset in (0..u64::from(size)).step_by(PAGE) {
            self.extend(PageKind::Zero, address + offset, &[0; 48]);
        }
    }

    fn pages(&mut self, address: u64, content: &[u8]) {
        for (page, at) in content.chunks(PAGE).zip((address..).step_by(PAGE)) {
            self.extend(PageKind::Normal, at, &sha384(page));
        }
    }

    fn processor(&mut self, digest: &[u8; 48]) {
        self.extend(PageKind::Vmsa, VMSA_ADDRESS, digest);
    }
}

fn sha384(bytes: &[u8]) -> [u8; 48] {
    let mut out = [0; 48];
    out.copy_from_slice(digest(&SHA384, bytes).as_ref());
    out
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}
