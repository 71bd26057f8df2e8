//! Changes that reach behind a magic number, where bytes drawn at random would never get.

use proptest::collection::vec;
use proptest::prelude::*;

/// One change of a structure's bytes.
#[derive(Debug, Clone)]
pub struct Change {
    at: prop::sample::Index,
    bytes: Vec<u8>,
}

/// A few changes of a few bytes each, mostly with the values that bounds are made of.
pub fn changes() -> impl Strategy<Value = Vec<Change>> {
    let byte = prop_oneof![Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()];
    let change = (any::<prop::sample::Index>(), vec(byte, 1..9));
    vec(change.prop_map(|(at, bytes)| Change { at, bytes }), 1..4)
}

pub fn apply(valid: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut changed = valid.to_vec();
    for change in changes {
        let rest = &mut changed[change.at.index(valid.len())..];
        let length = rest.len().min(change.bytes.len());
        rest[..length].copy_from_slice(&change.bytes[..length]);
    }
    changed
}
