//! SQLite by its own shell, with the settings that it comes with: a rollback journal, and a sync at each commit.

use std::fmt::Write;
use std::fs;

use super::script::{FORGET, Script, program};
use super::{Place, Sizes, command, duration, rate};
use crate::error::{Context, Result};
use crate::program::run;
use crate::session::Measured;

/// One in so many operations of the mix is an update.
const UPDATES: u32 = 10;

fn script(place: &Place<'_>, name: &str, sql: &str) -> Result<std::time::Duration> {
    let path = place.path(name);
    fs::write(&path, sql).doing(path.display())?;
    let mut sqlite = command("sqlite3");
    sqlite.arg("-bail").arg(place.path("db")).arg(format!(".read {}", path.display()));
    let ended = run(&mut sqlite, place.interrupt)?.must_succeed(&sqlite)?;
    Ok(ended.took)
}

/// The table that rows are inserted into.
const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value REAL);";

/// Inserts, each a transaction of its own. Source: AMD report, section 4.
pub fn insert(place: &Place<'_>) -> Result<Measured> {
    script(place, "create.sql", TABLE)?;
    script(place, "insert.sql", &inserts(place.sizes.inserts)).map(duration)
}

fn inserts(rows: u32) -> String {
    let mut sql = String::new();
    for row in 0..rows {
        let _ = writeln!(sql, "INSERT INTO t VALUES ({row}, 'a row of the table, number {row}', {row}.5);");
    }
    sql
}

/// A program for awk that writes the same: a guest makes its statements itself, since there may be more of them than a script can hold.
fn inserts_awk(rows: u32) -> String {
    format!(
        r#"BEGIN {{ for (row = 0; row < {rows}; row++) printf "INSERT INTO t VALUES (%d, \047a row of the table, number %d\047, %d.5);\n", row, row, row }}"#
    )
}

/// [`insert`] in a guest.
pub fn insert_script(sizes: &Sizes) -> Script {
    let (sqlite, awk) = (program("sqlite3"), inserts_awk(sizes.inserts));
    Script {
        before: format!("{sqlite} -bail $d/db '{TABLE}'\nawk '{awk}' >$d/insert.sql\n"),
        timed: format!("{sqlite} -bail $d/db \".read $d/insert.sql\"\n"),
    }
}

/// Reads by key and updates, on a table with a hundred rows for each insert of the other task.
pub fn mix(place: &Place<'_>) -> Result<Measured> {
    let operations = place.sizes.inserts;
    script(place, "fill.sql", &fill(operations))?;
    place.forget(&place.path("db"))?;
    Ok(rate(f64::from(operations), script(place, "mix.sql", &statements(operations))?))
}

fn rows(operations: u32) -> u32 {
    operations.saturating_mul(100)
}

fn fill(operations: u32) -> String {
    let rows = rows(operations);
    format!(
        "CREATE TABLE t (key INTEGER PRIMARY KEY, value BLOB);\n\
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows})\n\
         INSERT INTO t SELECT i, zeroblob(100) FROM n;"
    )
}

/// Keys come from the "minimal standard" generator (Park and Miller, 1988): awk, whose numbers are floating, computes it without rounding.
const FACTOR: u64 = 16_807;
const MODULUS: u64 = (1 << 31) - 1;

fn statements(operations: u32) -> String {
    let (rows, mut random) = (u64::from(rows(operations)).max(1), 1);
    let mut sql = String::new();
    for operation in 0..operations {
        random = random * FACTOR % MODULUS;
        let key = random % rows;
        let _ = match operation % UPDATES {
            0 => writeln!(sql, "UPDATE t SET value = randomblob(100) WHERE key = {key};"),
            _ => writeln!(sql, "SELECT length(value) FROM t WHERE key = {key};"),
        };
    }
    sql
}

/// A program for awk that writes the same.
fn statements_awk(operations: u32) -> String {
    let rows = rows(operations).max(1);
    format!(
        r#"BEGIN {{ x = 1; for (i = 0; i < {operations}; i++) {{ x = x * {FACTOR} % {MODULUS}; key = x % {rows}; if (i % {UPDATES} == 0) printf "UPDATE t SET value = randomblob(100) WHERE key = %d;\n", key; else printf "SELECT length(value) FROM t WHERE key = %d;\n", key }} }}"#
    )
}

/// [`mix`] in a guest.
pub fn mix_script(sizes: &Sizes) -> Script {
    let (sqlite, operations) = (program("sqlite3"), sizes.inserts);
    let (fill, awk) = (fill(operations), statements_awk(operations));
    Script {
        before: format!("{sqlite} -bail $d/db '{fill}'\n{FORGET}awk '{awk}' >$d/mix.sql\n"),
        timed: format!("{sqlite} -bail $d/db \".read $d/mix.sql\" >/dev/null\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What awk prints, by busybox where it is installed, as in guests.
    fn awk(text: &str) -> String {
        let mut command = match crate::program::find("busybox") {
            Some(path) => Command::new(path),
            None => Command::new("env"),
        };
        let output = command.arg("awk").arg(text).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_guest_makes_the_same_statements() {
        assert_eq!(awk(&inserts_awk(40)), inserts(40));
        for operations in [1, 500, 30_000_000 / 1000] {
            assert_eq!(awk(&statements_awk(operations)), statements(operations));
        }
        let text = statements(1000);
        assert_eq!((text.matches("UPDATE").count(), text.lines().count()), (100, 1000));
    }
}
