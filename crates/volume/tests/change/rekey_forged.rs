//! A change of key under somebody who has the old key, or gives back what was there before.

use std::sync::Arc;
use std::time::Duration;

use crate::common::medium::{put, put_back};
use crate::common::rekeying::{Case, reseal};
use crate::common::sight::Sight;
use crate::common::{credential, options_at, page, pattern};
use memory::BLOCK_SIZE;
use seal::{DataMode, Suite, VolumeKey};
use volume::format::ad::superblock_ad;
use volume::format::entry::Entry;
use volume::format::header::Header;
use volume::format::item::Item;
use volume::format::protections::Freshness;
use volume::format::record::{RECORD_HEADER, RecordHeader};
use volume::format::superblock::{PAYLOAD, Superblock, assemble};
use volume::geometry::Shape;
use volume::{Choice, Kind, RekeyOrder, StateName, Window, survey};

/// Puts a superblock of the old key's into a slot, with other roots than it had: what somebody with the old key could write.
fn forge(case: &Case, old: &VolumeKey, slot: u8, superblock: &Superblock) {
    let header = Header::decode(&case.bench.image()[0]).unwrap();
    let payload: [u8; PAYLOAD] = superblock.encode().unwrap();
    let mut sealed = payload;
    let salt = [0x77; 32];
    let tag = old.one_time(header.suite.suite(), "superblock", &salt).seal(
        0,
        &superblock_ad(&header.volume, slot),
        &payload,
        &mut sealed,
    );
    put(&*case.bench.environment.store, 4 + u64::from(slot), &assemble(&salt, &sealed, &tag));
}

#[test]
fn of_the_old_key_exactly_one_superblock_counts() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let case = Case::written(options_at(freshness), 0..60);
        let old = case.key();
        case.begin();
        let pages = case.bench.image();
        let (sight, _) = Sight::newest(&pages, Shape::STANDARD, &credential()).unwrap();
        let (slot, real) = sight.newest_superblock(&old);
        // An empty volume at the same place of the same chain, and newer than the real one.
        let lie = Superblock { map: Entry::ABSENT, mapped: 0, publication: 99, ..real };
        for at in (0..4).filter(|at| *at != slot) {
            forge(&case, &old, at, &lie);
        }
        let mut session = case.attach();
        session.check_each(0..60, 0);
        session.write_each(0..60, 1);
        session.detach().unwrap();
        // Nor does anything of it count in place of the real one.
        (0..4).for_each(|at| forge(&case, &old, at, &lie));
        let refused = case.bench.attach(&case.policy).err().expect("no superblock counts");
        assert_eq!(refused.kind(), Kind::Corrupt, "{refused}");
    }
}

/// Where the next record of the newest session goes, what it continues, and its generation.
fn end_of_journal(sight: &Sight<'_>, key: &VolumeKey) -> (u64, [u8; 32], RecordHeader) {
    let (_, newest) = sight.newest_superblock(key);
    let leg = newest.legs.last().unwrap();
    let (mut head, mut last) = (leg.head, None);
    let mut place = sight.header.geometry.segment_start(leg.segment) + u64::from(leg.block);
    while let Ok(record) =
        RecordHeader::decode(&sight.image[usize::try_from(place).unwrap()][..RECORD_HEADER])
    {
        head = seal::sha256(&[b"cvmio head", &head, &record.encode()]);
        place += u64::from(record.blocks);
        last = Some(record);
    }
    (place, head, last.expect("a record"))
}

/// A record that discards the first 60 blocks, behind `last`, which left the chain at `head`.
fn discarding(key: &VolumeKey, epoch: u32, head: &[u8; 32], last: &RecordHeader) -> Vec<u8> {
    let mut payload = Vec::new();
    Item::Discard { logical: 0, blocks: 60 }.encode_into(&mut payload);
    let mut record = RecordHeader {
        generation: last.generation + 1,
        payload_bytes: u32::try_from(payload.len()).unwrap(),
        blocks: 1,
        last: true,
        epoch,
        nonce: 1 << 30,
        salt: [0x5a; 32],
        tag: [0; 16],
        ..last.clone()
    };
    let keys = key.epoch(DataMode::Aead, Suite::Aes256Gcm, &record.salt);
    let mut sealed = vec![0; payload.len()];
    record.tag = keys.journal.seal(record.nonce, &record.associated_data(head), &payload, &mut sealed);
    let mut forged = [&record.encode()[..], &sealed].concat();
    forged.resize(BLOCK_SIZE, 0);
    forged
}

#[test]
fn behind_the_boundary_no_record_of_the_old_key_counts() {
    let mut case = Case::written(options_at(Freshness::Interval), 0..60);
    case.bench.attach.window = Window { time: Duration::MAX, bytes: u64::MAX, commits: u64::MAX };
    let old = case.key();
    case.begin();
    let mut session = case.attach();
    // Two commits that the anchor does not cover: the second shows that the first may be continued.
    for round in 1..3 {
        session.write_each(0..10, round);
        session.flush().unwrap();
    }
    drop(session);
    let pages = case.bench.image();
    let (sight, new) = Sight::newest(&pages, Shape::STANDARD, &credential()).unwrap();
    let (place, head, last) = end_of_journal(&sight, &new);
    // What a record like this does when it counts is seen with the new key; with the old one it must do nothing.
    for (key, epoch, counts) in [(&old, 1, false), (&new, last.epoch, true)] {
        put_back(&*case.bench.environment.store, &pages);
        put(&*case.bench.environment.store, place, &discarding(key, epoch, &head, &last));
        let mut reader = case.attach_reading();
        let expected = if counts { 0 } else { pattern(30, 0) };
        assert_eq!(reader.read(30, 1).unwrap(), page(expected), "epoch {epoch}");
        if !counts {
            reader.check_each(0..10, 2);
        }
    }
}

#[test]
fn an_old_image_and_an_old_header_are_stale() {
    let case = Case::written(options_at(Freshness::Strict), 0..60);
    let store = &*case.bench.environment.store;
    let before = case.bench.image();
    case.begin();
    let refused = || {
        let error = case.bench.attach(&case.policy).err().expect("it is refused");
        assert_eq!(error.kind(), Kind::Stale, "{error}");
    };
    let begun = case.bench.image();
    put_back(store, &before);
    refused();
    put_back(store, &begun);
    let mut session = case.attach();
    assert!(reseal(&mut session).ended);
    session.detach().unwrap();
    let ended = case.bench.image();
    // The header that still has the old key with it does not come back either.
    put_back(store, &[&begun[..4], &ended[4..]].concat());
    refused();
    put_back(store, &begun);
    refused();
}

#[test]
fn without_an_anchor_an_older_header_backup_does_not_take_the_new_key_away() {
    let case = Case::written(options_at(Freshness::Off), 0..60);
    let Case { bench, policy } = &case;
    let refused = |backup: &[u8]| {
        let before = bench.image();
        let error = bench.restore(policy, backup).unwrap_err();
        assert!(error.kind() == Kind::Stale && error.to_string().contains("has a new key"), "{error}");
        assert!(bench.image() == before);
    };
    let old = bench.back_up(policy);
    case.begin();
    refused(&old);
    let mut session = case.attach();
    assert!(reseal(&mut session).ended);
    session.detach().unwrap();
    // The superblocks of the session before are still under the old key.
    refused(&old);
    let new = bench.back_up(policy);
    put(&*bench.environment.store, 0, &vec![0x5a; 4 * BLOCK_SIZE]);
    assert_eq!(bench.restore(policy, &new).unwrap().copies, 2);
    let mut session = case.attach();
    session.check_each(0..60, 0);
    session.detach().unwrap();
}

#[test]
fn a_record_of_the_old_key_is_not_offered_as_the_latest_state() {
    let case = Case::written(options_at(Freshness::Strict), 0..60);
    let old = case.key();
    let mut session = case.attach();
    session.write_each(0..10, 1);
    session.flush().unwrap();
    drop(session);
    let pages = case.bench.image();
    let (sight, _) = Sight::newest(&pages, Shape::STANDARD, &credential()).unwrap();
    let (place, head, last) = end_of_journal(&sight, &old);
    case.try_begin(RekeyOrder { force: true, ..RekeyOrder::default() }).unwrap();
    put(&*case.bench.environment.store, place, &discarding(&old, last.epoch, &head, &last));
    let environment = case.bench.environment.clone();
    let key = Arc::new(credential());
    let job = survey(environment, case.policy.clone(), key, Choice::Latest, case.bench.attach).unwrap();
    let (found, _) = job.block().unwrap();
    let forged = |state: &StateName| state.generation == last.generation + 1;
    assert!(found.histories.iter().flat_map(|history| &history.states).any(forged), "it can be seen");
    assert_eq!(found.chosen, found.anchor.unwrap().state);
}
