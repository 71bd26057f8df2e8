//! Which blocks hold something.

use crate::common::{Bench, Session, options};
use volume::geometry::Shape;
use volume::{Extent, Kind, Request};

fn extents(session: &mut Session, block: u64, blocks: u64) -> Vec<(u64, bool)> {
    let completion = session.one(Request::Allocation { block, blocks });
    completion.result.expect("looked up");
    completion.extents.into_iter().map(|Extent { blocks, allocated }| (blocks, allocated)).collect()
}

#[test]
fn what_was_written_is_allocated_until_it_is_discarded() {
    let bench = Bench::new(options(4096, Shape::STANDARD), 16384);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    assert_eq!(extents(&mut session, 0, 4096), [(4096, false)]);
    session.write(10, 20, 1).expect("written");
    session.write(1000, 300, 2).expect("written");
    session.discard(15, 5).expect("discarded");
    let whole = [(10, false), (5, true), (5, false), (10, true), (970, false), (300, true), (2796, false)];
    assert_eq!(extents(&mut session, 0, 4096), whole, "in memory");
    session.checkpoint();
    assert_eq!(extents(&mut session, 0, 4096), whole, "in the map");
    session.discard(1000, 300).expect("discarded");
    assert_eq!(extents(&mut session, 12, 1290), [(3, true), (5, false), (10, true), (1272, false)]);
    assert_eq!(extents(&mut session, 4095, 1), [(1, false)]);
    assert_eq!(extents(&mut session, 0, 0), []);
    let outside = session.one(Request::Allocation { block: 4095, blocks: 2 });
    assert_eq!(outside.result.expect_err("outside").kind(), Kind::Usage);
    session.detach().expect("detached");
}

#[test]
fn looking_reads_no_data() {
    let bench = Bench::new(options(4096, Shape::STANDARD), 16384);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 200, 7).expect("written");
    session.checkpoint();
    let before = session.volume.status();
    assert_eq!(extents(&mut session, 0, 4096), [(200, true), (3896, false)]);
    assert_eq!(session.volume.status().read_blocks, before.read_blocks);
    session.detach().expect("detached");
}
