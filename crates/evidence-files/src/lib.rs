//! What a verifier of evidence reads from files: certificates, revocation lists and collateral, and the directory that keeps them for verifying
//! without a network. `attest` itself reads no file.

#![forbid(unsafe_code)]

mod beside;
pub mod files;

pub use beside::{Beside, certificates, revocation_list};
