//! Messages of a TPM 2.0 (TPM 2.0 Library, Part 1 section 18 "Command/Response Structure"; Parts 2 and 3). Integers are big-endian.
//!
//! | part of a command | bytes |
//! | --- | --- |
//! | tag: 0x8001 without, 0x8002 with sessions | 2 |
//! | size of the whole command | 4 |
//! | command code | 4 |
//! | handles | 4 each |
//! | with sessions: size of the area, then for each: handle 4, nonce, attributes 1, HMAC | |
//! | parameters | |
//!
//! An answer has a response code in the command code's place, at most one handle, with sessions the size of its parameters (4), the
//! parameters, and last the sessions' nonce, attributes and HMAC. Nonces and HMACs are preceded by their size (2).
//!
//! Only the commands that an anchor needs are here. What the TPM says becomes a value in [`answer`], and nowhere else.

pub mod answer;
pub mod code;
pub mod command;

/// Bytes of a message's header.
pub const HEADER: usize = 10;
/// Most bytes of a message; TPMs take and give no more than 4096.
pub const MAX_MESSAGE: usize = 4096;
/// SHA-256, as the TPM numbers algorithms.
pub const SHA256: u16 = 0x000b;

const NO_SESSIONS: u16 = 0x8001;
const SESSIONS: u16 = 0x8002;
