//! Why a guest has another measurement than was expected: what people get wrong is tried.

use std::fmt;

use crate::Hex;

use super::processor::{Pages, signature};
use super::{Firmware, KernelHashes, Launch, MAX_VCPUS, PROCESSORS, before_processors};

/// Most virtual processors that are tried.
const MOST_TRIED: u32 = 512;
/// Sets of SEV features that are tried: SNP alone, and with debug swap, which newer kernels turn on.
const FEATURES: [u64; 2] = [0x1, 0x21];

/// What a launch may have been instead.
#[derive(Debug, Clone, Default)]
pub struct Candidates<'a> {
    /// Other firmware, by a name for the answer.
    pub firmware: Vec<(String, &'a Firmware)>,
    /// The command line as it was expected, if a kernel is booted directly.
    pub command_line: Option<&'a str>,
}

/// How a launch differs from what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// Other SEV features.
    GuestFeatures(u64),
    /// Another number of virtual processors.
    Vcpus(u32),
    /// Another type of virtual processors.
    Processor(&'static str),
    /// Another firmware; its name.
    Firmware(String),
    /// Another command line.
    CommandLine(String),
    /// No kernel was given to the VMM, so its digests are not measured.
    NoKernelHashes,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GuestFeatures(features) => write!(f, "the guest features are {features:#x}"),
            Self::Vcpus(count) => write!(f, "the guest has {count} virtual processors"),
            Self::Processor(name) => write!(f, "the virtual processors are {name}"),
            Self::Firmware(name) => write!(f, "the firmware is {name}"),
            Self::CommandLine(line) => write!(f, "the command line is {line:?}"),
            Self::NoKernelHashes => f.write_str("kernel, initrd and command line were not measured"),
        }
    }
}

/// Kernel digests, and how they differ.
type Kernel = (Option<KernelHashes>, Option<Difference>);

fn kernels(expected: &Launch<'_>, candidates: &Candidates<'_>) -> Vec<Kernel> {
    let mut all = vec![(expected.kernel, None)];
    let Some(hashes) = expected.kernel else { return all };
    if let Some(line) = candidates.command_line {
        let trimmed = line.trim().to_string();
        let variants = [
            trimmed.clone(),
            format!("{trimmed} "),
            format!(" {trimmed}"),
            format!("{trimmed}\n"),
            String::new(),
        ];
        for variant in variants.into_iter().filter(|variant| variant != line) {
            all.push((Some(hashes.with_command_line(&variant)), Some(Difference::CommandLine(variant))));
        }
    }
    all.push((None, Some(Difference::NoKernelHashes)));
    all
}

/// Finds the launch with the fewest differences from the expected one that has the measurement `found`. No differences: it is the expected one.
/// `None`: nothing that is tried explains it.
#[must_use]
pub fn explain(
    expected: &Launch<'_>,
    candidates: &Candidates<'_>,
    found: Hex<48>,
) -> Option<Vec<Difference>> {
    let mut firmware = vec![(expected.firmware, None)];
    firmware.extend(
        candidates.firmware.iter().map(|(name, one)| (*one, Some(Difference::Firmware(name.clone())))),
    );
    let mut best: Option<Vec<Difference>> = None;
    for (firmware, other_firmware) in &firmware {
        for (kernel, other_kernel) in kernels(expected, candidates) {
            let Ok(before) = before_processors(firmware, kernel.as_ref(), expected.vmm) else { continue };
            for (features, processor, differences) in processors(expected) {
                let pages = Pages::new(firmware, processor, features, expected.vmm);
                let mut state = before;
                state.processor(&pages.first);
                for count in 1..=MOST_TRIED.max(expected.vcpus).min(MAX_VCPUS) {
                    if state.0 == found {
                        let other = (count != expected.vcpus).then_some(Difference::Vcpus(count));
                        let all = [other_firmware.clone(), other_kernel.clone(), other].into_iter().flatten();
                        let all: Vec<Difference> = all.chain(differences.iter().cloned()).collect();
                        if best.as_ref().is_none_or(|best| all.len() < best.len()) {
                            best = Some(all);
                        }
                    }
                    state.processor(&pages.others);
                }
            }
        }
    }
    best
}

/// Features and types of processors, each with how it differs.
fn processors(expected: &Launch<'_>) -> Vec<(u64, u32, Vec<Difference>)> {
    let features = [expected.guest_features].into_iter().chain(FEATURES);
    let types = PROCESSORS.iter().map(|(name, parts)| (*name, signature(*parts)));
    let types: Vec<(&str, u32)> = [("", expected.processor)].into_iter().chain(types).collect();
    let mut all = Vec::new();
    for (place, features) in features.enumerate() {
        if place > 0 && features == expected.guest_features {
            continue;
        }
        let other = (place > 0).then_some(Difference::GuestFeatures(features));
        for (place, (name, processor)) in types.iter().enumerate() {
            if place > 0 && *processor == expected.processor {
                continue;
            }
            let another = (place > 0).then_some(Difference::Processor(name));
            all.push((features, *processor, [other.clone(), another].into_iter().flatten().collect()));
        }
    }
    all
}
