//! What the host may do to a detached image, and what the guest sees then.

use std::sync::Arc;

use futures::FutureExt;

use crate::common::{Bench, Session, credential, options, options_at, page};
use memory::{BLOCK_SIZE, Buffer};
use store::{Completion, Operation};
use volume::format::protections::Freshness;
use volume::geometry::{Geometry, Shape};
use volume::{CheckProgress, CheckReport, Kind, Volume, attach_read_only};

fn submit(bench: &Bench, operation: Operation) -> Completion {
    let mut queue = bench.environment.store.queue(1).expect("a queue");
    queue.submit(1, operation);
    let mut ended = Vec::new();
    while ended.is_empty() {
        queue.poll(&mut ended);
    }
    ended.remove(0)
}

fn raw_read(bench: &Bench, block: u64) -> Vec<u8> {
    let buffer = Buffer::private_zeroed(1);
    let ended = submit(bench, Operation::Read { block, buffer });
    ended.buffer.expect("the buffer").private().expect("private").to_vec()
}

fn raw_write(bench: &Bench, block: u64, bytes: &[u8]) {
    let mut buffer = Buffer::private_zeroed(1);
    buffer.copy_from(0, bytes);
    submit(bench, Operation::Write { block, buffer }).result.expect("written");
}

fn image(bench: &Bench) -> Vec<Vec<u8>> {
    (0..bench.environment.store.blocks()).map(|block| raw_read(bench, block)).collect()
}

fn restore(bench: &Bench, image: &[Vec<u8>]) {
    for (block, bytes) in (0..).zip(image) {
        raw_write(bench, block, bytes);
    }
}

fn filled_bench() -> (Bench, volume::policy::Policy) {
    let bench = Bench::new(options(4096, Shape::STANDARD), 8192);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 64, 1).expect("written");
    session.write(1000, 64, 2).expect("written");
    session.detach().expect("detached");
    (bench, policy)
}

/// The places whose content differs between two images.
fn changed(before: &[Vec<u8>], after: &[Vec<u8>]) -> Vec<u64> {
    (0..).zip(before.iter().zip(after)).filter(|(_, (a, b))| a != b).map(|(block, _)| block).collect()
}

fn check(volume: &Volume) -> CheckReport {
    let mut report = CheckReport::default();
    for part in 0..3 {
        let progress = Arc::new(CheckProgress::default());
        report.merge(volume.check(part, 3, progress).expect("a queue").block().expect("checked"));
    }
    report
}

#[test]
fn a_flipped_bit_is_named_by_its_logical_block() {
    let (bench, policy) = filled_bench();
    let before = image(&bench);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(7, 1, 9).expect("written");
    session.detach().expect("detached");
    let sealed = changed(&before, &image(&bench));
    // The new place of block 7 is among those that changed; flipping each in turn finds it.
    let mut named = Vec::new();
    for place in &sealed {
        let mut bytes = raw_read(&bench, *place);
        bytes[100] ^= 4;
        raw_write(&bench, *place, &bytes);
        let volume = attach_read_only(bench.environment.clone(), policy.clone(), credential(), bench.attach)
            .expect("a queue")
            .block();
        if let Ok(volume) = volume {
            let report = check(&volume);
            if report.damaged.len() == 1 && report.damaged[0] == (7..8) {
                assert_eq!((report.damaged_blocks, report.blocks), (1, 128));
                named.push(*place);
            }
        }
        bytes[100] ^= 4;
        raw_write(&bench, *place, &bytes);
    }
    assert_eq!(named.len(), 1, "exactly one place holds block 7");
    let volume = attach_read_only(bench.environment.clone(), policy, credential(), bench.attach)
        .expect("a queue")
        .block();
    let report = check(&volume.expect("attached for reading"));
    assert_eq!(report, CheckReport { blocks: 128, ..CheckReport::default() });
}

#[test]
fn a_damaged_node_is_counted_as_one() {
    let (bench, policy) = filled_bench();
    let mut session = bench.attach(&policy).expect("attached");
    for place in 8..8192 {
        let mut bytes = raw_read(&bench, place);
        bytes[100] ^= 4;
        raw_write(&bench, place, &bytes);
    }
    assert_eq!(session.read(7, 1).map(drop).map_err(|error| error.kind()), Err(volume::Kind::Corrupt));
    let status = session.volume.status();
    assert_eq!((status.corrupt_nodes, status.corrupt_blocks), (1, 0));
}

#[test]
fn an_older_image_is_stale_and_a_copy_that_went_on_is_forked() {
    let (bench, policy) = filled_bench();
    let old = image(&bench);
    let anchor = bench.environment.anchor.clone().expect("an anchor");
    let old_stamp = anchor.read().now_or_never().expect("in memory").expect("read").expect("claimed");
    let mut session = bench.attach(&policy).expect("attached");
    for round in 0..5 {
        session.write(3, 1, 100 + round).expect("written");
        session.flush().expect("flushed");
    }
    session.detach().expect("detached");
    let current = image(&bench);
    restore(&bench, &old);
    assert_eq!(bench.attach(&policy).err().expect("refused").kind(), Kind::Stale);
    // The same old image, run against a copied anchor, and for longer: a history beside the anchored one.
    let mut other = Bench::new(options(4096, Shape::STANDARD), 8192);
    restore(&other, &old);
    other.environment.anchor = Some(Arc::new(anchor::MemoryAnchor::holding(old_stamp)));
    other.environment.random = Arc::clone(&bench.environment.random);
    let mut session = other.attach(&policy).expect("the copy runs by itself");
    for round in 0..9 {
        session.write(3, 1, 200 + round).expect("written");
        session.flush().expect("flushed");
    }
    session.detach().expect("detached");
    restore(&bench, &image(&other));
    assert_eq!(bench.attach(&policy).err().expect("refused").kind(), Kind::Forked);
    restore(&bench, &current);
    let mut session = bench.attach(&policy).expect("the current image attaches");
    assert_eq!(session.read(3, 1).expect("readable"), page(104));
}

/// As power leaves them that goes in their first write: of each copy one sector.
#[test]
fn a_header_without_key_slots_is_not_taken_for_a_wrong_key() {
    let bench = Bench::new(options_at(Freshness::Off), 16_384);
    let policy = bench.create();
    for copy in [0, 2] {
        let mut header = raw_read(&bench, copy);
        header[512..].fill(0);
        raw_write(&bench, copy, &header);
        raw_write(&bench, copy + 1, &page(0));
    }
    let error = bench.attach(&policy).err().expect("refused");
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("no key slot:"), "{error}");
}

#[test]
fn nothing_is_written_by_reading() {
    let (bench, policy) = filled_bench();
    let before = image(&bench);
    let volume = attach_read_only(bench.environment.clone(), policy, credential(), bench.attach)
        .expect("a queue")
        .block()
        .expect("attached for reading");
    let mut session = Session::reading(volume);
    assert_eq!(session.read(1063, 1).expect("readable"), page(2));
    assert_eq!(session.write(0, 1, 1).expect_err("refused").kind(), Kind::Usage);
    assert_eq!(session.discard(0, 1).expect_err("refused").kind(), Kind::Usage);
    session.flush().expect("there is nothing to flush");
    assert!(changed(&before, &image(&bench)).is_empty());
    assert_eq!(before[0].len(), BLOCK_SIZE);
}

/// Such a change stays in the journal: the session ends when it is to go into the map, and so does each one after it.
#[test]
fn a_damaged_node_that_was_written_to_ends_the_session_and_loses_nothing_else() {
    let (bench, policy) = filled_bench();
    let damage = |place| {
        let mut bytes = raw_read(&bench, place);
        bytes[100] ^= 4;
        raw_write(&bench, place, &bytes);
    };
    let is_leaf = |place: &u64| {
        damage(*place);
        let attached =
            attach_read_only(bench.environment.clone(), policy.clone(), credential(), bench.attach);
        let damaged = attached.expect("a queue").block().map(|volume| check(&volume).damaged);
        damage(*place);
        damaged.is_ok_and(|damaged| damaged.len() == 1 && damaged[0] == (0..128))
    };
    let geometry = Geometry::for_logical(4096, Shape::STANDARD).expect("a size");
    let leaf = (geometry.data_start()..geometry.physical_blocks)
        .rev()
        .find(is_leaf)
        .expect("the leaf of the first 128 blocks");
    damage(leaf);
    for round in 0..3 {
        let mut session = bench.attach(&policy).expect("attached");
        session.write(5, 1, 9).expect("written");
        session.flush().expect("durable");
        assert_eq!(session.detach().expect_err("no checkpoint").kind(), Kind::Corrupt);
        let mut session = bench.attach(&policy).expect("attached");
        assert_eq!(session.read(5, 1).expect("in the journal"), page(9), "{round}");
        assert_eq!(session.read(6, 1).expect_err("below the node").kind(), Kind::Corrupt);
        assert_eq!(session.read(1000, 1).expect("elsewhere"), page(2));
    }
    damage(leaf);
    let mut session = bench.attach(&policy).expect("attached");
    assert_eq!(session.read(6, 1).expect("the node is there again"), page(1));
    session.detach().expect("with a checkpoint");
}
