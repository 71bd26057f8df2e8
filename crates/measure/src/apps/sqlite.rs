//! SQLite by its own shell, with the settings that it comes with: a rollback journal, and a sync at each commit.

use std::fmt::Write;
use std::fs;

use super::{Place, command, duration, rate};
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

/// Inserts, each a transaction of its own. Source: AMD report, section 4.
pub fn insert(place: &Place<'_>) -> Result<Measured> {
    script(place, "create.sql", "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value REAL);")?;
    let mut sql = String::new();
    for row in 0..place.sizes.inserts {
        let _ = writeln!(sql, "INSERT INTO t VALUES ({row}, 'a row of the table, number {row}', {row}.5);");
    }
    script(place, "insert.sql", &sql).map(duration)
}

/// Reads by key and updates, on a table with a hundred rows for each insert of the other task.
pub fn mix(place: &Place<'_>) -> Result<Measured> {
    let operations = place.sizes.inserts;
    let rows = operations.saturating_mul(100);
    let fill = format!(
        "CREATE TABLE t (key INTEGER PRIMARY KEY, value BLOB);\n\
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows})\n\
         INSERT INTO t SELECT i, zeroblob(100) FROM n;"
    );
    script(place, "fill.sql", &fill)?;
    place.forget(&place.path("db"))?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut sql = String::new();
    for operation in 0..operations {
        let key = random.u32(..rows);
        let _ = match operation % UPDATES {
            0 => writeln!(sql, "UPDATE t SET value = randomblob(100) WHERE key = {key};"),
            _ => writeln!(sql, "SELECT length(value) FROM t WHERE key = {key};"),
        };
    }
    Ok(rate(f64::from(operations), script(place, "mix.sql", &sql)?))
}
