//! An anchor in a TPM 2.0: an NV index of type Extend, which is a digest of all moves, and a companion file with the moves themselves.
//!
//! | module | its one job |
//! | --- | --- |
//! | [`wire`] | the messages of a TPM, laid out and read |
//! | [`transport`] | the way to a TPM: a device, a socket |
//! | [`tpm`] | the session: salted to the endorsement key, every answer proven |
//! | [`attempt`], [`companion`] | a move, and the untrusted file that keeps moves |
//! | [`replay`] | what the index's value stands for |
//! | [`steps`] | reading and moving, safe against a cut at each step |
//! | [`TpmAnchor`], [`scheme`] | the anchor itself, and its address and options |
//!
//! The format and the limits are in `docs/tpm.md`.
#![forbid(unsafe_code)]

mod anchor;
pub mod attempt;
pub mod companion;
pub mod error;
pub mod replay;
mod scheme;
pub mod steps;
pub mod tpm;
pub mod transport;
pub mod wire;

pub use self::anchor::{ENDURANCE, Settings, TpmAnchor};
pub use scheme::scheme;
