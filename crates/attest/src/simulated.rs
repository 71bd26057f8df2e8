//! A platform for machines without a chip that vouches: tests, emulation, a first try.
//!
//! Its shape is that of a real one. A *root* stands for the chip's maker; a machine has one, made on it. Whoever launches a guest (a VMM's
//! launcher) measures what the guest boots, makes a key for the guest and has the root vouch for both: the *launch*. The guest signs its *reports*
//! with that key. So evidence can be replayed, relayed, out of date and of another guest, as real evidence can.
//!
//! It proves nothing about secrecy: the launcher, and everybody who can read the machine's memory, could forge any of it. So a verifier refuses it
//! unless its user allows it by name ([`crate::Context::allow_simulated`]), knows the root, and has a table `[simulated]` in the policy.
//!
//! ```text
//! launch    magic "CVMIOSIM" 8 | version 4 | flags 4 | measurement 48 | host data 32 | machine id 32 | TCB 8 | guest's key 97 | signature 96
//! report    launch 329 | report data 64 | signature 96
//! seat      magic "CVMIOSEA" 8 | launch 329 | guest's private key (PKCS #8)
//! ```
//! Numbers are little-endian. Keys are points of P-384, uncompressed; signatures are ECDSA with SHA-384, two numbers of 48 bytes, big-endian, over a
//! label and all bytes before the signature.

mod issue;
mod judge;

pub use issue::{Issuer, Launch, Root, SimulatedError, measure};
pub(crate) use judge::judge;
pub use judge::{Policy, Report};

use crate::roots::KEY_SIZE;
pub use crate::roots::RootKey;

/// Bytes of a signature.
const SIGNATURE_SIZE: usize = 96;
/// Bytes of a launch that its signature covers.
const LAUNCH_SIGNED: usize = 8 + 4 + 4 + 48 + 32 + 32 + 8 + KEY_SIZE;
/// Bytes of a launch.
const LAUNCH_SIZE: usize = LAUNCH_SIGNED + SIGNATURE_SIZE;
/// Bytes of a report that its signature covers.
const REPORT_SIGNED: usize = LAUNCH_SIZE + 64;
/// Bytes of a report.
pub const REPORT_SIZE: usize = REPORT_SIGNED + SIGNATURE_SIZE;

const LAUNCH_MAGIC: &[u8; 8] = b"CVMIOSIM";
const SEAT_MAGIC: &[u8; 8] = b"CVMIOSEA";
const VERSION: u32 = 1;
/// The flag of a guest whose host may read its memory.
const DEBUG: u32 = 1;

/// What a signature is made over, so that one for a launch is none for a report.
fn message(label: &str, bytes: &[u8]) -> Vec<u8> {
    [label.as_bytes(), bytes].concat()
}
const LAUNCH_LABEL: &str = "cvmio simulated launch\0";
const REPORT_LABEL: &str = "cvmio simulated report\0";
