//! A new volume key: begun, cut short, gone on with beside users, ended; and what the old key opens then.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use common::medium::{Stopping, image, put, put_back};
use common::sight::{Sight, signed};
use common::{Bench, Session, credential, filled, options, options_at, page};
use seal::slot::{Argon2Params, Credential};
use seal::{DataMode, SecretBytes, Suite, VolumeKey};
use store::BLOCK_SIZE;
use volume::format::ad::superblock_ad;
use volume::format::header::Header;
use volume::format::item::Item;
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::format::record::{RECORD_HEADER, RecordHeader};
use volume::format::superblock::{PAYLOAD, Superblock, assemble};
use volume::geometry::Shape;
use volume::policy::Policy;
use volume::{
    AttachOptions, CreateOptions, Driven, Environment, KeyChange, Kind, RekeyOrder, Rekeyed, Request,
    ResealProgress, ResealReport, Result, Window, attach, attach_read_only, backup_header, begin_rekey,
    change_keys, restore_header,
};

const COST: Argon2Params = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };
/// Logical blocks of the volumes here.
const BLOCKS: u64 = 4096;

fn other() -> Credential {
    Credential::Passphrase(SecretBytes::from_slice(b"open sesame"))
}

fn bench(options: CreateOptions) -> (Bench, Policy) {
    let blocks = volume::geometry::Geometry::for_logical(BLOCKS, options.shape).unwrap().physical_blocks;
    let bench = Bench::new(options, blocks);
    let policy = bench.create();
    (bench, policy)
}

fn begin(environment: &Environment, policy: &Policy, order: RekeyOrder) -> Result<Rekeyed> {
    let options = AttachOptions::default();
    begin_rekey(environment.clone(), policy.clone(), credential(), order, options)?.block()
}

fn attach_on(environment: &Environment, policy: &Policy, bench: &Bench) -> Result<Session> {
    attach(environment.clone(), policy.clone(), credential(), bench.attach)?.block().map(Session::new)
}

/// What block `block` holds after it was written with `round`.
fn fill(block: u64, round: u64) -> u8 {
    u8::try_from(1 + (block * 7 + round * 31) % 255).unwrap()
}

/// Writes these blocks, one by one.
fn write(session: &mut Session, blocks: impl Iterator<Item = u64>, round: u64) {
    for block in blocks {
        session.write(block, 1, fill(block, round)).unwrap();
    }
}

fn check(session: &mut Session, block: u64, round: u64) {
    assert_eq!(session.read(block, 1).unwrap(), page(fill(block, round)), "block {block}");
}

/// A re-sealing beside a session.
struct Job {
    job: Driven<Result<ResealReport>>,
    ended: Option<Result<ResealReport>>,
    progress: Arc<ResealProgress>,
}

impl Job {
    fn new(session: &Session) -> Self {
        let progress = Arc::<ResealProgress>::default();
        Self { job: session.volume.reseal(Arc::clone(&progress)).unwrap(), ended: None, progress }
    }

    /// Moves it on.
    fn step(&mut self) {
        if self.ended.is_none() {
            self.ended = self.job.poll();
        }
    }

    /// Runs a request to its end, and this goes on meanwhile: they may wait for each other.
    fn beside(&mut self, session: &mut Session, request: Request) {
        session.queue.submit(0, request);
        let mut ended = Vec::new();
        for _ in 0..1_000_000 {
            session.queue.poll(&mut ended);
            if let Some(completion) = ended.pop() {
                return completion.result.unwrap();
            }
            session.step();
            self.step();
        }
        panic!("nothing moves: {:?} {:#?}", self.progress, session.volume.status());
    }

    /// Drives it and the session to its end.
    fn end(mut self, session: &mut Session) -> Result<ResealReport> {
        for _ in 0..1_000_000 {
            self.step();
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            session.step();
        }
        panic!("nothing moves: {:?} {:#?}", self.progress, session.volume.status());
    }
}

/// The volume key that a credential opens now.
fn key(bench: &Bench, by: &Credential) -> Option<VolumeKey> {
    let image = image(&*bench.environment.store);
    Sight::newest(&image, by).map(|(_, key)| key)
}

/// Whatever is on the store and in the anchor opens under the new key, and nothing of it under the old one.
fn assert_only_new(bench: &Bench, policy: &Policy, old: &VolumeKey) {
    // What stands in the slots of the session before is overwritten by the next one.
    bench.attach(policy).unwrap().detach().unwrap();
    let image = image(&*bench.environment.store);
    let (sight, new) = Sight::newest(&image, &credential()).expect("the credential opens");
    assert_eq!(sight.header.rekeying, None);
    assert!(new != *old);
    assert!([0, 2].iter().all(|at| !sight.holds_at(*at, old)));
    assert!(sight.superblocks(old).is_empty());
    let newest = sight.superblocks(&new).into_iter().map(|(_, superblock)| superblock);
    let newest = newest.max_by_key(|it| (it.claims, it.publication)).expect("a superblock");
    assert!(newest.old_salts.is_absent());
    let reached = sight.reached(&new, &newest);
    assert!(reached.iter().filter(|it| it.is_data()).count() as u64 >= newest.mapped);
    for it in &reached {
        let by_new = sight.open(&new, it).unwrap_or_else(|| panic!("{} does not open", it.what));
        // Without a tag everything opens, but not as what it was; and what is no secret has no key.
        let tagged = sight.header.integrity || !it.is_data();
        let sealed = tagged || sight.header.confidentiality;
        let by_old = sight.open(old, it).filter(|by_old| tagged || *by_old == by_new);
        assert!(by_old.is_none() || !sealed, "{} opens under the old key", it.what);
    }
    if let Some(anchor) = &bench.environment.anchor {
        let stamp = futures::FutureExt::now_or_never(anchor.read()).expect("memory").unwrap().unwrap();
        assert!(signed(&stamp, &new) && !signed(&stamp, old));
    }
}

fn rekeyed(options: CreateOptions) {
    let name =
        format!("{} {} {} {}", options.suite, options.confidentiality, options.integrity, options.freshness);
    let (bench, policy) = bench(options);
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, (0..BLOCKS).step_by(3), 0);
    session.detach().unwrap();
    let old = key(&bench, &credential()).unwrap();
    let begun = begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    assert!(!begun.under_way && begun.removed.is_empty() && begun.slots.len() == 1, "{name}");
    // Done again it changes nothing.
    let before = image(&*bench.environment.store);
    assert!(begin(&bench.environment, &policy, RekeyOrder::default()).unwrap().under_way);
    assert!(image(&*bench.environment.store) == before);

    let mut session = bench.attach(&policy).unwrap();
    assert!(session.volume.is_rekeying());
    let report = Job::new(&session).end(&mut session).unwrap();
    assert!(report.ended && !session.volume.is_rekeying(), "{name}: {report:?}");
    assert_eq!((report.resealed, report.damage.damaged_blocks), (BLOCKS.div_ceil(3), 0), "{name}");
    write(&mut session, 10..20, 1);
    session.detach().unwrap();
    assert_only_new(&bench, &policy, &old);
    let now = image(&*bench.environment.store);
    assert!(now[..2] == now[2..4], "both copies are the one in force");
    let mut session = bench.attach(&policy).unwrap();
    for block in 0..BLOCKS {
        if (10..20).contains(&block) {
            check(&mut session, block, 1);
        } else if block % 3 == 0 {
            check(&mut session, block, 0);
        } else {
            assert_eq!(session.read(block, 1).unwrap(), page(0), "{name}");
        }
    }
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
    let (bench, policy) = bench(options_at(Freshness::Transaction));
    let refused = begin(&bench.environment, &policy, RekeyOrder::default()).unwrap_err();
    assert!(refused.kind() == Kind::Usage && refused.to_string().contains("level transaction"), "{refused}");
}

#[test]
fn it_can_be_done_again_and_each_time_the_key_is_another() {
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..300, 0);
    session.detach().unwrap();
    let mut keys = Vec::new();
    for round in 0..3 {
        keys.push(key(&bench, &credential()).unwrap());
        begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
        let mut session = bench.attach(&policy).unwrap();
        assert!(Job::new(&session).end(&mut session).unwrap().ended, "{round}");
        (0..300).for_each(|block| check(&mut session, block, 0));
        session.detach().unwrap();
        keys.iter().for_each(|old| assert_only_new(&bench, &policy, old));
    }
}

#[test]
fn slots_whose_secret_is_not_given_go_only_when_that_is_allowed() {
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let add = |credential, label: &str| KeyChange::Add { credential, label: label.into(), argon2: COST };
    let third = || Credential::KeyFile(SecretBytes::from_slice(&[9; 64]));
    for change in [add(other(), "other"), add(third(), "third")] {
        let environment = bench.environment.clone();
        let job = change_keys(environment, policy.clone(), credential(), change, false, bench.attach);
        job.unwrap().block().unwrap();
    }
    let order = |remove_others| RekeyOrder { keep: vec![other()], remove_others, force: false };
    let before = image(&*bench.environment.store);
    let refused = begin(&bench.environment, &policy, order(false)).unwrap_err();
    assert!(refused.kind() == Kind::Usage && refused.to_string().contains("2 (\"third\")"), "{refused}");
    let wrong =
        RekeyOrder { keep: vec![Credential::KeyFile(SecretBytes::from_slice(&[8; 64]))], ..order(true) };
    assert_eq!(begin(&bench.environment, &policy, wrong).unwrap_err().kind(), Kind::Locked);
    assert!(image(&*bench.environment.store) == before, "nothing was changed");

    let begun = begin(&bench.environment, &policy, order(true)).unwrap();
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
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..50, 0);
    session.flush().unwrap();
    let refused = begin(&bench.environment, &policy, RekeyOrder::default()).unwrap_err();
    assert!(refused.to_string().contains("--force"), "{refused}");
    let old = key(&bench, &credential()).unwrap();
    begin(&bench.environment, &policy, RekeyOrder { force: true, ..RekeyOrder::default() }).unwrap();
    session.write(1, 1, 99).unwrap();
    assert_eq!(session.flush().unwrap_err().kind(), Kind::Fenced);
    drop(session);
    let mut session = bench.attach(&policy).unwrap();
    assert!(Job::new(&session).end(&mut session).unwrap().ended);
    (0..50).for_each(|block| check(&mut session, block, 0));
    session.detach().unwrap();
    assert_only_new(&bench, &policy, &old);
}

#[test]
fn a_crash_after_any_step_of_the_beginning_has_begun_or_not() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let mut seen = [false; 2];
        for steps in 0..8 {
            let (bench, policy) = bench(options_at(freshness));
            let mut session = bench.attach(&policy).unwrap();
            write(&mut session, 0..40, 0);
            session.detach().unwrap();
            let store = Stopping {
                medium: Arc::clone(&bench.environment.store),
                left: Arc::new(AtomicI64::new(steps)),
            };
            let environment = Environment { store: Arc::new(store), ..bench.environment.clone() };
            let _ = begin(&environment, &policy, RekeyOrder::default());
            let mut session = bench.attach(&policy).unwrap();
            seen[usize::from(session.volume.is_rekeying())] = true;
            (0..40).for_each(|block| check(&mut session, block, 0));
            write(&mut session, 40..50, 0);
            session.detach().unwrap();
            // Done again it has begun, whatever was there; and it ends.
            begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
            let mut session = bench.attach(&policy).unwrap();
            assert!(Job::new(&session).end(&mut session).unwrap().ended, "{freshness} {steps}");
            (0..50).for_each(|block| check(&mut session, block, 0));
            session.detach().unwrap();
        }
        assert_eq!(seen, [true, true], "the crashes did not fall on both sides of the beginning");
    }
}

#[test]
fn a_crash_after_any_step_until_the_end_is_gone_on_from() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let (mut ended, mut open) = (0, 0);
        let (bench, policy) = bench(options_at(freshness));
        let mut session = bench.attach(&policy).unwrap();
        write(&mut session, (0..BLOCKS).step_by(50), 0);
        session.detach().unwrap();
        let old = key(&bench, &credential()).unwrap();
        begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
        let begun = image(&*bench.environment.store);
        let stamp = |bench: &Bench| {
            bench
                .environment
                .anchor
                .as_ref()
                .map(|anchor| futures::FutureExt::now_or_never(anchor.read()).expect("memory").unwrap())
        };
        let anchored = stamp(&bench);
        let mut steps = 0;
        loop {
            put_back(&*bench.environment.store, &begun);
            if let (Some(anchor), Some(then)) = (&bench.environment.anchor, &anchored) {
                let now = stamp(&bench).flatten();
                futures::FutureExt::now_or_never(anchor.advance(now.as_ref(), then.as_ref().unwrap()))
                    .expect("memory")
                    .unwrap();
            }
            let left = Arc::new(AtomicI64::new(steps));
            let store = Stopping { medium: Arc::clone(&bench.environment.store), left: Arc::clone(&left) };
            let environment = Environment { store: Arc::new(store), ..bench.environment.clone() };
            let mut whole = false;
            if let Ok(mut session) = attach_on(&environment, &policy, &bench) {
                let mut job = Job::new(&session);
                for _ in 0..100_000 {
                    job.step();
                    if job.ended.is_some() {
                        break;
                    }
                    session.step();
                }
                whole = left.load(Ordering::Relaxed) > 0;
            }
            let mut session =
                bench.attach(&policy).unwrap_or_else(|error| panic!("{freshness} {steps}: {error}"));
            *(if session.volume.is_rekeying() { &mut open } else { &mut ended }) += 1;
            assert!(Job::new(&session).end(&mut session).unwrap().ended, "{freshness} {steps}");
            (0..BLOCKS).step_by(50).for_each(|block| check(&mut session, block, 0));
            session.detach().unwrap();
            assert_only_new(&bench, &policy, &old);
            if whole {
                break;
            }
            steps += 1;
        }
        assert!(ended >= 2 && open >= 30, "{freshness}: {ended} {open}");
    }
}

/// A number that looks random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[test]
fn writes_and_discards_that_come_in_between_win() {
    for seed in 0..6 {
        let freshness = if seed % 2 == 0 { Freshness::Strict } else { Freshness::Interval };
        let (bench, policy) = bench(options_at(freshness));
        let mut session = bench.attach(&policy).unwrap();
        let mut model: Vec<Option<u64>> = vec![None; 4096];
        for block in (0..BLOCKS).filter(|block| block % 5 != 4) {
            model[usize::try_from(block).unwrap()] = Some(0);
        }
        write(&mut session, (0..BLOCKS).filter(|block| block % 5 != 4), 0);
        session.detach().unwrap();
        let old = key(&bench, &credential()).unwrap();
        begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
        let mut session = bench.attach(&policy).unwrap();
        let mut job = Job::new(&session);
        let mut dice = Dice(seed);
        let mut round = 0;
        let report = loop {
            job.step();
            if let Some(report) = job.ended.take() {
                break report.unwrap();
            }
            round += 1;
            assert!(round < 200_000, "{:?} {:#?}", job.progress, session.volume.status());
            // Where it is at work now, more or less.
            let near = job.progress.blocks.load(Ordering::Relaxed) * 5 / 4;
            let block = (near + dice.below(1200)).min(BLOCKS - 80);
            let at = usize::try_from(block).unwrap();
            match dice.below(8) {
                0 | 1 if round < 3000 => {
                    let buffer = filled(1, fill(block, round));
                    job.beside(&mut session, Request::Write { block, buffer, fua: false });
                    model[at] = Some(round);
                }
                2 if round < 3000 => {
                    let blocks = 1 + dice.below(80);
                    job.beside(&mut session, Request::Discard { block, blocks });
                    model[at..at + usize::try_from(blocks).unwrap()].fill(None);
                }
                3 if round < 3000 && dice.below(20) == 0 => session.volume.checkpoint_soon(),
                _ => session.step(),
            }
        };
        assert!(report.ended && report.resealed < 3277, "{report:?}: nothing came in between");
        let compare = |session: &mut Session| {
            for (block, round) in (0..).zip(&model) {
                match round {
                    Some(round) => check(session, block, *round),
                    None => assert_eq!(session.read(block, 1).unwrap(), page(0), "block {block}"),
                }
            }
        };
        compare(&mut session);
        session.detach().unwrap();
        let mut session = bench.attach(&policy).unwrap();
        compare(&mut session);
        session.detach().unwrap();
        assert_only_new(&bench, &policy, &old);
    }
}

#[test]
fn a_full_volume_has_room_for_it() {
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let mut session = bench.attach(&policy).unwrap();
    for block in (0..BLOCKS).step_by(64) {
        session.write(block, 64, fill(block, 0)).unwrap();
    }
    session.detach().unwrap();
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    let mut session = bench.attach(&policy).unwrap();
    let report = Job::new(&session).end(&mut session).unwrap();
    assert!(report.ended && report.resealed == BLOCKS, "{report:?}");
    for block in (0..BLOCKS).step_by(64) {
        assert_eq!(session.read(block, 64).unwrap(), vec![fill(block, 0); 64 * BLOCK_SIZE]);
    }
    session.detach().unwrap();
}

#[test]
fn what_is_damaged_is_named_and_keeps_the_old_key_until_it_is_overwritten() {
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..200, 0);
    session.detach().unwrap();
    let old = key(&bench, &credential()).unwrap();
    let pages = image(&*bench.environment.store);
    let (sight, _) = Sight::newest(&pages, &credential()).unwrap();
    let (_, newest) =
        sight.superblocks(&old).into_iter().max_by_key(|(_, it)| it.publication + it.claims * 100).unwrap();
    let reached = sight.reached(&old, &newest);
    let hit = reached.iter().find(|it| it.what == "logical block 77").unwrap().entry.physical;
    let mut spoilt = pages[usize::try_from(hit).unwrap()].clone();
    spoilt[99] ^= 1;
    put(&*bench.environment.store, hit, &spoilt);
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    let mut session = bench.attach(&policy).unwrap();
    let report = Job::new(&session).end(&mut session).unwrap();
    assert!(
        !report.ended && report.damage.damaged.first() == Some(&(77..78)) && report.resealed == 199,
        "{report:?}"
    );
    write(&mut session, 77..78, 1);
    assert!(Job::new(&session).end(&mut session).unwrap().ended);
    check(&mut session, 77, 1);
    session.detach().unwrap();
    assert_only_new(&bench, &policy, &old);
}

#[test]
fn a_reader_sees_all_of_it_at_any_stage_and_changes_nothing() {
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..600, 0);
    session.detach().unwrap();
    let look = |rekeying: bool| {
        let before = image(&*bench.environment.store);
        let job = attach_read_only(bench.environment.clone(), policy.clone(), credential(), bench.attach);
        let mut reader = Session::reading(job.unwrap().block().unwrap());
        assert_eq!(reader.volume.is_rekeying(), rekeying);
        (0..600).for_each(|block| check(&mut reader, block, 0));
        if rekeying {
            let job = reader.volume.reseal(Arc::default()).unwrap();
            assert_eq!(job.block().unwrap_err().kind(), Kind::Usage, "it is for reading only");
        }
        assert!(image(&*bench.environment.store) == before);
    };
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    look(true);
    let mut session = bench.attach(&policy).unwrap();
    let mut job = Job::new(&session);
    while job.progress.resealed.load(Ordering::Relaxed) < 200 {
        job.step();
        assert!(job.ended.is_none());
        session.step();
    }
    drop(job);
    session.detach().unwrap();
    look(true);
    let mut session = bench.attach(&policy).unwrap();
    let report = Job::new(&session).end(&mut session).unwrap();
    assert!(report.ended && report.resealed < 600, "it does not begin anew: {report:?}");
    session.detach().unwrap();
    look(false);
}

#[test]
fn a_session_that_is_stopped_in_the_middle_ends_well() {
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, (0..BLOCKS).step_by(2), 0);
    session.detach().unwrap();
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    let mut session = bench.attach(&policy).unwrap();
    let mut job = Job::new(&session);
    while job.progress.resealed.load(Ordering::Relaxed) == 0 {
        job.step();
        assert!(job.ended.is_none());
        session.step();
    }
    session.volume.stop();
    let report = job.end(&mut session).unwrap();
    assert!(!report.ended, "{report:?}");
    session.detach().unwrap();
    assert!(bench.attach(&policy).unwrap().volume.is_rekeying());
}

/// Puts a superblock of the old key's into a slot, with other roots than it had: what somebody with the old key could write.
fn forge(bench: &Bench, old: &VolumeKey, slot: u8, superblock: &Superblock) {
    let header = Header::decode(&image(&*bench.environment.store)[0]).unwrap();
    let payload: [u8; PAYLOAD] = superblock.encode().unwrap();
    let mut sealed = payload;
    let salt = [0x77; 32];
    let tag = old.one_time(header.suite.suite(), "superblock", &salt).seal(
        0,
        &superblock_ad(&header.volume, slot),
        &payload,
        &mut sealed,
    );
    put(&*bench.environment.store, 4 + u64::from(slot), &assemble(&salt, &sealed, &tag));
}

#[test]
fn of_the_old_key_exactly_one_superblock_counts() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let (bench, policy) = bench(options_at(freshness));
        let mut session = bench.attach(&policy).unwrap();
        write(&mut session, 0..60, 0);
        session.detach().unwrap();
        let old = key(&bench, &credential()).unwrap();
        begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
        let pages = image(&*bench.environment.store);
        let (slot, real) = Sight::newest(&pages, &credential())
            .unwrap()
            .0
            .superblocks(&old)
            .into_iter()
            .max_by_key(|(_, it)| (it.claims, it.publication))
            .unwrap();
        // An empty volume at the same place of the same chain, and newer than the real one.
        let lie = Superblock {
            map: volume::format::entry::Entry::ABSENT,
            mapped: 0,
            publication: 99,
            ..real.clone()
        };
        for at in (0..4).filter(|at| *at != slot) {
            forge(&bench, &old, at, &lie);
        }
        let mut session = bench.attach(&policy).unwrap();
        (0..60).for_each(|block| check(&mut session, block, 0));
        write(&mut session, 0..60, 1);
        session.detach().unwrap();
        // Nor does anything of it count in place of the real one.
        (0..4).for_each(|at| forge(&bench, &old, at, &lie));
        let refused = bench.attach(&policy).err().expect("no superblock counts");
        assert_eq!(refused.kind(), Kind::Corrupt, "{refused}");
    }
}

/// Where the next record of the newest session goes, what it continues, and its generation.
fn end_of_journal(sight: &Sight<'_>, key: &VolumeKey) -> (u64, [u8; 32], RecordHeader) {
    let (_, newest) =
        sight.superblocks(key).into_iter().max_by_key(|(_, it)| (it.claims, it.publication)).unwrap();
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

#[test]
fn behind_the_boundary_no_record_of_the_old_key_counts() {
    let (mut bench, policy) = bench(options_at(Freshness::Interval));
    bench.attach.window = Window { time: Duration::MAX, bytes: u64::MAX, commits: u64::MAX };
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..60, 0);
    session.detach().unwrap();
    let old = key(&bench, &credential()).unwrap();
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    let mut session = bench.attach(&policy).unwrap();
    // Two commits that the anchor does not cover: the second shows that the first may be continued.
    for round in 1..3 {
        write(&mut session, 0..10, round);
        session.flush().unwrap();
    }
    drop(session);
    let pages = image(&*bench.environment.store);
    let (sight, new) = Sight::newest(&pages, &credential()).unwrap();
    let (place, head, last) = end_of_journal(&sight, &new);
    // What a record like this does when it counts is seen with the new key; with the old one it must do nothing.
    for (key, epoch, block, counts) in [(&old, 1, 0, false), (&new, last.epoch, 0, true)] {
        let mut payload = Vec::new();
        Item::Discard { logical: block, blocks: 60 }.encode_into(&mut payload);
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
        record.tag = keys.journal.seal(record.nonce, &record.associated_data(&head), &payload, &mut sealed);
        let mut forged = [&record.encode()[..], &sealed].concat();
        forged.resize(BLOCK_SIZE, 0);
        put_back(&*bench.environment.store, &pages);
        put(&*bench.environment.store, place, &forged);
        let job = attach_read_only(bench.environment.clone(), policy.clone(), credential(), bench.attach);
        let mut reader = Session::reading(job.unwrap().block().unwrap());
        assert_eq!(reader.read(30, 1).unwrap(), page(if counts { 0 } else { fill(30, 0) }), "epoch {epoch}");
        if !counts {
            (0..10).for_each(|block| check(&mut reader, block, 2));
        }
    }
}

#[test]
fn an_old_image_and_an_old_header_are_stale() {
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..60, 0);
    session.detach().unwrap();
    let before = image(&*bench.environment.store);
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    let refused = |bench: &Bench| {
        let error = bench.attach(&policy).err().expect("it is refused");
        assert_eq!(error.kind(), Kind::Stale, "{error}");
    };
    let begun = image(&*bench.environment.store);
    put_back(&*bench.environment.store, &before);
    refused(&bench);
    put_back(&*bench.environment.store, &begun);
    let mut session = bench.attach(&policy).unwrap();
    assert!(Job::new(&session).end(&mut session).unwrap().ended);
    session.detach().unwrap();
    let ended = image(&*bench.environment.store);
    // The header that still has the old key with it does not come back either.
    put_back(&*bench.environment.store, &[&begun[..4], &ended[4..]].concat());
    refused(&bench);
    put_back(&*bench.environment.store, &begun);
    refused(&bench);
}

#[test]
fn tiny_shapes_have_more_of_everything() {
    let mut options = options(BLOCKS, Shape::TINY);
    options.freshness = Freshness::Strict;
    let (bench, policy) = bench(options);
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..BLOCKS, 0);
    session.detach().unwrap();
    // Many epochs, so that the salt tables have several leaves.
    for _ in 0..20 {
        let mut session = bench.attach(&policy).unwrap();
        write(&mut session, 5..6, 0);
        session.detach().unwrap();
    }
    let old = key_of_tiny(&bench);
    let order = RekeyOrder::default();
    begin_rekey(bench.environment.clone(), policy.clone(), credential(), order, bench.attach)
        .unwrap()
        .block()
        .unwrap();
    let mut session = bench.attach(&policy).unwrap();
    let free = session.volume.status().free_blocks;
    assert!(Job::new(&session).end(&mut session).unwrap().ended);
    (0..BLOCKS).for_each(|block| check(&mut session, block, 0));
    session.settle();
    assert!(session.volume.status().free_blocks + 40 > free, "{free}: {:#?}", session.volume.status());
    session.detach().unwrap();
    bench.attach(&policy).unwrap().detach().unwrap();
    let pages = image(&*bench.environment.store);
    let header = Header::decode_as(&pages[0], Shape::TINY).unwrap();
    assert!(Sight { image: &pages, header, at: 0 }.superblocks(&old).is_empty());
}

fn key_of_tiny(bench: &Bench) -> VolumeKey {
    let pages = image(&*bench.environment.store);
    let header = Header::decode_as(&pages[0], Shape::TINY).unwrap();
    Sight { image: &pages, header, at: 0 }.key(&credential()).unwrap()
}

#[test]
fn a_commit_is_no_way_around_it() {
    // A transaction's end is a request at every level; while a key changes it is nothing special.
    let (bench, policy) = bench(options_at(Freshness::Interval));
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..5, 0);
    session.one(Request::Commit).result.unwrap();
    assert!(Job::new(&session).end(&mut session).unwrap().ended);
    (0..5).for_each(|block| check(&mut session, block, 0));
    session.detach().unwrap();
}

#[test]
fn beside_users_it_rests_after_each_leaf_and_holds_nothing_then() {
    let (bench, policy) = bench(options_at(Freshness::Strict));
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..1000, 0);
    session.detach().unwrap();
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    let mut session = bench.attach(&policy).unwrap();
    let mut job = Job::new(&session);
    job.progress.share(true);
    let mut before = 0;
    for round in 1..=7 {
        while !job.progress.rests() {
            job.step();
            session.step();
        }
        let done = job.progress.resealed.load(Ordering::Relaxed);
        // Fewer if a checkpoint ended in between; what it lost then is for the next walk.
        assert!((1..=128).contains(&(done - before)), "one leaf: {before} {done}");
        before = done;
        // Far more than is ever admitted at once: whatever it held, somebody would wait for it here.
        for _ in 0..4 {
            write(&mut session, 2000..2600, round);
            session.flush().unwrap();
        }
        assert!(job.progress.rests());
        job.progress.go_on();
    }
    job.progress.share(false);
    assert!(job.end(&mut session).unwrap().ended);
    (0..1000).for_each(|block| check(&mut session, block, 0));
    session.detach().unwrap();
}

#[test]
fn without_an_anchor_an_older_header_backup_does_not_take_the_new_key_away() {
    let (bench, policy) = bench(options_at(Freshness::Off));
    let mut session = bench.attach(&policy).unwrap();
    write(&mut session, 0..60, 0);
    session.detach().unwrap();
    let back_up = || {
        let job = backup_header(bench.environment.clone(), policy.clone(), credential(), bench.attach);
        job.unwrap().block().unwrap().bytes
    };
    let restore = |bytes: &[u8]| {
        let (environment, bytes) = (bench.environment.clone(), bytes.to_vec());
        restore_header(environment, policy.clone(), credential(), bytes, bench.attach).unwrap().block()
    };
    let refused = |backup: &[u8]| {
        let before = image(&*bench.environment.store);
        let error = restore(backup).unwrap_err();
        assert!(error.kind() == Kind::Stale && error.to_string().contains("has a new key"), "{error}");
        assert!(image(&*bench.environment.store) == before);
    };
    let old = back_up();
    begin(&bench.environment, &policy, RekeyOrder::default()).unwrap();
    refused(&old);
    let mut session = bench.attach(&policy).unwrap();
    assert!(Job::new(&session).end(&mut session).unwrap().ended);
    session.detach().unwrap();
    // The superblocks of the session before are still under the old key.
    refused(&old);
    let new = back_up();
    put(&*bench.environment.store, 0, &vec![0x5a; 4 * BLOCK_SIZE]);
    assert_eq!(restore(&new).unwrap().copies, 2);
    let mut session = bench.attach(&policy).unwrap();
    (0..60).for_each(|block| check(&mut session, block, 0));
    session.detach().unwrap();
}
