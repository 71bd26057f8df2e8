//! Growing: content stays, and the new space is used to its last block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::growing::Case;
use crate::common::rekeying::reseal;
use crate::common::{credential, page, pattern};
use memory::BLOCK_SIZE;
use volume::format::protections::{Freshness, Provision};
use volume::geometry::{Geometry, MAX_GROWTHS, Shape};
use volume::{Choice, Error, Kind, Reanchor, RekeyOrder, Remedy, begin_rekey, dump, reanchor, survey};

#[test]
fn content_stays_and_the_new_space_is_used_to_the_last_block() {
    for freshness in Freshness::ALL {
        let mut case = Case::written(*freshness);
        let grown = case.grow(2400);
        assert_eq!((grown.before.0, grown.now.0, grown.growths), (200, 2400, 1));
        assert_eq!(case.policy.size, 2400 * BLOCK_SIZE as u64);
        let levels = |geometry: &Geometry| (geometry.map_levels(), geometry.bitmap_levels());
        let (before, now) = (case.geometry().as_of(0), case.geometry());
        assert!(levels(&now).0 > levels(&before).0 && levels(&now).1 > levels(&before).1, "both are lifted");
        let mut session = case.attach();
        session.check_each(0..200, 1);
        session.check_zeros(200..2400);
        // Twice, so that blocks of either extent are freed and taken again; a transaction that overwrites needs more room than there is.
        let seeds: &[u64] = if *freshness == Freshness::Transaction { &[3] } else { &[2, 3] };
        for &seed in seeds {
            for part in 0..12 {
                session.write_each(200 * part..200 * (part + 1), seed);
                session.commit().unwrap();
            }
        }
        session.check_each(0..2400, 3);
        session.detach().unwrap();
        let mut session = case.attach();
        session.check_each(0..2400, 3);
        assert_eq!(session.volume.status().mapped_blocks + session.volume.status().overlay_changes, 2400);
        session.detach().unwrap();
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
    let store = case.bench.environment.store.blocks();
    case.fixed = true;
    assert_eq!(case.grow(1200).now, (1200, store));
    assert_eq!(
        (case.geometry().data_blocks(), case.geometry().units()),
        (created.data_blocks(), created.units())
    );
    let mut session = case.attach();
    session.write_each(1100..1200, 1);
    session.detach().unwrap();
    // A promise whose map alone would fill the store.
    let refused = case.refused(Some(30_000));
    assert_eq!((refused.kind(), refused.to_string().contains("map")), (Kind::Usage, true), "{refused}");
    // In store: the promise is what it was, and so is the policy.
    case.store.blocks.store(3000, Ordering::SeqCst);
    let (growth, saved) = case.growth(None, false);
    assert_eq!(case.grow_by(credential(), growth).unwrap().now, (1200, 3000));
    assert!(saved.try_recv().is_err(), "the policy says nothing of the store");
    let mut session = case.attach();
    session.check_each(1100..1200, 1);
    let room = session.volume.status().free_blocks;
    assert!(room > created.data_blocks(), "{room}");
    session.write_each(0..1100, 2);
    session.detach().unwrap();
    let mut session = case.attach();
    session.check_each(0..1100, 2);
    session.check_each(1100..1200, 1);
}

#[test]
fn all_of_a_store_that_became_larger() {
    let mut case = Case::at(Freshness::Strict);
    let unchanged = case.try_grow(None, false).unwrap();
    assert_eq!((unchanged.growths, unchanged.before == unchanged.now), (0, true));
    case.store.blocks.store(5000, Ordering::SeqCst);
    let grown = case.try_grow(None, false).unwrap();
    assert_eq!(grown.now.1, 5000);
    assert!(case.geometry().fully_provisioned());
    assert!(
        case.geometry().as_of(0).grown(grown.now.0 + 1, 5000).is_ok_and(|more| !more.fully_provisioned())
    );
    // Once more finds nothing to do.
    assert_eq!(case.try_grow(None, false).unwrap().growths, 1);
    assert_eq!(case.try_grow(Some(grown.now.0), false).unwrap().growths, 1);
    let mut session = case.attach();
    session.write_each(0..grown.now.0, 1);
    session.check_each(0..grown.now.0, 1);
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
    case.assert_locked(300);
    // A session that did not detach.
    drop(case.attach());
    let refused = case.refused(Some(300));
    assert!(refused.remedy() == Some(Remedy::Force), "{refused}");
    assert_eq!(refused.kind(), Kind::Usage);
    assert_eq!(case.try_grow(Some(300), true).unwrap().now.0, 300);
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
            session.write_each(from..size, 5);
            session.detach().unwrap();
        }
        size += 40 + 10 * growth as u64;
        assert_eq!(case.grow(size).growths, growth);
    }
    let message = case.refused(Some(size + 100)).to_string();
    assert!(message.contains("16 times"), "{message}");
    let mut session = case.attach();
    session.check_each(48..64, 5);
    session.write_each(0..size, 6);
    session.check_each(0..size, 6);
    session.detach().unwrap();
    let mut session = case.attach();
    session.check_each(0..size, 6);
    assert_eq!(session.volume.status().mapped_blocks, size);
}

#[test]
fn a_session_that_still_runs_is_fenced_and_spoils_nothing() {
    let mut case = Case::at(Freshness::Strict);
    let mut old = case.attach();
    old.write_each(0..200, 1);
    old.flush().unwrap();
    case.try_grow(Some(2000), true).unwrap();
    assert_eq!(old.write(7, 1, 99).and_then(|()| old.flush()).unwrap_err().kind(), Kind::Fenced);
    let mut session = case.attach();
    // It was written and never acknowledged: it may be there or not.
    let found = session.read(7, 1).unwrap();
    assert!(found == page(99) || found == page(pattern(7, 1)));
    session.write_each(7..8, 1);
    session.write_each(200..2000, 1);
    let _ = old.write(8, 1, 99);
    old.volume.checkpoint_soon();
    for _ in 0..200 {
        old.step();
    }
    session.check_each(0..2000, 1);
    session.checkpoint();
    session.detach().unwrap();
    case.attach().check_each(0..2000, 1);
}

#[test]
fn tools_for_trouble_know_grown_volumes() {
    let mut case = Case::written(Freshness::Strict);
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
        let order =
            Reanchor { state, anchor: None, anchor_options: Default::default(), save: Box::new(|_| Ok(())) };
        let credential = Arc::new(credential());
        reanchor(environment.clone(), case.policy.clone(), credential, order, options)
            .unwrap()
            .block()
            .unwrap()
    };
    accept(&case, look(&case));
    let mut session = case.attach();
    session.check_each(0..200, 1);
    session.write_each(200..1000, 1);
    session.detach().unwrap();
    assert_eq!(newest(&case), Some(1));
    accept(&case, look(&case));
    let mut session = case.attach();
    session.check_each(0..1000, 1);
    let report = session.volume.check(0, 1, Arc::default()).unwrap().block().unwrap();
    assert_eq!((report.blocks, report.damaged_blocks), (1000, 0));
    session.detach().unwrap();
    case.bench.attach_reading(&case.policy).unwrap().check_each(0..1000, 1);
}

/// A reader that comes before anybody has lifted the trees.
#[test]
fn a_reader_sees_a_volume_that_has_only_just_grown() {
    let mut case = Case::written(Freshness::Strict);
    case.grow(2400);
    let before = case.bench.image();
    let mut reader = case.bench.attach_reading(&case.policy).unwrap();
    reader.check_each(0..200, 1);
    reader.check_zeros(200..2400);
    let report = reader.volume.check(0, 1, Arc::default()).unwrap().block().unwrap();
    assert_eq!((report.blocks, report.damaged_blocks), (200, 0));
    assert!(case.bench.image() == before, "a reader writes nothing");
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
        session.write_each(0..4096, 1);
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
        let report = reseal(&mut session);
        assert!(report.ended && report.damage.damaged_blocks == 0, "{report:?}");
        session.check_each(0..4096, 1);
        session.detach().unwrap();
        // Allocating looks at all of the bitmap, which nobody could read any more if it were under the old key.
        for round in 2..4 {
            let mut session = case.attach();
            session.write_each(0..40_000, round);
            session.check_each(0..40_000, round);
            session.detach().unwrap();
        }
    }
}
