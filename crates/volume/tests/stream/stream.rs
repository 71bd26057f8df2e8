//! Streams: exported with all that a volume holds, cut anywhere, and gone on with.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;

use crate::common::medium::{image, put};
use crate::common::streaming::{
    BLOCKS, begin, bench_of, content, export, filled_volume, frames, import_into, open_all, reading, resume,
    small_stream, tail,
};
use crate::common::{Bench, options, page};
use memory::BLOCK_SIZE;
use proptest::prelude::*;
use volume::Kind;
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::format::stream::{CHUNK_BLOCKS, FRAME_SIZE, SALT_SIZE, START};
use volume::geometry::Shape;

#[test]
fn what_was_exported_is_imported_with_its_holes_under_every_suite_and_level() {
    let suites = [
        (SuiteCode::Aes256Gcm, true, true),
        (SuiteCode::Aegis128x2, true, true),
        (SuiteCode::Aegis256x2, true, true),
        (SuiteCode::Aes256Xts, true, false),
        (SuiteCode::Aes256Gcm, false, true),
        (SuiteCode::Aegis128x2, false, false),
    ];
    let levels = [
        Freshness::Strict,
        Freshness::Write,
        Freshness::Transaction,
        Freshness::Off,
        Freshness::Interval,
        Freshness::Off,
    ];
    let from = bench_of(BLOCKS);
    let (policy, expected) = filled_volume(&from);
    assert!(expected.0.len() > 2 * CHUNK_BLOCKS, "the volume has few holes");
    let mut stream = export(&from, &policy);
    for ((suite, confidentiality, integrity), freshness) in suites.into_iter().zip(levels) {
        let options = volume::CreateOptions {
            suite,
            confidentiality,
            integrity,
            freshness,
            provision: Provision::Thin,
            ..options(BLOCKS, Shape::STANDARD)
        };
        let to = Bench::new(options, from.environment.store.blocks());
        let policy = to.create();
        let mut session = to.attach(&policy).expect("attached");
        let imported = import_into(&mut session, &stream).expect("imported");
        assert_eq!(imported.kept, 0, "{suite}");
        assert!(content(&mut session, BLOCKS) == expected, "{suite} {freshness}: another content");
        session.detach().expect("detached");
        // From here on to the next: each suite is exported, too.
        stream = export(&to, &policy);
        let mut session = to.attach(&policy).expect("attached");
        assert!(content(&mut session, BLOCKS) == expected, "{suite} {freshness}: not durable");
        session.detach().expect("detached");
    }
}

#[test]
fn an_export_that_was_cut_anywhere_goes_on() {
    let bench = bench_of(BLOCKS);
    let (policy, _) = filled_volume(&bench);
    let stream = export(&bench, &policy);
    let whole = open_all(&stream, 9).expect("whole");
    assert!(whole.len() >= 4);
    let mut places: Vec<usize> = (START..stream.len()).step_by(200_003).collect();
    for frame in frames(&stream) {
        places.extend(frame..frame + 3);
        places.push(frame + FRAME_SIZE + SALT_SIZE);
    }
    for length in places {
        let again = resume(&bench, &policy, &stream[..length]);
        assert!(open_all(&again, 9).expect("whole") == whole, "cut at {length}");
        // And cut again, in the leg that was added, before and behind its salt.
        let added = again.len() - (again.len() - length.min(again.len())) / 2;
        let third = resume(&bench, &policy, &again[..added]);
        assert!(open_all(&third, 9).expect("whole") == whole, "cut at {length}, then at {added}");
    }
    // What was damaged is replaced, with all that follows.
    let mut damaged = stream.clone();
    damaged[frames(&stream)[3] + 100] ^= 1;
    let found = tail(&damaged).expect("a beginning");
    assert!(found.damage.is_some_and(|error| error.to_string().contains("chunk 2")));
    assert!(open_all(&resume(&bench, &policy, &damaged), 9).expect("whole") == whole);
    let complete = tail(&stream).expect("whole");
    assert!(complete.complete && complete.bytes == stream.len() as u64 && complete.damage.is_none());
}

#[test]
fn no_key_and_nonce_are_used_twice_when_an_export_goes_on() {
    let (bench, policy, stream) = small_stream();
    // Cut within the last chunk: the host has kept what was written of it.
    let again = resume(&bench, &policy, &stream[..stream.len() - 10]);
    let salts = |stream: &[u8]| -> Vec<Vec<u8>> {
        let legs = frames(stream).into_iter().filter(|at| stream[*at] == 1);
        legs.map(|at| stream[at + FRAME_SIZE..at + FRAME_SIZE + SALT_SIZE].to_vec()).collect()
    };
    let (before, after) = (salts(&stream), salts(&again));
    assert_eq!((before.len(), after.len()), (1, 2));
    assert!(after[0] == before[0] && after[1] != before[0]);
    let last_chunk = |stream: &[u8]| stream[*frames(stream).last().expect("a chunk")..].to_vec();
    assert!(
        last_chunk(&again).len() == last_chunk(&stream).len() && last_chunk(&again) != last_chunk(&stream)
    );
}

#[test]
fn a_stream_goes_on_for_its_volume_in_its_state_only() {
    let (bench, policy, stream) = small_stream();
    let cut = tail(&stream[..stream.len() - 1]).expect("a beginning");
    let other = bench_of(BLOCKS);
    // Its randomness begins as the first one's did; behind a draw it makes another volume.
    other.environment.random.fill(&mut [0; 16]);
    let other_policy = other.create();
    let volume = reading(&other, &other_policy).expect("attached");
    assert_eq!(volume.check_continues(&cut).expect_err("another volume").kind(), Kind::Usage);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(1, 1, 1).expect("written");
    let error = reading(&bench, &policy).err().expect("a session is writing");
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    session.detach().expect("detached");
    let volume = reading(&bench, &policy).expect("attached");
    let error = volume.check_continues(&cut).expect_err("another state");
    assert!(error.kind() == Kind::Usage && error.to_string().contains("begin a new one"), "{error}");
    let session = bench.attach(&policy).expect("attached");
    let writer = begin(&session.volume, &bench, Vec::new());
    assert_eq!(session.volume.export(writer, Arc::default()).err().expect("it writes").kind(), Kind::Usage);
}

/// Bytes that can be looked at while somebody writes them.
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn damaged_blocks_are_named_and_the_stream_has_no_end() {
    let bench = bench_of(BLOCKS);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(600, 8, 1).expect("written");
    session.detach().expect("detached");
    let before = image(&*bench.environment.store);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(700, 2, 2).expect("written");
    session.detach().expect("detached");
    let after = image(&*bench.environment.store);
    // The two blocks are among those that changed; journal and nodes have changed too, so what is tried is what still attaches.
    let mut found = None;
    for (block, _) in before.iter().zip(&after).enumerate().filter(|(_, (before, after))| before != after) {
        let mut damaged = after[block].clone();
        damaged[7] ^= 1;
        put(&*bench.environment.store, block as u64, &damaged);
        if let Ok(volume) = reading(&bench, &policy) {
            let out = Rc::new(RefCell::new(Vec::new()));
            let writer = begin(&volume, &bench, Shared(Rc::clone(&out)));
            let ended = volume.export(writer, Arc::default()).expect("a queue").block();
            if let Err(error) = ended {
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                assert_eq!(open_all(&out.borrow(), 9).expect_err("no end").kind(), Kind::Io);
                if let [logical] = error.blocks() {
                    assert!(error.to_string().contains(&format!("logical blocks {logical} are not")));
                    found = Some(*logical);
                }
            }
        }
        put(&*bench.environment.store, block as u64, &after[block]);
    }
    assert!(found.is_some_and(|logical| (700..702).contains(&logical)), "{found:?}");
}

#[test]
fn the_stream_of_a_sparse_volume_is_as_long_as_its_data() {
    let logical = 1 << 24;
    let options = volume::CreateOptions { provision: Provision::Thin, ..options(logical, Shape::STANDARD) };
    let bench = Bench::new(options, 1 << 15);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for part in 0..8 {
        session.write((part << 21) + 100, 2, 3).expect("written");
    }
    session.detach().expect("detached");
    let stream = export(&bench, &policy);
    let frame = FRAME_SIZE + 24 + 8 * 16 + 16;
    assert_eq!(stream.len(), START + FRAME_SIZE + SALT_SIZE + frame + 16 * BLOCK_SIZE);
    let chunks = open_all(&stream, 9).expect("whole");
    assert!(chunks.len() == 1 && chunks[0].0 == (0..logical) && chunks[0].1 == page(3).repeat(16));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_content_goes_through(writes in prop::collection::vec((0..BLOCKS - 300, 1..300usize, 1..255u8, any::<bool>()), 1..40)) {
        let from = bench_of(BLOCKS);
        let policy = from.create();
        let mut session = from.attach(&policy).expect("attached");
        for (block, blocks, fill, discard) in writes {
            if discard {
                session.discard(block, blocks as u64).expect("discarded");
            } else {
                session.write(block, blocks, fill).expect("written");
            }
        }
        let expected = content(&mut session, BLOCKS);
        session.detach().expect("detached");
        let stream = export(&from, &policy);
        let to = bench_of(BLOCKS);
        let policy = to.create();
        let mut session = to.attach(&policy).expect("attached");
        import_into(&mut session, &stream).expect("imported");
        prop_assert!(content(&mut session, BLOCKS) == expected);
    }
}
