//! RocksDB by a small program of ours, which is compiled where Debian's library is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::script::Script;
use super::{Place, Sizes, command};
use crate::error::{Context, Error, Result};
use crate::ledger;
use crate::program::output;
use crate::session::Measured;
use cli::interrupt::Interrupt;

const SOURCE: &str = include_str!("../../rocksdb/ycsb.c");
/// The header of Debian's package librocksdb-dev.
const HEADER: &str = "/usr/include/rocksdb/c.h";

/// Why it cannot be measured here.
pub fn missing() -> Option<String> {
    let there = Path::new(HEADER).exists();
    (!there).then(|| "Rocksdb: its library is not installed; it is in Debian's package librocksdb-dev".into())
}

/// The program, compiled.
pub struct Program {
    directory: ledger::Place,
}

impl Program {
    /// Compiles it.
    ///
    /// # Errors
    /// When the compiler is missing or fails.
    pub fn compile(interrupt: &Interrupt) -> Result<Self> {
        let directory = ledger::Place::temporary("cvmio-bench-rocksdb-")?;
        let source = directory.path().join("ycsb.c");
        fs::write(&source, SOURCE).doing(source.display())?;
        let program = Self { directory };
        let mut compile = command("cc");
        compile.args(["-O2", "-o"]).arg(program.path()).arg(&source).args(["-lrocksdb", "-lm"]);
        output(&mut compile, interrupt)?;
        Ok(program)
    }

    /// The compiled file.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("ycsb")
    }

    /// One of the six mixes of the in-memory paper, figure 5, `a` to `f`.
    ///
    /// # Errors
    /// When it fails.
    pub fn mix(&self, place: &Place<'_>, mix: &str) -> Result<Measured> {
        let mut run = Command::new(self.path());
        run.arg(place.path("db")).arg(mix);
        run.args([place.sizes.records.to_string(), place.sizes.operations.to_string()]);
        figures(&output(&mut run, place.interrupt)?)
    }
}

/// The name of the program in guests.
pub const NAME: &str = "cvmio-ycsb";

/// A mix in a guest; the program takes the time by itself, without what it loads.
pub fn script(mix: &str, sizes: &Sizes) -> Script {
    let (records, operations) = (sizes.records, sizes.operations);
    Script { before: String::new(), timed: format!("/usr/bin/{NAME} $d/db {mix} {records} {operations}\n") }
}

/// Reads what the program prints.
pub fn figures(said: &str) -> Result<Measured> {
    let wrong =
        || Error::io(format!("the program for RocksDB says nothing that can be read: {}", said.trim()));
    let numbers: Vec<f64> = said
        .split_whitespace()
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| wrong())?;
    let [seconds, operations, times @ ..] = numbers.as_slice() else { return Err(wrong()) };
    let names = ["read-ns", "update-ns", "insert-ns"];
    let figures: BTreeMap<String, f64> = names
        .iter()
        .zip(times)
        .filter(|(_, time)| **time > 0.0)
        .map(|(name, time)| ((*name).to_string(), *time))
        .chain([("seconds".to_string(), *seconds)])
        .collect();
    Ok(Measured { value: operations / seconds, figures, course: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_says_is_read() {
        let measured = figures("2.0 1000 4000 0 9000\n").unwrap();
        assert!((measured.value - 500.0).abs() < 1e-9 && !measured.figures.contains_key("update-ns"));
        assert!((measured.figures["insert-ns"] - 9000.0).abs() < 1e-9);
        assert!(figures("").is_err() && figures("ycsb: open: failed").is_err());
    }
}
