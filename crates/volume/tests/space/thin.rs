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
pub const BLOCKS: u64 = 131_072;

pub struct Case {
    pub bench: Bench,
    pub store: Roomy,
    pub clock: Arc<ManualClock>,
    policy: Policy,
    pub geometry: Geometry,
}

fn thin(blocks: u64) -> CreateOptions {
    CreateOptions { provision: Provision::Thin, ..options(blocks, Shape::STANDARD) }
}

impl Case {
    pub fn new(discard: Option<bool>) -> Self {
        Self::with(thin(BLOCKS), discard)
    }

    fn with(options: CreateOptions, discard: Option<bool>) -> Self {
        Self::of(BLOCKS, options, discard, None)
    }

    /// On a store that says nothing, or says what it has left and this of what it has given.
    fn of(blocks: u64, options: CreateOptions, discard: Option<bool>, says: Option<Says>) -> Self {
        let geometry = options.geometry(blocks + blocks / 6).expect("sizes");
        let mut bench = Bench::new(options, 1);
        let (store, clock) = (Roomy::new(geometry.physical_blocks), Arc::new(ManualClock::default()));
        bench.environment.store = Arc::new(store.clone());
        bench.environment.clock = clock.clone();
        bench.attach.discard = discard;
        bench.attach.memory = 64 << 20;
        if let Some(says) = says {
            store.tells.store(says != Says::Device, Ordering::SeqCst);
            *store.says.lock().expect("a lock") = says;
        }
        let policy = bench.create();
        Self { bench, store, clock, policy, geometry }
    }

    /// A thin volume of so many blocks on a host that says what it has left, and what it has given.
    pub fn telling(blocks: u64, discard: Option<bool>) -> Self {
        Self::of(blocks, thin(blocks), discard, Some(Says::Truth))
    }

    /// The same on a device, which says nothing at all.
    pub fn on_a_device(blocks: u64, discard: Option<bool>) -> Self {
        Self::of(blocks, thin(blocks), discard, Some(Says::Device))
    }

    pub fn attach(&self) -> Session {
        self.bench.attach(&self.policy).expect("attached")
    }

    /// Gives time to what happens in the background.
    pub fn pass_time(&self, session: &mut Session, rounds: u32) {
        for _ in 0..rounds {
            self.clock.advance(Duration::from_millis(300));
            session.volume.tick();
            for _ in 0..20 {
                session.step();
            }
        }
    }

    /// However much is discarded and flushed on a full store, nothing waits for room, nor does a detach.
    pub fn discards_wait_for_nothing(mut session: Session) {
        for round in 0..3000 {
            session.discard(round * 8, 4).expect("discarded");
            session.flush().expect("flushed");
        }
        assert_eq!(session.volume.status().waits_for_store, 0);
        session.detach().expect("detached");
    }

    /// What `docs/semantics.md` says that the volume takes at most.
    fn bound(&self, session: &Session) -> u64 {
        let tells = self.store.tells.load(Ordering::SeqCst);
        self.geometry.most_taken(session.volume.status().mapped_blocks, 0, tells)
    }
}

pub fn write_all(session: &mut Session, blocks: u64, round: u64) {
    for block in (0..blocks).step_by(64) {
        session.write(block, 64, pattern(block, round)).expect("written");
    }
    session.flush().expect("flushed");
}

/// 30 MiB, overwritten twenty times.
#[test]
fn it_takes_no_more_than_the_bound_however_often_it_is_overwritten() {
    let case = |tells: bool, discard| if tells { Case::telling(BLOCKS, discard) } else { Case::new(discard) };
    for (tells, discard) in [(false, Some(false)), (false, None), (true, Some(false)), (true, None)] {
        let case = case(tells, discard);
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
        let rest = session.volume.status().mapped_blocks + case.geometry.most_taken(0, 0, tells) / 2;
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

/// A full XFS has no room to make a hole. What was discarded is free all the same, and goes back when it has room.
#[test]
fn a_store_that_has_no_room_to_forget_something_is_asked_again() {
    for tells in [false, true] {
        let case = Case::new(None);
        case.store.tells.store(tells, Ordering::SeqCst);
        let mut session = case.attach();
        write_all(&mut session, 40_960, 1);
        session.checkpoint();
        case.pass_time(&mut session, 20);
        let full = case.store.taken();
        case.store.set_room(full);
        case.store.refuses_discards.store(true, Ordering::SeqCst);
        session.discard(64, 20_480 - 64).expect("discarded");
        session.flush().expect("flushed");
        case.pass_time(&mut session, 100);
        let status = session.volume.status();
        assert!(status.discard == "refused" && status.discard_refused.is_some(), "{status:#?}");
        assert_eq!((status.mapped_blocks, case.store.taken()), (20_544, full));
        // Where it tells that it is full, there is a checkpoint for what is discarded although nothing goes back.
        session.discard(20_480, 20_480).expect("discarded");
        session.flush().expect("flushed");
        case.pass_time(&mut session, 100);
        assert_eq!(session.volume.status().mapped_blocks, if tells { 64 } else { 20_544 });
        // There is room. Where it does not tell, the next checkpoint tries.
        case.store.set_room(u64::MAX);
        case.store.refuses_discards.store(false, Ordering::SeqCst);
        if !tells {
            session.checkpoint();
        }
        case.pass_time(&mut session, 100);
        assert_eq!(session.volume.status().discard, "on");
        assert!(case.store.taken() < full / 2, "{} of {full}", case.store.taken());
        session.detach().expect("detached");
    }
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
    // It is not asked for ever what it has given.
    session.volume.tick();
    let asked = case.store.asked.load(Ordering::SeqCst);
    write_all(&mut session, 8192, 3);
    session.checkpoint();
    assert_eq!(case.store.asked.load(Ordering::SeqCst), asked);
    session.detach().expect("detached");
}
