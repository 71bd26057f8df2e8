//! The smallest and the largest volume there may be, from creation to check.
//!
//! Tests in a binary of their own: one looks at the memory of the whole process, so they run one after the other.

mod common;

use std::sync::Arc;

use common::{Bench, credential, options};
use volume::format::protections::Provision;
use volume::geometry::{Geometry, Shape};
use volume::{CheckProgress, Kind, create};

const MIB: u64 = 1 << 8;
const TIB: u64 = 1 << 28;

fn bench(logical: u64, provision: Provision) -> (Bench, Geometry) {
    let full = Geometry::for_logical(logical, Shape::STANDARD).expect("a size that is allowed");
    let mut options = options(logical, Shape::STANDARD);
    options.provision = provision;
    (Bench::new(options, full.physical_blocks), full)
}

/// Writes a few blocks all over a volume, and reads them in this session, in the next, and by a check.
fn lives(bench: &Bench, logical: u64) {
    let policy = bench.create();
    let places: Vec<u64> = (0..8).map(|part| logical / 8 * part).chain([logical - 1]).collect();
    let mut session = bench.attach(&policy).expect("attached");
    assert_eq!(session.volume.blocks(), logical);
    for (block, fill) in places.iter().zip(1..) {
        session.write(*block, 1, fill).expect("written");
    }
    assert!(session.write(logical, 1, 1).is_err(), "there is no such block");
    session.checkpoint();
    session.detach().expect("detached");
    let mut session = bench.attach(&policy).expect("attached again");
    for (block, fill) in places.iter().zip(1..) {
        assert_eq!(session.read(*block, 1).expect("read"), vec![fill; 4096], "block {block}");
    }
    assert_eq!(session.read(1, 1).expect("read"), vec![0; 4096], "never written");
    let progress = Arc::new(CheckProgress::default());
    let report = session.volume.check(0, 1, progress).expect("a queue").block().expect("checked");
    assert_eq!((report.blocks, report.damaged_blocks), (places.len() as u64, 0), "{report:?}");
    session.detach().expect("detached");
}

#[expect(clippy::disallowed_methods, reason = "what Linux counts of this process")]
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux tells");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
}

#[test]
fn the_smallest_and_the_largest_volume_live() {
    for provision in [Provision::Full, Provision::Thin] {
        let (small, _) = bench(16 * MIB, provision);
        lives(&small, 16 * MIB);
        let before = peak();
        let (large, geometry) = bench(64 * TIB, provision);
        assert_eq!(geometry.logical_blocks, 64 * TIB);
        lives(&large, 64 * TIB);
        // Of the store itself little was touched, but that in huge pages.
        eprintln!("{provision}: {} MiB for 64 TiB, the store's pages among them", (peak() - before) >> 20);
    }
}

#[test]
fn beyond_the_limits_nothing_is_created() {
    for logical in [16 * MIB - 1, 64 * TIB + 1] {
        assert!(Geometry::for_logical(logical, Shape::STANDARD).is_err(), "{logical} blocks");
        let bench = Bench::new(options(logical, Shape::STANDARD), 65 * TIB);
        let refused =
            create(bench.environment.clone(), bench.options.clone(), credential(), Box::new(|_| Ok(())))
                .expect("a queue")
                .block();
        assert_eq!(refused.err().map(|error| error.kind()), Some(Kind::Usage), "{logical} blocks");
    }
}
