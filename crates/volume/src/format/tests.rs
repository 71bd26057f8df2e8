//! What holds for every decoder, and then for each.
//!
//! Decoding is canonical: what a decoder accepts, its encoder lays out the same, to the byte. So no byte is
//! ignored, and none is read in two ways.

use proptest::prelude::*;

use super::Malformed;

mod damage;
mod header;
mod probe;
mod record;
mod strategies;
mod stream;
mod superblock;

/// A decoder and its encoder in one: what the accepted bytes stand for, laid out again.
type Again = fn(&[u8]) -> Result<Vec<u8>, Malformed>;

/// Refuses every change of the bytes in `reserved`, which are valid as they are.
fn reserved_is_refused(valid: &[u8], reserved: std::ops::Range<usize>, again: Again) {
    assert_eq!(again(valid).as_deref(), Ok(valid));
    let mut bytes = valid.to_vec();
    for at in reserved {
        for flip in [0x01, 0x80, 0xff] {
            bytes[at] ^= flip;
            assert!(again(&bytes).is_err(), "byte {at} changed by {flip:#x} was accepted");
            bytes[at] ^= flip;
        }
    }
}

/// Whatever is done to valid bytes, the decoder refuses them, or they are what its encoder lays out.
fn changed_is_canonical(valid: &[u8], changes: &[damage::Change], again: Again) -> Result<(), TestCaseError> {
    prop_assert_eq!(again(valid), Ok(valid.to_vec()));
    let changed = damage::apply(valid, changes);
    if let Ok(bytes) = again(&changed) {
        prop_assert_eq!(bytes, changed);
    }
    Ok(())
}

/// Every length but the right one is refused.
fn other_lengths_are_refused(valid: &[u8], again: Again) {
    assert_eq!(again(valid).as_deref(), Ok(valid));
    for length in 0..valid.len() {
        assert!(again(&valid[..length]).is_err(), "{length} bytes were accepted");
    }
    assert!(again(&[valid, &[0]].concat()).is_err(), "a byte too many was accepted");
}
