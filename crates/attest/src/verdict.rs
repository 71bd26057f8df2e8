//! The answer: which checks said no.

use std::fmt;

use serde::Serialize;

use crate::reason::{Platform, Reason};
use crate::{Hex, ReportData, simulated, snp, tdx};

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
