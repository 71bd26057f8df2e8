//! An attempt to move the anchor: what is extended into the index is its digest.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 32 | base: the index's value that the attempt is made upon |
//! | 32 | 16 | random: no two attempts are alike |
//! | 48 | 8 | number of extends that the index has seen when this one is the next |
//! | 56 | 1 | 0 never claimed, 1 has a stamp |
//! | 57 | 7 | zero |
//! | 64 | 192 | the stamp, or zero |
//!
//! Integers are little-endian. The digest is SHA-256 of `cvm-io tpm attempt 1` followed by these 256 bytes.

use std::fmt;

use anchor::{STAMP_SIZE, Stamp, StampError};
use seal::sha256;

/// Bytes of an attempt.
pub const SIZE: usize = 256;
const LABEL: &[u8] = b"cvm-io tpm attempt 1";
const STAMP: usize = 64;

/// A value of the index.
pub type Value = [u8; 32];

/// What an index that was never extended counts as.
pub const UNWRITTEN: Value = [0; 32];

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The value that it is made upon. It wins if it is the first to be extended there.
    pub base: Value,
    /// No two attempts are alike.
    pub random: [u8; 16],
    /// How many times the index was extended, this attempt included.
    pub number: u64,
    /// What the anchor holds if it wins; `None`: it was never claimed.
    pub stamp: Option<Stamp>,
}

/// Why bytes are no attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptError {
    /// The stamp is none.
    Stamp(StampError),
    /// A byte has a value that it cannot have.
    Reserved,
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttemptError::Stamp(error) => error.fmt(f),
            AttemptError::Reserved => f.write_str("a reserved byte of an attempt is not zero"),
        }
    }
}

impl std::error::Error for AttemptError {}

impl Attempt {
    /// As it lies in the companion file.
    #[must_use]
    pub fn encode(&self) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        out[..32].copy_from_slice(&self.base);
        out[32..48].copy_from_slice(&self.random);
        out[48..56].copy_from_slice(&self.number.to_le_bytes());
        if let Some(stamp) = &self.stamp {
            out[56] = 1;
            out[STAMP..].copy_from_slice(&stamp.encode());
        }
        out
    }

    /// Reads what [`Attempt::encode`] wrote.
    ///
    /// # Errors
    /// Every byte is accounted for: an attempt that decodes encodes to the same bytes again.
    pub fn decode(bytes: &[u8; SIZE]) -> Result<Attempt, AttemptError> {
        const { assert!(STAMP + STAMP_SIZE == SIZE) };
        let stamp = match bytes[56] {
            0 if bytes[STAMP..].iter().all(|&byte| byte == 0) => None,
            1 => Some(Stamp::decode(&bytes[STAMP..]).map_err(AttemptError::Stamp)?),
            _ => return Err(AttemptError::Reserved),
        };
        if bytes[57..STAMP].iter().any(|&byte| byte != 0) {
            return Err(AttemptError::Reserved);
        }
        Ok(Attempt {
            base: bytes[..32].try_into().expect("32 bytes"),
            random: bytes[32..48].try_into().expect("16 bytes"),
            number: u64::from_le_bytes(bytes[48..56].try_into().expect("8 bytes")),
            stamp,
        })
    }

    /// What the index is extended by.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        sha256(&[LABEL, &self.encode()])
    }

    /// The index's value where it was extended by this attempt at its base.
    #[must_use]
    pub fn value(&self) -> Value {
        extended(&self.base, &self.digest())
    }
}

/// What TPM2_NV_Extend makes of a value (Part 3, section 31.10).
#[must_use]
pub fn extended(value: &Value, digest: &[u8; 32]) -> Value {
    sha256(&[value, digest])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use anchor::State;
    use proptest::prelude::*;

    pub(crate) fn stamp(generation: u64) -> Stamp {
        Stamp {
            volume: [0x11; 16],
            generation,
            head: [0x22; 32],
            session: [0x33; 16],
            claims: 5,
            header_digest: [0x44; 32],
            state: State::Claimed,
            moved_to: [0; anchor::MOVED_TO_SIZE],
            mac: [0x55; 32],
        }
    }

    /// The format is for ever; the digests were computed by another program (Python's hashlib).
    #[test]
    fn golden_vector() {
        let attempt = Attempt { base: [0xb0; 32], random: [0xa0; 16], number: 0x0102_0304, stamp: None };
        let bytes = attempt.encode();
        assert_eq!(&bytes[..32], &[0xb0; 32]);
        assert_eq!(&bytes[32..48], &[0xa0; 16]);
        assert_eq!(&bytes[48..64], &[4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(bytes[64..].iter().all(|&byte| byte == 0));
        assert_eq!(
            hex::encode(attempt.digest()),
            "90197ceecbef945e599dc7b78c4da3930bd8660e800061c9dbdee77e7bb8928f"
        );
        assert_eq!(
            hex::encode(attempt.value()),
            "09b02b751beaa34c5498985c9addf70f5903078b116931b3fd7971f7c77ed569"
        );
        let claimed = Attempt { stamp: Some(stamp(7)), ..attempt };
        assert_eq!(claimed.encode()[56], 1);
        assert_eq!(claimed.encode()[64..], stamp(7).encode());
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_laid_out_again(
            base: [u8; 32], random: [u8; 16], number: u64, claimed: bool,
            changes in prop::collection::vec((0..SIZE, any::<u8>()), 0..3),
        ) {
            let attempt = Attempt { base, random, number, stamp: claimed.then(|| stamp(number)) };
            let mut bytes = attempt.encode();
            prop_assert_eq!(Attempt::decode(&bytes), Ok(attempt));
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Ok(read) = Attempt::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }
    }
}
