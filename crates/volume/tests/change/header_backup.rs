//! Header backups: made, put back, refused, and cut short at every step.

use std::sync::Arc;

use crate::common::late::{comes_too_late, keep_moves, kill_on_its_way};
use crate::common::medium::{image, put, put_back};
use crate::common::{Bench, credential, options, page};
use memory::BLOCK_SIZE;
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential};
use store::MemoryStore;
use volume::format::backup;
use volume::format::protections::Freshness;
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{
    BackedUp, Driven, Environment, HeaderInfo, KeyChange, KeysChanged, Kind, RekeyOrder, Restored, Result,
    backup_header, begin_rekey, change_keys, restore_header,
};

const LEVELS: [Freshness; 2] = [Freshness::Strict, Freshness::Off];
/// Both blocks of a copy, damaged.
const DAMAGE: [u8; 2 * BLOCK_SIZE] = [0x5a; 2 * BLOCK_SIZE];

fn new(freshness: Freshness) -> (Bench, Policy) {
    let mut options = options(Shape::STANDARD.min_logical, Shape::STANDARD);
    options.freshness = freshness;
    let geometry =
        Geometry::for_logical(Shape::STANDARD.min_logical, Shape::STANDARD).expect("the least size");
    let bench = Bench::new(options, geometry.physical_blocks);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(5, 1, 5).expect("written");
    session.detach().expect("detached");
    (bench, policy)
}

fn take(bench: &Bench, policy: &Policy) -> Result<(Vec<u8>, HeaderInfo)> {
    let job = backup_header(bench.environment.clone(), policy.clone(), credential(), bench.attach)?;
    let BackedUp { bytes, header } = job.block()?;
    Ok((bytes, header))
}

fn restore_on(environment: Environment, bench: &Bench, policy: &Policy, backup: &[u8]) -> Result<Restored> {
    restore_header(environment, policy.clone(), credential(), backup.to_vec(), bench.attach)?.block()
}

fn restore(bench: &Bench, policy: &Policy, backup: &[u8]) -> Result<Restored> {
    restore_on(bench.environment.clone(), bench, policy, backup)
}

/// Another key is being added, so that the header is a newer one.
fn renewing(bench: &Bench, policy: &Policy) -> Driven<Result<KeysChanged>> {
    let change = KeyChange::Add {
        credential: Credential::Passphrase(SecretBytes::from_slice(b"open sesame")),
        label: "other".into(),
        argon2: Argon2Params { memory_kib: 8, passes: 1, lanes: 1 },
    };
    change_keys(bench.environment.clone(), policy.clone(), credential(), change, false, bench.attach)
        .expect("a queue")
}

fn renew(bench: &Bench, policy: &Policy) {
    renewing(bench, policy).block().expect("changed");
}

fn reads_back(bench: &Bench, policy: &Policy) -> bool {
    let Ok(mut session) = bench.attach(policy) else { return false };
    assert_eq!(session.read(5, 1).expect("readable"), page(5));
    session.detach().expect("detached");
    true
}

#[test]
fn a_damaged_header_area_comes_back_from_a_backup() {
    for freshness in LEVELS {
        let (bench, policy) = new(freshness);
        let (backup, info) = take(&bench, &policy).expect("backed up");
        assert_eq!((info.volume, info.generation, info.slots.len()), (policy.volume, 1, 1));
        let store = &*bench.environment.store;
        put(store, 0, &[DAMAGE, DAMAGE].concat());
        assert!(!reads_back(&bench, &policy), "{freshness}: the damage does nothing");
        let restored = restore(&bench, &policy, &backup).expect("restored");
        assert_eq!((restored.copies, restored.newer), (2, None), "{freshness}");
        assert_eq!(restored.anchored, freshness != Freshness::Off);
        assert_eq!(restored.header, info);
        assert!(reads_back(&bench, &policy), "{freshness}");
        // One copy only; and once more, when all is well.
        put(store, 2, &DAMAGE);
        assert_eq!(restore(&bench, &policy, &backup).expect("restored").copies, 1);
        let before = image(store);
        assert_eq!(restore(&bench, &policy, &backup).expect("restored").copies, 0);
        assert!(image(store) == before, "{freshness}: what is whole was written");
        // A backup can be made of a volume that has lost a copy.
        put(store, 0, &DAMAGE);
        assert_eq!(take(&bench, &policy).expect("backed up").0, backup);
    }
}

/// Refused with this kind, and nothing is written.
fn refused(bench: &Bench, policy: &Policy, backup: &[u8], kind: Kind, what: &str) {
    let before = image(&*bench.environment.store);
    let error = restore(bench, policy, backup).expect_err(what);
    assert_eq!(error.kind(), kind, "{what}: {error}");
    assert!(image(&*bench.environment.store) == before, "{what}: the store was written to");
}

#[test]
fn what_is_not_this_volumes_latest_header_is_refused() {
    let (bench, policy) = new(Freshness::Strict);
    let (backup, _) = take(&bench, &policy).expect("backed up");
    let (other, other_policy) = new(Freshness::Strict);
    let (foreign, _) = take(&other, &other_policy).expect("backed up");
    // The bench's randomness begins anew, so another one's id is the same; this one is another.
    let mut renamed = policy.clone();
    renamed.volume[0] ^= 1;
    refused(&bench, &renamed, &foreign, Kind::Policy, "another volume's header");
    let error = restore(&bench, &renamed, &foreign).expect_err("another volume's").to_string();
    assert!(
        error.contains("the header backup of the volume") && error.contains(&hex::encode(renamed.volume)),
        "{error}"
    );
    let error = restore(&bench, &policy, &backup[..backup.len() - 1]).expect_err("cut short").to_string();
    assert!(error.contains("no header backup, or a damaged one"), "{error}");
    let mut weaker = policy.clone();
    weaker.size *= 2;
    refused(&bench, &weaker, &backup, Kind::Policy, "a header that contradicts the policy");
    for (at, what) in [(0, "magic"), (8, "version"), (12, "reserved"), (16, "digest"), (100, "reserved")] {
        let mut bytes = backup.clone();
        bytes[at] ^= 1;
        refused(&bench, &policy, &bytes, Kind::Corrupt, what);
    }
    // The header's volume id, its MAC; a byte of the first slot, and one of the last, which is empty.
    let kinds = [Kind::Policy, Kind::Stale, Kind::Stale, Kind::Corrupt];
    let places = [BLOCK_SIZE + 16, 2 * BLOCK_SIZE - 1, 2 * BLOCK_SIZE + 24, backup.len() - 1];
    for (at, kind) in places.into_iter().zip(kinds) {
        let mut bytes = backup.clone();
        bytes[at] ^= 1;
        refused(&bench, &policy, &bytes, Kind::Corrupt, "a changed byte of the pair");
        // Whoever changes the backup can make its digest hold; then it is not the anchor's.
        let digest = seal::sha256(&[&bytes[BLOCK_SIZE..]]);
        bytes[16..48].copy_from_slice(&digest);
        refused(&bench, &policy, &bytes, kind, "a changed pair with a digest that holds");
    }
    refused(&bench, &policy, &backup[..backup.len() - 1], Kind::Corrupt, "a backup that was cut off");
    let wrong = Credential::KeyFile(SecretBytes::from_slice(&[8; 64]));
    let job = restore_header(bench.environment.clone(), policy.clone(), wrong, backup.clone(), bench.attach);
    assert_eq!(job.expect("a queue").block().expect_err("refused").kind(), Kind::Locked);
    renew(&bench, &policy);
    refused(&bench, &policy, &backup, Kind::Stale, "a header from before the keys were changed");
}

#[test]
fn a_store_that_is_not_this_volumes_is_not_written() {
    for freshness in LEVELS {
        let (bench, policy) = new(freshness);
        let (backup, _) = take(&bench, &policy).expect("backed up");
        let blocks = bench.environment.store.blocks();
        let kept = image(&*bench.environment.store);
        put_back(&*bench.environment.store, &vec![page(0x11); kept.len()]);
        refused(&bench, &policy, &backup, Kind::Usage, "another disk");
        let short = Arc::new(MemoryStore::new(blocks - 1).expect("memory"));
        put_back(&*short, &kept[..kept.len() - 1].to_vec());
        let environment = Environment { store: short, ..bench.environment.clone() };
        let error = restore_on(environment, &bench, &policy, &backup).expect_err("refused");
        assert_eq!(error.kind(), Kind::Io, "{error}");
    }
}

#[test]
fn without_an_anchor_an_older_header_comes_back_and_is_told() {
    let (bench, policy) = new(Freshness::Off);
    let (backup, _) = take(&bench, &policy).expect("backed up");
    renew(&bench, &policy);
    let restored = restore(&bench, &policy, &backup).expect("nothing knows better");
    assert_eq!((restored.anchored, restored.newer, restored.copies), (false, Some(2), 2));
    assert_eq!(restored.header.slots.len(), 1);
    assert!(reads_back(&bench, &policy));
    // The volume's own level needs an anchor, whoever says otherwise.
    let (bench, policy) = new(Freshness::Strict);
    let (backup, _) = take(&bench, &policy).expect("backed up");
    let environment = Environment { anchor: None, ..bench.environment.clone() };
    let error = restore_on(environment, &bench, &policy, &backup).expect_err("refused");
    assert_eq!(error.kind(), Kind::Anchor, "{error}");
}

#[test]
fn a_restoration_that_is_cut_short_loses_no_header_and_can_be_done_again() {
    let mut cut = 0;
    for freshness in LEVELS {
        for older in [false, true] {
            // With an anchor only what is in force is restored.
            if older && freshness != Freshness::Off {
                continue;
            }
            for damaged in [&[][..], &[0], &[2], &[0, 2]] {
                for steps in 0..4 {
                    let (bench, policy) = new(freshness);
                    let (backup, _) = take(&bench, &policy).expect("backed up");
                    if older {
                        renew(&bench, &policy);
                    }
                    damaged.iter().for_each(|at| put(&*bench.environment.store, *at, &DAMAGE));
                    let (environment, _) = bench.stopping(steps);
                    let ended = restore_on(environment, &bench, &policy, &backup).is_ok();
                    cut += u32::from(!ended);
                    let what = format!("{freshness}, older {older}, damaged {damaged:?}, {steps} steps");
                    // Nothing was there to fall back on only where both copies were damaged.
                    assert!(damaged.len() == 2 || reads_back(&bench, &policy), "{what}");
                    restore(&bench, &policy, &backup).expect("done again");
                    assert!(reads_back(&bench, &policy), "{what}");
                    assert_eq!(take(&bench, &policy).expect("backed up").0, backup, "{what}");
                }
            }
        }
    }
    assert!(cut > 10, "only {cut} were cut short");
}

#[test]
fn a_backup_is_laid_out_as_documented() {
    let (bench, policy) = new(Freshness::Strict);
    let (bytes, _) = take(&bench, &policy).expect("backed up");
    assert_eq!(bytes.len(), backup::SIZE);
    assert_eq!(&bytes[..16], b"cvmioHB1\x01\0\0\0\0\0\0\0");
    assert_eq!(bytes[16..48], seal::sha256(&[&bytes[BLOCK_SIZE..]]));
    assert!(bytes[48..BLOCK_SIZE].iter().all(|byte| *byte == 0));
    let image = image(&*bench.environment.store);
    assert_eq!(bytes[BLOCK_SIZE..], [&image[0][..], &image[1]].concat());
}

#[test]
fn a_change_whose_move_is_on_its_way_comes_too_late_for_a_restored_header() {
    // The copy B of a change of key verifies under the new one only.
    for rekeys in [false, true] {
        let (mut bench, policy) = new(Freshness::Strict);
        let (backup, _) = take(&bench, &policy).expect("backed up");
        let anchor = keep_moves(&mut bench);
        let environment = bench.environment.clone();
        if rekeys {
            let (order, options) = (RekeyOrder::default(), bench.attach);
            let begun = begin_rekey(environment.clone(), policy.clone(), credential(), order, options);
            kill_on_its_way(&bench, &anchor, begun.expect("a queue"));
        } else {
            kill_on_its_way(&bench, &anchor, renewing(&bench, &policy));
        }
        let restoring = restore_header(environment, policy.clone(), credential(), backup, bench.attach);
        comes_too_late(&anchor, restoring.expect("a queue"));
        assert!(reads_back(&bench, &policy), "rekeys: {rekeys}");
    }
}
