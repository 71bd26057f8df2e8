//! Attaching for reading: one state, by anybody, beside whomever; and nothing is written.

use std::sync::Arc;

use crate::common::medium::image;
use crate::common::{Bench, Session, credential, options, page};
use anchor::{MemoryAnchor, Stamp};
use futures::FutureExt;
use volume::format::protections::Freshness;
use volume::geometry::Shape;
use volume::policy::Policy;
use volume::{
    AttachOptions, CreateOptions, Environment, Kind, Reading, Remedy, Request, Result, attach_read_only,
};

const STORE: u64 = 5400;
const BLOCKS: u64 = 64;

fn created(freshness: Freshness) -> (Bench, Policy) {
    let bench = Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, STORE);
    let policy = bench.create();
    (bench, policy)
}

fn stamp(bench: &Bench) -> Option<Stamp> {
    let anchor = bench.environment.anchor.as_ref()?;
    anchor.read().now_or_never().expect("in memory").expect("readable")
}

fn read(bench: &Bench, policy: &Policy, reading: Reading) -> Result<Session> {
    let options = AttachOptions { reading, ..bench.attach };
    let job = attach_read_only(bench.environment.clone(), policy.clone(), credential(), options)?;
    Ok(Session::reading(job.block()?))
}

fn fill(session: &mut Session, fill: u8) {
    for block in 0..BLOCKS {
        session.write(block, 1, fill).expect("written");
    }
    session.one(Request::Commit).result.expect("committed");
}

#[test]
fn a_pinned_reader_sees_what_the_anchor_vouches_for_and_nothing_behind_it() {
    let (bench, policy) = created(Freshness::Interval);
    let mut session = bench.attach(&policy).expect("attached");
    fill(&mut session, 1);
    session.write(0, 1, 2).expect("written");
    session.flush().expect("durable, and not anchored yet");
    drop(session);
    let first = |reading| read(&bench, &policy, reading)?.read(0, 1);
    assert_eq!(first(Reading::Latest).expect("readable"), page(2));
    assert_eq!(first(Reading::PinnedBesideWriter).expect("readable"), page(1));
    let refused = first(Reading::Pinned).expect_err("somebody may be writing");
    assert!(refused.kind() == Kind::Usage && refused.remedy() == Some(Remedy::Force), "{refused}");
    bench.attach(&policy).expect("attached").detach().expect("detached");
    assert_eq!(first(Reading::Pinned).expect("released"), page(2));
    // Without an anchor there is nothing to pin to, and nobody knows of a writer.
    let (bench, policy) = created(Freshness::Off);
    let mut session = bench.attach(&policy).expect("attached");
    fill(&mut session, 3);
    assert_eq!(
        read(&bench, &policy, Reading::Pinned).expect("attached").read(0, 1).expect("readable"),
        page(3)
    );
}

#[test]
fn many_read_at_once_and_neither_store_nor_anchor_changes() {
    for freshness in [Freshness::Strict, Freshness::Transaction, Freshness::Off] {
        let (bench, policy) = created(freshness);
        let mut session = bench.attach(&policy).expect("attached");
        fill(&mut session, 7);
        session.detach().expect("detached");
        let before = (image(&*bench.environment.store), stamp(&bench));
        let mut readers: Vec<Session> =
            (0..3).map(|_| read(&bench, &policy, Reading::Pinned).expect("attached")).collect();
        for reader in &mut readers {
            assert_eq!(reader.read(BLOCKS - 1, 1).expect("readable"), page(7));
            assert_eq!(reader.write(0, 1, 1).expect_err("refused").kind(), Kind::Usage);
            assert_eq!(reader.discard(0, 1).expect_err("refused").kind(), Kind::Usage);
            assert_eq!(reader.one(Request::Commit).result.expect_err("refused").kind(), Kind::Usage);
            reader.flush().expect("there is nothing to flush");
            assert!(reader.volume.status().read_only);
        }
        readers.into_iter().for_each(|reader| reader.detach().expect("detached"));
        assert!(
            (image(&*bench.environment.store), stamp(&bench)) == before,
            "{freshness}: something was written"
        );
    }
}

#[test]
fn a_reader_beside_a_writer_reads_what_was_there_or_corrupt() {
    for freshness in [Freshness::Strict, Freshness::Interval, Freshness::Transaction] {
        let (bench, policy) = created(freshness);
        let mut writer = bench.attach(&policy).expect("attached");
        fill(&mut writer, 1);
        writer.detach().expect("detached");
        // A session leaves alone where its immediate predecessor wrote; for the next one these are blocks like any other.
        bench.attach(&policy).expect("attached").detach().expect("detached");
        let mut reader = read(&bench, &policy, Reading::Pinned).expect("attached");
        let mut writer = bench.attach(&policy).expect("attached beside the reader");
        let (mut old, mut corrupt) = (0, 0);
        for round in 0..100u8 {
            fill(&mut writer, 100 + round % 100);
            for block in 0..BLOCKS {
                match reader.read(block, 1) {
                    Ok(bytes) => {
                        assert_eq!(bytes, page(1), "{freshness}: block {block} in round {round}");
                        old += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                        corrupt += 1;
                    }
                }
            }
            if old > 0 && corrupt > BLOCKS {
                break;
            }
            // More than the blocks that are read: what was given up is used again, sooner or later.
            for block in (1024..4096).step_by(128) {
                writer.write(block, 128, 99).expect("written");
                writer.one(Request::Commit).result.expect("committed");
            }
            if round % 4 == 3 {
                writer.volume.checkpoint_soon();
                writer.settle();
            }
        }
        assert!(old > 0 && corrupt > 0, "{freshness}: {old} read as they were, {corrupt} were gone");
        // The writer is none the worse for it.
        writer.one(Request::Commit).result.expect("committed");
        writer.detach().expect("detached");
        bench.attach(&policy).expect("attached").detach().expect("detached");
    }
}

#[test]
fn an_older_stamp_pins_an_older_state_or_is_refused() {
    let (mut bench, policy) = created(Freshness::Strict);
    let mut writer = bench.attach(&policy).expect("attached");
    fill(&mut writer, 1);
    let older = stamp(&bench).expect("claimed");
    fill(&mut writer, 2);
    let newer = stamp(&bench).expect("claimed");
    drop(writer);
    for (held, content) in [(older, 1), (newer, 2)] {
        bench.environment =
            Environment { anchor: Some(Arc::new(MemoryAnchor::holding(held))), ..bench.environment };
        let mut reader = read(&bench, &policy, Reading::PinnedBesideWriter).expect("attached");
        assert_eq!(reader.read(0, 1).expect("readable"), page(content));
    }
}
