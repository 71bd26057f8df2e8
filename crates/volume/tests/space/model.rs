//! The models of `docs/semantics.md`, sections "Write amplification" and "Space", against what a volume really writes and keeps.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "expected numbers of nodes, far below 2^52"
)]

use std::fmt::Write;

use crate::common::dice::Dice;
use crate::common::{Bench, Session, filled, options};
use volume::format::ad::Tree;
use volume::format::protections::Freshness;
use volume::format::record::blocks_for;
use volume::geometry::{Geometry, Shape};
use volume::{AttachOptions, CreateOptions, Request, Status};

/// Nodes of one level, of `nodes`, that `changes` random changes touch.
fn touched(nodes: u64, changes: u64) -> f64 {
    let (nodes, changes) = (nodes as f64, changes as f64);
    nodes * (1.0 - (1.0 - 1.0 / nodes).powf(changes))
}

/// Nodes of a tree that `changes` random changes touch, all levels together, when they fall into its first `part`.
fn touched_tree(geometry: &Geometry, tree: Tree, changes: u64, part: f64) -> f64 {
    (0..geometry.levels(tree)).map(|level| touched(first(geometry.nodes(tree, level), part), changes)).sum()
}

/// So many of `nodes` belong to the first `part` of what they cover.
fn first(nodes: u64, part: f64) -> u64 {
    (nodes as f64 * part).ceil() as u64
}

/// Nodes of a tree that a stretch of `items` items from the first on touches, all levels together.
fn stretch(geometry: &Geometry, tree: Tree, items: u64) -> f64 {
    let leaf_bits = if tree == Tree::Bitmap { geometry.bitmap_bits } else { geometry.fan_out_bits };
    let mut nodes = items.div_ceil(1 << leaf_bits);
    let mut sum = nodes;
    for _ in 1..geometry.levels(tree) {
        nodes = nodes.div_ceil(1 << geometry.fan_out_bits);
        sum += nodes;
    }
    sum as f64
}

/// Nodes that a checkpoint writes after `changes` random overwrites in the first `part` of a volume of which that is mapped: the map's, and the
/// bitmap's for the places that became free (of data and nodes, anywhere among them) and for those that were taken (one behind the other).
fn checkpoint_nodes(geometry: &Geometry, changes: u64, part: f64) -> (f64, f64) {
    let map = touched_tree(geometry, Tree::Map, changes, part);
    let places = changes + map as u64;
    let leaves = geometry.nodes(Tree::Bitmap, 0) as f64;
    let taken = (places as f64 / f64::from(1u32 << geometry.bitmap_bits)).min(leaves);
    let mut bitmap = 0.0;
    for level in 0..geometry.levels(Tree::Bitmap) {
        let nodes = first(geometry.nodes(Tree::Bitmap, level), part);
        let freed = touched(nodes, places);
        // The stretch of taken places is mostly among nodes that are touched anyway.
        bitmap += (freed + taken.min(nodes as f64) * (1.0 - freed / nodes as f64)).min(nodes as f64);
    }
    (map, bitmap)
}

/// Overwrites after which a checkpoint begins by itself, with so many bytes of memory.
fn overwrites_for_a_checkpoint(geometry: &Geometry, memory: u64) -> u64 {
    geometry.pinned_limit().min(memory / 896)
}

fn bench(blocks: u64, shape: Shape, freshness: Freshness) -> (Bench, Geometry) {
    let geometry = Geometry::for_logical(blocks, shape).expect("a size");
    let mut bench =
        Bench::new(CreateOptions { freshness, ..options(blocks, shape) }, geometry.physical_blocks);
    bench.attach.memory = 64 << 20;
    (bench, geometry)
}

/// A volume that is written from end to end, and checkpointed.
fn full(bench: &Bench, geometry: &Geometry) -> Session {
    mapped(bench, geometry.logical_blocks)
}

/// A volume whose first blocks are written, and checkpointed.
fn mapped(bench: &Bench, blocks: u64) -> Session {
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for block in (0..blocks).step_by(16) {
        session.write(block, 16, 1).expect("written");
    }
    come_to_rest(&mut session);
    session
}

/// A checkpoint that is under way may satisfy the request for one without holding everything; the second does.
fn come_to_rest(session: &mut Session) {
    session.settle();
    session.checkpoint();
    session.checkpoint();
}

/// Writes in commits of `batch`, then one checkpoint; what was counted meanwhile.
fn round(session: &mut Session, blocks: &[u64], batch: usize) -> (Status, Status) {
    let before = session.volume.status();
    for batch in blocks.chunks(batch) {
        for block in batch {
            session.write(*block, 1, 2).expect("written");
        }
        session.flush().expect("flushed");
    }
    session.checkpoint();
    let after = session.volume.status();
    assert_eq!(after.checkpoints, before.checkpoints + 1, "{} changes are one checkpoint", blocks.len());
    (before, after)
}

/// Metadata of a round without the journal, which is one block for each commit here, and without the superblock.
fn nodes_of(before: &Status, after: &Status) -> f64 {
    (after.metadata_blocks - before.metadata_blocks - (after.commits - before.commits) - 1) as f64
}

#[test]
fn random_overwrites_write_the_nodes_that_the_model_says() {
    let cases = [
        (16_384, Shape::STANDARD, 200),
        (65_536, Shape::STANDARD, 900),
        (1_024, Shape::TINY, 50),
        (4_096, Shape::TINY, 60),
    ];
    for (blocks, shape, changes) in cases {
        let (bench, geometry) = bench(blocks, shape, Freshness::Strict);
        let mut session = full(&bench, &geometry);
        let mut dice = Dice(7);
        let mut measured = 0.0;
        let rounds = 4;
        for _ in 0..rounds {
            let list: Vec<u64> = (0..changes).map(|_| dice.below(blocks)).collect();
            let (before, after) = round(&mut session, &list, 10);
            assert_eq!(after.written_blocks - before.written_blocks, changes);
            assert!(after.commits - before.commits >= changes / 10);
            measured += nodes_of(&before, &after) / f64::from(rounds);
        }
        let (map, bitmap) = checkpoint_nodes(&geometry, changes, 1.0);
        let ratio = measured / (map + bitmap);
        // In the tiny shape most of what becomes free are nodes, and those stand together where the last checkpoint put them.
        let tolerance = if shape == Shape::TINY { 0.2 } else { 0.05 };
        assert!(
            (ratio - 1.0).abs() < tolerance,
            "{blocks} blocks: {measured} nodes, the model says {map} + {bitmap}"
        );
    }
}

#[test]
fn what_is_not_mapped_costs_no_nodes() {
    let (blocks, changes, rounds) = (65_536u64, 400, 4);
    let mut all = Vec::new();
    for part in [0.25, 0.5, 0.8, 0.95] {
        let (bench, geometry) = bench(blocks, Shape::STANDARD, Freshness::Strict);
        let end = (blocks as f64 * part) as u64 / 128 * 128;
        let mut session = mapped(&bench, end);
        let mut dice = Dice(5);
        let mut measured = 0.0;
        for _ in 0..rounds {
            let list: Vec<u64> = (0..changes).map(|_| dice.below(end)).collect();
            let (before, after) = round(&mut session, &list, 10);
            measured += nodes_of(&before, &after) / f64::from(rounds);
        }
        let (map, bitmap) = checkpoint_nodes(&geometry, changes, part);
        let ratio = measured / (map + bitmap);
        assert!((ratio - 1.0).abs() < 0.05, "{part}: {measured} nodes, the model says {map} + {bitmap}");
        all.push(measured);
    }
    assert!(all.is_sorted() && all[3] > 1.5 * all[0], "what is mapped makes no difference: {all:?}");
}

/// Nobody asks for a checkpoint here: when one begins, what the whole costs, and how much waits in memory meanwhile.
#[test]
fn random_overwrites_that_nobody_interrupts_cost_what_the_model_says() {
    let cases = [(4_096u64, 64u64 << 20), (16_384, 64 << 20), (65_536, 64 << 20), (65_536, 1 << 20)];
    for (blocks, memory) in cases {
        for freshness in [Freshness::Strict, Freshness::Interval, Freshness::Off] {
            let (mut bench, geometry) = bench(blocks, Shape::STANDARD, freshness);
            bench.attach.memory = memory;
            let mut session = full(&bench, &geometry);
            let mut dice = Dice(11);
            let mut most = 0;
            let before = session.volume.status();
            let each = overwrites_for_a_checkpoint(&geometry, memory);
            for _ in 0..12 * each / 16 {
                let requests: Vec<_> = (0..16)
                    .map(|_| Request::Write { block: dice.below(blocks), data: filled(1, 6), fua: false })
                    .collect();
                session.run(requests).into_iter().for_each(|ended| ended.result.expect("overwritten"));
                most = most.max(session.volume.status().overlay_changes);
            }
            let after = session.volume.status();
            let case = format!("{blocks} blocks with {memory} bytes of memory, {freshness:?}");
            let (written, checkpoints) =
                (after.written_blocks - before.written_blocks, after.checkpoints - before.checkpoints);
            let measured = written as f64 / checkpoints as f64;
            assert!(
                (measured / each as f64 - 1.0).abs() < 0.15,
                "{case}: {measured} overwrites for a checkpoint, the model says {each}"
            );
            let (map, bitmap) = checkpoint_nodes(&geometry, each, 1.0);
            let model = (map + bitmap + 1.0) / each as f64 + 1.0 / 99.0;
            let measured = (after.metadata_blocks - before.metadata_blocks) as f64 / written as f64;
            assert!(
                (measured / model - 1.0).abs() < 0.15,
                "{case}: {measured} metadata blocks for a block, the model says {model}"
            );
            let limit = (memory / 448).clamp(16, 2 * geometry.pinned_limit()) + 16;
            assert!(
                (each / 2..=limit).contains(&most),
                "{case}: {most} changes in memory, at most {limit} may be"
            );
        }
    }
}

#[test]
fn sequential_overwrites_write_each_leaf_once() {
    for (blocks, changes) in [(16_384u64, 192u64), (65_536, 896)] {
        let (bench, geometry) = bench(blocks, Shape::STANDARD, Freshness::Strict);
        let mut session = full(&bench, &geometry);
        let mut measured = 0.0;
        let rounds = 5;
        for number in 0..=rounds {
            let list: Vec<u64> = (number * 1024..number * 1024 + changes).collect();
            let (before, after) = round(&mut session, &list, 64);
            // The first one finishes what filling the volume left over.
            if number > 0 {
                measured += nodes_of(&before, &after) / rounds as f64;
            }
        }
        let map = stretch(&geometry, Tree::Map, changes);
        // All of a small bitmap, at most: what is freed and what is taken are two stretches.
        let least = map + f64::from(geometry.bitmap_levels());
        let most = map + geometry.bitmap_nodes() as f64;
        assert!(
            (least - 0.5..=most + 0.5).contains(&measured),
            "{measured} nodes, the model says {least} to {most}"
        );
    }
}

#[test]
fn the_journal_takes_the_blocks_that_its_items_need() {
    let (bench, geometry) = bench(65_536, Shape::STANDARD, Freshness::Strict);
    let mut session = full(&bench, &geometry);
    let mut dice = Dice(9);
    for batch in [1, 50, 99, 100, 250] {
        let commits = if batch < 50 { 12 } else { 3 };
        let before = session.volume.status();
        for _ in 0..commits {
            let requests: Vec<_> = (0..batch)
                .map(|_| Request::Write { block: dice.below(65_536), data: filled(1, 3), fua: false })
                .collect();
            session.run(requests).into_iter().for_each(|ended| ended.result.expect("written"));
            session.flush().expect("flushed");
        }
        let after = session.volume.status();
        let journal = after.metadata_blocks - before.metadata_blocks;
        let model = commits * u64::from(blocks_for(batch));
        assert_eq!(after.checkpoints, before.checkpoints, "the round writes nothing but the journal");
        session.checkpoint();
        // A reservation is a commit of its own; a record that meets the end of its segment is two.
        let extra =
            (after.commits - before.commits - commits) + model / u64::from(geometry.segment_blocks) + 1;
        assert!(
            (model..=model + extra).contains(&journal),
            "{batch} items: {journal} blocks, the model says {model}"
        );
    }
}

/// One item for each block, and from 64 blocks on one in all.
#[test]
fn the_journal_takes_a_long_discard_as_one_item() {
    let (bench, geometry) = bench(65_536, Shape::STANDARD, Freshness::Strict);
    let mut session = full(&bench, &geometry);
    let mut at = 0;
    for (discards, length, items) in [(1, 1, 1), (1, 63, 63), (2, 63, 126), (1, 64, 1), (120, 70, 120)] {
        let before = session.volume.status();
        for _ in 0..discards {
            session.discard(at, length).expect("discarded");
            at += length + 1;
        }
        session.flush().expect("flushed");
        let after = session.volume.status();
        let journal = after.metadata_blocks - before.metadata_blocks;
        assert_eq!(after.checkpoints, before.checkpoints, "the round writes nothing but the journal");
        assert_eq!(
            journal,
            u64::from(blocks_for(items)),
            "{discards} discards of {length} blocks are {items} items"
        );
        session.checkpoint();
    }
}

#[test]
fn at_rest_the_volume_occupies_what_the_model_says() {
    for (blocks, shape) in [(4_096, Shape::STANDARD), (16_384, Shape::STANDARD), (1_024, Shape::TINY)] {
        let (bench, geometry) = bench(blocks, shape, Freshness::Strict);
        let mut session = full(&bench, &geometry);
        let mut dice = Dice(3);
        for _ in 0..2 * blocks {
            session.write(dice.below(blocks), 1, 5).expect("overwritten");
        }
        come_to_rest(&mut session);
        let Session { volume, queue, .. } = session;
        // A queue holds blocks that it took ahead.
        drop(queue);
        let status = volume.status();
        let salts = u64::from(geometry.salt_levels());
        assert_eq!((status.pinned_blocks, status.overlay_changes), (0, 0), "at rest");
        assert_eq!(
            geometry.data_blocks() - status.free_blocks,
            blocks + geometry.map_nodes() + salts,
            "data, map and salt table of {blocks} blocks"
        );
    }
}

#[test]
fn random_overwrites_of_a_full_volume_keep_to_the_limits() {
    let sizes =
        [(4_096, Shape::STANDARD), (16_384, Shape::STANDARD), (1_024, Shape::TINY), (4_096, Shape::TINY)];
    for (blocks, shape) in sizes {
        for freshness in [Freshness::Strict, Freshness::Interval, Freshness::Off] {
            keeps_to_the_limits(blocks, shape, freshness);
        }
    }
}

fn keeps_to_the_limits(blocks: u64, shape: Shape, freshness: Freshness) {
    let (bench, geometry) = bench(blocks, shape, freshness);
    let mut session = full(&bench, &geometry);
    let mut dice = Dice(11);
    let (mut most_pinned, mut least_free) = (0, u64::MAX);
    for step in 0..2 * blocks / 16 {
        let requests: Vec<_> = (0..16)
            .map(|_| Request::Write { block: dice.below(blocks), data: filled(1, 6), fua: step % 7 == 0 })
            .collect();
        session.run(requests).into_iter().for_each(|ended| ended.result.expect("overwritten"));
        let status = session.volume.status();
        most_pinned = most_pinned.max(status.pinned_blocks);
        least_free = least_free.min(status.free_blocks);
    }
    // Both generations of the overlay, and the nodes that a checkpoint made superfluous.
    let salts = u64::from(geometry.salt_levels());
    let pinned_limit = 2 * geometry.pinned_limit() + geometry.map_nodes() + salts;
    let node_reserve = geometry.map_nodes() + 8;
    assert!(most_pinned > 0, "nothing was ever pinned");
    assert!(most_pinned <= pinned_limit, "{most_pinned} pinned, at most {pinned_limit} may be");
    // Writes leave the nodes' reserve alone; the checkpoint that is under way may have taken all but the last of it.
    assert!(least_free > 0, "nothing was free");
    come_to_rest(&mut session);
    let at_rest = session.volume.status().free_blocks;
    assert!(at_rest >= node_reserve, "{at_rest} free, the nodes' reserve is {node_reserve}");
}

/// The document's tables: metadata blocks for each block that is overwritten at random, and one after the other; and how what is mapped counts.
fn tables() -> [String; 2] {
    let sizes = [("16 MiB", 1u64 << 12), ("1 GiB", 1 << 18), ("1 TiB", 1 << 28), ("64 TiB", 1 << 34)];
    let parts = [0.1, 0.25, 0.5, 0.8, 0.95, 1.0];
    let mut nodes = String::from(
        "| logical size | overwrites for each checkpoint | map, random | bitmap, random | map, sequential |\n| --- | ---: | ---: | ---: | ---: |\n",
    );
    let mut fills = String::from(
        "| logical size | 10 % mapped | 25 % | 50 % | 80 % | 95 % | 100 % |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (name, blocks) in sizes {
        let geometry = Geometry::for_logical(blocks, Shape::STANDARD).expect("a size");
        let changes = overwrites_for_a_checkpoint(&geometry, AttachOptions::default().memory);
        let (map, bitmap) = checkpoint_nodes(&geometry, changes, 1.0);
        let per = |nodes: f64| nodes / changes as f64;
        let sequential = per(stretch(&geometry, Tree::Map, changes));
        writeln!(nodes, "| {name} | {changes} | {:.3} | {:.3} | {sequential:.3} |", per(map), per(bitmap))
            .expect("text");
        let cells = parts.map(|part| {
            let (map, bitmap) = checkpoint_nodes(&geometry, changes, part);
            format!("{:.3}", per(map + bitmap))
        });
        writeln!(fills, "| {name} | {} |", cells.join(" | ")).expect("text");
    }
    [nodes, fills]
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test reads a document")]
fn the_document_has_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/semantics.md");
    let document = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    for table in tables() {
        assert!(document.contains(&table), "put this into the document:\n{table}");
    }
}
