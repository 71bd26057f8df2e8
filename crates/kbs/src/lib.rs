//! The protocol of Confidential Containers' key broker (KBS), version 0.4.0, by which an owner releases secrets to attested guests: its messages,
//! and the guest's side.
//!
//! 1. *Request*: the guest names the protocol's version and its kind of machine. 2. *Challenge*: the broker answers with a nonce and a session.
//! 3. *Attestation*: the guest makes a key pair, and evidence whose report data is the hash of nonce, public key, and whatever else it binds.
//! 4. *Response*: the guest asks for resources. Each comes encrypted for the public key in the evidence.
//!
//! So what is released can be read by nobody who lacks the private key: neither by a host that carries the messages, nor by one that ends the TLS
//! connection. The page `docs/attestation.md` says what that proves and what it does not.
//!
//! Source: `kbs/docs/kbs_attestation_protocol.md` of the project Trustee.
#![forbid(unsafe_code)]

mod address;
mod bundle;
mod client;
mod error;
mod evidence;
mod jwe;
mod message;
mod report_data;
mod snp_report;

pub use address::{Address, Resource};
pub use bundle::{Bundle, BundleError, VOLUME};
pub use client::Session;
pub use error::Error;
pub use evidence::{from_wire, to_wire};
pub use jwe::{open as open_with, seal_for};
pub use message::{
    Attestation, Challenge, CompositeEvidence, Granted, Problem, PublicKey, Request, RuntimeData, Tee,
};
pub use report_data::{Hash, TlsKey, report_data};

/// The protocol's version that is spoken here, and no other.
pub const VERSION: &str = "0.4.0";
/// What all paths begin with.
pub const PREFIX: &str = "/kbs/v0";
/// The cookie that names a session.
pub const COOKIE: &str = "kbs-session-id";
/// Most bytes of a message with evidence: anybody can send one, and JSON takes many times its size in memory.
pub const MAX_MESSAGE: usize = 512 * 1024;
/// Most bytes of a resource.
pub const MAX_RESOURCE: usize = 256 * 1024;
