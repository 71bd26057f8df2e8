//! Reasons for which evidence is refused: the platform, the check, and its words.

use std::fmt;

use serde::{Serialize, Serializer};

/// The kind of machine that evidence is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// AMD SEV-SNP.
    Snp,
    /// Intel TDX.
    Tdx,
    /// No confidential VM at all: a machine that says so, signed by a root of its own.
    Simulated,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Snp => "snp",
            Self::Tdx => "tdx",
            Self::Simulated => "simulated",
        })
    }
}

macro_rules! checks {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// One thing that a verifier looks at. Its name is the one that outputs and `docs/attestation.md` have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Check {
            $($(#[$doc])* $variant,)*
        }

        impl Check {
            /// All of them.
            pub const ALL: &[Check] = &[$(Check::$variant,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

checks! {
    /// The evidence has the size and the form of its platform.
    Format = "format",
    /// The version of the report is one that is understood.
    Version = "version",
    /// The policy accepts the platform.
    Platform = "platform",
    /// Evidence of a simulated platform is allowed, and its root is known.
    Simulated = "simulated",
    /// Bytes that no field uses are zero.
    Reserved = "reserved",
    /// The report names the signature algorithm that is understood.
    SignatureAlgorithm = "signature-algorithm",
    /// Certificates lead from the signing key to a root.
    Chain = "chain",
    /// The root is one of those that are pinned.
    Root = "root",
    /// Each certificate is valid at the given time.
    Validity = "validity",
    /// Each certificate has the form that the manufacturer gives it.
    Certificate = "certificate",
    /// No revocation list names a certificate of the chain, and the list that the policy asks for is there.
    Revocation = "revocation",
    /// The report is signed by the chip's key.
    Signature = "signature",
    /// The kind of the signing key is the one that report, certificate and policy name.
    SigningKey = "signing-key",
    /// The chip family is accepted.
    Family = "family",
    /// Report and certificate are of the same product.
    Product = "product",
    /// The chip id is the certificate's, and accepted.
    ChipId = "chip-id",
    /// The cloud provider that a VLEK names is accepted.
    Csp = "csp-id",
    /// The reported security patch levels are the certificate's.
    PatchLevels = "patch-levels",
    /// The launch measurement is accepted.
    Measurement = "measurement",
    /// The report data is the one that this exchange must have.
    ReportData = "report-data",
    /// Data that the host gave at launch.
    HostData = "host-data",
    /// The guest's policy: ABI version and features.
    GuestPolicy = "guest-policy",
    /// The guest can't be debugged by its host.
    Debug = "debug",
    /// The guest can't be migrated by an agent.
    Migration = "migration",
    /// The privilege level that asked for the report.
    Vmpl = "vmpl",
    /// The state of the machine's protections.
    PlatformInfo = "platform-info",
    /// The guest's security version.
    GuestSvn = "guest-svn",
    /// The guest's family id.
    FamilyId = "family-id",
    /// The guest's image id.
    ImageId = "image-id",
    /// The key that signed the id block.
    IdKey = "id-key",
    /// The key that vouches for the id key.
    AuthorKey = "author-key",
    /// The TCB that the report is made for.
    ReportedTcb = "reported-tcb",
    /// The TCB below which the chip can't go back.
    CommittedTcb = "committed-tcb",
    /// The TCB at the moment of the report.
    CurrentTcb = "current-tcb",
    /// The TCB when the guest was launched.
    LaunchTcb = "launch-tcb",
    /// The version of the chip's firmware.
    Firmware = "firmware",
    /// Mitigations that the firmware has in force.
    Mitigations = "mitigations",
    /// Intel's signed word on the platform and its quoting enclave is there, current, and good.
    Collateral = "collateral",
    /// The quoting enclave is Intel's and vouches for the key that has signed the quote.
    QuotingEnclave = "quoting-enclave",
    /// Intel's state of the platform is accepted.
    TcbStatus = "tcb-status",
    /// Each advisory that applies to the platform is accepted.
    Advisories = "advisories",
    /// Attributes of the guest.
    TdAttributes = "td-attributes",
    /// Extended processor features of the guest.
    Xfam = "xfam",
    /// The TDX module is Intel's, and accepted.
    TdxModule = "tdx-module",
    /// No service guest is bound to the guest.
    ServiceTd = "service-td",
    /// Owner and owner's configuration, as the host said at launch.
    Owner = "owner",
    /// The runtime registers.
    Rtmr = "rtmr",
    /// The event log leads to the registers, and each of its events is accepted.
    EventLog = "event-log",
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Why a check said no.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The check.
    pub check: Check,
    /// What was found, and what was expected.
    pub detail: String,
}

impl Reason {
    pub(crate) fn new(check: Check, detail: impl Into<String>) -> Self {
        Self { check, detail: detail.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.detail)
    }
}
