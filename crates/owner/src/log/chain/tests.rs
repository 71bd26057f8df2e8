use super::*;
use crate::log::{ENTRY_SIZE, Move};
use crate::testing::{CLIENT, name, stamp};
use anchor::Stamp;
use anchor_owner::wire::{Name, Refusal};
use proptest::prelude::*;

fn moved(kind: Move, generation: u64) -> Event {
    Event::Moved(kind, name(), CLIENT, Box::new(stamp(generation)))
}

/// One entry of each kind, in an order that can be.
fn events() -> Vec<Event> {
    let released = Stamp { state: anchor::State::Released, ..stamp(3) };
    vec![
        Event::Made { database: [0xd1; 16], anchored: true },
        Event::Started,
        Event::Added(name()),
        Event::Allowed(name(), CLIENT),
        Event::Allowed(name(), [7; 32]),
        Event::Disallowed(name(), [7; 32]),
        moved(Move::Claim, 1),
        moved(Move::Advance, 2),
        Event::Conflict { left_out: 3, name: name(), client: CLIENT, wanted: Box::new(stamp(9)) },
        Event::Refused { reason: Refusal::BadRequest, left_out: 0, name: None, client: CLIENT },
        Event::Refused { reason: Refusal::NotAllowed, left_out: 4, name: Some(name()), client: [8; 32] },
        Event::Moved(Move::Release, name(), CLIENT, Box::new(released.clone())),
        Event::Added("old".parse().unwrap()),
        Event::Retired("old".parse().unwrap()),
        Event::Snapshot { database: [0xd1; 16], anchored: true },
        Event::KeptVolume(name(), false),
        Event::KeptClient(name(), CLIENT),
        Event::KeptStamp(name(), Box::new(released)),
        Event::KeptVolume("old".parse().unwrap(), true),
        Event::Cut(17),
        Event::Removed("old".parse().unwrap()),
        Event::Stopped,
    ]
}

fn written(events: Vec<Event>) -> Vec<[u8; ENTRY_SIZE]> {
    let mut previous = [0; 32];
    let numbered = events.into_iter().zip(1..);
    numbered
        .map(|(event, number)| {
            let bytes = Entry { number, time: 1_000 + number, event }.encode(&previous);
            previous.copy_from_slice(&bytes[352..]);
            bytes
        })
        .collect()
}

fn checked(log: &[[u8; ENTRY_SIZE]]) -> Result<(Head, State), Fault> {
    let mut chain = Chain::default();
    for entry in log {
        chain.push(entry)?;
    }
    chain.end()
}

#[test]
fn a_whole_log_gives_what_is_held() {
    let log = written(events());
    let (head, state) = checked(&log).unwrap();
    assert_eq!((head.number, head.hash.as_slice()), (22, &log[21][352..]));
    assert_eq!(state.database, Some([0xd1; 16]));
    assert!(state.anchored);
    let volumes: Vec<&str> = state.volumes.keys().map(Name::as_str).collect();
    assert_eq!(volumes, ["ledger"]);
    let volume = &state.volumes[&name()];
    assert_eq!(volume.stamp.as_ref().unwrap().generation, 3);
    assert_eq!(volume.clients.iter().collect::<Vec<_>>(), [&CLIENT]);
}

/// What was archived is not needed: a log that begins with a snapshot gives the same.
#[test]
fn a_log_may_begin_with_a_snapshot() {
    let log = written(events());
    assert_eq!(checked(&log[14..]), checked(&log));
    // But with nothing else.
    assert!(matches!(checked(&log[13..]), Err(Fault::Misplaced { expected: 1, found: 14 })));
}

#[test]
fn each_kind_of_tampering_is_found_and_named() {
    let log = written(events());
    let mut changed = log.clone();
    changed[6][130] ^= 1;
    assert_eq!(checked(&changed), Err(Fault::Changed(7, EntryError::Hash)));

    let mut missing = log.clone();
    missing.remove(8);
    assert_eq!(checked(&missing), Err(Fault::Misplaced { expected: 9, found: 10 }));

    let mut reordered = log.clone();
    reordered.swap(6, 7);
    assert_eq!(checked(&reordered), Err(Fault::Misplaced { expected: 7, found: 8 }));

    // An entry that was written anew, with a good hash of its own, breaks the chain behind it.
    let mut exchanged = log.clone();
    let (mut entry, previous, _) = Entry::decode(&log[6]).unwrap();
    entry.time += 1;
    exchanged[6] = entry.encode(&previous);
    assert_eq!(checked(&exchanged), Err(Fault::Broken(8)));

    // A move by a client that may not, in a chain that is good by itself.
    let mut forged = events();
    forged[6] = Event::Moved(Move::Claim, name(), [9; 32], Box::new(stamp(1)));
    assert!(matches!(checked(&written(forged)), Err(Fault::Impossible(7, _))));

    // A snapshot that says something else than what was held.
    let mut forged = events();
    forged[17] = Event::KeptStamp(name(), Box::new(stamp(2)));
    assert!(matches!(checked(&written(forged)), Err(Fault::Impossible(19, _))));
}

#[test]
fn the_layout_is_for_ever() {
    let bytes = Entry { number: 2, time: 0x0102, event: moved(Move::Advance, 9) }.encode(&[0xee; 32]);
    let mut golden = b"cvmioOL1".to_vec();
    golden.extend([2, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0]);
    golden.extend([0xc1; 32]);
    golden.extend(b"ledger");
    golden.resize(128, 0);
    golden.extend(stamp(9).encode());
    golden.extend([0xee; 32]);
    golden.extend(seal::sha256(&[&golden]));
    assert_eq!(bytes.as_slice(), golden);
}

proptest! {
    #[test]
    fn entries_round_trip(index in 0..22_usize, number in any::<u64>(), time in any::<u64>(), previous in any::<[u8; 32]>()) {
        let entry = Entry { number, time, event: events().swap_remove(index) };
        let bytes = entry.encode(&previous);
        let hash = seal::sha256(&[&bytes[..352]]);
        prop_assert_eq!(Entry::decode(&bytes), Ok((entry, previous, hash)));
    }

    /// With a good hash, so that every check behind it is reached; whatever is accepted is canonical.
    #[test]
    fn decoding_never_panics_and_accepts_only_canonical_bytes(
        index in 0..22_usize,
        changes in prop::collection::vec((0..320_usize, any::<u8>()), 0..4),
    ) {
        let mut bytes = written(events())[index];
        for (offset, byte) in changes {
            bytes[offset] = byte;
        }
        let hash = seal::sha256(&[&bytes[..352]]);
        bytes[352..].copy_from_slice(&hash);
        if let Ok((entry, previous, _)) = Entry::decode(&bytes) {
            prop_assert_eq!(entry.encode(&previous), bytes);
        }
    }

    /// Whatever single byte of a log is changed: it is found.
    #[test]
    fn any_changed_byte_is_found(index in 0..22_usize, offset in 0..ENTRY_SIZE, bit in 0..8_u32) {
        let mut log = written(events());
        log[index][offset] ^= 1 << bit;
        prop_assert!(checked(&log).is_err());
    }
}
