//! The client of `cvmio-owner`: an anchor that a service keeps on the owner's machine, or in another confidential VM.
//!
//! The service keeps one stamp for each volume under a name, and moves it by compare-and-swap, over TLS 1.3 with certificates on both sides.
//! The page `docs/owner.md` describes the service, and the messages byte by byte.
#![forbid(unsafe_code)]

mod address;
mod client;
mod error;
mod scheme;
pub mod timed;
pub mod tls;
pub mod wire;

pub use address::Address;
pub use client::{Client, Files, Times};
pub use error::Error;
pub use scheme::scheme;
