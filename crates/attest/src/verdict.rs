//! The answer: which checks said no.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::{Hex, ReportData, simulated, snp, tdx};

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

/// What evidence says about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "platform", rename_all = "kebab-case")]
pub enum Claims {
    /// An SNP report.
    Snp(Box<snp::Report>),
    /// A TDX quote.
    Tdx(Box<tdx::Report>),
    /// A report of a simulated platform.
    Simulated(Box<simulated::Report>),
}

impl Claims {
    /// The kind of machine.
    #[must_use]
    pub fn platform(&self) -> Platform {
        match self {
            Self::Snp(_) => Platform::Snp,
            Self::Tdx(_) => Platform::Tdx,
            Self::Simulated(_) => Platform::Simulated,
        }
    }

    /// The launch measurement.
    #[must_use]
    pub fn measurement(&self) -> Hex<48> {
        match self {
            Self::Snp(report) => report.measurement,
            Self::Tdx(report) => report.mr_td,
            Self::Simulated(report) => report.measurement,
        }
    }

    /// What the guest had signed together with it.
    #[must_use]
    pub fn report_data(&self) -> ReportData {
        match self {
            Self::Snp(report) => report.report_data,
            Self::Tdx(report) => report.report_data,
            Self::Simulated(report) => report.report_data,
        }
    }
}

/// What a verifier says about evidence.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Verdict {
    platform: Platform,
    reasons: Vec<Reason>,
    /// What was not checked since nobody asked for it, in words.
    notes: Vec<String>,
    #[serde(rename = "claimed")]
    claims: Option<Claims>,
}

impl Verdict {
    pub(crate) fn new(
        platform: Platform,
        claims: Option<Claims>,
        reasons: Vec<Reason>,
        notes: Vec<String>,
    ) -> Self {
        Self { platform, reasons, notes, claims }
    }

    /// The kind of machine that the evidence says it is from.
    #[must_use]
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// Why the evidence is refused, the weightiest first; empty if it is accepted.
    #[must_use]
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// What was not checked, in words for a user.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the evidence claims, true or not: for display only. What may be acted on comes from [`Verdict::accepted`].
    #[must_use]
    pub fn claimed(&self) -> Option<&Claims> {
        self.claims.as_ref()
    }

    /// What is true about the machine.
    ///
    /// # Errors
    /// The refusal, if any check said no.
    pub fn accepted(self) -> Result<Claims, Refusal> {
        match self.claims {
            Some(claims) if self.reasons.is_empty() => Ok(claims),
            _ => Err(Refusal { platform: self.platform, reasons: self.reasons }),
        }
    }
}

/// Evidence is refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The kind of machine that the evidence says it is from.
    pub platform: Platform,
    /// All reasons, the weightiest first.
    pub reasons: Vec<Reason>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} evidence is refused: ", self.platform)?;
        match self.reasons.split_first() {
            None => f.write_str("it makes no claim"),
            Some((first, [])) => write!(f, "{first}"),
            Some((first, rest)) => write!(f, "{first} (and {} more)", rest.len()),
        }
    }
}

impl std::error::Error for Refusal {}
