//! What was measured, for people.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// One line: a subject on a CPU. `None` was not measured.
#[derive(Default)]
pub struct Row {
    /// Bytes read back while sealing.
    pub read_again: Option<usize>,
    /// Bytes fetched twice while opening.
    pub fetched_twice: Option<usize>,
    /// Forged, of how many.
    pub seals: Option<(u64, u64)>,
    pub opens: Option<(u64, u64)>,
}

static ROWS: Mutex<BTreeMap<(String, usize, String), Row>> = Mutex::new(BTreeMap::new());

/// Enters what was measured of `subject` on the CPU of that name and rank.
pub fn enter(subject: &str, (rank, cpu): (usize, &str), enter: impl FnOnce(&mut Row)) {
    let mut rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    enter(rows.entry((subject.to_owned(), rank, cpu.to_owned())).or_default());
}

pub fn print() {
    let rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    if rows.is_empty() {
        return;
    }
    let bytes = |count: Option<usize>| count.map_or("-".to_owned(), |count| format!("{count} B"));
    let forged = |tally: Option<(u64, u64)>| tally.map_or("-".to_owned(), |(n, of)| format!("{n} of {of}"));
    println!(
        "| implementation | CPU | sealing reads back | opening fetches twice | forged seals | forged opens |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for ((subject, _, cpu), row) in rows.iter() {
        println!(
            "| {subject} | {cpu} | {} | {} | {} | {} |",
            bytes(row.read_again),
            bytes(row.fetched_twice),
            forged(row.seals),
            forged(row.opens)
        );
    }
    println!();
}
