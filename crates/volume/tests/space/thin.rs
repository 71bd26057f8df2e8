//! Thin volumes on a store that gives space as it is written to: what they take of it, what they give back, and what happens when there is
//! none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::roomy::{Roomy, Says};
use crate::common::{Bench, Session, filled, options, pattern};
use testkit::ManualClock;
use volume::format::protections::{Freshness, Provision};
use volume::geometry::{Geometry, Shape};
use volume::mutation::{Mutation, break_rule};
use volume::policy::Policy;
use volume::{CreateOptions, Kind, Request};

/// 512 MiB.
const BLOCKS: u64 = 131_072;

struct Case {
    bench: Bench,
    store: Roomy,
    clock: Arc<ManualClock>,
    policy: Policy,
    geometry: Geometry,
}

impl Case {
    fn new(discard: Option<bool>) -> Self {
        let options = CreateOptions { provision: Provision::Thin, ..options(BLOCKS, Shape::STANDARD) };
        Self::with(options, discard)
    }

    fn with(options: CreateOptions, discard: Option<bool>) -> Self {
        Self::of(BLOCKS, options, discard)
    }

    fn of(blocks: u64, options: CreateOptions, discard: Option<bool>) -> Self {
        let geometry = options.geometry(blocks + blocks / 6).expect("sizes");
        let mut bench = Bench::new(options, 1);
        let (store, clock) = (Roomy::new(geometry.physical_blocks), Arc::new(ManualClock::default()));
        bench.environment.store = Arc::new(store.clone());
        bench.environment.clock = clock.clone();
        bench.attach.discard = discard;
        bench.attach.memory = 64 << 20;
        let policy = bench.create();
        Self { bench, store, clock, policy, geometry }
    }

    fn attach(&self) -> Session {
        self.bench.attach(&self.policy).expect("attached")
    }

    /// Gives time to what happens in the background.
    fn pass_time(&self, session: &mut Session, rounds: u32) {
        for _ in 0..rounds {
            self.clock.advance(Duration::from_millis(300));
            session.volume.tick();
            for _ in 0..20 {
                session.step();
            }
        }
    }

    /// What `docs/semantics.md` says that the volume takes at most.
    fn bound(&self, session: &Session) -> u64 {
        self.geometry.most_taken(session.volume.status().mapped_blocks, 0)
    }
}

fn write_all(session: &mut Session, blocks: u64, round: u64) {
    for block in (0..blocks).step_by(64) {
        session.write(block, 64, pattern(block, round)).expect("written");
    }
    session.flush().expect("flushed");
}

/// 30 MiB, overwritten twenty times.
#[test]
fn it_takes_no_more_than_the_bound_however_often_it_is_overwritten() {
    for discard in [Some(false), None] {
        let case = Case::new(discard);
        let mut session = case.attach();
        for round in 0..20 {
            write_all(&mut session, 7680, round);
            case.pass_time(&mut session, 2);
            let (taken, most) = (case.store.taken(), case.bound(&session));
            assert!(taken <= most, "round {round}, discard {discard:?}: {taken} of {most} blocks");
        }
        session.checkpoint();
        case.pass_time(&mut session, 100);
        let taken = case.store.taken();
        let rest = session.volume.status().mapped_blocks + case.geometry.most_taken(0, 0) / 2;
        assert!(discard.is_some() || taken <= rest, "{taken} of {rest}");
        // And across sessions.
        session.detach().expect("detached");
        for round in 20..26 {
            let mut session = case.attach();
            write_all(&mut session, 7680, round);
            let (taken, most) = (case.store.taken(), case.bound(&session));
            assert!(taken <= most, "session {round}, discard {discard:?}: {taken} of {most} blocks");
            session.check_each([0, 64, 7616], round);
            session.detach().expect("detached");
        }
    }
}

/// Without the rule that new space is near what is there, the same writes take more than the bound.
#[test]
fn that_a_thin_volume_spreads_is_noticed() {
    let _broken = break_rule(Mutation::ThinSpreads);
    let case = Case::new(Some(false));
    let mut session = case.attach();
    let spread = (0..20).find(|round| {
        write_all(&mut session, 7680, *round);
        case.store.taken() > case.bound(&session)
    });
    assert!(
        spread.is_some(),
        "{} blocks were taken, {} are the bound",
        case.store.taken(),
        case.bound(&session)
    );
}

#[test]
fn what_is_freed_goes_back_to_the_store() {
    for freshness in [Freshness::Strict, Freshness::Interval, Freshness::Off, Freshness::Transaction] {
        let options =
            CreateOptions { freshness, provision: Provision::Thin, ..options(BLOCKS, Shape::STANDARD) };
        let case = Case::with(options, None);
        let mut session = case.attach();
        write_all(&mut session, 40_960, 1);
        session.commit().expect("committed");
        let full = case.store.taken();
        assert!(full > 40_960);
        session.discard(64, 40_960 - 64).expect("discarded");
        session.commit().expect("committed");
        // Nothing else happens: no write, and nobody asks for a checkpoint.
        case.pass_time(&mut session, 160);
        if freshness == Freshness::Transaction {
            // Only its users end a transaction.
            session.commit().expect("committed");
            case.pass_time(&mut session, 100);
        }
        let taken = case.store.taken();
        assert!(taken < full / 3, "{freshness}: {taken} of {full} blocks, {:#?}", session.volume.status());
        session.check_each([0], 1);
        assert!(session.volume.status().store_discarded_blocks > 20_000);
        session.detach().expect("detached");
        let mut session = case.attach();
        session.check_each([0], 1);
        session.check_zeros([64, 4096, 40_959]);
        session.detach().expect("detached");
    }
}

/// At most 512 discards, and then a rest of 250 ms by the clock: the store has its users to serve, too.
#[test]
fn discards_are_made_in_batches_with_rests_between_them() {
    const BATCH: u64 = 512;
    let case = Case::new(None);
    let mut session = case.attach();
    write_all(&mut session, 8192, 1);
    // Blocks between others that stay: each is a discard of its own.
    for block in (1..8192).step_by(2) {
        session.discard(block, 1).expect("discarded");
    }
    session.commit().expect("committed");
    session.volume.checkpoint_soon();
    session.commit().expect("committed");
    let so_far = || case.store.discards.load(Ordering::SeqCst);
    let (begun, mut most) = (so_far(), 0);
    let let_work = |session: &mut Session| {
        session.volume.tick();
        (0..200).for_each(|_| session.step());
    };
    for _ in 0..80 {
        let before = so_far();
        case.clock.advance(Duration::from_millis(250));
        let_work(&mut session);
        let batch = so_far() - before;
        let_work(&mut session);
        assert_eq!(so_far() - before, batch, "it did not rest while the clock stood still");
        most = most.max(batch);
    }
    assert!(so_far() - begun > 2 * BATCH, "{} were made", so_far() - begun);
    assert!(most <= BATCH, "{most} at once");
    session.check_each([0, 64, 8128], 1);
    session.check_zeros([1, 65, 8191]);
    session.detach().expect("detached");
}

/// What a session freed and did not live to discard is found by the next one.
#[test]
fn what_a_session_that_was_killed_left_goes_back_with_the_next() {
    let case = Case::new(None);
    let mut session = case.attach();
    write_all(&mut session, 40_960, 1);
    session.discard(64, 40_960 - 64).expect("discarded");
    session.flush().expect("flushed");
    drop(session);
    let before = case.store.taken();
    let mut session = case.attach();
    session.checkpoint();
    case.clock.advance(Duration::from_millis(700_000));
    case.pass_time(&mut session, 200);
    assert!(case.store.taken() < before / 2, "{} of {before}", case.store.taken());
    session.check_each([0], 1);
    session.detach().expect("detached");
}

#[test]
fn a_fully_provisioned_volume_keeps_its_space() {
    let case = Case::with(options(BLOCKS, Shape::STANDARD), None);
    let mut session = case.attach();
    write_all(&mut session, 40_960, 1);
    session.discard(0, 40_960).expect("discarded");
    session.checkpoint();
    let before = case.store.taken();
    case.pass_time(&mut session, 100);
    assert!(case.store.taken() >= before && session.volume.status().discard == "off");
    session.detach().expect("detached");
}

/// Nothing is kept for its nodes, so nothing is missing there.
#[test]
fn a_fully_provisioned_volume_whose_store_had_no_room_goes_on_when_there_is_some() {
    let case = Case::with(options(BLOCKS, Shape::STANDARD), None);
    case.store.tells.store(true, Ordering::SeqCst);
    *case.store.says.lock().expect("a lock") = Says::Truth;
    let mut session = case.attach();
    case.store.set_room(case.store.taken());
    session.queue.submit(0, Request::Write { block: 0, data: filled(64, 5), fua: true });
    let mut ended = Vec::new();
    for _ in 0..50 {
        session.queue.poll(&mut ended);
    }
    let ended = ended.pop().expect("it is refused").result;
    assert_eq!(ended.expect_err("there is no room").kind(), Kind::NoSpace);
    case.store.set_room(u64::MAX);
    session.checkpoint();
    write_all(&mut session, 8192, 1);
    session.checkpoint();
    write_all(&mut session, 8192, 2);
    session.check_each([0, 64, 8128], 2);
    session.detach().expect("detached");
}

#[test]
fn on_a_full_host_it_is_attached_read_and_discarded_in_and_goes_on_when_there_is_room() {
    for tells in [false, true] {
        let case = Case::new(None);
        case.store.tells.store(tells, Ordering::SeqCst);
        let mut session = case.attach();
        write_all(&mut session, 7680, 1);
        session.checkpoint();
        case.pass_time(&mut session, 20);
        // The host is full.
        let full = case.store.taken();
        case.store.set_room(full);
        session.volume.tick();
        let refused = (0..400).find_map(|at| session.write(20_000 + at * 64, 64, 9).err());
        if tells {
            assert_eq!(refused.expect("there is no room").kind(), Kind::NoSpace);
        }
        assert!(session.volume.failure().is_none(), "{:?}", session.volume.failure());
        if session.queue.pending() > 0 {
            // Writes that had completed wait for room, and with them what comes behind.
            case.store.set_room(full + 4096);
            for _ in 0..20 {
                session.volume.tick();
                session.land();
            }
            case.store.set_room(case.store.taken());
        }
        session.check_each([0, 64, 7616], 1);
        session.flush().expect("flushed");
        session.detach().expect("detached");

        let mut session = case.attach();
        case.store.set_room(case.store.taken());
        session.check_each([0, 64, 7616], 1);
        session.discard(64, 7680 - 64).expect("discarded");
        session.discard(20_000, 400 * 64).expect("discarded");
        session.flush().expect("flushed");
        session.checkpoint();
        case.pass_time(&mut session, 200);
        assert!(
            case.store.taken() < full,
            "{} of {full}: {:#?}",
            case.store.taken(),
            session.volume.status()
        );
        // There is room again, and it goes on.
        write_all(&mut session, 1024, 2);
        session.check_each([0, 64], 2);
        session.detach().expect("detached");
    }
}

/// Whatever a former session has left, and although users have written to every place that the store had given for it: what they discard comes
/// back, by a checkpoint that needs places for its nodes, and the session can be detached.
#[test]
fn on_a_full_host_what_is_discarded_comes_back_in_the_next_session() {
    let cases = [
        (true, Says::Truth, None),
        (true, Says::Truth, Some(false)),
        (false, Says::Truth, None),
        (true, Says::Nothing, None),
        (true, Says::TooMuch, None),
    ];
    for (tells, says, discard) in cases {
        let case = Case::new(discard);
        case.store.tells.store(tells, Ordering::SeqCst);
        *case.store.says.lock().expect("a lock") = says;
        let mut session = case.attach();
        // Much, and most of it goes again: a session that began in between has its nodes far behind what is there then, behind more units than
        // a superblock can list.
        write_all(&mut session, 130_048, 1);
        session.detach().expect("detached");
        let mut session = case.attach();
        session.discard(8192, 130_048 - 8192).expect("discarded");
        session.commit().expect("committed");
        session.checkpoint();
        case.pass_time(&mut session, 100);
        session.detach().expect("detached");

        let full = case.store.taken();
        case.store.set_room(full);
        let mut session = case.attach();
        // Where it cannot tell that it is full, what has completed already would wait for room.
        let mut written = 0;
        for block in 0..if tells { 20_000 } else { 0 } {
            match session.write(20_000 + block, 1, 9) {
                Ok(()) => written += 1,
                Err(error) => assert_eq!(error.kind(), Kind::NoSpace, "{error}"),
            }
        }
        // Whatever is given is written to, but for what is kept for the map.
        assert!(!tells || says != Says::Truth || written > 2000, "{written}");
        session.volume.tick();
        session.discard(64, 120_000).expect("discarded");
        session.flush().expect("flushed");
        let refusals = case.store.refusals.load(Ordering::SeqCst);
        session.checkpoint();
        // One call for each free block would be thousands.
        let refusals = case.store.refusals.load(Ordering::SeqCst) - refusals;
        assert!(says != Says::Truth || refusals < 100, "{refusals}");
        case.pass_time(&mut session, 200);
        session.check_each([0], 1);
        // Without discards the host stays full. Where it says nothing, all that can be reserved is tried, and what is reserved is not discarded
        // by this session.
        if says == Says::Truth && discard.is_none() {
            assert!(case.store.taken() < full / 2, "{} of {full}", case.store.taken());
            write_all(&mut session, 512, 3);
            session.check_each([0, 448], 3);
        }
        session.detach().expect("detached");
    }
}

/// Each write is a leaf of the map of its own: a checkpoint of all that memory has room for would need many times what is kept for nodes.
#[test]
fn on_a_full_host_a_checkpoint_needs_no_more_places_than_are_kept_for_it() {
    /// 3 GiB.
    const LARGE: u64 = 786_432;
    let options = CreateOptions { provision: Provision::Thin, ..options(LARGE, Shape::STANDARD) };
    let case = Case::of(LARGE, options, None);
    case.store.tells.store(true, Ordering::SeqCst);
    *case.store.says.lock().expect("a lock") = Says::Truth;
    let mut session = case.attach();
    session.volume.tick();
    case.store.set_room(case.store.taken() + 6000);
    session.volume.tick();
    // Users try again and again, everywhere.
    let written = (0..LARGE / 128).filter(|at| match session.write(at * 128, 1, pattern(at * 128, 1)) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), Kind::NoSpace, "{error}");
            false
        }
    });
    let written = written.count();
    assert!((1000..6000).contains(&written), "{written}");
    session.discard(128, LARGE - 128).expect("discarded");
    session.flush().expect("flushed");
    session.checkpoint();
    case.pass_time(&mut session, 200);
    session.check_each([0], 1);
    session.check_zeros([128, 256]);
    write_all(&mut session, 1024, 3);
    session.detach().expect("detached");
}

/// A checkpoint that finds no room for its nodes may wait for ever, and must not take writes along that wait for it.
#[test]
fn a_write_does_not_wait_for_a_checkpoint_that_waits_for_room() {
    /// 3 GiB.
    const LARGE: u64 = 786_432;
    let write = |session: &mut Session, at: u64| session.write(at * 128, 1, pattern(at * 128, 1));
    let case = || {
        let options = CreateOptions { provision: Provision::Thin, ..options(LARGE, Shape::STANDARD) };
        let case = Case::of(LARGE, options, None);
        case.store.tells.store(true, Ordering::SeqCst);
        *case.store.says.lock().expect("a lock") = Says::Truth;
        case.store.set_room(case.store.taken() + 8000);
        let session = case.attach();
        (case, session)
    };
    // The first write that has to wait for a checkpoint.
    let (_case, mut session) = case();
    let waits = (0..LARGE / 128).find(|at| {
        write(&mut session, *at).expect("there is room");
        session.volume.status().waits_for_checkpoint > 0
    });
    let waits = waits.expect("one waits");
    assert!(waits > 100, "{waits}");
    session.detach().expect("detached");

    let (case, mut session) = case();
    (0..waits).for_each(|at| write(&mut session, at).expect("there is room"));
    assert_eq!(session.volume.status().waits_for_checkpoint, 0);
    session.flush().expect("flushed");
    case.store.refuses.store(true, Ordering::SeqCst);
    assert_eq!(write(&mut session, waits).expect_err("no room").kind(), Kind::NoSpace);
    assert!(session.volume.status().waits_for_store > 0, "{:#?}", session.volume.status());
    // There is room again, and all goes on.
    case.store.refuses.store(false, Ordering::SeqCst);
    session.volume.tick();
    session.settle();
    write(&mut session, waits).expect("there is room");
    session.check_each([0], 1);
    session.detach().expect("detached");
}

/// A write that had completed waits for room, and is there when there is some.
#[test]
fn a_write_that_had_completed_is_not_lost_for_want_of_room() {
    let case = Case::new(None);
    let mut session = case.attach();
    write_all(&mut session, 64, 1);
    case.store.set_room(case.store.taken());
    let mut ended = Vec::new();
    for block in 0..2 {
        let data = filled(64, pattern(block * 64, 5));
        session.queue.submit(block, Request::Write { block: block * 64, data, fua: false });
    }
    for _ in 0..50 {
        session.queue.poll(&mut ended);
    }
    let completed: Vec<u64> = ended
        .iter()
        .filter(|completion| completion.result.is_ok())
        .map(|completion| completion.token)
        .collect();
    assert!(!completed.is_empty(), "it completed before the store had it");
    assert!(session.queue.pending() > 0 && session.volume.failure().is_none());
    case.store.set_room(u64::MAX);
    session.volume.tick();
    session.flush().expect("flushed");
    for block in completed {
        session.check_each([block * 64], 5);
    }
    assert!(session.volume.status().waits_for_store > 0);
    session.detach().expect("detached");
}

/// Sessions of all kinds, and one on a host that is full by then, whose users write wherever they can, and then discard everything: a checkpoint
/// ends, and what they discarded is free.
#[test]
fn whatever_was_before_a_checkpoint_ends_on_a_full_host() {
    for seed in 0..12 {
        live_and_fill(&mut fastrand::Rng::with_seed(seed))
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

fn live_and_fill(random: &mut fastrand::Rng) -> Result<(), volume::Error> {
    const SMALL: u64 = 16_384;
    let options = CreateOptions { provision: Provision::Thin, ..options(SMALL, Shape::STANDARD) };
    let case = Case::of(SMALL, options, random.bool().then_some(false));
    case.store.tells.store(true, Ordering::SeqCst);
    *case.store.says.lock().expect("a lock") = Says::Truth;
    for _ in 0..random.u32(1..4) {
        let mut session = case.attach();
        for _ in 0..random.u32(1..8) {
            write_somewhere(&mut session, random, 600)?;
            let (base, length) = (random.u64(..SMALL - 8192), 64 << random.u32(..8));
            session.discard(base, length)?;
            if random.bool() {
                session.checkpoint();
                case.pass_time(&mut session, 20);
            }
        }
        // Others are killed.
        if random.bool() {
            session.detach()?;
        }
    }
    case.store.set_room(case.store.taken());
    let mut session = case.attach();
    for _ in 0..3 {
        write_somewhere(&mut session, random, 3000)?;
    }
    session.discard(0, SMALL)?;
    session.flush()?;
    session.checkpoint();
    assert_eq!(session.volume.status().mapped_blocks, 0);
    session.detach()
}

/// Tries so many writes in a part of the volume. There may be no room for them.
fn write_somewhere(
    session: &mut Session,
    random: &mut fastrand::Rng,
    writes: u32,
) -> Result<(), volume::Error> {
    let (base, length) = (random.u64(..8192), 64 << random.u32(..8));
    let size = *random.choice(&[1, 8, 64]).expect("one of three");
    for _ in 0..random.u32(..writes) {
        match session.write(base + random.u64(..length), size, 7) {
            Err(error) if error.kind() != Kind::NoSpace => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
