//! Evidence from confidential VMs: bytes in, a verdict out.
//!
//! [`verify`] judges one piece of [`Evidence`] against a [`Policy`] of the owner's, and against what its caller knows ([`Context`]: the time,
//! the roots, revocation lists, and the report data that this very exchange must have). The answer is a [`Verdict`]: yes, or no with the first
//! reason and the list of all.
//!
//! Nothing here reads a clock, a network or a file. Signatures are checked over the raw bytes that were given, never over a copy that was
//! parsed and written again. The page `docs/attestation.md` says which check holds which field.
#![forbid(unsafe_code)]

mod binding;
mod certificate;
mod context;
mod evidence;
mod family;
mod findings;
mod hexadecimal;
mod kinds;
pub mod pem;
mod policy;
mod reason;
mod roots;
mod rules;
pub mod simulated;
pub mod snp;
pub mod tdx;
mod verdict;
mod verify;

pub use binding::{Binding, REPORT_DATA_SIZE, ReportData};
pub use certificate::is_revocation_list;
pub use context::{Context, Expected};
pub use evidence::{Evidence, EvidenceError, MAX_EVIDENCE};
pub use hexadecimal::Hex;
pub use policy::Policy;
pub use reason::{Check, Platform, Reason};
pub use roots::Roots;
pub use rules::{Features, MAX_POLICY, PolicyError};
pub use verdict::{Claims, Refusal, Verdict};
pub use verify::verify;
