//! The cache of data blocks: what it saves, and what it must not hide.

use std::collections::HashMap;
use std::sync::Arc;

use crate::common::medium::{put, put_back};
use crate::common::rekeying::{BLOCKS, Case, reseal};
use crate::common::{Bench, Session, options, page, pattern};
use memory::BLOCK_SIZE;
use proptest::prelude::*;
use volume::format::protections::{Freshness, SuiteCode};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{AttachOptions, CheckProgress, CreateOptions, Kind};

const STORE_BLOCKS: u64 = 8192;

/// With a cache of about so many blocks. A tiny volume's store has no block more than it must, so that places are used again soon.
fn bench(options: CreateOptions, blocks: u64) -> Bench {
    let few = options.logical_blocks.filter(|_| options.shape == Shape::TINY);
    let store_blocks = few.map(|blocks| Geometry::for_logical(blocks, Shape::TINY).unwrap().physical_blocks);
    let mut bench = Bench::new(options, store_blocks.unwrap_or(STORE_BLOCKS));
    bench.attach = AttachOptions { block_cache: blocks * (BLOCK_SIZE as u64 + 32), ..bench.attach };
    bench
}

/// The same, created and attached, with a cache of 64 blocks.
fn begun() -> (Bench, Policy, Session) {
    let bench = bench(options(4096, Shape::STANDARD), 64);
    let policy = bench.create();
    let session = bench.attach(&policy).unwrap();
    (bench, policy, session)
}

/// The host wipes all but the headers and superblocks.
fn wipe(bench: &Bench) {
    let zeros = vec![0; 64 * BLOCK_SIZE];
    (64..STORE_BLOCKS).step_by(64).for_each(|block| put(&*bench.environment.store, block, &zeros));
}

/// The kind of the error of reading each block, if there is one.
fn failures(session: &mut Session, blocks: std::ops::Range<u64>) -> Vec<Option<Kind>> {
    blocks.map(|block| session.read(block, 1).err().map(|error| error.kind())).collect()
}

#[test]
fn what_was_written_is_read_without_the_store() {
    let (bench, _, mut session) = begun();
    session.write_each(0..32, 1);
    wipe(&bench);
    session.check_each(0..32, 1);
    let status = session.volume.status();
    assert_eq!((status.block_cache_hits, status.block_cache_misses, status.corrupt_blocks), (32, 0, 0));
    assert_eq!(status.block_cache_bytes, 32 * BLOCK_SIZE as u64);
}

#[test]
fn what_was_read_is_read_again_without_the_store_also_by_who_only_reads() {
    let (bench, policy, mut session) = begun();
    session.write_each(0..32, 1);
    session.detach().unwrap();
    for attach in [Bench::attach_reading, Bench::attach] {
        let image = bench.image();
        let mut session = attach(&bench, &policy).unwrap();
        session.check_each(0..32, 1);
        wipe(&bench);
        session.check_each(0..32, 1);
        assert_eq!(
            (session.volume.status().block_cache_hits, session.volume.status().block_cache_misses),
            (32, 32)
        );
        drop(session);
        put_back(&*bench.environment.store, &image);
    }
}

#[test]
fn a_request_of_which_only_a_part_is_held_gets_the_rest_from_the_store() {
    let (bench, policy, mut session) = begun();
    session.write_each((0..40).filter(|block| block % 7 != 3), 1);
    session.detach().unwrap();
    let mut session = bench.attach(&policy).unwrap();
    session.check_each([2, 5, 6, 11, 39], 1);
    let found = session.read(0, 41).unwrap();
    for (block, page) in (0..).zip(found.chunks(BLOCK_SIZE)) {
        let fill = if block % 7 == 3 || block == 40 { 0 } else { pattern(block, 1) };
        assert!(page.iter().all(|byte| *byte == fill), "block {block}");
    }
    assert_eq!(session.volume.status().block_cache_hits, 5);
}

#[test]
fn a_check_looks_at_the_store_and_what_is_not_held_is_found_out() {
    let (bench, _, mut session) = begun();
    session.write_each(0..200, 1);
    session.checkpoint();
    wipe(&bench);
    let failed = failures(&mut session, 0..200);
    let held = failed.iter().filter(|failure| failure.is_none()).count();
    assert!((32..=64).contains(&held), "{held} of 64 or fewer are held");
    assert!(failed.iter().flatten().all(|kind| *kind == Kind::Corrupt));
    let check = session.volume.check(0, 1, Arc::new(CheckProgress::default())).unwrap().block().unwrap();
    assert_eq!(check.damaged_blocks, 200, "also those that can be read from memory: {check:?}");
}

#[test]
fn what_a_change_of_key_moves_is_not_taken_for_what_was_at_its_new_place() {
    let unsure = CreateOptions {
        suite: SuiteCode::Aes256Xts,
        integrity: false,
        freshness: Freshness::Off,
        ..options(BLOCKS, Shape::TINY)
    };
    let mut case = Case::written(unsure, 0..BLOCKS);
    case.begin();
    case.bench.attach.block_cache = 1 << 28;
    let mut session = case.attach();
    session.check_each(0..BLOCKS, 0);
    // Their places become free, and the cache still has what was there.
    session.write_each((0..BLOCKS).filter(|block| block % 2 == 0), 1);
    session.checkpoint();
    let report = reseal(&mut session);
    assert!(report.ended && report.resealed == BLOCKS / 2, "{report:?}");
    session.check_each((0..BLOCKS).filter(|block| block % 2 == 1), 0);
    session.check_each((0..BLOCKS).filter(|block| block % 2 == 0), 1);
}

/// What is done to a block.
#[derive(Debug, Clone, Copy)]
enum Act {
    Write,
    Read,
    Discard,
    Checkpoint,
}

fn acts() -> impl Strategy<Value = Vec<(Act, u64)>> {
    let act = prop_oneof![
        20 => Just(Act::Write),
        20 => Just(Act::Read),
        2 => Just(Act::Discard),
        1 => Just(Act::Checkpoint),
    ];
    prop::collection::vec((act, 0..256_u64), 2000)
}

/// Does all of it, and compares what is read.
fn live(options: CreateOptions, acts: &[(Act, u64)]) {
    let name = format!("{} {} {}", options.suite, options.confidentiality, options.integrity);
    let bench = bench(options, 100);
    let policy = bench.create();
    let mut session = bench.attach(&policy).unwrap();
    let mut content = HashMap::new();
    for (round, (act, block)) in (0..).zip(acts.iter().copied()) {
        match act {
            Act::Write => {
                session.write(block, 1, pattern(block, round)).unwrap();
                content.insert(block, pattern(block, round));
            }
            Act::Discard => {
                session.discard(block, 1).unwrap();
                content.remove(&block);
            }
            Act::Checkpoint => session.checkpoint(),
            Act::Read => {
                let fill = content.get(&block).copied().unwrap_or(0);
                assert!(session.read(block, 1).unwrap() == page(fill), "{name}: block {block}");
            }
        }
    }
    let status = session.volume.status();
    assert!(status.block_cache_hits > 100 && status.block_cache_misses > 100, "{name}: {status:?}");
    assert!(status.checkpoints > 10 && status.block_cache_bytes <= 100 * BLOCK_SIZE as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// Places are used again many times.
    #[test]
    fn whatever_is_overwritten_and_discarded_the_latest_content_is_read(acts in acts()) {
        let few = CreateOptions { freshness: Freshness::Off, ..options(256, Shape::TINY) };
        live(CreateOptions { freshness: Freshness::Strict, ..few.clone() }, &acts);
        live(CreateOptions { suite: SuiteCode::Aes256Xts, integrity: false, ..few.clone() }, &acts);
        live(CreateOptions { confidentiality: false, integrity: false, ..few }, &acts);
    }
}
