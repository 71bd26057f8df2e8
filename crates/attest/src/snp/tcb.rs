//! TCB versions: the security patch level of each part of a chip's firmware.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Family;

/// Security patch levels. A part that the family does not have is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcb {
    /// FMC, on Turin only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fmc: u8,
    /// Boot loader.
    pub bootloader: u8,
    /// Operating system of the security processor.
    pub tee: u8,
    /// SNP firmware.
    pub snp: u8,
    /// Microcode.
    pub microcode: u8,
}

/// Serde hands over a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u8) -> bool {
    *value == 0
}

impl Tcb {
    /// Reads the 8 bytes of a report.
    #[must_use]
    pub fn read(bytes: [u8; 8], family: Family) -> Self {
        let [a, b, c, d, _, _, g, microcode] = bytes;
        match family {
            Family::Milan | Family::Genoa => Self { fmc: 0, bootloader: a, tee: b, snp: g, microcode },
            Family::Turin => Self { fmc: a, bootloader: b, tee: c, snp: d, microcode },
        }
    }

    /// Whether the bytes that no part uses are zero.
    #[must_use]
    pub(crate) fn is_clean(bytes: [u8; 8], family: Family) -> bool {
        let [_, _, c, d, e, f, g, _] = bytes;
        match family {
            Family::Milan | Family::Genoa => [c, d, e, f] == [0; 4],
            Family::Turin => [e, f, g] == [0; 3],
        }
    }

    /// The parts, with their names.
    #[must_use]
    pub(crate) fn parts(self) -> [(&'static str, u8); 5] {
        [
            ("fmc", self.fmc),
            ("bootloader", self.bootloader),
            ("tee", self.tee),
            ("snp", self.snp),
            ("microcode", self.microcode),
        ]
    }

    /// Each part that is below `minimum`, in words.
    #[must_use]
    pub(crate) fn shortfall(self, minimum: Self) -> Option<String> {
        let pairs = self.parts().into_iter().zip(minimum.parts());
        let low = pairs.filter(|((_, found), (_, wanted))| found < wanted);
        let low: Vec<String> = low
            .map(|((name, found), (_, wanted))| format!("{name} is {found}, at least {wanted} is expected"))
            .collect();
        if low.is_empty() { None } else { Some(low.join("; ")) }
    }
}

impl fmt::Display for Tcb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts().into_iter().filter(|(name, level)| *name != "fmc" || *level != 0);
        let parts: Vec<String> = parts.map(|(name, level)| format!("{name} {level}")).collect();
        f.write_str(&parts.join(", "))
    }
}
