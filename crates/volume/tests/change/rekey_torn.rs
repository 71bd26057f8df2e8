//! A change of key whose first copy of header and key slots was written in part, without an anchor to tell: everybody finds the same volume.

use crate::common::medium::put;
use crate::common::rekeying::Case;
use crate::common::{credential, options_at};
use memory::BLOCK_SIZE;
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential};
use volume::format::protections::Freshness;
use volume::{Error, KeyChange, Kind, RekeyOrder, attach_read_only, change_keys};

const SECTOR: usize = 512;

fn key_file(byte: u8) -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[byte; 64]))
}

/// Whether a change of key is under way, as whoever has this credential finds it.
fn is_rekeying(case: &Case, credential: Credential) -> Result<bool, Error> {
    let Case { bench, policy } = case;
    let job = attach_read_only(bench.environment.clone(), policy.clone(), credential, bench.attach);
    Ok(job.expect("a job").block()?.is_rekeying())
}

#[test]
fn whoever_asks_a_change_of_key_that_was_torn_has_begun_or_not() {
    let case = Case::written(options_at(Freshness::Off), 0..40);
    let Case { bench, policy } = &case;
    // Two slots to a sector: of each of the first two sectors one stays and one goes.
    for byte in 1..=4 {
        let argon2 = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };
        let change = KeyChange::Add { credential: key_file(byte), label: format!("key {byte}"), argon2 };
        let environment = bench.environment.clone();
        let job = change_keys(environment, policy.clone(), credential(), change, false, bench.attach);
        job.expect("a job").block().expect("added");
    }
    let old = bench.image()[..4].concat();
    let order = RekeyOrder { keep: vec![key_file(2), key_file(4)], remove_others: true, force: false };
    case.try_begin(order).expect("begun");
    let new = bench.image()[2..4].concat();
    let all = || [credential(), key_file(1), key_file(2), key_file(3), key_file(4)];

    let (sectors, copy_b) = (new.len() / SECTOR, &old[2 * BLOCK_SIZE..]);
    assert!(
        (0..sectors).filter(|at| new[at * SECTOR..][..SECTOR] != copy_b[at * SECTOR..][..SECTOR]).count() > 3
    );
    let alone = (0..sectors).map(|at| 1_u32 << at);
    let beginnings = (0..sectors).map(|end| (1 << end) - 1);
    let missing = (0..sectors).map(|at| !(1 << at) & ((1 << sectors) - 1));
    for written in alone.chain(beginnings).chain(missing) {
        let mut torn = old.clone();
        for at in (0..sectors).filter(|at| written >> at & 1 == 1).map(|at| at * SECTOR) {
            torn[2 * BLOCK_SIZE + at..][..SECTOR].copy_from_slice(&new[at..at + SECTOR]);
        }
        let is_whole = torn[2 * BLOCK_SIZE..] == new;
        put(&*bench.environment.store, 0, &torn);
        for (number, credential) in all().into_iter().enumerate() {
            let found = is_rekeying(&case, credential);
            match found {
                Ok(begun) => assert_eq!(begun, is_whole, "sectors {written:016b}, key {number}"),
                // It was removed by what has begun.
                Err(error) => assert!(is_whole && number % 2 == 1 && error.kind() == Kind::Locked, "{error}"),
            }
        }
    }
    // All of it, and nothing of copy A yet.
    put(&*bench.environment.store, 0, &[&old[..2 * BLOCK_SIZE], &new].concat());
    for (number, credential) in all().into_iter().enumerate() {
        match is_rekeying(&case, credential) {
            Ok(begun) => assert!(begun && number % 2 == 0, "key {number}"),
            Err(error) => assert!(number % 2 == 1 && error.kind() == Kind::Locked, "key {number}: {error}"),
        }
    }
}
