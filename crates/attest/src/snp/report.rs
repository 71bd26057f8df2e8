//! The attestation report of SNP firmware: 1184 bytes, of which the first 672 are signed.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::reason::Check;
use crate::{Hex, ReportData};

use super::Family;

/// Bytes of a report.
pub const REPORT_SIZE: usize = 0x4a0;
/// Bytes that the signature covers.
pub(crate) const SIGNED_SIZE: usize = 0x2a0;
/// Bytes of each number of a signature, little-endian; the numbers have 48.
const NUMBER_SIZE: usize = 72;
/// Bytes of each number of a P-384 signature.
const P384_SIZE: usize = 48;

/// The key that has signed a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SigningKey {
    /// The chip's own, made from its fuses and its TCB.
    Vcek,
    /// One that AMD gave to a cloud provider.
    Vlek,
}

impl fmt::Display for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vcek => "vcek",
            Self::Vlek => "vlek",
        })
    }
}

/// Version of the SNP firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FirmwareVersion {
    /// Major.
    pub major: u8,
    /// Minor.
    pub minor: u8,
    /// Build.
    pub build: u8,
}

impl fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.build)
    }
}

impl Serialize for FirmwareVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What the guest's owner allowed the firmware and the host (8 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct GuestPolicy(pub u64);

impl GuestPolicy {
    pub(crate) const MIGRATION_AGENT: u64 = 1 << 18;
    pub(crate) const DEBUG: u64 = 1 << 19;
    /// Must be one.
    const ONE: u64 = 1 << 17;
    /// Bits that have a meaning: two bytes of ABI version, and features up to PAGE_SWAP_DISABLE.
    const KNOWN: u64 = (1 << 26) - 1;

    /// Features by the names that a policy has for them.
    pub(crate) const FEATURES: [(&'static str, u64); 8] = [
        ("smt", 1 << 16),
        ("migration-agent", Self::MIGRATION_AGENT),
        ("single-socket", 1 << 20),
        ("cxl", 1 << 21),
        ("aes-256-xts", 1 << 22),
        ("rapl-disabled", 1 << 23),
        ("ciphertext-hiding", 1 << 24),
        ("page-swap-disabled", 1 << 25),
    ];

    /// The least ABI version that the guest asked for: major, minor.
    #[must_use]
    pub fn abi(self) -> (u8, u8) {
        let [minor, major, ..] = self.0.to_le_bytes();
        (major, minor)
    }

    fn is_clean(self) -> bool {
        self.0 & !Self::KNOWN == 0 && self.0 & Self::ONE != 0
    }
}

/// State of a machine by the names that a policy has for it, and the bits of PLATFORM_INFO.
pub(crate) const PLATFORM_INFO: [(&str, u64); 7] = [
    ("smt", 1 << 0),
    ("tsme", 1 << 1),
    ("ecc", 1 << 2),
    ("rapl-disabled", 1 << 3),
    ("ciphertext-hiding", 1 << 4),
    ("alias-check-complete", 1 << 5),
    ("tio", 1 << 7),
];

/// What a report says. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Version of the structure, 2 to 5.
    pub version: u32,
    /// The guest's security version, from the id block.
    pub guest_svn: u32,
    /// What the guest allows.
    pub guest_policy: GuestPolicy,
    /// From the id block.
    pub family_id: Hex<16>,
    /// From the id block.
    pub image_id: Hex<16>,
    /// Privilege level of the software that asked; `0xffff_ffff` is the host.
    pub vmpl: u32,
    /// The TCB at the moment of the report.
    pub current_tcb: Hex<8>,
    /// Bits of PLATFORM_INFO.
    pub platform_info: u64,
    /// Whether the author key's digest is there.
    pub has_author_key: bool,
    /// Whether the firmware was told not to sign with the chip's own key.
    pub is_chip_key_masked: bool,
    /// Which key has signed it.
    pub signing_key: SigningKey,
    /// What the guest had signed.
    pub report_data: ReportData,
    /// The launch measurement.
    pub measurement: Hex<48>,
    /// What the host gave at launch.
    pub host_data: Hex<32>,
    /// Digest of the key that signed the id block; zeros without one.
    pub id_key_digest: Hex<48>,
    /// Digest of the key that signed the id key; zeros without one.
    pub author_key_digest: Hex<48>,
    /// Number of this guest.
    pub report_id: Hex<32>,
    /// Number of its migration agent; all ones without one.
    pub report_id_ma: Hex<32>,
    /// The TCB that the signing key is for.
    pub reported_tcb: Hex<8>,
    /// CPUID's family, model and stepping, from version 3 on.
    pub processor: Option<[u8; 3]>,
    /// The chip's id, or zeros.
    pub chip_id: Hex<64>,
    /// The TCB below which the chip can't go back.
    pub committed_tcb: Hex<8>,
    /// Version of the firmware that runs.
    pub current_firmware: FirmwareVersion,
    /// Version of the firmware that is committed.
    pub committed_firmware: FirmwareVersion,
    /// The TCB when the guest was launched or imported.
    pub launch_tcb: Hex<8>,
    /// Mitigations in force at launch, from version 5 on.
    pub launch_mitigations: Option<u64>,
    /// Mitigations in force now, from version 5 on.
    pub current_mitigations: Option<u64>,
}

/// The fields of a report at their places.
struct Fields<'a>(&'a [u8; REPORT_SIZE]);

impl Fields<'_> {
    /// `N` bytes at a place that is inside of a report, as the callers below have it.
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.0[at..at + N]);
        field
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    fn hex<const N: usize>(&self, at: usize) -> Hex<N> {
        Hex(self.bytes(at))
    }

    fn firmware(&self, at: usize) -> FirmwareVersion {
        let [build, minor, major] = self.bytes(at);
        FirmwareVersion { major, minor, build }
    }

    /// Where the bytes are that no field of this version uses: from, up to.
    fn unused(version: u32) -> Vec<(usize, usize)> {
        let mut all = vec![(0x4c, 0x50), (0x1eb, 0x1ec), (0x1ef, 0x1f0)];
        all.push(if version >= 3 { (0x18b, 0x1a0) } else { (0x188, 0x1a0) });
        all.push(if version >= 5 { (0x208, SIGNED_SIZE) } else { (0x1f8, SIGNED_SIZE) });
        // No signature covers these: the upper bytes of its numbers, and what is behind it.
        let (r, s, end) = (SIGNED_SIZE, SIGNED_SIZE + NUMBER_SIZE, SIGNED_SIZE + 2 * NUMBER_SIZE);
        all.extend([(r + P384_SIZE, s), (s + P384_SIZE, end), (end, REPORT_SIZE)]);
        all
    }

    /// Refuses a byte that is set and has no meaning.
    fn check_unused(&self, version: u32) -> Result<(), (Check, String)> {
        let unused = Self::unused(version);
        let mut places = unused.iter().flat_map(|(from, to)| *from..*to);
        if let Some(at) = places.find(|at| self.0[*at] != 0) {
            let detail =
                format!("byte {at:#x} is {:#04x}, and version {version} has no meaning for it", self.0[at]);
            return Err((Check::Reserved, detail));
        }
        let flags = self.u32(0x48);
        if flags >> 5 != 0 {
            return Err((
                Check::Reserved,
                format!("the key information is {flags:#x}, and knows bits 0 to 4"),
            ));
        }
        Ok(())
    }
}

/// The signature's two numbers, big-endian, one behind the other, as the cipher library has them.
pub(crate) fn signature(report: &[u8; REPORT_SIZE]) -> [u8; 2 * P384_SIZE] {
    let mut fixed = [0; 2 * P384_SIZE];
    for (number, place) in fixed.chunks_exact_mut(P384_SIZE).zip([SIGNED_SIZE, SIGNED_SIZE + NUMBER_SIZE]) {
        number.copy_from_slice(&report[place..place + P384_SIZE]);
        number.reverse();
    }
    fixed
}

impl Report {
    /// Reads a report. Whether it is signed is not looked at.
    ///
    /// # Errors
    /// The check that says no, and why.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, (Check, String)> {
        let Ok(exact) = <&[u8; REPORT_SIZE]>::try_from(bytes) else {
            return Err((Check::Format, format!("{} bytes, and a report has {REPORT_SIZE}", bytes.len())));
        };
        let fields = Fields(exact);
        let version = fields.u32(0);
        if !(2..=5).contains(&version) {
            return Err((Check::Version, format!("version {version}; versions 2 to 5 are understood")));
        }
        fields.check_unused(version)?;
        let algorithm = fields.u32(0x34);
        if algorithm != 1 {
            let detail = format!("found {algorithm}, expected 1 (ECDSA on P-384 with SHA-384)");
            return Err((Check::SignatureAlgorithm, detail));
        }
        let flags = fields.u32(0x48);
        let signing_key = match (flags >> 2) & 7 {
            0 => SigningKey::Vcek,
            1 => SigningKey::Vlek,
            7 => return Err((Check::SigningKey, "the report says that nobody has signed it".to_string())),
            other => {
                return Err((Check::SigningKey, format!("found {other}; 0 (VCEK) and 1 (VLEK) are known")));
            }
        };
        let guest_policy = GuestPolicy(fields.u64(0x08));
        if !guest_policy.is_clean() {
            let detail = format!("found {:#x}: bit 17 must be one, and bits 26 to 63 zero", guest_policy.0);
            return Err((Check::GuestPolicy, detail));
        }
        let mitigations = |at| (version >= 5).then(|| fields.u64(at));
        Ok(Self {
            version,
            guest_svn: fields.u32(0x04),
            guest_policy,
            family_id: fields.hex(0x10),
            image_id: fields.hex(0x20),
            vmpl: fields.u32(0x30),
            current_tcb: fields.hex(0x38),
            platform_info: fields.u64(0x40),
            has_author_key: flags & 1 != 0,
            is_chip_key_masked: flags & 2 != 0,
            signing_key,
            report_data: fields.hex(0x50),
            measurement: fields.hex(0x90),
            host_data: fields.hex(0xc0),
            id_key_digest: fields.hex(0xe0),
            author_key_digest: fields.hex(0x110),
            report_id: fields.hex(0x140),
            report_id_ma: fields.hex(0x160),
            reported_tcb: fields.hex(0x180),
            processor: (version >= 3).then(|| fields.bytes(0x188)),
            chip_id: fields.hex(0x1a0),
            committed_tcb: fields.hex(0x1e0),
            current_firmware: fields.firmware(0x1e8),
            committed_firmware: fields.firmware(0x1ec),
            launch_tcb: fields.hex(0x1f0),
            launch_mitigations: mitigations(0x1f8),
            current_mitigations: mitigations(0x200),
        })
    }

    /// The chip family that the report itself names, from version 3 on.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        let [family, model, _] = self.processor?;
        Family::of_processor(family, model)
    }
}
