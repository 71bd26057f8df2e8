//! Prints the table of `docs/semantics.md`, section "Sizes": what fully provisioned volumes consist of.

use std::fmt::Write as _;

use volume::format::BLOCK_SIZE;
use volume::geometry::{Geometry, Shape};

type Row = (&'static str, fn(&Geometry) -> String);

const ROWS: &[Row] = &[
    ("`P`, physical size", |g| bytes(g.physical_blocks)),
    ("more than the logical size by", |g| share(g.physical_blocks - g.logical_blocks, g.logical_blocks)),
    ("journal", |g| bytes(g.bitmap_start() - g.journal_start())),
    ("segments", |g| format!("{} of {}", g.segments, bytes(g.segment_blocks.into()))),
    ("bitmap, four places each node", |g| bytes(g.data_start() - g.bitmap_start())),
    ("`D`, data and map nodes", |g| bytes(g.data_blocks())),
    ("units", |g| format!("{} of {}", g.units(), bytes(g.unit_blocks.into()))),
    ("levels of map / bitmap", |g| format!("{} / {}", g.map_levels(), g.bitmap_levels())),
    ("map without an absent entry", |g| bytes(g.map_nodes())),
    ("pinned, at most", |g| bytes(g.pinned_limit())),
    ("reserved ahead by a session", |g| bytes(g.reserve_target())),
    ("kept for salts", |g| bytes(g.salt_reserve())),
];

/// The table, one column for each size.
pub fn table() -> String {
    let sizes: [u64; 4] = [1 << 12, 1 << 18, 1 << 28, 1 << 34];
    let geometries =
        sizes.map(|blocks| Geometry::for_logical(blocks, Shape::STANDARD).expect("within the limits"));
    let mut table = String::new();
    let mut line = |name: &str, cell: &dyn Fn(&Geometry) -> String| {
        let cells: Vec<String> = geometries.iter().map(cell).collect();
        let _ = writeln!(table, "| {name} | {} |", cells.join(" | "));
    };
    line("`L`, logical size", &|geometry| bytes(geometry.logical_blocks));
    line("---", &|_| "---:".into());
    for (name, cell) in ROWS {
        line(name, cell);
    }
    table
}

/// A number of blocks in bytes: whole in the largest unit that divides it, else with a tenth, and at least eight
/// of its unit, so that the rounding does not hide what differs.
fn bytes(blocks: u64) -> String {
    let bytes = u128::from(blocks) * BLOCK_SIZE as u128;
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = |bits: u32| bytes.is_multiple_of(1 << bits) || bytes >> bits >= 8;
    let (unit, bits) = units.into_iter().find(|&(_, bits)| fits(bits)).unwrap_or(("KiB", 10));
    let tenths = (bytes * 10 + (1 << (bits - 1))) >> bits;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {unit}"),
        (whole, tenth) => format!("{whole}.{tenth} {unit}"),
    }
}

fn share(part: u64, whole: u64) -> String {
    let tenths = (part * 1000 + whole / 2) / whole;
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[allow(dead_code, reason = "the test that compares the table with the document has no use for it")]
fn main() {
    print!("{}", table());
}
