//! Growing: content stays, the new space is used to its last block, and it may be cut short anywhere.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use common::medium::{Stopping, image, put, put_back};
use common::{Bench, Session, credential, options, page};
use seal::SecretBytes;
use seal::slot::Credential;
use store::{BLOCK_SIZE, MemoryStore, Queue, Store};
use volume::format::header::Header;
use volume::format::protections::{Freshness, Provision};
use volume::geometry::{Geometry, MAX_GROWTHS, Shape};
use volume::policy::Policy;
use volume::{
    AttachOptions, Choice, Environment, Error, Grown, Growth, Kind, Reanchor, RekeyOrder, Result,
    backup_header, begin_rekey, dump, grow, reanchor, restore_header, survey,
};

/// A store of which only the beginning is there yet.
struct Partly {
    medium: MemoryStore,
    blocks: AtomicU64,
}

impl Store for Partly {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::SeqCst)
    }

    fn name(&self) -> String {
        self.medium.name()
    }

    fn queue(&self, depth: u32) -> std::result::Result<Box<dyn Queue>, store::Error> {
        self.medium.queue(depth)
    }
}

struct Case {
    bench: Bench,
    store: Arc<Partly>,
    policy: Policy,
}

impl Case {
    /// A volume of so many blocks on a store that can become `most` blocks long.
    fn new(logical: u64, most: u64, change: impl FnOnce(&mut volume::CreateOptions)) -> Self {
        Self::shaped(Shape::TINY, logical, most, change)
    }

    fn shaped(
        shape: Shape,
        logical: u64,
        most: u64,
        change: impl FnOnce(&mut volume::CreateOptions),
    ) -> Self {
        let mut options = options(logical, shape);
        change(&mut options);
        let blocks = Geometry::for_logical(logical.min(4096), shape).expect("a size").physical_blocks;
        let medium = MemoryStore::new(most).expect("memory");
        let store = Arc::new(Partly { medium, blocks: AtomicU64::new(blocks) });
        let mut bench = Bench::new(options, 8);
        bench.environment.store = store.clone() as Arc<dyn Store>;
        let policy = bench.create();
        Self { bench, store, policy }
    }

    fn at(freshness: Freshness) -> Self {
        Self::new(200, 6000, |options| options.freshness = freshness)
    }

    fn growth(&self, logical: Option<u64>, force: bool) -> (Growth, std::sync::mpsc::Receiver<Policy>) {
        let (sender, saved) = std::sync::mpsc::channel();
        let store = Arc::clone(&self.store);
        let enlarge = Box::new(move |blocks: u64, _: Provision| {
            if blocks <= store.medium.blocks() {
                store.blocks.fetch_max(blocks, Ordering::SeqCst);
            }
            Ok(())
        });
        let save = Box::new(move |policy: &Policy| {
            let _ = sender.send(policy.clone());
            Ok(())
        });
        (Growth { logical_blocks: logical, enlarge, save, force }, saved)
    }

    fn try_grow(&mut self, environment: &Environment, logical: Option<u64>, force: bool) -> Result<Grown> {
        let (growth, saved) = self.growth(logical, force);
        let job = grow(environment.clone(), self.policy.clone(), credential(), growth, self.bench.attach);
        let result = job?.block();
        self.policy = saved.try_iter().last().unwrap_or_else(|| self.policy.clone());
        result
    }

    fn grow(&mut self, logical: u64) -> Grown {
        let environment = self.bench.environment.clone();
        self.try_grow(&environment, Some(logical), false).expect("it grows")
    }

    fn refused(&mut self, logical: Option<u64>) -> Error {
        let (environment, before) = (self.bench.environment.clone(), image(&*self.store));
        let error = self.try_grow(&environment, logical, false).expect_err("it must be refused");
        assert!(image(&*self.store) == before, "something was written");
        error
    }

    fn attach(&self) -> Session {
        self.bench.attach(&self.policy).expect("attached")
    }

    /// The header in force.
    fn geometry(&self) -> Geometry {
        Header::decode_as(&image(&*self.store)[0], Shape::TINY).expect("a header").geometry
    }
}

/// Writes a pattern that says where it stands.
fn fill(session: &mut Session, blocks: std::ops::Range<u64>, seed: u64) {
    for block in blocks {
        if let Err(error) = session.write(block, 1, pattern(block, seed)) {
            panic!("block {block}: {error}; {:#?}", session.volume.status());
        }
    }
}

fn pattern(block: u64, seed: u64) -> u8 {
    u8::try_from((block * 7 + seed) % 250 + 1).expect("small")
}

fn check(session: &mut Session, blocks: std::ops::Range<u64>, seed: u64) {
    for block in blocks {
        assert!(session.read(block, 1).expect("it opens") == page(pattern(block, seed)), "block {block}");
    }
}

fn zeros(session: &mut Session, blocks: std::ops::Range<u64>) {
    for block in blocks {
        assert!(session.read(block, 1).expect("it opens") == page(0), "block {block}");
    }
}

#[test]
fn content_stays_and_the_new_space_is_used_to_the_last_block() {
    for freshness in Freshness::ALL {
        let mut case = Case::at(*freshness);
        let mut session = case.attach();
        fill(&mut session, 0..200, 1);
        session.volume_commit();
        session.detach().unwrap();
        let grown = case.grow(2400);
        assert_eq!((grown.before.0, grown.now.0, grown.growths), (200, 2400, 1));
        assert_eq!(case.policy.size, 2400 * BLOCK_SIZE as u64);
        let levels = |geometry: &Geometry| (geometry.map_levels(), geometry.bitmap_levels());
        let (before, now) = (case.geometry().as_of(0), case.geometry());
        assert!(levels(&now).0 > levels(&before).0 && levels(&now).1 > levels(&before).1, "both are lifted");
        let mut session = case.attach();
        check(&mut session, 0..200, 1);
        zeros(&mut session, 200..2400);
        // Twice, so that blocks of either extent are freed and taken again; a transaction that overwrites needs more room than there is.
        let seeds: &[u64] = if *freshness == Freshness::Transaction { &[3] } else { &[2, 3] };
        for &seed in seeds {
            for part in 0..12 {
                fill(&mut session, 200 * part..200 * (part + 1), seed);
                session.volume_commit();
            }
        }
        check(&mut session, 0..2400, 3);
        session.detach().unwrap();
        let mut session = case.attach();
        check(&mut session, 0..2400, 3);
        assert_eq!(session.volume.status().mapped_blocks + session.volume.status().overlay_changes, 2400);
        session.detach().unwrap();
    }
}

impl Session {
    fn volume_commit(&mut self) {
        self.one(volume::Request::Commit).result.expect("committed");
    }
}

#[test]
fn a_thin_volume_grows_in_promise_or_in_store() {
    let mut case = Case::new(800, 6000, |options| {
        options.provision = Provision::Thin;
        options.logical_blocks = Some(800);
    });
    let created = case.geometry();
    // In promise: the store is what it was.
    let store = case.store.blocks();
    let environment = case.bench.environment.clone();
    let fixed = |case: &Case, logical| {
        let (growth, saved) = case.growth(logical, false);
        (Growth { enlarge: Box::new(|_, _| Ok(())), ..growth }, saved)
    };
    let (growth, saved) = fixed(&case, Some(1200));
    let job =
        grow(environment.clone(), case.policy.clone(), credential(), growth, case.bench.attach).unwrap();
    assert_eq!(job.block().unwrap().now, (1200, store));
    case.policy = saved.try_recv().unwrap();
    assert_eq!(
        (case.geometry().data_blocks(), case.geometry().units()),
        (created.data_blocks(), created.units())
    );
    let mut session = case.attach();
    fill(&mut session, 1100..1200, 1);
    session.detach().unwrap();
    // A promise whose map alone would fill the store.
    let (growth, _saved) = fixed(&case, Some(30_000));
    let job = grow(environment.clone(), case.policy.clone(), credential(), growth, case.bench.attach);
    let refused = job.unwrap().block().unwrap_err();
    assert_eq!((refused.kind(), refused.to_string().contains("map")), (Kind::Usage, true), "{refused}");
    // In store: the promise is what it was, and so is the policy.
    case.store.blocks.store(3000, Ordering::SeqCst);
    let (growth, saved) = fixed(&case, None);
    let job = grow(environment, case.policy.clone(), credential(), growth, case.bench.attach).unwrap();
    assert_eq!(job.block().unwrap().now, (1200, 3000));
    assert!(saved.try_recv().is_err(), "the policy says nothing of the store");
    let mut session = case.attach();
    check(&mut session, 1100..1200, 1);
    let room = session.volume.status().free_blocks;
    assert!(room > created.data_blocks(), "{room}");
    fill(&mut session, 0..1100, 2);
    session.detach().unwrap();
    let mut session = case.attach();
    check(&mut session, 0..1100, 2);
    check(&mut session, 1100..1200, 1);
}

#[test]
fn all_of_a_store_that_became_larger() {
    let mut case = Case::at(Freshness::Strict);
    let environment = case.bench.environment.clone();
    let unchanged = case.try_grow(&environment, None, false).unwrap();
    assert_eq!((unchanged.growths, unchanged.before == unchanged.now), (0, true));
    case.store.blocks.store(5000, Ordering::SeqCst);
    let grown = case.try_grow(&environment, None, false).unwrap();
    assert_eq!(grown.now.1, 5000);
    assert!(case.geometry().fully_provisioned());
    assert!(
        case.geometry().as_of(0).grown(grown.now.0 + 1, 5000).is_ok_and(|more| !more.fully_provisioned())
    );
    // Once more finds nothing to do.
    assert_eq!(case.try_grow(&environment, None, false).unwrap().growths, 1);
    assert_eq!(case.try_grow(&environment, Some(grown.now.0), false).unwrap().growths, 1);
    let mut session = case.attach();
    fill(&mut session, 0..grown.now.0, 1);
    check(&mut session, 0..grown.now.0, 1);
    session.detach().unwrap();
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let mut case = Case::at(Freshness::Strict);
    let usage = |error: Error| {
        assert_eq!(error.kind(), Kind::Usage, "{error}");
        error.to_string()
    };
    assert!(usage(case.refused(Some(199))).contains("does not shrink"));
    assert!(usage(case.refused(Some(20_000))).contains("Make the store larger first"));
    assert!(usage(case.refused(Some(1 << 40))).contains("not possible"));
    let wrong = Credential::KeyFile(SecretBytes::from_slice(&[8; 64]));
    let (growth, _saved) = case.growth(Some(300), false);
    let job = grow(case.bench.environment.clone(), case.policy.clone(), wrong, growth, case.bench.attach);
    assert_eq!(job.unwrap().block().unwrap_err().kind(), Kind::Locked);
    // A session that did not detach.
    drop(case.attach());
    let refused = case.refused(Some(300));
    assert!(refused.to_string().contains("--force"), "{refused}");
    assert_eq!(refused.kind(), Kind::Usage);
    let environment = case.bench.environment.clone();
    assert_eq!(case.try_grow(&environment, Some(300), true).unwrap().now.0, 300);
}

#[test]
fn a_volume_grows_sixteen_times() {
    let mut case = Case::new(64, 6000, |_| {});
    let mut size = 64;
    for growth in 1..=MAX_GROWTHS {
        // Now and then without a session in between.
        if growth % 3 > 0 {
            let mut session = case.attach();
            let from = size - size / 4;
            fill(&mut session, from..size, 5);
            session.detach().unwrap();
        }
        size += 40 + 10 * growth as u64;
        assert_eq!(case.grow(size).growths, growth);
    }
    let message = case.refused(Some(size + 100)).to_string();
    assert!(message.contains("16 times"), "{message}");
    let mut session = case.attach();
    check(&mut session, 48..64, 5);
    fill(&mut session, 0..size, 6);
    check(&mut session, 0..size, 6);
    session.detach().unwrap();
    let mut session = case.attach();
    check(&mut session, 0..size, 6);
    assert_eq!(session.volume.status().mapped_blocks, size);
}

#[test]
fn a_session_that_still_runs_is_fenced_and_spoils_nothing() {
    let mut case = Case::at(Freshness::Strict);
    let mut old = case.attach();
    fill(&mut old, 0..200, 1);
    old.flush().unwrap();
    let environment = case.bench.environment.clone();
    case.try_grow(&environment, Some(2000), true).unwrap();
    assert_eq!(old.write(7, 1, 99).and_then(|()| old.flush()).unwrap_err().kind(), Kind::Fenced);
    let mut session = case.attach();
    // It was written and never acknowledged: it may be there or not.
    let found = session.read(7, 1).unwrap();
    assert!(found == page(99) || found == page(pattern(7, 1)));
    fill(&mut session, 7..8, 1);
    fill(&mut session, 200..2000, 1);
    let _ = old.write(8, 1, 99);
    old.volume.checkpoint_soon();
    for _ in 0..200 {
        old.step();
    }
    check(&mut session, 0..2000, 1);
    session.checkpoint();
    session.detach().unwrap();
    check(&mut case.attach(), 0..2000, 1);
}

/// Writes and flushes of one growth, and of the repair before it.
const STEPS: i64 = 8;

#[test]
fn cut_anywhere_it_goes_on_or_has_not_begun() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let (mut begun, mut hinted) = (0, 0);
        for (first, second) in (0..STEPS).flat_map(|first| (0..STEPS).map(move |second| (first, second))) {
            let mut case = Case::at(freshness);
            let mut session = case.attach();
            fill(&mut session, 0..200, 1);
            session.detach().unwrap();
            for steps in [first, second] {
                let left = Arc::new(AtomicI64::new(steps));
                let medium = Arc::clone(&case.bench.environment.store);
                let store = Arc::new(Stopping { medium, left });
                let environment = Environment { store, ..case.bench.environment.clone() };
                let _ = case.try_grow(&environment, Some(1500), false);
            }
            // In between: the old size, or a refusal that says what to do.
            match case.bench.attach(&case.policy) {
                Ok(mut session) => {
                    check(&mut session, 0..200, 1);
                    session.detach().unwrap();
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Policy, "{first} {second}: {error}");
                    assert!(error.to_string().contains("cvmio volume grow"), "{error}");
                    hinted += 1;
                }
            }
            let environment = case.bench.environment.clone();
            let grown = case.try_grow(&environment, Some(1500), false).unwrap();
            assert_eq!(grown.now.0, 1500, "{first} {second}");
            assert!(grown.growths <= 2, "{first} {second}: {grown:?}");
            begun += usize::from(grown.growths == 1);
            let mut session = case.attach();
            check(&mut session, 0..200, 1);
            fill(&mut session, 200..1500, 1);
            check(&mut session, 0..1500, 1);
            session.detach().unwrap();
        }
        assert!(begun > 0 && hinted > 0, "{freshness}: {begun} {hinted}");
    }
}

/// The machine dies while the first copy is written behind the second: with the sizes of before, and a MAC of after.
#[test]
fn a_torn_copy_beside_the_new_one_is_no_end() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let mut case = Case::at(freshness);
        let (before, old) = (image(&*case.store), case.policy.clone());
        case.grow(1500);
        let mut torn = image(&*case.store)[0].clone();
        torn[..512].copy_from_slice(&before[0][..512]);
        put(&*case.store, 0, &torn);
        case.policy = old;
        let refused = case.bench.attach(&case.policy).err().expect("half a growth");
        assert!(refused.to_string().contains("cvmio volume grow"), "{refused}");
        assert_eq!(case.grow(1500).now.0, 1500);
        case.attach().detach().unwrap();
    }
}

#[test]
fn a_policy_that_was_not_written_is_written_by_the_next_growth() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        for again in [Some(1500), Some(1800), None] {
            let mut case = Case::at(freshness);
            let (growth, _) = case.growth(Some(1500), false);
            let save = Box::new(|_: &Policy| Err(Error::new(Kind::Io, "the disk with the policy is full")));
            let growth = Growth { save, ..growth };
            let (environment, old) = (case.bench.environment.clone(), case.policy.clone());
            let job = grow(environment.clone(), old, credential(), growth, case.bench.attach);
            assert_eq!(job.unwrap().block().unwrap_err().kind(), Kind::Io);
            let refused = case.bench.attach(&case.policy).err().expect("the policy says another size");
            assert_eq!(refused.kind(), Kind::Policy);
            assert!(refused.to_string().contains("cvmio volume grow"), "{refused}");
            let fewer = case.refused(Some(1000));
            assert_eq!((fewer.kind(), fewer.to_string().contains("does not shrink")), (Kind::Usage, true));
            let wrong = Credential::KeyFile(SecretBytes::from_slice(&[8; 64]));
            let (growth, _saved) = case.growth(Some(1500), false);
            let job = grow(environment.clone(), case.policy.clone(), wrong, growth, case.bench.attach);
            assert_eq!(job.unwrap().block().unwrap_err().kind(), Kind::Locked);
            let grown = case.try_grow(&environment, again, false).unwrap();
            assert_eq!(grown.before.0, 200);
            assert_eq!(case.policy.size, grown.now.0 * BLOCK_SIZE as u64);
            assert_eq!(grown.growths, if again == Some(1800) { 2 } else { 1 });
            case.attach().detach().unwrap();
        }
    }
}

#[test]
fn what_the_first_session_behind_a_growth_leaves_is_whole_at_each_step() {
    for freshness in [Freshness::Strict, Freshness::Transaction, Freshness::Off] {
        for steps in 0.. {
            assert!(steps < 2000, "it does not end");
            let mut case = Case::at(freshness);
            let mut session = case.attach();
            fill(&mut session, 0..200, 1);
            session.volume_commit();
            session.detach().unwrap();
            case.grow(1500);
            let left = Arc::new(AtomicI64::new(steps));
            let medium = Arc::clone(&case.bench.environment.store);
            let store = Arc::new(Stopping { medium, left: Arc::clone(&left) });
            let environment = Environment { store, ..case.bench.environment.clone() };
            let job =
                volume::attach(environment, case.policy.clone(), credential(), case.bench.attach).unwrap();
            let mut done = false;
            if let Ok(volume) = job.block() {
                let mut session = Session::new(volume);
                let wrote = (1200..1260).all(|block| session.write(block, 1, pattern(block, 1)).is_ok())
                    && session.one(volume::Request::Commit).result.is_ok();
                done = wrote && session.detach().is_ok();
            }
            let mut session = case.attach();
            check(&mut session, 0..200, 1);
            if done {
                check(&mut session, 1200..1260, 1);
            }
            session.detach().unwrap();
            if done && left.load(Ordering::SeqCst) > 0 {
                break;
            }
        }
    }
}

#[test]
fn an_older_header_is_refused() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        // A thin one, whose policy does not change: nothing but the header says that it has grown.
        let mut case = Case::new(800, 6000, |options| {
            options.provision = Provision::Thin;
            options.freshness = freshness;
        });
        let environment = case.bench.environment.clone();
        let options = case.bench.attach;
        let backup = |case: &Case| {
            backup_header(environment.clone(), case.policy.clone(), credential(), options)
                .unwrap()
                .block()
                .unwrap()
        };
        let restore = |case: &Case, bytes: Vec<u8>| {
            restore_header(environment.clone(), case.policy.clone(), credential(), bytes, options)
                .unwrap()
                .block()
        };
        let old = backup(&case);
        let before = image(&*case.store);
        case.store.blocks.store(4000, Ordering::SeqCst);
        assert_eq!(case.try_grow(&environment, None, false).unwrap().now, (800, 4000));
        let mut session = case.attach();
        fill(&mut session, 0..800, 1);
        session.detach().unwrap();
        let new = backup(&case);
        let refused = restore(&case, old.bytes).expect_err("it is older");
        assert_eq!(refused.kind(), Kind::Stale, "{refused}");
        // The host does what the owner may not.
        let whole = image(&*case.store);
        let mixed: Vec<_> = before[..4].iter().chain(&whole[4..]).cloned().collect();
        put_back(&*case.store, &mixed);
        let refused = case.bench.attach(&case.policy).err().expect("the header is older");
        assert_eq!(refused.kind(), Kind::Stale, "{refused}");
        assert_eq!(restore(&case, new.bytes).unwrap().copies, 2);
        check(&mut case.attach(), 0..800, 1);
    }
}

#[test]
fn tools_for_trouble_know_grown_volumes() {
    let mut case = Case::at(Freshness::Strict);
    let mut session = case.attach();
    fill(&mut session, 0..200, 1);
    session.detach().unwrap();
    case.grow(1000);
    let environment = case.bench.environment.clone();
    let options = case.bench.attach;
    let dumped = |case: &Case| {
        let job = dump::dump(environment.clone(), Some(case.policy.clone()), Some(credential()), options);
        job.unwrap().block().unwrap()
    };
    let newest = |case: &Case| dumped(case).superblocks.unwrap().iter().map(|found| found.growths).max();
    assert_eq!(newest(&case), Some(0), "no session has merged yet");
    // The states that the store offers are of before the growth; one of them is chosen, and the volume goes on from it.
    let look = |case: &Case| {
        let credential = Arc::new(credential());
        let job = survey(environment.clone(), case.policy.clone(), credential, Choice::Latest, options);
        job.unwrap().block().unwrap().0.chosen
    };
    let accept = |case: &Case, state| {
        let order = Reanchor { state, anchor: None, save: Box::new(|_| Ok(())) };
        let credential = Arc::new(credential());
        reanchor(environment.clone(), case.policy.clone(), credential, order, options)
            .unwrap()
            .block()
            .unwrap()
    };
    accept(&case, look(&case));
    let mut session = case.attach();
    check(&mut session, 0..200, 1);
    fill(&mut session, 200..1000, 1);
    session.detach().unwrap();
    assert_eq!(newest(&case), Some(1));
    accept(&case, look(&case));
    let mut session = case.attach();
    check(&mut session, 0..1000, 1);
    let report = session.volume.check(0, 1, Arc::default()).unwrap().block().unwrap();
    assert_eq!((report.blocks, report.damaged_blocks), (1000, 0));
    session.detach().unwrap();
    let reading = AttachOptions { ..options };
    let job =
        volume::attach_read_only(environment.clone(), case.policy.clone(), credential(), reading).unwrap();
    check(&mut Session::reading(job.block().unwrap()), 0..1000, 1);
}

/// A reader that comes before anybody has lifted the trees.
#[test]
fn a_reader_sees_a_volume_that_has_only_just_grown() {
    let mut case = Case::at(Freshness::Strict);
    let mut session = case.attach();
    fill(&mut session, 0..200, 1);
    session.detach().unwrap();
    case.grow(2400);
    let before = image(&*case.store);
    let environment = case.bench.environment.clone();
    let job = volume::attach_read_only(environment, case.policy.clone(), credential(), case.bench.attach);
    let mut reader = Session::reading(job.unwrap().block().unwrap());
    check(&mut reader, 0..200, 1);
    zeros(&mut reader, 200..2400);
    let report = reader.volume.check(0, 1, Arc::default()).unwrap().block().unwrap();
    assert_eq!((report.blocks, report.damaged_blocks), (200, 0));
    assert!(image(&*case.store) == before, "a reader writes nothing");
}

/// Both change the header, and a session finds trees that are to be lifted and sealed anew. The smaller volume's bitmap is one leaf, which
/// the larger one's has a level above.
#[test]
fn a_volume_grows_while_its_key_changes_and_the_other_way_round() {
    for grows_first in [true, false] {
        let mut case = Case::shaped(Shape::STANDARD, 4096, 50_000, |options| {
            options.freshness = Freshness::Strict;
        });
        let mut session = case.attach();
        fill(&mut session, 0..4096, 1);
        session.detach().unwrap();
        if grows_first {
            case.grow(40_000);
        }
        let environment = case.bench.environment.clone();
        let order = RekeyOrder::default();
        let begin = begin_rekey(environment, case.policy.clone(), credential(), order, case.bench.attach);
        begin.unwrap().block().unwrap();
        if !grows_first {
            case.grow(40_000);
        }
        let mut session = case.attach();
        let mut job = session.volume.reseal(Arc::default()).unwrap();
        let report = loop {
            session.step();
            if let Some(ended) = job.poll() {
                break ended.unwrap();
            }
        };
        assert!(report.ended && report.damage.damaged_blocks == 0, "{report:?}");
        check(&mut session, 0..4096, 1);
        session.detach().unwrap();
        // Allocating looks at all of the bitmap, which nobody could read any more if it were under the old key.
        for round in 2..4 {
            let mut session = case.attach();
            fill(&mut session, 0..40_000, round);
            check(&mut session, 0..40_000, round);
            session.detach().unwrap();
        }
    }
}
