//! Streams into volumes: larger ones, used ones, and ones whose machine stops.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::medium::{image, put_back};
use crate::common::streaming::{
    BLOCKS, bench_of, compare, content, export, filled_volume, frames, import_into, open_all,
};
use crate::common::worn::wear;
use crate::common::{Bench, Session};
use anchor::{Anchor, MemoryAnchor};
use futures::FutureExt;
use store::MemoryStore;
use volume::format::protections::Freshness;
use volume::geometry::{Geometry, Shape};
use volume::{Environment, Extent, Kind};

#[test]
fn an_empty_volume_has_a_stream_and_a_larger_volume_takes_it() {
    let bench = bench_of(BLOCKS);
    let small_policy = bench.create();
    let stream = export(&bench, &small_policy);
    assert_eq!(open_all(&stream, 9).expect("whole"), vec![(0..BLOCKS, Vec::new())]);
    let larger = bench_of(BLOCKS + 100);
    let policy = larger.create();
    let mut session = larger.attach(&policy).expect("attached");
    session.write(BLOCKS + 7, 3, 8).expect("written");
    import_into(&mut session, &stream).expect("imported");
    let (extents, bytes) = content(&mut session, BLOCKS + 100);
    assert_eq!(extents, [Extent { blocks: BLOCKS + 100, allocated: false }]);
    assert!(bytes.iter().all(|byte| *byte == 0));
    session.detach().expect("detached");
    let stream = export(&larger, &policy);
    let mut session = bench.attach(&small_policy).expect("attached");
    let error = import_into(&mut session, &stream).expect_err("too large");
    assert_eq!(error.kind(), Kind::Usage, "{error}");
}

#[test]
fn an_import_that_has_ended_is_found_out_without_a_write() {
    let from = bench_of(BLOCKS);
    let (policy, _) = filled_volume(&from);
    let stream = export(&from, &policy);
    let to = bench_of(BLOCKS + 100);
    let policy = to.create();
    let refused = |what: &str| {
        let before = image(&*to.environment.store);
        let error = compare(&to, &policy, &stream).expect_err(what);
        assert!(
            error.kind() == Kind::Usage && error.to_string().contains("something else"),
            "{what}: {error}"
        );
        assert!(image(&*to.environment.store) == before, "{what}: something was written");
    };
    refused("nothing was imported");
    let mut session = to.attach(&policy).expect("attached");
    let imported = import_into(&mut session, &stream).expect("imported");
    session.detach().expect("detached");
    let before = image(&*to.environment.store);
    let found = compare(&to, &policy, &stream).expect("the same");
    assert_eq!((found.chunks, found.blocks, found.kept), (imported.chunks, imported.blocks, imported.blocks));
    assert!(image(&*to.environment.store) == before, "something was written");
    let error = compare(&to, &policy, &stream[..stream.len() - 1]).expect_err("cut");
    assert_eq!(error.kind(), Kind::Io, "{error}");
    // One block more, one less, one other; behind the stream's end, too.
    for (what, block, discards) in
        [("more", 3, false), ("less", 1000, true), ("other", 1200, false), ("behind", BLOCKS + 7, false)]
    {
        let mut session = to.attach(&policy).expect("attached");
        match discards {
            true => session.discard(block, 1).expect("discarded"),
            false => session.write(block, 1, 77).expect("written"),
        }
        session.detach().expect("detached");
        refused(what);
        let mut session = to.attach(&policy).expect("attached");
        import_into(&mut session, &stream).expect("imported");
        session.detach().expect("detached");
        compare(&to, &policy, &stream).expect("the same again");
    }
}

#[test]
fn an_import_that_was_cut_anywhere_keeps_what_it_has_and_goes_on() {
    let from = bench_of(BLOCKS);
    let (policy, expected) = filled_volume(&from);
    let stream = export(&from, &policy);
    let frames = frames(&stream);
    let to = bench_of(BLOCKS);
    let policy = to.create();
    let mut session = to.attach(&policy).expect("attached");
    for frame in frames.iter().skip(1) {
        let error = import_into(&mut session, &stream[..frame + 5]).expect_err("cut");
        assert_eq!(error.kind(), Kind::Io, "{error}");
        // The machine stops right then: what was told is there.
        drop(session);
        session = to.attach(&policy).expect("attached");
    }
    let mut changed = stream.clone();
    let last = *frames.last().expect("a chunk");
    changed[last + 50] ^= 1;
    let error = import_into(&mut session, &changed).expect_err("damaged");
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("chunk 3"), "{error}");
    let imported = import_into(&mut session, &stream).expect("imported");
    assert!(imported.kept > 0 && imported.kept < imported.blocks, "{imported:?}");
    assert!(content(&mut session, BLOCKS) == expected);
    // Once more, and over something else: a volume that was used becomes the stream again, holes included.
    assert_eq!(import_into(&mut session, &stream).expect("imported").kept, imported.blocks);
    session.write(1, 20, 77).expect("written");
    session.write(1000, 2, 77).expect("written");
    session.discard(1300, 5).expect("discarded");
    import_into(&mut session, &stream).expect("imported");
    assert!(content(&mut session, BLOCKS) == expected);
    session.detach().expect("detached");
}

#[test]
fn an_import_on_a_machine_that_stops_at_any_write_can_be_done_again() {
    let from = bench_of(BLOCKS);
    let (policy, expected) = filled_volume(&from);
    let stream = export(&from, &policy);
    for (freshness, strides) in [(Freshness::Strict, 7), (Freshness::Off, 11)] {
        let mut bench = bench_of(BLOCKS);
        bench.options.freshness = freshness;
        if freshness == Freshness::Off {
            bench.environment.anchor = None;
        }
        let policy = bench.create();
        let blank = bench.image();
        let fresh = bench.environment.clone();
        let mut steps = 0;
        let mut stopped = 0;
        loop {
            steps += strides;
            // A copy of the volume as it was created, with an anchor that says so.
            let store = Arc::new(MemoryStore::new(fresh.store.blocks()).expect("memory"));
            put_back(&*store, &blank);
            let anchor = match &fresh.anchor {
                None => None,
                Some(anchor) => {
                    let copy = MemoryAnchor::new();
                    let stamp = anchor.read().now_or_never().expect("memory").unwrap().expect("claimed");
                    copy.advance(None, &stamp).now_or_never().expect("memory").expect("claimed");
                    Some(Arc::new(copy) as Arc<dyn Anchor>)
                }
            };
            bench.environment = Environment { store, anchor, ..fresh.clone() };
            let (environment, left) = bench.stopping(i64::MAX);
            let mut session = bench.attach_on(&environment, &policy).expect("attached");
            left.store(steps, Ordering::Relaxed);
            let ended = import_into(&mut session, &stream);
            drop(session);
            let mut session = bench.attach(&policy).expect("attached again");
            if ended.is_err() {
                stopped += 1;
                import_into(&mut session, &stream).expect("imported at the second try");
            }
            assert!(content(&mut session, BLOCKS) == expected, "{freshness}: stopped after {steps}");
            if ended.is_ok() {
                break;
            }
        }
        assert!(stopped > 10, "{freshness}: the machine stopped {stopped} times only");
    }
}

/// The other chunks' writes were acknowledged: they must not end with the one that cannot be read.
#[test]
fn an_import_that_cannot_read_one_block_keeps_what_it_has_and_goes_on() {
    let from = bench_of(BLOCKS);
    let (policy, expected) = filled_volume(&from);
    let stream = export(&from, &policy);
    for behind in [0, 256] {
        let mut to = bench_of(BLOCKS);
        to.attach.behind = behind;
        let unreadable = wear(&mut to);
        let policy = to.create();
        let mut session = to.attach(&policy).expect("attached");
        for block in [10, 600, 1000, 1399, 2001] {
            import_into(&mut session, &stream).expect("imported");
            for other in [10, 12, 500, 600, 1000, 1200, 1399, 1400, 1500, 2001, BLOCKS - 1] {
                session.write(other, 1, 77).expect("written");
            }
            let at = place_of(&to, &mut session, block);
            unreadable.lock().expect("not poisoned").insert(at);
            let error = import_into(&mut session, &stream).expect_err("unreadable");
            assert_eq!(error.kind(), Kind::Io, "{error}");
            assert!(session.volume.failure().is_none(), "{:?}", session.volume.failure());
            unreadable.lock().expect("not poisoned").clear();
        }
        import_into(&mut session, &stream).expect("imported");
        assert!(content(&mut session, BLOCKS) == expected);
        session.detach().expect("detached");
    }
}

/// Writes a block, and looks where its data went.
fn place_of(bench: &Bench, session: &mut Session, block: u64) -> u64 {
    session.flush().expect("flushed");
    let before = bench.image();
    session.write(block, 1, 78).expect("written");
    session.flush().expect("flushed");
    let data = Geometry::for_logical(BLOCKS, Shape::STANDARD).expect("a size").data_start();
    let changed = before.iter().zip(bench.image()).enumerate().filter(|(_, (old, new))| *old != new);
    let places: Vec<_> = changed.map(|(at, _)| at as u64).filter(|at| *at >= data).collect();
    assert_eq!(places.len(), 1, "{places:?}");
    places[0]
}
