//! What the tests of this crate share.

use crate::log::ClientId;
use anchor::{MOVED_TO_SIZE, Stamp, State};
use anchor_owner::wire::Name;

pub(crate) const CLIENT: ClientId = [0xc1; 32];

pub(crate) fn name() -> Name {
    "ledger".parse().unwrap()
}

pub(crate) fn stamp(generation: u64) -> Stamp {
    Stamp {
        volume: [0x11; 16],
        generation,
        head: [0x22; 32],
        session: [0x33; 16],
        claims: 5,
        header_digest: [0x44; 32],
        state: State::Claimed,
        moved_to: [0; MOVED_TO_SIZE],
        mac: [0x55; 32],
    }
}
