//! A new volume key: begun, ended, and what the old key opens then.

use crate::common::medium::put;
use crate::common::rekeying::{BLOCKS, Case, reseal};
use crate::common::sight::Sight;
use crate::common::{credential, options, options_at, pattern};
use memory::BLOCK_SIZE;
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential};
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::geometry::Shape;
use volume::{CreateOptions, KeyChange, Kind, RekeyOrder, Remedy, Request, attach_read_only, change_keys};

const COST: Argon2Params = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };

fn other() -> Credential {
    Credential::Passphrase(SecretBytes::from_slice(b"open sesame"))
}

fn rekeyed(options: CreateOptions) {
    let name =
        format!("{} {} {} {}", options.suite, options.confidentiality, options.integrity, options.freshness);
    let case = Case::written(options, (0..BLOCKS).step_by(3));
    let old = case.key();
    let begun = case.begin();
    assert!(!begun.under_way && begun.removed.is_empty() && begun.slots.len() == 1, "{name}");
    // Done again it changes nothing.
    let before = case.bench.image();
    assert!(case.begin().under_way);
    assert!(case.bench.image() == before);

    let mut session = case.attach();
    assert!(session.volume.is_rekeying());
    let report = reseal(&mut session);
    assert!(report.ended && !session.volume.is_rekeying(), "{name}: {report:?}");
    assert_eq!((report.resealed, report.damage.damaged_blocks), (BLOCKS.div_ceil(3), 0), "{name}");
    session.write_each(10..20, 1);
    session.detach().unwrap();
    case.assert_only_new(&old);
    let now = case.bench.image();
    assert!(now[..2] == now[2..4], "both copies are the one in force");
    let mut session = case.attach();
    let (again, others): (Vec<_>, Vec<_>) = (0..BLOCKS).partition(|block| (10..20).contains(block));
    let (once, never): (Vec<_>, Vec<_>) = others.into_iter().partition(|block| block % 3 == 0);
    session.check_each(again, 1);
    session.check_each(once, 0);
    session.check_zeros(never);
    session.detach().unwrap();
}

#[test]
fn everything_is_under_the_new_key_whatever_the_suite_and_the_protections() {
    let base = options_at(Freshness::Strict);
    for suite in [SuiteCode::Aes256Gcm, SuiteCode::Aegis128x2, SuiteCode::Aegis256x2] {
        rekeyed(CreateOptions { suite, ..base.clone() });
    }
    let off = CreateOptions { freshness: Freshness::Off, ..base.clone() };
    rekeyed(CreateOptions { suite: SuiteCode::Aes256Xts, integrity: false, ..off.clone() });
    rekeyed(CreateOptions { confidentiality: false, integrity: false, ..off.clone() });
    rekeyed(CreateOptions { confidentiality: false, ..base.clone() });
    rekeyed(CreateOptions { provision: Provision::Thin, ..base });
    rekeyed(off);
}

#[test]
fn at_every_level_but_transaction() {
    for freshness in [Freshness::Interval, Freshness::Write] {
        rekeyed(options_at(freshness));
    }
    let case = Case::new(options_at(Freshness::Transaction));
    let refused = case.try_begin(RekeyOrder::default()).unwrap_err();
    assert!(refused.kind() == Kind::Usage && refused.to_string().contains("level transaction"), "{refused}");
}

#[test]
fn it_can_be_done_again_and_each_time_the_key_is_another() {
    let case = Case::written(options_at(Freshness::Strict), 0..300);
    let mut keys = Vec::new();
    for round in 0..3 {
        keys.push(case.key());
        case.begin();
        let mut session = case.attach();
        assert!(reseal(&mut session).ended, "{round}");
        session.check_each(0..300, 0);
        session.detach().unwrap();
        keys.iter().for_each(|old| case.assert_only_new(old));
    }
}

#[test]
fn slots_whose_secret_is_not_given_go_only_when_that_is_allowed() {
    let case = Case::new(options_at(Freshness::Strict));
    let Case { bench, policy } = &case;
    let add = |credential, label: &str| KeyChange::Add { credential, label: label.into(), argon2: COST };
    let third = || Credential::KeyFile(SecretBytes::from_slice(&[9; 64]));
    for change in [add(other(), "other"), add(third(), "third")] {
        let environment = bench.environment.clone();
        let job = change_keys(environment, policy.clone(), credential(), change, false, bench.attach);
        job.unwrap().block().unwrap();
    }
    let order = |remove_others| RekeyOrder { keep: vec![other()], remove_others, force: false };
    let before = bench.image();
    let refused = case.try_begin(order(false)).unwrap_err();
    assert!(refused.kind() == Kind::Usage && refused.to_string().contains("2 (\"third\")"), "{refused}");
    let wrong =
        RekeyOrder { keep: vec![Credential::KeyFile(SecretBytes::from_slice(&[8; 64]))], ..order(true) };
    assert_eq!(case.try_begin(wrong).unwrap_err().kind(), Kind::Locked);
    assert!(bench.image() == before, "nothing was changed");

    let begun = case.try_begin(order(true)).unwrap();
    let indices = |slots: &[seal::slot::SlotInfo]| slots.iter().map(|slot| slot.index).collect::<Vec<_>>();
    assert_eq!((indices(&begun.slots), indices(&begun.removed)), (vec![0, 1], vec![2]));
    let by = |credential| {
        let job = attach_read_only(bench.environment.clone(), policy.clone(), credential, bench.attach);
        job.unwrap().block().map(drop)
    };
    assert_eq!(by(third()).unwrap_err().kind(), Kind::Locked);
    assert!(by(other()).is_ok() && by(credential()).is_ok());
}

#[test]
fn a_session_that_did_not_detach_is_in_the_way_and_is_fenced_by_force() {
    let case = Case::new(options_at(Freshness::Strict));
    let mut session = case.attach();
    session.write_each(0..50, 0);
    session.flush().unwrap();
    let refused = case.try_begin(RekeyOrder::default()).unwrap_err();
    assert!(refused.remedy() == Some(Remedy::Force), "{refused}");
    let old = case.key();
    case.try_begin(RekeyOrder { force: true, ..RekeyOrder::default() }).unwrap();
    session.write(1, 1, 99).unwrap();
    assert_eq!(session.flush().unwrap_err().kind(), Kind::Fenced);
    drop(session);
    let mut session = case.attach();
    assert!(reseal(&mut session).ended);
    session.check_each(0..50, 0);
    session.detach().unwrap();
    case.assert_only_new(&old);
}

#[test]
fn a_full_volume_has_room_for_it() {
    let case = Case::new(options_at(Freshness::Strict));
    let mut session = case.attach();
    for block in (0..BLOCKS).step_by(64) {
        session.write(block, 64, pattern(block, 0)).unwrap();
    }
    session.detach().unwrap();
    case.begin();
    let mut session = case.attach();
    let report = reseal(&mut session);
    assert!(report.ended && report.resealed == BLOCKS, "{report:?}");
    for block in (0..BLOCKS).step_by(64) {
        assert_eq!(session.read(block, 64).unwrap(), vec![pattern(block, 0); 64 * BLOCK_SIZE]);
    }
    session.detach().unwrap();
}

#[test]
fn what_is_damaged_is_named_and_keeps_the_old_key_until_it_is_overwritten() {
    let case = Case::written(options_at(Freshness::Strict), 0..200);
    let pages = case.bench.image();
    let (sight, old) = Sight::newest(&pages, Shape::STANDARD, &credential()).unwrap();
    let reached = sight.reached(&old, &sight.newest_superblock(&old).1);
    let hit = reached.iter().find(|it| it.what == "logical block 77").unwrap().entry.physical;
    let mut spoilt = pages[usize::try_from(hit).unwrap()].clone();
    spoilt[99] ^= 1;
    put(&*case.bench.environment.store, hit, &spoilt);
    case.begin();
    let mut session = case.attach();
    let report = reseal(&mut session);
    assert!(
        !report.ended && report.damage.damaged.first() == Some(&(77..78)) && report.resealed == 199,
        "{report:?}"
    );
    session.write_each(77..78, 1);
    assert!(reseal(&mut session).ended);
    session.check_each(77..78, 1);
    session.detach().unwrap();
    case.assert_only_new(&old);
}

#[test]
fn tiny_shapes_have_more_of_everything() {
    let case = Case::written(options(BLOCKS, Shape::TINY), 0..BLOCKS);
    // Many epochs, so that the salt tables have several leaves.
    for _ in 0..20 {
        let mut session = case.attach();
        session.write_each(5..6, 0);
        session.detach().unwrap();
    }
    let old = case.key();
    case.begin();
    let mut session = case.attach();
    let free = session.volume.status().free_blocks;
    assert!(reseal(&mut session).ended);
    session.check_each(0..BLOCKS, 0);
    session.settle();
    assert!(session.volume.status().free_blocks + 40 > free, "{free}: {:#?}", session.volume.status());
    session.detach().unwrap();
    case.assert_only_new(&old);
}

#[test]
fn a_commit_is_no_way_around_it() {
    // A transaction's end is a request at every level; while a key changes it is nothing special.
    let case = Case::new(options_at(Freshness::Interval));
    case.begin();
    let mut session = case.attach();
    session.write_each(0..5, 0);
    session.one(Request::Commit).result.unwrap();
    assert!(reseal(&mut session).ended);
    session.check_each(0..5, 0);
    session.detach().unwrap();
}
